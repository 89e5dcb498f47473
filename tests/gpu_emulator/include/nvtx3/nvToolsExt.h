// Stands in for CUDA's header of this name.
#pragma once

inline int nvtxRangePushA(const char*) {
  return 0;
}
inline int nvtxRangePop() {
  return 0;
}

// The instruction of backends/cuda/tile/prefetch.cuh, which has no effect but on time.
#pragma once

namespace tg::cuda::ptx {

inline void prefetch_to_second_level(const void*) {}

}  // namespace tg::cuda::ptx

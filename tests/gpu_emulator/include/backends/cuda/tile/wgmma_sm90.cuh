// Implements the instructions in backends/cuda/tile/wgmma_sm90.cuh in plain C++, for sums of any width.
#pragma once

#include "backends/cuda/tile/ptx_sm90.cuh"
#include "tests/gpu_emulator/wgmma.h"

namespace tg::cuda::ptx {

using u64 = std::uint64_t;

inline void wgmma_fence() {
  emulator::fence_registers();
}
inline void wgmma_commit() {
  emulator::commit_products();
}
template <int Pending>
void wgmma_wait() {
  emulator::wait_for_products(Pending);
}

template <class S>
float number_of(std::uint16_t bits) {
  return number(u32{bits}, S());
}

template <class S, int N>
struct Wgmma {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256);
  template <bool ta, bool tb>
  static void begin(float (&d)[N / 8][4], u64 a, u64 b) {
    emulator::issue_product({number_of<S>, N, false, false, ta, tb, a, b}, d[0], nullptr);
  }
  template <bool ta, bool tb>
  static void add(float (&d)[N / 8][4], u64 a, u64 b) {
    emulator::issue_product({number_of<S>, N, true, false, ta, tb, a, b}, d[0], nullptr);
  }
  template <bool tb>
  static void begin(float (&d)[N / 8][4], const u32 (&a)[4], u64 b) {
    emulator::issue_product({number_of<S>, N, false, true, false, tb, 0, b}, d[0], a);
  }
  template <bool tb>
  static void add(float (&d)[N / 8][4], const u32 (&a)[4], u64 b) {
    emulator::issue_product({number_of<S>, N, true, true, false, tb, 0, b}, d[0], a);
  }
};

}  // namespace tg::cuda::ptx

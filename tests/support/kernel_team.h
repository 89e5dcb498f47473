// Runs a kernel function on a pool of threads. Scratch memory has exactly the requested size and is filled
// with NaN patterns.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/pool.h"

namespace tg::cpu {

struct AlignedBytes {
  explicit AlignedBytes(std::size_t bytes)
      : data(
            static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64 + (bytes == 0 ? 64 : 0)))) {
    std::memset(data, 0xff, bytes);
  }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  ~AlignedBytes() { std::free(data); }
  std::byte* const data;
};

template <class F>
void run_team(int threads, Scratch size, F&& kernel) {
  struct Step final : Job {
    Step(int threads, Scratch size, F& kernel) : kernel(kernel), shared(size.shared) {
      for (int t = 0; t < threads; ++t) own.push_back(std::make_unique<AlignedBytes>(size.per_thread));
    }
    int next(int) override { return std::exchange(stage, end); }
    void share(Worker& w, int) override {
      w.scratch = own[static_cast<std::size_t>(w.thread())]->data;
      w.shared = shared.data;
      kernel(w);
    }
    F& kernel;
    AlignedBytes shared;
    std::vector<std::unique_ptr<AlignedBytes>> own;
    int stage = 0;
  } step(threads, size, kernel);
  run_on_pool(threads, step);
}

// Returns whether this machine supports the kernels of an instruction set.
inline bool machine_has(const char* isa) {
#if defined(__x86_64__)
  if (std::strcmp(isa, "avx2") == 0) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (std::strcmp(isa, "avx512") == 0)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return std::strcmp(isa, "baseline") == 0;
}

}  // namespace tg::cpu

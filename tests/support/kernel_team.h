// Runs a kernel function as a team of threads outside the pool, with scratch memory of exactly the size that
// it requested, filled with NaN patterns.
#pragma once

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/worker.h"

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
void run_team(int threads, ScratchSize size, F&& kernel) {
  Team team(threads);
  AlignedBytes shared(size.shared);
  std::vector<std::thread> others;
  const auto enter = [&](int t) {
    AlignedBytes own(size.thread);
    Worker worker(team, t);
    worker.scratch = own.data;
    worker.shared = shared.data;
    kernel(worker);
  };
  for (int t = 1; t < threads; ++t) others.emplace_back(enter, t);
  enter(0);
  for (auto& t : others) t.join();
}

// Whether this machine runs the kernels of an instruction set.
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

// Measures the machine's peak rates with tight loops. Rows are reported relative to them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/pool.h"
#include "tools/bench/settings.h"

namespace tg::bench {

struct Machine {
  std::string model;  // name of the processor or GPU, from the system
  int cores = 0;      // number of cores that this process may use
  std::string isa;    // the selected kernel set, on the CPU
  // Peak rates in GFLOP/s:
  // - CPU: multiply-adds in registers, on all threads together. For bf16, AMX tiles are measured if matmul
  //   uses them. Otherwise f32 multiply-adds and, if the CPU has it, the pairwise dot product are measured,
  //   and the faster rate counts.
  // - GPU: a large GEMM by tilegrad. `tf32` determines whether f32 operands are rounded.
  double peak_f32 = 0, peak_f64 = 0, peak_bf16 = 0;
  std::string peak_name;
  double copy = 0;  // GB/s of a copy from memory to memory: bytes read plus bytes written

  // The GPU's GEMM rate for the dtype, in GFLOP/s. Assumes that f16 is as fast as bf16.
  double product_peak(DType dtype) const {
    return dtype == f64 ? peak_f64 : dtype == f32 ? peak_f32 : peak_bf16;
  }
};

// Measures the CPU on `settings.threads` threads, for `settings.seconds` per rate, or a GPU by programs on
// its backend.
Machine measure_machine(const Settings& settings);

// The current rate of multiply-adds. It varies with the clock rate, especially on virtual machines.
double peak_now(DType dtype, int threads);

// Calls f(thread) on all threads simultaneously.
template <class F>
void on_all(int threads, F f) {
  cpu::run_on_pool(
      threads, [](void* p, int t) { (*static_cast<F*>(p))(t); }, &f);
}

// Measures the rate at which threads read memory without doing anything else.
class Reading {
 public:
  // Uses `settings.threads` threads and `settings.copy_bytes` bytes, which is larger than the caches.
  explicit Reading(const Settings& settings);
  double gbytes();  // rate of one pass over all bytes, in GB/s

 private:
  std::size_t threads_, part_;         // bytes per thread
  std::shared_ptr<std::byte> memory_;  // [threads, part]
  std::vector<std::int64_t> sinks_;    // results of each thread, so that the reads are not optimized away
};

}  // namespace tg::bench

// The machine's peak rates, measured by tight loops. Rows are shares of them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/pool.h"
#include "tools/bench/settings.h"

namespace tg::bench {

struct Machine {
  std::string model;  // of the processor or GPU, as the system names it
  int cores = 0;      // that this process may use
  std::string isa;    // the kernel set in use, on the CPU
  // GFLOP/s. CPU: multiply-adds on registers, all threads together; for bf16 on AMX tiles if matmul uses
  // them, else the faster of multiply-adds in f32 and the dot product of pairs, if there is one. GPU: a large
  // product by this library; `tf32` determines whether f32 is rounded.
  double peak_f32 = 0, peak_f64 = 0, peak_bf16 = 0;
  std::string peak_name;
  double copy = 0;  // memory to memory, bytes read plus bytes written, GB/s

  // A GPU's rate of products of that dtype, GFLOP/s; f16 is multiplied as fast as bf16.
  double product_peak(DType dtype) const {
    return dtype == f64 ? peak_f64 : dtype == f32 ? peak_f32 : peak_bf16;
  }
};

// The CPU on `settings.threads` threads, each rate for `settings.seconds`; a GPU by programs of its own
// backend.
Machine measure_machine(const Settings& settings);

// The current rate of multiply-adds: clock rates vary, most of all on virtual machines.
double peak_now(DType dtype, int threads);

// Calls f(thread) on every thread at once.
template <class F>
void on_all(int threads, F f) {
  cpu::run_on_pool(
      threads, [](void* p, int t) { (*static_cast<F*>(p))(t); }, &f);
}

// The rate at which threads read memory and do nothing else.
class Reading {
 public:
  // On `settings.threads` threads, of `settings.copy_bytes`: more than caches hold.
  explicit Reading(const Settings& settings);
  double gbytes();  // GB/s, of one pass over all of it

 private:
  std::size_t threads_, part_;         // bytes of a thread
  std::shared_ptr<std::byte> memory_;  // [threads, part]
  std::vector<std::int64_t> sinks_;    // what each thread has read, so that it must
};

}  // namespace tg::bench

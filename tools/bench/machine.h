// What the machine can do, measured by tight loops of our own: the rates every row is a share of.
#pragma once

#include <string>

#include "tools/bench/measure.h"

namespace tg::bench {

struct Machine {
  std::string model;  // of the processor, as the system names it
  int cores = 0;      // that this process may use
  std::string isa;    // the kernel set in use
  // Multiply-adds on registers, all threads together, GFLOP/s; bf16 is the dot product of pairs into f32, 0
  // where the processor has none.
  double fma_f32 = 0, fma_f64 = 0, dot_bf16 = 0;
  double copy = 0;  // memory to memory, bytes read plus bytes written, GB/s

  // The peak for a matrix product on elements of this type; some processors convert bf16 and multiply in f32
  // faster.
  double peak(DType t) const {
    return t == f64 ? fma_f64 : t == bf16 ? std::max(fma_f32, dot_bf16) : fma_f32;
  }
};

// On `settings.threads` threads, each rate for `settings.seconds`.
Machine measure_machine(const Settings& settings);

// Keeps the process on the first `threads` processors it may use, so that one thread stays on one core.
void pin(int threads);

}  // namespace tg::bench

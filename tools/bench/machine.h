// What the machine can do, measured by tight loops of our own: the rates every row is a share of.
#pragma once

#include <string>

#include "tools/bench/measure.h"

namespace tg::bench {

struct Machine {
  std::string model;  // of the processor or GPU, as the system names it
  int cores = 0;      // that this process may use
  std::string isa;    // the kernel set in use, on the CPU
  // GFLOP/s. CPU: multiply-adds on registers, all threads together; for bf16 on AMX tiles where matmul uses
  // them, else the faster of multiply-adds in f32 and the dot product of pairs, where there is one. GPU: a
  // large product by this library, f32 as `tf32` says.
  double peak_f32 = 0, peak_f64 = 0, peak_bf16 = 0;
  std::string peak_name;
  double copy = 0;  // memory to memory, bytes read plus bytes written, GB/s
};

// On `settings.threads` threads, each rate for `settings.seconds`.
Machine measure_machine(const Settings& settings);

// The rate of multiply-adds just now: clock rates move, most of all on virtual machines.
double peak_now(DType dtype, int threads);

// A GPU's rates, by programs of its own backend. In gpu.cpp.
Machine measure_gpu(const Settings& settings);

// The seconds of time_of_run, and the highest peak met between runs: what the run is a share of, at the clock
// rate it had.
struct Timing {
  double seconds, peak;  // GFLOP/s
};
Timing run_and_peak(Program& program, DType dtype, int threads, const Settings& settings,
                    const Machine& machine);

// Keeps the process on the first `threads` processors it may use, so that one thread stays on one core.
void pin(int threads);

}  // namespace tg::bench

// What `bench` can measure, one function a mode, each in the file of its name. Everything runs through the
// public API (graph, compile, run), so that the figures are those a user gets.
#pragma once

#include "tools/bench/machine.h"

namespace tg::bench {

void run_gemm(const Settings& settings, const Machine& machine, Report& report);
void run_ops(const Settings& settings, const Machine& machine, Report& report);
void run_overhead(const Settings& settings, const Machine& machine, Report& report);

// The rate of this library's own 1024×1024×1024 f32 product on settings.threads threads.
double sgemm_gflops(const Settings& settings);

}  // namespace tg::bench

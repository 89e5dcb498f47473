// What `bench` can measure, one function a mode, each in the file of its name. Everything runs through the
// public API (graph, compile, run), so that the figures are those a user gets.
#pragma once

#include "tools/bench/machine.h"

namespace tg::bench {

void run_overhead(const Settings& settings, const Machine& machine, Report& report);

}  // namespace tg::bench

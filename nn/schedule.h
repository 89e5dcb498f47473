// Learning-rate schedules: the rate of step t = 0, 1, …, computed on the host and fed to the program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace tg {

// Linear warm-up to `peak` over the first `warmup` steps, then half a cosine down to `floor` at step `steps`.
struct CosineSchedule {
  double peak = 1e-3, floor = 1e-4;
  std::int64_t warmup = 100, steps = 2000;

  double operator()(std::int64_t t) const {
    if (t < warmup) return peak * static_cast<double>(t + 1) / static_cast<double>(warmup + 1);
    if (t >= steps) return floor;
    const double part = static_cast<double>(t - warmup) / static_cast<double>(steps - warmup);
    return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * part));
  }
};

}  // namespace tg

// Learning-rate schedules: the rate of step t = 0, 1, …, computed on the host and fed to the program.
#pragma once

#include <cstdint>
#include <string_view>

namespace tg::optim {

struct Schedule {
  enum class Kind {
    cosine,               // half a cosine from peak to floor
    linear,               // a straight line from peak to floor
    constant,             // peak
    warmup_stable_decay,  // peak, and at the end a straight line to floor
  };
  // "cosine", "linear", "constant", "wsd". Throws Error for other names.
  static Kind named(std::string_view name);

  double peak = 1e-3, floor = 1e-4;
  std::int64_t warmup = 100, steps = 2000;  // a falling rate reaches floor at step `steps`
  Kind kind = Kind::cosine;
  double decay = 0.2;  // the share of all steps in which warmup_stable_decay falls

  // Throws Error that names the option out of its range. Rates are at least 0 and finite in f32, numbers of
  // steps at least 0, and decay is from 0 to 1.
  void check() const;
  // Before step `warmup`, a straight line up to peak. Throws as check() does, and for a negative step.
  double operator()(std::int64_t t) const;
};

}  // namespace tg::optim

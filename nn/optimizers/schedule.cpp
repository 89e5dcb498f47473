#include <tilegrad/nn/optimizers/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include <tilegrad/core/base/range.h>

namespace tg::optim {

Schedule::Kind Schedule::named(std::string_view name) {
  if (name == "cosine") return Kind::cosine;
  if (name == "linear") return Kind::linear;
  if (name == "constant") return Kind::constant;
  if (name == "wsd") return Kind::warmup_stable_decay;
  throw Error("[schedule] got '" + std::string(name) + "', expected cosine, linear, constant or wsd");
}

void Schedule::check() const {
  check_options("schedule", {{"peak", peak, Range::at_least(0)},
                             {"floor", floor, Range::at_least(0)},
                             {"warmup", warmup, Range::whole_from(0)},
                             {"steps", steps, Range::whole_from(0)},
                             {"decay", decay, Range::between(0, 1)}});
}

double Schedule::operator()(std::int64_t t) const {
  check();
  check_options("schedule", {{"step", t, Range::whole_from(0)}});
  if (t < warmup) return peak * (static_cast<double>(t) + 1) / (static_cast<double>(warmup) + 1);
  if (kind == Kind::constant) return peak;
  if (t >= steps) return floor;
  const auto now = static_cast<double>(t), end = static_cast<double>(steps);
  auto begin = static_cast<double>(warmup);  // where it begins to fall
  if (kind == Kind::warmup_stable_decay) begin = std::max(begin, end - std::round(decay * end));
  if (now < begin) return peak;
  const double part = (now - begin) / (end - begin);
  const double left = kind == Kind::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * part)) : 1 - part;
  return floor + (peak - floor) * left;
}

}  // namespace tg::optim

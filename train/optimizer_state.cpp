#include "train/optimizer_state.h"

#include <string_view>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/checkpoints/checkpoint.h>

namespace tg::train {
namespace {

constexpr std::string_view counts[] = {"optimizer.step", "optimizer.skipped",
                                       "optimizer.overflowed"};  // counts of steps
constexpr double largest_count = 0x1p24;                         // an f32 cannot count further

bool is_count_of_steps(std::string_view name) {
  for (const std::string_view count : counts)
    if (name == count) return true;
  return false;
}

bool is_never_negative(std::string_view name) {
  return is_count_of_steps(name) || name == "optimizer.good_steps" || name == "optimizer.loss_scale" ||
         name.starts_with("optimizer.v.");
}

}  // namespace

void check_optimizer_state(const std::vector<Parameter>& state, std::span<const Array> values,
                           std::int64_t steps, const std::string& where) {
  io::check_finite(state, values, where);
  double counted = 0;
  for (std::size_t i = 0; i < state.size(); ++i) {
    const std::string& name = state[i].name();
    if (is_count_of_steps(name)) counted += values[i].at(0);
    if (!is_never_negative(name)) continue;
    for (std::int64_t k = 0; k < values[i].numel(); ++k)
      if (const double x = values[i].at(k); x < 0)
        throw FormatError(where + ": " + name + " has " + std::to_string(x) + " at element " +
                          std::to_string(k) + ", which is never negative");
  }
  if (static_cast<double>(steps) < largest_count && counted != static_cast<double>(steps))
    throw FormatError(where + ": its performed and skipped steps are " +
                      std::to_string(static_cast<std::int64_t>(counted)) + ", but the run is at step " +
                      std::to_string(steps));
}

}  // namespace tg::train

// Ranges of the numbers that options accept. One table gives the check and its error:
//   check_options("AdamW", {{"beta1", o.beta1, Range::from_below(0, 1)}, {"clip", o.clip,
//   Range::at_least(0)}}); [AdamW] beta1 is out of range: got nan, expected a number of at least 0 and below
//   1
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <tilegrad/core/base/error.h>

namespace tg {

// From `low` to `high`, without an end that is open. NaN is in no range.
struct Range {
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  static constexpr double largest_f32 = std::numeric_limits<float>::max();

  double low = -infinity, high = infinity;
  bool low_open = false, high_open = false;

  static constexpr Range between(double low, double high) { return {low, high}; }
  static constexpr Range from_below(double low, double high) { return {low, high, false, true}; }
  static constexpr Range above_to(double low, double high) { return {low, high, true, false}; }
  static constexpr Range inside(double low, double high) { return {low, high, true, true}; }
  // The numbers that f32 holds, from `low`, or above it.
  static constexpr Range at_least(double low) { return {low, largest_f32}; }
  static constexpr Range above(double low) { return {low, largest_f32, true, false}; }
  static constexpr Range finite() { return {-largest_f32, largest_f32}; }
  // Whole numbers, from `low`; sizes that 31 bits hold.
  static constexpr Range whole_from(double low) { return {low, infinity}; }
  static constexpr Range size(double low) { return {low, std::numeric_limits<std::int32_t>::max()}; }

  // The values of a softcap c·tanh(x / c): 0 for none, or a c whose inverse f32 holds.
  static constexpr Range softcap(double c) {
    return at_least(c == 0 ? 0 : static_cast<double>(std::numeric_limits<float>::min()));
  }

  constexpr bool contains(double x) const {
    return (low_open ? x > low : x >= low) && (high_open ? x < high : x <= high);
  }
  // "from 0 to 1", "of at least 0 and below 1"; nothing for all numbers.
  std::string text() const;
};

// A number of any type. An optional one that is empty is not checked.
struct OptionNumber {
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr OptionNumber(T x) : value(static_cast<double>(x)), is_whole(std::is_integral_v<T>) {
    if constexpr (std::is_integral_v<T>) is_negative = x < T{0}, bits = static_cast<std::uint64_t>(x);
  }
  template <class T>
  constexpr OptionNumber(const std::optional<T>& x) : OptionNumber(x.value_or(T{})) {
    is_given = x.has_value();
  }
  std::string text() const;

  double value;
  bool is_whole, is_given = true, is_negative = false;
  std::uint64_t bits = 0;  // of a whole number, all its digits
};

struct OptionCheck {
  std::string_view name;
  OptionNumber number;
  Range range;
};

// Reports the first number out of its range with its name and the range. Empty if there is none.
std::string range_mistake(std::initializer_list<OptionCheck> all);

// Throws that report, with "[who] " in front. An op's shape rule leaves `who` empty, because its caller names
// the op.
template <class E = Error>
void check_options(std::string_view who, std::initializer_list<OptionCheck> all) {
  const std::string mistake = range_mistake(all);
  if (mistake.empty()) return;
  throw E(who.empty() ? mistake : "[" + std::string(who) + "] " + mistake);
}

}  // namespace tg

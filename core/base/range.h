// Ranges for numeric options. A single table defines the checks and the error messages. For example,
// check_options("AdamW", {{"beta1", o.beta1, Range::from_below(0, 1)}}) may throw "[AdamW] beta1 is out of
// range: got nan, expected a number of at least 0 and below 1".
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

// The interval from `low` to `high`; an open end is excluded. No range contains NaN.
struct Range {
  static constexpr double infinity = std::numeric_limits<double>::infinity();  // positive infinity
  static constexpr double largest_f32 = std::numeric_limits<float>::max();     // the largest finite f32

  double low = -infinity, high = infinity;   // the ends
  bool low_open = false, high_open = false;  // whether the end is excluded

  // [low, high].
  static constexpr Range between(double low, double high) { return {low, high}; }
  // [low, high).
  static constexpr Range from_below(double low, double high) { return {low, high, false, true}; }
  // (low, high].
  static constexpr Range above_to(double low, double high) { return {low, high, true, false}; }
  // (low, high).
  static constexpr Range inside(double low, double high) { return {low, high, true, true}; }
  // [low, largest_f32].
  static constexpr Range at_least(double low) { return {low, largest_f32}; }
  // (low, largest_f32].
  static constexpr Range above(double low) { return {low, largest_f32, true, false}; }
  // All finite numbers of f32.
  static constexpr Range finite() { return {-largest_f32, largest_f32}; }
  // [low, ∞), for integers.
  static constexpr Range whole_from(double low) { return {low, infinity}; }
  // [low, 2^31 − 1], for sizes.
  static constexpr Range size(double low) { return {low, std::numeric_limits<std::int32_t>::max()}; }

  // The allowed values of a softcap c in c·tanh(x / c): 0 for no softcap, or a number whose inverse is finite
  // in f32.
  static constexpr Range softcap(double c) {
    return at_least(c == 0 ? 0 : static_cast<double>(std::numeric_limits<float>::min()));
  }

  // Whether x is in the range.
  constexpr bool contains(double x) const {
    return (low_open ? x > low : x >= low) && (high_open ? x < high : x <= high);
  }
  // The range in words: "from 0 to 1", "of at least 0 and below 1"; empty for all numbers.
  std::string text() const;
};

// The value of an option, of any arithmetic type. An empty optional is not checked.
struct OptionNumber {
  // A number.
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr OptionNumber(T x) : value(static_cast<double>(x)), is_whole(std::is_integral_v<T>) {
    if constexpr (std::is_integral_v<T>) is_negative = x < T{0}, bits = static_cast<std::uint64_t>(x);
  }
  // An optional number.
  template <class T>
  constexpr OptionNumber(const std::optional<T>& x) : OptionNumber(x.value_or(T{})) {
    is_given = x.has_value();
  }
  // The number for an error message, with all digits of an integer.
  std::string text() const;

  double value;                                         // the number, rounded to double
  bool is_whole, is_given = true, is_negative = false;  // properties of the given number
  std::uint64_t bits = 0;                               // an integer's exact value
};

// One row of a check: an option, its value and its range.
struct OptionCheck {
  std::string_view name;  // name of the option
  OptionNumber number;    // its value
  Range range;            // the allowed values
};

// Returns a message about the first number that is out of its range, or an empty string if there is none.
std::string range_mistake(std::initializer_list<OptionCheck> all);

// Throws E if there is a mistake. The message begins with "[who] ". The shape rule of an op passes an empty
// `who`, because the caller adds the op's name.
template <class E = Error>
void check_options(std::string_view who, std::initializer_list<OptionCheck> all) {
  const std::string mistake = range_mistake(all);
  if (mistake.empty()) return;
  throw E(who.empty() ? mistake : "[" + std::string(who) + "] " + mistake);
}

}  // namespace tg

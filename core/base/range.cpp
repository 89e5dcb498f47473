#include <tilegrad/core/base/range.h>

#include <cmath>

#include <tilegrad/core/base/attrs.h>

namespace tg {

namespace {

std::string digits(double x) {
  if (std::isnan(x)) return "nan";
  if (x == std::trunc(x) && std::abs(x) < 0x1p53) return std::to_string(static_cast<std::int64_t>(x));
  return detail::attr_text(x);
}

}  // namespace

std::string OptionNumber::text() const {
  if (!is_whole) return digits(value);
  return is_negative ? std::to_string(static_cast<std::int64_t>(bits)) : std::to_string(bits);
}

std::string Range::text() const {
  if (high == largest_f32 && low == -largest_f32) return "that f32 holds";
  const bool has_low = low != -infinity, has_high = high != infinity;
  if (has_low && has_high && high != largest_f32 && !low_open && !high_open)
    return "from " + digits(low) + " to " + digits(high);
  std::string s;
  if (has_low) s = (low_open ? "above " : "of at least ") + digits(low);
  if (high == largest_f32) return s + ", finite in f32";
  if (has_high)
    s += (s.empty() ? "" : " and ") + std::string(high_open ? "below " : "at most ") + digits(high);
  return s;
}

std::string range_mistake(std::initializer_list<OptionCheck> all) {
  for (const OptionCheck& o : all) {
    if (!o.number.is_given || o.range.contains(o.number.value)) continue;
    return std::string(o.name) + " is out of range: got " + o.number.text() + ", expected a " +
           (o.number.is_whole ? "whole number " : "number ") + o.range.text();
  }
  return {};
}

}  // namespace tg

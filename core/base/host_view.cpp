#include <tilegrad/core/base/host_view.h>

#include <cmath>
#include <limits>
#include <string>

#include <tilegrad/core/base/error.h>

namespace tg {

namespace {

// Whether the whole number lies in the range of an integer type. The bounds are powers of two, which doubles
// hold exactly.
template <class T>
bool in_range(double whole) {
  constexpr double low = static_cast<double>(std::numeric_limits<T>::min());
  const double above = std::ldexp(1, std::numeric_limits<T>::digits);
  return whole >= low && whole < above;
}

}  // namespace

bool holds(DType dtype, double number) {
  return dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>)
      return number == std::trunc(number) && in_range<T>(number);
    else if constexpr (std::is_same_v<T, double>)
      return true;
    else
      return !std::isfinite(number) || std::isfinite(static_cast<float>(T(static_cast<float>(number))));
  });
}

double load_element(DType dtype, const std::byte* data, std::int64_t i) {
  return dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T v = reinterpret_cast<const T*>(data)[i];
    if constexpr (std::is_arithmetic_v<T>)
      return static_cast<double>(v);
    else
      return static_cast<double>(static_cast<float>(v));
  });
}

void store_element(DType dtype, std::byte* data, std::int64_t i, double value) {
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    T& to = reinterpret_cast<T*>(data)[i];
    if constexpr (std::is_same_v<T, bool>)
      to = value != 0;
    else if constexpr (std::is_integral_v<T>) {
      if (!in_range<T>(std::trunc(value)))
        throw DTypeError("[array] " + std::to_string(value) + " is out of the range of " +
                         std::string(name_of(dtype)));
      to = static_cast<T>(value);
    } else if constexpr (std::is_arithmetic_v<T>)
      to = static_cast<T>(value);
    else
      to = T(static_cast<float>(value));
  });
}

void HostView::check_index(std::int64_t i) const {
  if (!data || i < 0 || i >= numel())
    throw ShapeError("[host view] element " + std::to_string(i) + " of " + std::string(name_of(dtype)) + " " +
                     shape.text());
}

void HostView::check_type(DType expected) const {
  if (expected != dtype)
    throw DTypeError("[host view] holds " + std::string(name_of(dtype)) + ", read as " +
                     std::string(name_of(expected)));
}

}  // namespace tg

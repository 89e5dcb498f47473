#include <tilegrad/core/base/host_view.h>

#include <cmath>
#include <limits>
#include <string>

#include <tilegrad/core/base/error.h>

namespace tg {

namespace {

// Whether a number without its fraction is in the range of an integer type. The bounds are powers of two, so
// floating types represent them exactly.
template <class T, class Number>
bool in_range(Number x) {
  if constexpr (std::is_same_v<Number, std::int64_t>) {
    return x >= static_cast<std::int64_t>(std::numeric_limits<T>::min()) &&
           x <= static_cast<std::int64_t>(std::numeric_limits<T>::max());
  } else {
    const Number whole = std::trunc(x);
    return whole >= static_cast<Number>(std::numeric_limits<T>::min()) &&
           whole < std::ldexp(Number{1}, std::numeric_limits<T>::digits);
  }
}

// Converts an element to a built-in C++ number.
template <class T>
auto number_of(T x) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<std::int64_t>(x);
  else if constexpr (std::is_arithmetic_v<T>)
    return x;
  else
    return static_cast<float>(x);
}

template <class T, class Number>
T element_of(Number x) {
  if constexpr (std::is_same_v<T, bool>) return x != 0;
  if constexpr (std::is_integral_v<T>) {
    if (!in_range<T>(x))
      throw DTypeError("[array] " + std::to_string(x) + " is out of the range of " +
                       std::string(name_of(dtype_of<T>)));
  }
  return static_cast<T>(x);
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
      return !std::isfinite(number) || std::isfinite(static_cast<float>(T(number)));
  });
}

double load_element(DType dtype, const std::byte* data, std::int64_t i) {
  return dispatch(dtype, [&](auto zero) {
    return static_cast<double>(number_of(reinterpret_cast<const decltype(zero)*>(data)[i]));
  });
}

void store_element(DType dtype, std::byte* data, std::int64_t i, double value) {
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    reinterpret_cast<T*>(data)[i] = element_of<T>(value);
  });
}

double stored_number(DType dtype, double number) {
  alignas(double) std::byte element[sizeof(double)];
  store_element(dtype, element, 0, number);
  return load_element(dtype, element, 0);
}

void detail::convert_elements(DType from, const std::byte* source, DType to, std::byte* target,
                              std::int64_t n) {
  dispatch(from, [&](auto source_zero) {
    dispatch(to, [&](auto target_zero) {
      using From = decltype(source_zero);
      using To = decltype(target_zero);
      for (std::int64_t i = 0; i < n; ++i)
        reinterpret_cast<To*>(target)[i] =
            element_of<To>(number_of(reinterpret_cast<const From*>(source)[i]));
    });
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

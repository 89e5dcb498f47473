#include <tilegrad/core/base/host_view.h>

#include <string>

#include <tilegrad/core/base/error.h>

namespace tg {

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
    else if constexpr (std::is_arithmetic_v<T>)
      to = static_cast<T>(value);
    else
      to = T(static_cast<float>(value));
  });
}

void HostView::check_type(DType expected) const {
  if (expected != dtype)
    throw DTypeError("[host view] holds " + std::string(name_of(dtype)) + ", read as " +
                     std::string(name_of(expected)));
}

}  // namespace tg

#include <tilegrad/core/base/random.h>

#include <cmath>
#include <limits>
#include <string>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/base/host_view.h>
#include <tilegrad/core/base/range.h>

namespace tg {

namespace {

constexpr Range f64_numbers =
    Range::between(-std::numeric_limits<double>::max(), std::numeric_limits<double>::max());

// The smallest number of a floating dtype that is above the finite number x.
double number_above(DType dtype, double x) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (dtype == f64) return std::nextafter(x, infinity);
  if (dtype == f32) return std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity());
  std::uint16_t bits = 0;
  store_element(dtype, reinterpret_cast<std::byte*>(&bits), 0, x);
  if ((bits & 0x7fffu) == 0)
    bits = 1;
  else
    bits = static_cast<std::uint16_t>(bits + (x > 0 ? 1 : -1));
  return load_element(dtype, reinterpret_cast<const std::byte*>(&bits), 0);
}

// The smallest number of the dtype that is at least x.
double number_from(DType dtype, double x) {
  const double nearest = stored_number(dtype, x);
  return nearest < x ? number_above(dtype, nearest) : nearest;
}

}  // namespace

UniformRange uniform_range(DType dtype, double low, double high) {
  const auto refuse = [&](const std::string& what, const std::string& expected) {
    throw Error("[uniform] " + what + " [" + detail::attr_text(low) + ", " + detail::attr_text(high) +
                "), expected " + expected);
  };
  if (!is_float(dtype))
    throw DTypeError("[uniform] needs a floating dtype, got " + std::string(name_of(dtype)));
  check_options("uniform",
                {{"low", low, f64_numbers}, {"high", high, Range::between(low, f64_numbers.high)}});
  if (low == high) {
    const double only = stored_number(dtype, low);
    return {low, 0, 1, only, only};
  }
  // The largest number below `high` is the negative of the smallest number above −high.
  const double last = -number_above(dtype, -number_from(dtype, high)), first = number_from(dtype, low);
  if (!(first <= last)) refuse(std::string(name_of(dtype)) + " has no number in", "a wider interval");
  if (const double width = high - low; std::isfinite(width)) return {low, width, 1, first, last};
  return {low / 2, high / 2 - low / 2, 2, first, last};
}

Array normal_array(const Shape& shape, DType dtype, double mean, double std, std::uint64_t key) {
  check_options("normal_array",
                {{"mean", mean, f64_numbers}, {"std", std, Range::between(0, f64_numbers.high)}});
  Array a(shape, dtype);
  const std::int64_t n = a.numel();
  for (std::int64_t i = 0; i < n; i += 4) {
    const PhiloxBlock words = philox(element_counter(static_cast<std::uint64_t>(i / 4)), key);
    double x[4];
    normal_pair(words[0], words[1], x[0], x[1]);
    normal_pair(words[2], words[3], x[2], x[3]);
    for (std::int64_t k = i; k < i + 4 && k < n; ++k) a.set(k, mean + std * x[k - i]);
  }
  return a;
}

Array uniform_array(const Shape& shape, DType dtype, double low, double high, std::uint64_t key) {
  const UniformRange range = uniform_range(dtype, low, high);
  Array a(shape, dtype);
  const std::int64_t n = a.numel(), in_block = dtype == f64 ? 2 : 4;
  for (std::int64_t i = 0; i < n; ++i) {
    const PhiloxBlock words = philox(element_counter(static_cast<std::uint64_t>(i / in_block)), key);
    const std::int64_t w = i % in_block;
    const double u = dtype == f64 ? uniform(words[2 * w], words[2 * w + 1]) : double{uniform(words[w])};
    a.set(i, range.at(u));
  }
  return a;
}

}  // namespace tg

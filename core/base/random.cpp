#include <tilegrad/core/base/random.h>

namespace tg {

Array normal_array(const Shape& shape, DType dtype, double mean, double std, std::uint64_t key) {
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
  Array a(shape, dtype);
  const std::int64_t n = a.numel(), in_block = dtype == f64 ? 2 : 4;
  for (std::int64_t i = 0; i < n; ++i) {
    const PhiloxBlock words = philox(element_counter(static_cast<std::uint64_t>(i / in_block)), key);
    const std::int64_t w = i % in_block;
    const double u = dtype == f64 ? uniform(words[2 * w], words[2 * w + 1]) : double{uniform(words[w])};
    a.set(i, low + (high - low) * u);
  }
  return a;
}

}  // namespace tg

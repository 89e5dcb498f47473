// Makes arrays of normally distributed numbers. The same seed always gives the same numbers.
#pragma once

#include <random>

#include <tilegrad/core/base/array.h>

namespace tg::testing {

inline Array normal(const Shape& shape, DType dtype, std::uint64_t seed) {
  Array a(shape, dtype);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> numbers;
  for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, numbers(random));
  return a;
}

}  // namespace tg::testing

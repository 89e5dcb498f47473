// Tensors of small integers. Their sums and products are exact in any order, so tests compare each element of
// a kernel's result with plain loops.
#pragma once

#include <string>

#include "tests/support/op_testing.h"

namespace tg::testing {

// An input and its elements, row-major.
struct Whole {
  Tensor tensor;
  Array array;
  Vector values;
  Feed feed() const { return {tensor, array}; }
};

inline Whole whole(Graph& g, const Shape& shape, DType dtype, Vector values) {
  static int inputs = 0;
  Whole x;
  x.tensor = g.input("whole" + std::to_string(inputs++), shape, dtype);
  x.array = Array::of(shape, values).to(dtype);
  x.values = std::move(values);
  return x;
}

// Returns numbers from 0 to most − 1. The same seed always gives the same numbers.
inline Vector digits(std::int64_t n, int seed, int most) {
  Vector v(static_cast<std::size_t>(n));
  std::uint32_t state = static_cast<std::uint32_t>(seed) * 2654435761u + 1;
  for (double& e : v) {
    state = state * 1664525u + 1013904223u;
    e = static_cast<double>((state >> 16) % static_cast<std::uint32_t>(most));
  }
  return v;
}

// Returns numbers from −4 to 4.
inline Whole small(Graph& g, const Shape& shape, int seed, DType dtype = f32) {
  Vector v = digits(numel(shape), seed, 9);
  for (double& e : v) e -= 4;
  return whole(g, shape, dtype, std::move(v));
}

struct Expected {
  Tensor y;
  Vector values;
  double tolerance;  // relative to max(1, |expected|)
  std::string what;
};

// Compiles one program for all tensors, and runs it on one thread and on three. Some inputs may be unused.
inline void expect_all(const std::vector<Expected>& all, const std::vector<Feed>& feeds) {
  std::vector<Tensor> fetch;
  for (const Expected& e : all) fetch.push_back(e.y);
  for (const int threads : {1, 3}) {
    Program p = compile(fetch[0].graph(), fetch, {.threads = threads});
    for (const Feed& f : feeds)
      if (p.reads(f.input())) p.feed(f);
    p.run();
    for (const Expected& e : all) {
      const Vector got = doubles(p.fetch(e.y));
      ASSERT_EQ(got.size(), e.values.size()) << e.what;
      if (got == e.values) continue;
      for (std::size_t i = 0; i < got.size(); ++i)
        if (!(std::abs(got[i] - e.values[i]) <= e.tolerance * std::max(1., std::abs(e.values[i]))))
          FAIL() << e.what << ", threads " << threads << ", element " << i << ": got " << got[i]
                 << ", expected " << e.values[i];
    }
  }
}

inline void expect_exactly(const Tensor& y, const std::vector<Feed>& feeds, const Vector& expected,
                           const std::string& what) {
  expect_all({{y, expected, 0, what}}, feeds);
}
inline void expect_nearly(const Tensor& y, const std::vector<Feed>& feeds, const Vector& expected,
                          double tolerance, const std::string& what) {
  expect_all({{y, expected, tolerance, what}}, feeds);
}

}  // namespace tg::testing

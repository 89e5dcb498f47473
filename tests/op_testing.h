// What tests of ops share: tensors in every kind of view with their values at hand, and running a graph in
// several ways that must agree bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "tests/reference_checks.h"
#include "tilegrad.h"

namespace tg::testing {

using reference::close;
using reference::random_vector;
using Vector = std::vector<double>;

// How a tensor of some shape lies in the memory of the input behind it.
enum class View {
  contiguous,
  transposed,  // axes in reverse order
  sliced,      // every second element of each axis, from the second on
  expanded     // the first axis has stride 0
};
inline constexpr View all_views[] = {View::contiguous, View::transposed, View::sliced, View::expanded};
inline constexpr DType float_dtypes[] = {f64, f32, bf16, f16};

// A tensor that looks into an input, and what it holds.
struct Given {
  Tensor input, tensor;
  Array array;    // the input's value
  Vector values;  // the tensor's elements, row-major, as rounded to its dtype
  Feed feed() const { return {input, array}; }
};

// The elements of a view of an array, row-major.
inline Vector elements(const Array& a, const Layout& l) {
  Vector out;
  for (std::int64_t e = 0; e < l.numel(); ++e) {
    std::int64_t rest = e, at = l.offset;
    for (int i = l.rank() - 1; i >= 0; --i) {
      at += rest % l.shape[i] * l.strides[i];
      rest /= l.shape[i];
    }
    out.push_back(a.at(at));
  }
  return out;
}

// A tensor of the shape, seen as `view` says, of elements uniform in [low, high).
inline Given given(Graph& g, const Shape& shape, DType dtype = f64, View view = View::contiguous,
                   std::uint64_t seed = 1, double low = -1, double high = 1) {
  Shape base = shape;
  if (view == View::transposed) std::reverse(base.begin(), base.end());
  if (view == View::sliced)
    for (std::int64_t& d : base) d = 2 * d + 1;
  if (view == View::expanded && base.size() > 0) base[0] = 1;
  Given x;
  x.input = g.input("x" + std::to_string(seed), base, dtype);
  Vector v = random_vector(numel(base), seed);
  for (double& e : v) e = low + (high - low) * (e + 1) / 2;
  x.array = Array::of(base, v).to(dtype);
  x.tensor = x.input;
  if (view == View::transposed) {
    Axes order;
    for (int i = shape.size() - 1; i >= 0; --i) order.push_back(i);
    x.tensor = permute(x.tensor, order);
  }
  if (view == View::sliced)
    for (int i = 0; i < shape.size(); ++i) x.tensor = slice(x.tensor, i, 1, base[i], 2);
  if (view == View::expanded) x.tensor = expand(x.tensor, shape);
  x.values = elements(x.array, x.tensor.layout());
  return x;
}

// Evaluates on one thread with planned memory checked against unplanned, and on three threads: the same bits.
inline std::vector<Array> run_checked(const std::vector<Tensor>& ts, const std::vector<Feed>& feeds) {
  const std::vector<Array> one = eval(ts, feeds, {.threads = 1, .verify = true});
  const std::vector<Array> three = eval(ts, feeds, {.threads = 3});
  for (std::size_t i = 0; i < ts.size(); ++i)
    EXPECT_TRUE(one[i].same_bits(three[i])) << "result " << i << " depends on the number of threads";
  return one;
}

inline Vector doubles(const Array& a) {
  return a.to(f64).values<double>();
}

// Half a unit in the last place, relative.
inline double rounding(DType t) {
  return t == f64 ? 0x1p-53 : t == f32 ? 0x1p-24 : t == bf16 ? 0x1p-8 : 0x1p-11;
}

}  // namespace tg::testing

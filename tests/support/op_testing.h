// Helpers for tests of ops. They make tensors with every kind of view, and their values. They also run a
// graph in several ways, which must give bitwise identical results.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/tilegrad.h>
#include "tests/reference/reference_checks.h"

namespace tg::testing {

using reference::close;
using reference::random_vector;
using Vector = std::vector<double>;

// The layout of a tensor in the memory of its input.
enum class View {
  contiguous,
  transposed,  // axes in reverse order
  sliced,      // every second element of each axis, starting with the second
  expanded     // the first axis has stride 0
};
inline constexpr View all_views[] = {View::contiguous, View::transposed, View::sliced, View::expanded};
inline constexpr DType float_dtypes[] = {f64, f32, bf16, f16};

// A view of an input, and its values.
struct Given {
  Tensor input, tensor;
  Array array;    // value of the input
  Vector values;  // elements of the tensor, row-major, rounded to its dtype
  Feed feed() const { return {input, array}; }
};

// Returns the elements of a view of an array, row-major.
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

// Makes a tensor with this shape and view. Elements are uniform in [low, high).
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

// Evaluates on one thread with planned memory, with unplanned memory, and on three threads. All results must
// be bitwise identical.
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

// Returns half an ulp as a relative error.
inline double rounding(DType t) {
  return t == f64 ? 0x1p-53 : t == f32 ? 0x1p-24 : t == bf16 ? 0x1p-8 : 0x1p-11;
}

// Returns the loss Σ y ⊛ w with fixed random w. Each element of y has a different weight in this loss.
inline Tensor weighted_sum(const Tensor& y, std::uint64_t seed = 99) {
  return sum(y * y.graph().constant(Array::of(y.shape(), random_vector(y.numel(), seed)).to(y.dtype())));
}

inline std::vector<Feed> feeds_of(const std::vector<Given>& given) {
  std::vector<Feed> feeds;
  for (const Given& x : given) feeds.push_back(x.feed());
  return feeds;
}

// Evaluates y by run_checked and expects that it equals `expected`. The tolerance is relative to max(1,
// |expected|) for each element.
inline void expect_values(const Tensor& y, const std::vector<Given>& given, const Vector& expected,
                          double tolerance = 0) {
  const Vector got = doubles(run_checked({y}, feeds_of(given))[0]);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(got[i] - expected[i]), tolerance * std::max(1.0, std::abs(expected[i])))
        << "element " << i << ": got " << got[i] << ", expected " << expected[i];
}

// Compares ∂loss/∂input of every floating (f64) input with four-point differences of the loss.
inline void expect_gradients(const Tensor& loss, std::vector<Given> given) {
  std::vector<Tensor> wrt, fetch{loss};
  for (const Given& x : given)
    if (is_float(x.input.dtype())) wrt.push_back(x.input);
  for (const Tensor& z : gradients(loss, wrt)) fetch.push_back(z);
  const std::vector<Array> results = run_checked(fetch, feeds_of(given));
  Program program = compile(loss.graph(), {loss}, {.threads = 1});
  std::size_t which = 0;
  for (Given& x : given) {
    if (!is_float(x.input.dtype())) continue;
    Vector at = x.array.values<double>();
    const Vector expected = reference::four_point_gradient(at, [&] {
      std::copy(at.begin(), at.end(), x.array.data<double>());
      program.run(feeds_of(given));
      return program.item<double>(loss);
    });
    std::copy(at.begin(), at.end(), x.array.data<double>());
    EXPECT_TRUE(close(doubles(results[++which]), expected, reference::kDifferenceTolerance))
        << "gradient of operand " << which - 1;
  }
}

// Expects that f() throws E with each of `parts` in its message.
template <class E, class F>
void expect_error(F&& f, std::initializer_list<std::string> parts) {
  try {
    f();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const E& e) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << "'" << part << "' in: " << e.what();
  }
}

}  // namespace tg::testing

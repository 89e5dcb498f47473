// Compares layer_norm and rms_norm with plain loops. Compares gradients with the gradients of the
// decompositions.
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

// Computes (x - μ)/σ ⊛ w + b for each row of n elements.
Vector plain_norm(const Vector& x, std::size_t n, const Vector& w, const Vector& b, double eps,
                  bool centred) {
  Vector y;
  for (std::size_t first = 0; first < x.size(); first += n) {
    double mu = 0, squares = 0;
    if (centred)
      for (std::size_t i = 0; i < n; ++i) mu += x[first + i] / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) squares += (x[first + i] - mu) * (x[first + i] - mu);
    const double sigma = std::sqrt(squares / static_cast<double>(n) + eps);
    for (std::size_t i = 0; i < n; ++i)
      y.push_back((x[first + i] - mu) / sigma * (w.empty() ? 1 : w[i]) + (b.empty() ? 0 : b[i]));
  }
  return y;
}

const Shape shapes[] = {{2, 3, 8}, {5, 65}, {1, 1}, {130, 33}, {7}, {3, 1000}};

TEST(Norm, AgreesWithPlainLoopsOnEveryViewAndType) {
  for (const Shape& shape : shapes)
    for (View view : all_views)
      for (DType dtype : float_dtypes) {
        SCOPED_TRACE(shape.text() + " view " + std::to_string(int(view)) + " " + std::string(name_of(dtype)));
        Graph g;
        const Shape row{shape.back()};
        const Given x = given(g, shape, dtype, view, 1), w = given(g, row, dtype, View::contiguous, 2),
                    b = given(g, row, dtype, View::sliced, 3);
        const auto n = static_cast<std::size_t>(shape.back());
        const auto y = run_checked(
            {layer_norm(x.tensor, w.tensor, b.tensor), layer_norm(x.tensor),
             layer_norm(x.tensor, w.tensor, {}, 0.1), rms_norm(x.tensor, w.tensor, 1e-5), rms_norm(x.tensor)},
            {x.feed(), w.feed(), b.feed()});
        // If all elements of a row are equal, the variance is 0. Then 1/σ = 1/√eps magnifies the rounding
        // error of the mean.
        const double tolerance = (dtype == f64 ? 1e-12 : 2e-4) + 2 * rounding(dtype);
        EXPECT_TRUE(close(doubles(y[0]), plain_norm(x.values, n, w.values, b.values, 1e-5, true), tolerance));
        EXPECT_TRUE(close(doubles(y[1]), plain_norm(x.values, n, {}, {}, 1e-5, true), tolerance));
        EXPECT_TRUE(close(doubles(y[2]), plain_norm(x.values, n, w.values, {}, 0.1, true), tolerance));
        EXPECT_TRUE(close(doubles(y[3]), plain_norm(x.values, n, w.values, {}, 1e-5, false), tolerance));
        EXPECT_TRUE(close(doubles(y[4]), plain_norm(x.values, n, {}, {}, 1e-6, false), tolerance));
      }
}

TEST(Norm,
     StaysAccurateFarFromZero) {  // the variance is not a difference of two squares
  Graph g;
  const Given x = given(g, {4, 256}, f32, View::contiguous, 1, 1000, 1001);
  const auto y = run_checked({layer_norm(x.tensor)}, {x.feed()});
  EXPECT_TRUE(close(doubles(y[0]), plain_norm(x.values, 256, {}, {}, 1e-5, true), 2e-3));
}

TEST(Norm, RefusesAGradientOfItsStatistics) {
  Graph g;
  const Given x = given(g, {3, 4});
  for (const Tensor& y : {layer_norm(x.tensor), rms_norm(x.tensor)}) {
    const Node& node = g.node_of(y.id());
    for (std::uint32_t i = 1; i < node.outs; ++i)
      expect_error<GradientError>([&] { gradients(sum(g.tensor(node.first_out + i)), {x.tensor}); },
                                  {"the statistics of a normalisation have no gradient"});
  }
}

// Compares the fused op with plain ops: first and second derivatives with respect to all operands.
template <bool centred>
void check_gradients(const Shape& shape, View view, bool weighted, bool biased) {
  SCOPED_TRACE(shape.text() + " view " + std::to_string(int(view)));
  Graph g;
  const Shape row{shape.back()};
  const Given x = given(g, shape, f64, view, 1), w = given(g, row, f64, View::contiguous, 2),
              b = given(g, row, f64, View::contiguous, 3), c = given(g, shape, f64, View::transposed, 4),
              d = given(g, shape, f64, View::contiguous, 5);
  const Tensor wt = weighted ? w.tensor : Tensor(), bt = biased ? b.tensor : Tensor();
  const Tensor fused = centred ? layer_norm(x.tensor, wt, bt, 0.01) : rms_norm(x.tensor, wt, 0.01);
  const Tensor e = centred ? x.tensor - mean(x.tensor, {-1}, true) : x.tensor;
  Tensor plain = e * rsqrt(mean(e * e, {-1}, true) + 0.01);
  if (weighted) plain = plain * wt;
  if (biased) plain = plain + bt;
  std::vector<Tensor> wrt{x.tensor};
  if (weighted) wrt.push_back(wt);
  if (biased) wrt.push_back(bt);
  std::vector<Tensor> results[2];
  for (int i : {0, 1}) {
    auto z = gradients(i == 0 ? fused : plain, wrt, c.tensor);
    std::vector<Tensor> by = wrt;
    by.push_back(c.tensor);
    const auto zz = gradients(z[0], by, d.tensor);
    results[i] = z;
    results[i].insert(results[i].end(), zz.begin(), zz.end());
    if (weighted) results[i].push_back(gradients(sum(z[1] * wt), {x.tensor})[0]);
  }
  std::vector<Tensor> all = results[0];
  all.insert(all.end(), results[1].begin(), results[1].end());
  const auto v = run_checked(all, {x.feed(), w.feed(), b.feed(), c.feed(), d.feed()});
  for (std::size_t i = 0; i < results[0].size(); ++i)
    EXPECT_TRUE(close(doubles(v[i]), doubles(v[i + results[0].size()]), 1e-11)) << "result " << i;
}

TEST(Norm, FirstAndSecondDerivativesMatchThePlainOps) {
  for (const Shape& shape : {Shape{2, 3, 8}, Shape{5, 65}, Shape{530, 19}})
    for (View view : {View::contiguous, View::transposed, View::expanded}) {
      check_gradients<true>(shape, view, true, true);
      check_gradients<true>(shape, view, true, false);
      check_gradients<true>(shape, view, false, false);
      check_gradients<false>(shape, view, true, false);
      check_gradients<false>(shape, view, false, false);
    }
}

TEST(Norm, GradientsOfManyRowsInF32KeepTheirDigits) {  // rows are summed in two phases
  Graph g;
  const Given x = given(g, {3000, 40}, f32), z = given(g, {3000, 40}, f32, View::contiguous, 2, 0, 1),
              w = given(g, {40}, f32, View::contiguous, 3), b = given(g, {40}, f32, View::contiguous, 4);
  const auto grad = gradients(layer_norm(x.tensor, w.tensor, b.tensor), {w.tensor, b.tensor}, z.tensor);
  const Tensor hat = layer_norm(cast(x.tensor, f64)), z64 = cast(z.tensor, f64);
  const auto v = run_checked({grad[0], grad[1], sum(hat * z64, {0}), sum(z64, {0})},
                             {x.feed(), w.feed(), b.feed(), z.feed()});
  EXPECT_TRUE(close(doubles(v[0]), doubles(v[2]), 2e-6));
  EXPECT_TRUE(close(doubles(v[1]), doubles(v[3]), 1e-6));
}

// Kernels sum blocks of 2^16 numbers. There are two complete blocks and a partial last block.
TEST(Norm, GradientsOfRowsOfSeveralBlocksMatchThePlainOps) {
  constexpr std::int64_t n = 2 * 65536 + 37;
  for (const bool centred : {true, false}) {
    Graph g;
    const Given x = given(g, {3, n}, f32, View::contiguous, 1), w = given(g, {n}, f32, View::contiguous, 2),
                z = given(g, {3, n}, f32, View::contiguous, 3);
    const Tensor fused =
        centred ? layer_norm(x.tensor, w.tensor, {}, 0.01) : rms_norm(x.tensor, w.tensor, 0.01);
    const Tensor x64 = cast(x.tensor, f64), e = centred ? x64 - mean(x64, {-1}, true) : x64;
    const Tensor plain = e * rsqrt(mean(e * e, {-1}, true) + 0.01) * cast(w.tensor, f64);
    std::vector<Tensor> all = gradients(fused, {x.tensor, w.tensor}, z.tensor);
    const auto exact = gradients(plain, {x.tensor, w.tensor}, cast(z.tensor, f64));
    all.insert(all.end(), exact.begin(), exact.end());
    const auto v = run_checked(all, {x.feed(), w.feed(), z.feed()});
    // There are fewer than 32 roundings of numbers below 4. Sums of blocks are added in f64.
    EXPECT_TRUE(close(doubles(v[0]), doubles(v[2]), 128 * 0x1p-24)) << centred;
    EXPECT_TRUE(close(doubles(v[1]), doubles(v[3]), 128 * 0x1p-24)) << centred;
  }
}

TEST(Norm, AcceptsEmptyTensors) {
  Graph g;
  const Given x = given(g, {0, 5}), w = given(g, {5}, f64, View::contiguous, 2);
  const Tensor y = layer_norm(x.tensor, w.tensor);
  const auto z = gradients(sum(y), {x.tensor, w.tensor});
  const auto v = run_checked({y, z[0], z[1]}, {x.feed(), w.feed()});
  EXPECT_EQ(v[0].numel(), 0);
  EXPECT_EQ(doubles(v[2]), Vector(5, 0.0));
}

TEST(Norm, RefusesMismatchedWeights) {
  Graph g;
  const Given x = given(g, {2, 5}), w = given(g, {4}, f64, View::contiguous, 2);
  EXPECT_THROW(layer_norm(x.tensor, w.tensor), ShapeError);
  EXPECT_THROW(layer_norm(x.tensor, {}, w.tensor), Error);
  EXPECT_THROW(layer_norm(g.input("i", {2, 2}, i64)), DTypeError);
  EXPECT_THROW(layer_norm(g.input("narrow", {2, 4}, f32), w.tensor), DTypeError);  // weights in f64
}

}  // namespace

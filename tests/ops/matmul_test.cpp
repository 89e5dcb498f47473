// Compares matmul and linear with a plain triple loop. Covers shapes, strides, types and gradients. Views
// must not be copied.
#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/tilegrad.h>
#include "tests/reference/reference_checks.h"

namespace {

using namespace tg;
using reference::close;
using reference::random_vector;

using Vector = std::vector<double>;

// An f64 input. Each seed gives different numbers.
struct Given {
  Given(Graph& g, const Shape& shape, std::uint64_t seed, DType dtype = f64)
      : tensor(g.input("x" + std::to_string(seed), shape, dtype)),
        array(Array::of(shape, random_vector(tensor.numel(), seed)).to(dtype)) {}
  Feed feed() const { return {tensor, array}; }
  Tensor tensor;
  Array array;
};

// Returns the elements of a view of an array, in row-major order and in f64.
Vector elements(const Array& a, const Layout& l) {
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

// Computes a [batch, m, k] · b [batch, k, n] without broadcasting.
Vector triple_loop(const Vector& a, const Vector& b, std::int64_t batch, std::int64_t m, std::int64_t k,
                   std::int64_t n) {
  Vector c(batch * m * n, 0.0);
  for (std::int64_t e = 0; e < batch; ++e)
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t p = 0; p < k; ++p)
          c[(e * m + i) * n + j] += a[(e * m + i) * k + p] * b[(e * k + p) * n + j];
  return c;
}

// Computes matmul of two views of fed inputs. Compares it with the loop over explicitly broadcast copies. The
// program also runs with poisoned memory and with three threads.
void check(const Given& a, const Given& b, const Tensor& x, const Tensor& y, const Shape& shape) {
  const Tensor c = matmul(x, y);
  ASSERT_EQ(c.shape(), shape);
  EXPECT_TRUE(c.layout().is_contiguous());
  const bool row = x.rank() == 1, column = y.rank() == 1;
  const Layout lx = row ? unsqueeze(x.layout(), 0) : x.layout(),
               ly = column ? unsqueeze(y.layout(), 1) : y.layout();
  const std::int64_t m = lx.shape[lx.rank() - 2], k = lx.shape.back(), n = ly.shape.back();
  Shape batch = shape;
  if (!row) batch.erase(batch.size() - 1);
  if (!column) batch.erase(batch.size() - 1);
  Shape sx = batch, sy = batch;
  sx.push_back(m), sx.push_back(k), sy.push_back(k), sy.push_back(n);
  const Vector expected = triple_loop(elements(a.array, expand(lx, sx)), elements(b.array, expand(ly, sy)),
                                      numel(batch), m, k, n);
  const Array one = eval(c, {a.feed(), b.feed()}, {.threads = 1, .verify = true});
  EXPECT_TRUE(close(one.to(f64).values<double>(), expected));
  EXPECT_TRUE(one.same_bits(eval(c, {a.feed(), b.feed()}, {.threads = 3})));
}

TEST(Matmul, AgreesWithTheTripleLoopOnEveryRank) {
  const auto run = [](const Shape& a, const Shape& b, const Shape& shape) {
    Graph g;
    const Given x(g, a, 1), y(g, b, 2);
    check(x, y, x.tensor, y.tensor, shape);
  };
  run({5, 7}, {7, 3}, {5, 3});
  run({2, 5, 7}, {7, 3}, {2, 5, 3});
  run({5, 7}, {4, 7, 3}, {4, 5, 3});
  run({2, 5, 7}, {2, 7, 3}, {2, 5, 3});
  run({9, 1, 3, 2}, {8, 2, 4}, {9, 8, 3, 4});  // [Stratos, Efficient Attention §A]
  run({2, 1, 1, 3, 2, 2, 3, 4}, {2, 1, 2, 2, 4, 3}, {2, 1, 2, 3, 2, 2, 3, 3});
  run({7}, {7}, {});
  run({7}, {7, 3}, {3});
  run({7}, {2, 7, 3}, {2, 3});
  run({5, 7}, {7}, {5});
  run({2, 5, 7}, {7}, {2, 5});
  run({0, 7}, {7, 3}, {0, 3});
  run({5, 0}, {0, 3}, {5, 3});
  run({0, 5, 7}, {7, 3}, {0, 5, 3});
  run({2, 5, 7}, {2, 7, 0}, {2, 5, 0});
}

TEST(Matmul, AcceptsAnyStrides) {
  Graph g;
  const Given a(g, {6, 4, 10}, 1), b(g, {6, 10, 8}, 2), heads(g, {6, 8, 3, 10}, 3), column(g, {1, 10, 1}, 4);
  check(b, a, transpose(b.tensor, 1, 2), transpose(a.tensor, 1, 2), {6, 8, 4});
  check(a, b, slice(a.tensor, 2, 1, 10, 2), slice(b.tensor, 1, 2, 7).slice(2, 1, 7, 3), {6, 4, 2});
  check(a, a, transpose(a.tensor, 0, 2), slice(transpose(a.tensor, 0, 1), 0, 1, 2), {10, 4, 10});
  check(a, column, a.tensor, expand(column.tensor, {6, 10, 5}), {6, 4, 5});
  check(heads, b, slice(heads.tensor, 2, 1, 2).squeeze(2), b.tensor, {6, 8, 8});
  check(heads, b, heads.tensor.permute({0, 2, 1, 3}), b.tensor.unsqueeze(1), {6, 3, 8, 8});
  check(heads, a, heads.tensor.permute({0, 2, 1, 3}), slice(a.tensor, 0, 2, 3).squeeze(0).transpose(0, 1),
        {6, 3, 8, 4});
}

TEST(Matmul, Rounds16BitTypesOnce) {
  for (const DType t : {f32, bf16, f16}) {
    Graph g;
    const Given a(g, {37, 50}, 1, t), b(g, {50, 21}, 2, t);
    const Vector expected =
        triple_loop(a.array.to(f64).values<double>(), b.array.to(f64).values<double>(), 1, 37, 50, 21);
    const Array c = eval(matmul(a.tensor, b.tensor), {a.feed(), b.feed()});
    EXPECT_EQ(c.dtype(), t);
    // The error includes 50 dependent multiply-adds in f32, with terms below 1. It also includes one rounding
    // of a sum below 50.
    const double unit = t == f32 ? 0x1p-24 : t == bf16 ? 0x1p-8 : 0x1p-11;
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(c.at(static_cast<std::int64_t>(i)), expected[i],
                  unit * std::abs(expected[i]) + 52 * 50 * 0x1p-24);
  }
}

TEST(Matmul, TwoFloatTypesGiveTheWider) {
  Graph g;
  EXPECT_EQ(matmul(g.input("a", {2, 3}, bf16), g.input("b", {3, 4}, f32)).dtype(), f32);
  EXPECT_THROW(matmul(g.input("i", {2, 3}, i64), g.input("j", {3, 4}, i64)), DTypeError);
}

TEST(Matmul, ErrorNamesTheSizesThatDiffer) {
  Graph g;
  const auto message = [&](const Shape& a, const Shape& b) -> std::string {
    try {
      matmul(g.input("a", a), g.input("b", b));
    } catch (const ShapeError& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_NE(message({4, 8}, {9, 3}).find("[matmul] inner sizes differ: a [4, 8] · b [9, 3]"),
            std::string::npos);
  EXPECT_NE(message({2, 4, 8}, {9, 3}).find("a [2, 4, 8] · b [9, 3]"), std::string::npos);
  EXPECT_NE(message({8}, {9}).find("a [8] · b [9]"), std::string::npos);
  EXPECT_NE(message({2, 4, 8}, {3, 8, 5}).find("matmul_test.cpp"), std::string::npos);
  EXPECT_NE(message({}, {8}), "none");
}

// Compares z_A = z·Bᵀ and z_B = Aᵀ·z with the loop. b lacks a batch axis that a has.
TEST(Matmul, GradientsAreProductsWithTheTransposes) {
  Graph g;
  const Given a(g, {2, 5, 3}, 1), b(g, {3, 4}, 2), z(g, {2, 5, 4}, 3);
  const auto zs = gradients(matmul(a.tensor, b.tensor), {a.tensor, b.tensor}, z.tensor);
  const auto got = eval(zs, {a.feed(), b.feed(), z.feed()});
  const Layout flat_a = row_major({10, 3}), flat_z = row_major({10, 4});
  EXPECT_TRUE(close(got[0].values<double>(),
                    triple_loop(elements(z.array, flat_z),
                                elements(b.array, transpose(row_major({3, 4}), 0, 1)), 1, 10, 4, 3)));
  EXPECT_TRUE(close(got[1].values<double>(), triple_loop(elements(a.array, transpose(flat_a, 0, 1)),
                                                         elements(z.array, flat_z), 1, 3, 10, 4)));
}

TEST(Matmul, GradientsAreDirectionalDerivatives) {
  const auto run = [](const Shape& sa, const Shape& sb) {
    Graph g;
    const Given a(g, sa, 1), b(g, sb, 2), da(g, sa, 3), db(g, sb, 4);
    const Tensor c = matmul(a.tensor, b.tensor);
    const Given z(g, c.shape(), 5);
    // matmul is bilinear, so ⟨z, dA·B + A·dB⟩ = ⟨z_A, dA⟩ + ⟨z_B, dB⟩.
    const auto zs = gradients(c, {a.tensor, b.tensor}, z.tensor);
    const Tensor change = sum(z.tensor * (matmul(da.tensor, b.tensor) + matmul(a.tensor, db.tensor)));
    const Tensor by_gradients = sum(zs[0] * da.tensor) + sum(zs[1] * db.tensor);
    const auto got = eval({change, by_gradients}, {a.feed(), b.feed(), da.feed(), db.feed(), z.feed()});
    EXPECT_NEAR(got[0].item<double>(), got[1].item<double>(), 1e-12) << sa.text() << sb.text();
  };
  run({5, 7}, {7, 3});
  run({5, 7}, {4, 7, 3});
  run({4, 5, 7}, {7, 3});
  run({9, 1, 3, 2}, {8, 2, 4});
  run({7}, {7});
  run({7}, {2, 7, 3});
  run({2, 5, 7}, {7});
  run({5, 0}, {0, 3});
}

TEST(Linear, AddsTheBiasInsideTheProduct) {
  Graph g;
  const Given x(g, {2, 5, 3}, 1), w(g, {4, 3}, 2), bias(g, {4}, 3);
  const Tensor y = linear(x.tensor, transpose(w.tensor, 0, 1), bias.tensor);
  Program p = compile(g, {y, matmul(x.tensor, transpose(w.tensor, 0, 1)) + bias.tensor}, {.verify = true});
  p.run({x.feed(), w.feed(), bias.feed()});
  EXPECT_TRUE(
      close(p.fetch(y).values<double>(),
            eval(matmul(x.tensor, transpose(w.tensor, 0, 1)) + bias.tensor, {x.feed(), w.feed(), bias.feed()})
                .values<double>()));
  EXPECT_EQ(compile(g, {y}).steps().size(), 1u);
  const Tensor z = gradients(sum(y * y), {bias.tensor})[0];
  const Tensor expected = sum(2 * y, {0, 1});
  const auto got = eval({z, expected}, {x.feed(), w.feed(), bias.feed()});
  EXPECT_TRUE(close(got[0].values<double>(), got[1].values<double>()));
}

// For the projections of a transformer, only GEMMs may run. Nothing may be copied.
TEST(Linear, RowsAndTheirGradientsNeedNoCopies) {
  Graph g;
  const Tensor x = g.input("x", {2, 5, 3}), w = g.input("w", {4, 3}), z = g.input("z", {2, 5, 4});
  const auto zs = gradients(linear(x, transpose(w, 0, 1)), {x, w}, z);
  EXPECT_EQ(zs[1].layout(), w.layout());  // a transposed weight's gradient has the weight's layout
  const Program p = compile(g, zs);
  ASSERT_EQ(p.steps().size(), 2u);
  for (const Step& s : p.steps()) EXPECT_EQ(s.op->name, "matmul");
}

// Sums of products of 16-bit numbers are rounded to f32 instead of the 16-bit type. So small integers are
// exact.
TEST(MatmulWide, KeepsDigitsBeyond16BitTypes) {
  for (const DType dtype : {bf16, f16})
    for (const std::int64_t rows : {1, 3, 40}) {
      Graph g;
      const Tensor a = g.input("a", {rows, 64}, dtype), b = g.input("b", {5, 64}, dtype);
      Array x({rows, 64}, dtype), y({5, 64}, dtype);
      for (std::int64_t i = 0; i < x.numel(); ++i) x.set(i, static_cast<double>(i * i % 23 - 11));
      for (std::int64_t i = 0; i < y.numel(); ++i) y.set(i, static_cast<double>(i * i % 19 + 100));
      const Tensor c = matmul_wide(a, transpose(b, 0, 1)), rounded = matmul(a, transpose(b, 0, 1));
      ASSERT_EQ(c.dtype(), f32);
      ASSERT_EQ(rounded.dtype(), dtype);
      const auto got = eval({c, rounded}, {{a, x}, {b, y}});
      Vector columns;  // b is transposed
      for (std::int64_t p = 0; p < 64; ++p)
        for (std::int64_t j = 0; j < 5; ++j) columns.push_back(y.at(j * 64 + p));
      EXPECT_EQ(got[0].to(f64).values<double>(),
                triple_loop(x.to(f64).values<double>(), columns, 1, rows, 64, 5));
      EXPECT_TRUE(got[0].to(dtype).same_bits(got[1]));
      EXPECT_FALSE(got[1].to(f32).same_bits(got[0]));
    }
  for (const DType dtype : {f32, f64}) {
    Graph g;
    EXPECT_EQ(matmul_wide(g.input("a", {2, 3}, dtype), g.input("b", {3, 4}, dtype)).dtype(), dtype);
  }
}

TEST(MatmulWide, HasGradientsInTheOperandsDtype) {
  Graph g;
  const Tensor a = g.input("a", {2, 3}, bf16), b = g.input("b", {3, 4}, bf16);
  const std::vector<Tensor> z = gradients(sum(matmul_wide(a, b)), {a, b});
  EXPECT_EQ(z[0].dtype(), bf16);
  EXPECT_EQ(z[1].dtype(), bf16);
}

}  // namespace

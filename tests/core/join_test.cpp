// Tests results that are written directly to the memory of a concat or contiguous() (core/compile/lower.h).
#include <tilegrad/tilegrad.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace {

using namespace tg;

// Defines the inputs of GEMMs. Counts the steps that compute a result.
struct Joins : testing::Test {
  Graph g;
  Tensor a = g.input("a", {2, 4, 6}), b = g.input("b", {2, 6, 6});
  Array of_a = values(a, 1), of_b = values(b, 2);
  std::vector<Feed> feeds{{a, of_a}, {b, of_b}};

  static Array values(const Tensor& t, int seed) {
    Array x(t.shape(), f32);
    for (std::int64_t i = 0; i < x.numel(); ++i)
      x.set(i, static_cast<double>((i * 37 + seed * 11) % 23) / 8 - 1);
    return x;
  }
  std::ptrdiff_t steps_beside_products(const Tensor& y) {
    const Program program = compile(g, {y});
    return std::ranges::count_if(program.steps(), [](const Step& s) { return s.op != &matmul_op; });
  }
  // Compares y with the y of a second program. The second program also fetches the GEMM results, so each of
  // them has separate memory.
  void expect_same(const Tensor& y, const std::vector<Tensor>& products) {
    std::vector<Tensor> all{y};
    all.insert(all.end(), products.begin(), products.end());
    EXPECT_TRUE(eval(y, feeds, {.verify = true}).same_bits(eval(all, feeds, {.verify = true})[0]));
  }
};

TEST_F(Joins, AProductOfHeadsIsWrittenMerged) {
  const Tensor c = matmul(a, b), merged = reshape(transpose(c, 0, 1), {4, 12});
  EXPECT_EQ(steps_beside_products(merged), 0);
  expect_same(merged, {c});
}

TEST_F(Joins, ProductsAreWrittenNextToEachOther) {
  const Tensor c = matmul(a, b), d = matmul(a, b * 2);
  for (const int axis : {0, 1, 2}) {
    const Tensor joined = concat({c, d}, axis);
    EXPECT_EQ(steps_beside_products(joined), 1) << axis;  // b * 2
    expect_same(joined, {c, d});
  }
  const Tensor transposed = concat({transpose(c, 0, 1), transpose(d, 0, 1)}, 2);
  EXPECT_EQ(steps_beside_products(transposed), 1);
  expect_same(transposed, {c, d});
}

TEST_F(Joins, ManyProductsAreWrittenNextToEachOther) {
  const Tensor c = matmul(a, b), d = matmul(a, slice(b, 2, 0, 2)), e = matmul(a, slice(b, 2, 1, 4));
  const Tensor joined = concat({d, c, e}, 2);
  EXPECT_EQ(steps_beside_products(joined), 0);
  const auto v = eval({joined, matmul(a, concat({slice(b, 2, 0, 2), b, slice(b, 2, 1, 4)}, 2))}, feeds,
                      {.verify = true});
  for (std::int64_t i = 0; i < joined.numel(); ++i) ASSERT_NEAR(v[0].at(i), v[1].at(i), 1e-5) << i;
}

// Tests paged attention and the gradients of attention. Results are joined along each axis, and with heads
// and rows transposed.
TEST_F(Joins, ResultsOfAttentionAreWrittenNextToEachOther) {
  const Tensor q = g.input("q", {2, 4, 3, 8}), pool = g.input("pool", {5, 4, 2, 8}),
               k = g.input("k", {2, 2, 6, 8}), v = g.input("v", {2, 2, 6, 8}),
               table = g.input("table", {2, 2}, i32), lengths = g.input("lengths", {2}, i32);
  for (const Tensor& x : {q, pool, k, v}) feeds.emplace_back(x, values(x, static_cast<int>(x.id())));
  feeds.emplace_back(table, std::vector<std::int32_t>{3, 1, 2, 4});
  feeds.emplace_back(lengths, std::vector<std::int32_t>{7, 4});
  for (const bool paged : {true, false})
    for (const int axis : {0, 1, 2, 3, 4}) {
      std::vector<Tensor> parts;
      if (paged)
        for (const double scale : {0.5, 0.25})
          parts.push_back(paged_attn(q, pool, pool, table, lengths, {.scale = scale}).o);
      else
        parts = gradients(flash_attn(q, k, v).o, {k, v}, q);
      std::vector<Tensor> moved = parts;
      if (axis == 4)
        for (Tensor& t : moved) t = transpose(t, 1, 2);
      const Tensor joined = concat(moved, axis == 4 ? 3 : axis);
      const Program program = compile(g, {joined});
      EXPECT_EQ(program.steps().size(), 2u) << axis << ":\n" << program.text();
      expect_same(joined, parts);
    }
}

TEST_F(Joins, LayoutsThatStridesCannotExpressAreCopied) {
  const Tensor c = matmul(a, b);
  const Tensor copied[] = {
      contiguous(transpose(c, 1, 2)),                           // adjacent elements would be separated
      contiguous(transpose(view(c, {2, 4, 2, 3}), 1, 2)),       // one axis of c would need two strides
      contiguous(expand(view(c, {1, 2, 4, 6}), {3, 2, 4, 6})),  // contains every element three times
      contiguous(slice(c, 1, 0, 2)),                            // only a part of c
      contiguous(transpose(a, 0, 1)),                           // not a GEMM result
      contiguous(transpose(c, 0, 1)) + transpose(c, 0, 1),      // c has two readers
  };
  for (const Tensor& y : copied) {
    EXPECT_EQ(steps_beside_products(y), 1);
    expect_same(y, {c});
  }
}

TEST_F(Joins, AFetchedResultIsCopied) {
  const Tensor c = matmul(a, b), merged = contiguous(transpose(c, 0, 1));
  const Program program = compile(g, {merged, c});
  EXPECT_EQ(program.steps().size(), 2u);
}

}  // namespace

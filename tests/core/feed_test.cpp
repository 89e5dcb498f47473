// Tests Feed. Covers ownership of the data, accepted numbers, and errors about inputs that were never fed.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <tilegrad/tilegrad.h>
#include "tests/support/count_allocations.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using tg::testing::expect_error;
using Values = std::vector<double>;

struct Fed : ::testing::Test {
  Graph g;
  Tensor x = g.input("x", {3}, f64), y = x * 1;
  Program p = compile(g, {y}, {.threads = 1});
  Values fetched() { return p.fetch(y).values<double>(); }
};

TEST_F(Fed, KeepsVectorsAndArraysGivenAsTemporaries) {
  std::vector<Feed> feeds;
  feeds.emplace_back(x, Values{1, 2, 3});
  feeds.emplace_back(x, Array::of<double>({4, 5, 6}));
  {
    const Array held = Array::of<double>({7, 8, 9});
    feeds.emplace_back(x, held);
  }
  const std::vector<Values> other(10, Values(3, -1));  // these values would overwrite freed memory
  const std::vector<Feed> copies = feeds;
  feeds.clear();
  for (int i = 0; i < 3; ++i) {
    p.run(std::span(copies).subspan(static_cast<std::size_t>(i), 1));
    EXPECT_EQ(fetched(), (Values{3. * i + 1, 3. * i + 2, 3. * i + 3}));
  }
}

TEST_F(Fed, ReferencesNamedVectorsAndSpans) {
  Values v{1, 2, 3};
  const Feed vector(x, v), span(x, std::span(v)), constant(x, std::span<const double>(v));
  for (const Feed& f : {vector, span, constant}) EXPECT_EQ(static_cast<const void*>(f.data()), v.data());
  v[1] = 5;
  p.run({vector});
  EXPECT_EQ(fetched(), (Values{1, 5, 3}));
}

TEST_F(Fed, AllocatesOnlyForTemporaryVectors) {
  const Values v{1, 2, 3};
  const Array a = Array::of<double>({1, 2, 3});
  const Tensor n = g.input("n", {});
  Program q = compile(g, {y, n * 2}, {.threads = 1});
  q.run({{x, v}, {n, 1}});
  const long before = allocations;
  q.run({{x, v}, {n, 2}});
  q.run({{x, std::span(v)}, {n, 0.1}});
  q.run({{x, a}, {n, 3.f}});
  EXPECT_EQ(allocations - before, 0);
}

TEST(FeedNumber, IsConvertedToTheInputsDtype) {
  Graph g;
  for (const DType t : all_dtypes) {
    const Tensor x = g.input("x", {1}, t);
    EXPECT_EQ(eval(copy(x), {{x, 1}}).at(0), 1) << name_of(t);
    EXPECT_EQ(eval(copy(x), {{x, 0.}}).at(0), 0) << name_of(t);
    EXPECT_EQ(eval(copy(x), {{x, true}}).at(0), 1) << name_of(t);
  }
  const Tensor x = g.input("x", {}, f32), i = g.input("i", {}, i64);
  EXPECT_EQ(eval(copy(x), {{x, 0.1}}).item<float>(), 0.1f);  // fractions are rounded
  EXPECT_EQ(eval(copy(x), {{x, -INFINITY}}).item<float>(), -INFINITY);
  EXPECT_TRUE(std::isnan(eval(copy(x), {{x, std::nan("")}}).item<float>()));
  for (const std::int64_t n :
       {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()})
    EXPECT_EQ(eval(copy(i), {{i, n}}).item<std::int64_t>(), n);
  EXPECT_EQ(eval(copy(i), {{i, std::size_t{7}}}).item<std::int64_t>(), 7);
}

TEST(FeedNumber, OutsideTheDtypesRangeIsRefused) {
  Graph g;
  const Tensor f = g.input("f", {}, f32), h = g.input("h", {}, f16), i = g.input("i", {}, i32),
               u = g.input("u", {}, u8), b = g.input("b", {}, boolean), l = g.input("l", {}, i64);
  expect_error<DTypeError>([&] { Feed(i, 0.5); }, {"[feed]", "i32 []", "0.5", "feed_test.cpp"});
  expect_error<DTypeError>([&] { Feed(i, std::int64_t{1} << 31); }, {"2147483648"});
  expect_error<DTypeError>([&] { Feed(u, -1); }, {"u8", "-1"});
  expect_error<DTypeError>([&] { Feed(u, 256); }, {"256"});
  expect_error<DTypeError>([&] { Feed(b, 2); }, {"bool", "2"});
  expect_error<DTypeError>([&] { Feed(f, (1 << 24) + 1); }, {"f32", "16777217"});
  expect_error<DTypeError>([&] { Feed(f, 1e300); }, {"f32"});
  expect_error<DTypeError>([&] { Feed(h, 65536.); }, {"f16"});
  expect_error<DTypeError>([&] { Feed(l, std::nan("")); }, {"i64", "nan"});
  expect_error<DTypeError>([&] { Feed(l, 9223372036854775808.); }, {"i64"});
  expect_error<Error>([&] { Feed(Tensor(), 1); }, {"undefined"});
  const Tensor x = g.input("rows", {3});
  Program p = compile(g, {x * 2});
  expect_error<ShapeError>(
      [&] {
        p.feed({x, 1});
      },
      {"[feed] input rows is f32 [3], got 1 elements", "feed_test.cpp"});
}

TEST(NeverFed, IsAnErrorWithNameShapeAndLine) {
  Graph g;
  const Tensor a = g.input("a", {3}), b = g.input("b", {2, 1}, i64);
  const std::string line = std::to_string(__LINE__ - 1);
  Program p = compile(g, {a * 2, b + 1});
  expect_error<Error>([&] { p.run(); }, {"[run] input a f32 [3] was never fed (feed_test.cpp:" + line + ")"});
  p.feed({a, std::vector<float>{1, 2, 3}});
  p.feed({a, std::vector<float>{4, 5, 6}});
  expect_error<Error>([&] { p.run(); },
                      {"[run] input b i64 [2, 1] was never fed (feed_test.cpp:" + line + ")"});
  expect_error<Error>([&] { p.profile(); }, {"[profile] input b i64 [2, 1] was never fed"});
  p.feed({b, std::vector<std::int64_t>{1, 2}});
  p.run();
  p.run();
  EXPECT_EQ(p.profile().size(), p.steps().size());
}

TEST(NeverFed, IsAllowedForAnInputThatTheProgramDoesNotRead) {
  Graph g;
  const Tensor a = g.input("a", {1}), b = g.input("b", {1});
  Program p = compile(g, {a * 2}, {.verify = true});
  p.run({{a, 1}});
  EXPECT_THROW(eval(a + b, {{a, 1}}), Error);
  EXPECT_EQ(eval(g.input("empty", {0, 3}) + 1).shape(), (Shape{0, 3}));
}

}  // namespace

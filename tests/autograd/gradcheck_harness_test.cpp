// Tests the parts of gradcheck. Covers the random numbers, their positions in each view, the programs of a
// case, and the counts of comparisons.
#include "tests/support/host_function.h"

#include <cmath>
#include <limits>
#include <numbers>

#include <tilegrad/core/base/rng.h>
#include "autograd/gradcheck/tally.h"
#include "core/base/hash.h"
#include "tests/support/gradcheck_cases.h"

namespace {

using namespace tg;
using namespace tg::gradcheck;
using namespace tg::testing;
using View = gradcheck::View;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                 inf = std::numeric_limits<double>::infinity();

// ---- Numbers

// Computes the random numbers of a leaf in plain code.
struct PlainStream {
  std::uint64_t key;
  std::uint32_t count = 0;
  PlainStream(const Case& c, std::uint64_t seed, std::uint32_t leaf) {
    Hasher h;
    h.add(c.owner);
    h.add(c.name);
    h.add(static_cast<std::uint64_t>(c.order));
    key = node_key(seed, h.digest()[0], leaf);
  }
  double next() {
    const PhiloxBlock b = philox({count++, 0, 0, 0}, key);
    return uniform(b[0], b[1]);
  }
  double sign() { return next() < 0.5 ? -1 : 1; }
  double weight() {  // ±[0.5, 1.5)
    const double s = sign();
    return s * (0.5 + next());
  }
};

Values plain_values(const Fill& fill, std::size_t n, PlainStream& s) {
  Values x;
  const double range = fill.high - fill.low;
  for (std::size_t i = 0; i < n; ++i) {
    if (fill.kind == Fill::normal) {  // Box–Muller transform
      const double radius = std::sqrt(-2 * std::log(1 - s.next()));
      x.push_back(radius * std::cos(2 * std::numbers::pi * s.next()));
    } else if (fill.kind == Fill::off_zero) {
      const double sign = s.sign();
      x.push_back(sign * (fill.low + range * s.next()));
    } else if (fill.kind == Fill::bits) {
      x.push_back(s.next() < 0.5 ? 1 : 0);
    } else if (fill.kind == Fill::distinct) {
      x.push_back(fill.low + range * double(i) / (n == 1 ? 1 : double(n) - 1));
    } else {
      const double u = fill.low + range * s.next();
      x.push_back(fill.kind == Fill::index ? std::floor(u) : u);
    }
  }
  if (fill.kind == Fill::distinct)  // the shuffle starts at the end
    for (std::size_t left = n; left >= 2; --left)
      std::swap(x[left - 1], x[static_cast<std::size_t>(s.next() * double(left))]);
  if (fill.kind == Fill::index && range > 1 && n > 0 && *std::max_element(x.begin(), x.end()) == fill.low)
    x[0] = std::floor(fill.low + 1 + (range - 1) * s.next());
  return x;
}

void expect_values(const Values& got, const Values& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_DOUBLE_EQ(got[i], expected[i]) << what << " element " << i;
}

TEST(Draws, MatchTheStreamOfTheirLeaf) {
  const Fill fills[] = {{},
                        {Fill::normal, 3, 4},  // ignores its bounds
                        {Fill::uniform, 2, 5},
                        {Fill::off_zero, 0.5, 2},
                        {Fill::index, 0, 4},
                        {Fill::index, 3, 5},
                        {Fill::index, 2, 3},
                        {Fill::index, -1, 2},
                        {Fill::bits},
                        {Fill::distinct, -1, 3}};
  for (const std::int64_t n : {0, 1, 2, 3, 8}) {
    Case c{"draws", "of " + std::to_string(n), {}, [n](DType, Device) {
             const Parameter w("w", Array::of<double>({3}, {5, 6, 7}));
             return Callable{{w}, [](std::span<const Tensor> x) { return Tensors{x[0] * 2, x[2] * x[3]}; }};
           }};
    for (const Fill& f : fills) c.inputs.push_back({{n}, f});
    c.inputs.push_back({{2}, {Fill::uniform, 0, 9}, {}, {1.5, -2}});
    const Harness h(c, View::contiguous, f64, {});
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      const Point x = h.draw(seed), r = h.draw_cotangents(seed), d = h.draw_direction(seed);
      ASSERT_EQ(x.size(), std::size(fills) + 2);
      ASSERT_EQ(r.size(), 2u);
      ASSERT_EQ(d.size(), x.size());
      const std::string what = std::to_string(n) + " seed " + std::to_string(seed) + " leaf ";
      for (std::uint32_t i = 0; i < x.size(); ++i) {
        PlainStream s(c, seed, i), direction(c, seed, 2000 + i);
        Values expected;
        if (i < std::size(fills)) {
          expected = plain_values(fills[i], static_cast<std::size_t>(n), s);
        } else if (i == std::size(fills)) {
          expected = {1.5, -2};
        } else {  // near the initial value of a parameter
          expected = plain_values({}, 3, s);
          for (std::size_t k = 0; k < 3; ++k) expected[k] = 5 + double(k) + 0.3 * expected[k];
        }
        expect_values(x[i], expected, what + std::to_string(i));
        Values along;
        for (std::size_t k = 0; k < x[i].size(); ++k) along.push_back(direction.weight());
        expect_values(d[i], along, what + std::to_string(i) + " direction");
      }
      for (std::uint32_t o = 0; o < 2; ++o) {
        PlainStream s(c, seed, 1000 + o);
        Values expected;
        for (std::int64_t k = 0; k < n; ++k) expected.push_back(s.weight());
        expect_values(r[o], expected, what + "output " + std::to_string(o));
      }
    }
  }
}

TEST(Draws, CasesSeedsAndOrdersDiffer) {
  const auto drawn = [](const char* owner, const char* name, int order, std::uint64_t seed) {
    Case c = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z)}; });
    c.owner = owner, c.name = name, c.order = order;
    return Harness(c, View::contiguous, f64, {}).draw(seed)[0];
  };
  const Values one = drawn("a", "b", 1, 0);
  EXPECT_EQ(drawn("a", "b", 1, 0), one);
  EXPECT_NE(drawn("b", "b", 1, 0), one);
  EXPECT_NE(drawn("a", "a", 1, 0), one);
  EXPECT_NE(drawn("a", "b", 2, 0), one);
  EXPECT_NE(drawn("a", "b", 1, 1), one);
}

TEST(Draws, AreRoundedToTheirDtype) {
  const Case c = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z)}; });
  const Harness wide(c, View::contiguous, f64, {});
  for (const DType dtype : {f32, bf16, f16}) {
    const Harness h(c, View::contiguous, dtype, {});
    const auto expect = [&](const Values& got, Values exact) {
      bool is_rounded = false;
      for (double& e : exact) is_rounded |= e != rounded_to(dtype, e), e = rounded_to(dtype, e);
      EXPECT_EQ(got, exact);
      EXPECT_TRUE(is_rounded);
    };
    expect(h.draw(5)[0], wide.draw(5)[0]);
    expect(h.draw_cotangents(5)[0], wide.draw_cotangents(5)[0]);
    EXPECT_EQ(h.draw_direction(5)[0], wide.draw_direction(5)[0]);  // the offset is added only in f64
  }
}

// ---- Views

using Places = std::vector<std::int64_t>;

TEST(Views, KeepEachElementAtItsPosition) {
  struct Row {
    View view;
    Shape shape, of_wrt;
    Places place, seen;
    std::int64_t buffer;
    bool applies;
  };
  const Row rows[] = {
      {View::contiguous, {2, 3}, {2, 3}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}, 6, true},
      {View::transposed, {2, 3}, {3, 2}, {0, 1, 2, 3, 4, 5}, {0, 2, 4, 1, 3, 5}, 6, true},
      {View::sliced, {2, 3}, {2, 3}, {8, 10, 12, 15, 17, 19}, {8, 10, 12, 15, 17, 19}, 28, true},
      {View::offset, {2, 3}, {2, 3}, {3, 4, 5, 6, 7, 8}, {3, 4, 5, 6, 7, 8}, 9, true},
      {View::expanded, {2, 3}, {1, 3}, {0, 1, 2}, {0, 1, 2, 0, 1, 2}, 3, true},
      {View::expanded_last, {2, 3}, {2, 1}, {0, 1}, {0, 0, 0, 1, 1, 1}, 2, true},
      {View::expanded, {1, 2, 1}, {1, 1, 1}, {0}, {0, 0}, 1, true},
      {View::transposed, {3}, {3}, {0, 1, 2}, {0, 1, 2}, 3, false},
      {View::sliced, {3}, {3}, {1, 3, 5}, {1, 3, 5}, 7, true},
      {View::sliced, {}, {}, {0}, {0}, 1, false},
      {View::offset, {}, {}, {3}, {3}, 4, true},
      {View::expanded, {1, 1}, {1, 1}, {0}, {0}, 1, false},
      {View::expanded_last, {}, {}, {0}, {0}, 1, false}};
  for (const Row& row : rows)
    for (const bool has_values : {false, true}) {
      const bool is_expanded = row.view == View::expanded || row.view == View::expanded_last;
      const std::string what = name_of(row.view) + " " + row.shape.text() + (has_values ? " given" : "");
      SampleInput in{row.shape};
      const auto n = static_cast<std::size_t>(numel(row.shape));
      for (std::size_t i = 0; has_values && i < n; ++i) in.values.push_back(10 + double(i));
      const Case c{"views", "identity", {in}, [](DType, Device) {
                     return Callable{{}, [](std::span<const Tensor> x) { return Tensors{copy(x[0])}; }};
                   }};
      Harness h(c, row.view, f64, {});
      ASSERT_EQ(h.leaves().size(), 1u);
      const Leaf& leaf = h.leaves()[0];
      // The given numbers are distinct. So no view repeats them. They have the op's order.
      const bool is_plain = has_values && is_expanded;
      EXPECT_EQ(h.view_changes_something(), row.applies && !is_plain) << what;
      EXPECT_EQ(leaf.shape, has_values ? row.shape : row.of_wrt) << what;
      Places all(n);
      for (std::size_t i = 0; i < n; ++i) all[i] = static_cast<std::int64_t>(i);
      EXPECT_EQ(leaf.seen, is_plain ? all : row.seen) << what;
      EXPECT_EQ(leaf.place, is_plain ? all : has_values ? row.seen : row.place) << what;
      EXPECT_EQ(leaf.buffer.numel(), is_plain ? static_cast<std::int64_t>(n) : row.buffer) << what;

      // Each number is at the position that the op reads. All memory around it is NaN.
      Point x(1);
      for (std::size_t i = 0; i < leaf.place.size(); ++i) x[0].push_back(1 + double(i));
      h.set(x);
      Values held(static_cast<std::size_t>(leaf.buffer.numel()), nan), logical;
      for (std::size_t i = 0; i < leaf.place.size(); ++i)
        held[static_cast<std::size_t>(leaf.place[i])] = x[0][i];
      for (std::size_t i = 0; i < held.size(); ++i) {
        const double e = leaf.buffer.at(static_cast<std::int64_t>(i));
        EXPECT_TRUE(e == held[i] || (std::isnan(e) && std::isnan(held[i]))) << what << " at " << i;
      }
      for (const std::int64_t at : leaf.seen) logical.push_back(held[static_cast<std::size_t>(at)]);
      EXPECT_EQ(h.outputs()[0], logical) << what;
      Point r(1);
      for (std::size_t i = 0; i < n; ++i) r[0].push_back(std::pow(2, double(i)));
      h.set_cotangents(r);
      Values z(leaf.place.size(), 0.0);
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t k = 0; k < z.size(); ++k)
          if (leaf.seen[i] == leaf.place[k]) z[k] += r[0][i];
      EXPECT_EQ(h.gradients()[0], z) << what;
      // A single element.
      for (std::size_t k = 0; k < leaf.place.size(); ++k) {
        h.set(0, k, -5);
        for (std::size_t i = 0; i < n; ++i)
          if (leaf.seen[i] == leaf.place[k]) logical[i] = -5;
        EXPECT_EQ(h.outputs()[0], logical) << what << " element " << k;
      }
    }
}

// Only floating inputs repeat their elements.
TEST(Views, BuffersOfIntegersAreNeverExpanded) {
  struct Row {
    View view;
    std::int64_t floating, integer;
  };
  const Row rows[] = {{View::contiguous, 6, 6}, {View::transposed, 6, 6}, {View::sliced, 28, 28},
                      {View::offset, 9, 9},     {View::expanded, 3, 6},   {View::expanded_last, 2, 6}};
  for (const Row& row : rows) {
    const Case c{"views",
                 "of dtypes",
                 {{{2, 3}},
                  {{2, 3}, {}, f32},
                  {{2, 3}, {Fill::index, 0, 3}},
                  {{2, 3}, {Fill::bits}},
                  {{2, 3}, {Fill::index, 0, 3}, i32}},
                 [](DType, Device) {
                   return Callable{{}, [](std::span<const Tensor> x) { return Tensors{x[0] * 2}; }};
                 }};
    const Harness h(c, row.view, f64, {});
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(h.leaves()[i].buffer.numel(), i < 2 ? row.floating : row.integer) << name_of(row.view) << i;
      EXPECT_EQ(h.leaves()[i].seen.size(), 6u);
    }
  }
}

TEST(Views, ChangeTheCaseIfTheyChangeOneInput) {
  const SampleInput matrix{{2, 3}}, scalar{{}};
  const auto changes = [](std::vector<SampleInput> inputs) {
    const Case c{"views", "of inputs", std::move(inputs), [](DType, Device) {
                   return Callable{{}, [](std::span<const Tensor> x) { return Tensors{x[0] * 2}; }};
                 }};
    return Harness(c, View::transposed, f64, {}).view_changes_something();
  };
  EXPECT_TRUE(changes({matrix, scalar}));
  EXPECT_TRUE(changes({scalar, matrix}));
  EXPECT_FALSE(changes({scalar, scalar}));
}

TEST(Views, AreSurroundedByDetectableNumbers) {
  const std::pair<SampleInput, double> inputs[] = {{{{3}}, nan},
                                                   {{{3}, {Fill::index, 0, 3}}, -1048576},
                                                   {{{3}, {Fill::index, 0, 3}, i32}, -1048576},
                                                   {{{3}, {Fill::bits}}, 1},
                                                   {{{3}, {Fill::index, 0, 3}, u8}, 255},
                                                   {{{3}, {}, f32}, nan}};
  Case c{"views", "gaps", {}, [](DType, Device) {
           return Callable{{}, [](std::span<const Tensor> x) { return Tensors{x[0] * 2}; }};
         }};
  for (const auto& [in, gap] : inputs) c.inputs.push_back(in);
  const Harness h(c, View::sliced, f64, {});
  const DType dtypes[] = {f64, i64, i32, boolean, u8, f32};
  for (std::size_t i = 0; i < h.leaves().size(); ++i) {
    const Leaf& leaf = h.leaves()[i];
    EXPECT_EQ(leaf.dtype, dtypes[i]) << i;
    EXPECT_EQ(leaf.floating, i == 0) << i;
    for (const std::int64_t at : {0, 2, 4, 6}) {
      const double e = leaf.buffer.at(at), gap = inputs[i].second;
      EXPECT_TRUE(e == gap || (std::isnan(e) && std::isnan(gap))) << i << ": " << e;
    }
  }
}

// ---- Programs of a case

double bf(double x) {
  return rounded_to(bf16, x);
}

TEST(Programs, RoundEveryResultOrOnlyStoredResults) {
  const Case chain{"rounds", "chain", {{{6}}}, [](DType, Device) {
                     return Callable{{}, [](std::span<const Tensor> x) { return Tensors{x[0] / 3 * 7}; }};
                   }};
  const Case sums{
      "rounds", "sums", {{{2, 2}}}, [](DType, Device) {
        return Callable{{}, [](std::span<const Tensor> x) { return Tensors{sum(x[0] / 3, {1}) / 7}; }};
      }};
  for (const Case& c : {chain, sums})
    for (const std::optional<bool> chains : {std::optional<bool>(), {true}, {false}}) {
      HarnessOptions how;
      if (chains) how.round_to = bf16, how.round_fused = *chains;
      Harness h(c, View::contiguous, f64, how);
      const Point x = h.draw(1), r = h.draw_cotangents(1);
      const auto each = [&](double e) { return chains && *chains ? bf(e) : e; };  // every result
      const auto stored = [&](double e) { return chains ? bf(e) : e; };
      const Read got = read(h, x, r);
      if (c.name == "chain") {
        for (std::size_t k = 0; k < 6; ++k) {
          EXPECT_EQ(got.outputs[0][k], stored(each(x[0][k] / 3) * 7));
          EXPECT_NEAR(got.gradients[0][k], r[0][k] * 7 / 3, chains ? 0x1p-5 : 1e-15);
          if (chains) {
            EXPECT_EQ(got.gradients[0][k], bf(got.gradients[0][k]));
          }
        }
      } else {
        for (std::size_t k = 0; k < 2; ++k)  // the sum reads stored values, and these are rounded
          EXPECT_EQ(got.outputs[0][k],
                    stored(stored(stored(x[0][2 * k] / 3) + stored(x[0][2 * k + 1] / 3)) / 7));
      }
    }
}

// Inputs, constant arrays and views are not rounded. A plain number becomes a result of full().
TEST(Programs, RoundResultsOfOpsOnly) {
  const double third = 1. / 3;
  const Case c{
      "rounds", "views", {{{2, 3}}}, [=](DType, Device) {
        return Callable{
            {}, [=](std::span<const Tensor> x) {
              const Tensor factor = x[0].graph().constant(Array::of<double>({2}, {third, 7 * third}));
              return Tensors{transpose(x[0], 0, 1) * factor * third};
            }};
      }};
  for (const bool chains : {true, false}) {
    Harness h(c, View::contiguous, f64, {.round_to = bf16, .round_fused = chains});
    const Point x = h.draw(1);
    h.set(x);
    const Values y = h.outputs()[0];
    for (std::size_t k = 0; k < 6; ++k) {
      const double product = x[0][k % 2 * 3 + k / 2] * (k % 2 == 0 ? third : 7 * third);
      EXPECT_EQ(y[k], bf((chains ? bf(product) : product) * bf(third))) << k;
    }
  }
}

// These C++ functions count their calls. They compute y₀ = x·w and y₁ = w².
struct Pair {
  std::shared_ptr<HostFunction> f = std::make_shared<HostFunction>();
  int backward_runs = 0;
  std::vector<Point> cotangents = {};
  Case c;
  Pair() {
    f->outputs = [](const Point& x, DType) { return Point{{x[0][0] * x[1][0]}, {x[1][0] * x[1][0]}}; };
    f->gradients = [this](const Point& x, const Point& r, DType) {
      ++backward_runs;
      cotangents.push_back(r);
      return Point{{r[0][0] * x[1][0]}, {r[0][0] * x[0][0] + r[1][0] * 2 * x[1][0]}};
    };
    c = case_of(f, {{{1}}, {{1}}}, {{1}, {1}});
  }
};

TEST(Programs, DifferentiateByTheirOptions) {
  Pair p;
  const Point x{{3}, {5}}, r{{2}, {7}};  // x·w: 10 with respect to x, 6 with respect to w; w²: 70
  const auto gradients = [&](const HarnessOptions& how) {
    Harness h(p.c, View::contiguous, f64, how);
    EXPECT_TRUE(h.differentiable());
    p.cotangents.clear();
    return read(h, x, r).gradients;
  };
  EXPECT_EQ(gradients({}), (Point{{10}, {76}}));
  EXPECT_EQ(gradients({.twice = true}), (Point{{40}, {304}}));
  EXPECT_EQ(p.cotangents, std::vector<Point>(2, {{4}, {14}}));  // each of two calls uses it twice
  EXPECT_EQ(gradients({.use_output = {true, false}}), (Point{{10}, {6}}));
  EXPECT_EQ(gradients({.use_output = {false, true}}), (Point{{0}, {70}}));
  EXPECT_EQ(gradients({.twice = true, .use_output = {false, true}}), (Point{{0}, {280}}));
  EXPECT_EQ(gradients({.differentiate = {true, false}}), (Point{{10}}));
  EXPECT_EQ(gradients({.differentiate = {false, true}}), (Point{{76}}));
  EXPECT_EQ(gradients({.tamper =
                           [](Tensors z, NodeId, NodeId) {
                             return Tensors{z[1], z[0] * 2};
                           }}),
            (Point{{76}, {20}}));
  Harness none(p.c, View::contiguous, f64, {.use_output = {false, false}});
  EXPECT_FALSE(none.differentiable());
  Harness forward(p.c, View::contiguous, f64, {.forward_only = true});
  EXPECT_FALSE(forward.differentiable());
  EXPECT_EQ(read(forward, x, r).outputs, (Point{{15}, {25}}));
  EXPECT_TRUE(read(forward, x, r).gradients.empty());
  const Harness shapes(p.c, View::contiguous, f64, {.shapes_only = true});
  EXPECT_EQ(shapes.output_shapes(), (std::vector<Shape>{{1}, {1}}));
  EXPECT_EQ(shapes.output_dtypes(), (std::vector<DType>{f64, f64}));
  EXPECT_EQ(shapes.draw(3), none.draw(3));
  EXPECT_EQ(shapes.forward_roundings().all, 0);
  // The function is called once per run. If memory planning is checked, it is called twice.
  for (const bool verify : {false, true}) {
    Harness h(p.c, View::contiguous, f64, {.verify = verify});
    p.backward_runs = 0;
    p.f->seen.clear();
    h.set(x);
    h.set_cotangents(r);
    h.gradients();
    EXPECT_EQ(p.backward_runs, verify ? 2 : 1);
    EXPECT_EQ(p.f->seen.size(), verify ? 2u : 1u);
    h.outputs();
    EXPECT_EQ(p.f->seen.size(), verify ? 4u : 2u);
  }
}

TEST(Programs, TamperReceivesTheNodesOfTheGradient) {
  Case c = cube([](auto& in, auto&, auto& z) { return Tensors{z[0] * 3 * in[0] * in[0]}; });
  std::string names;
  const Harness h(c, View::contiguous, f64, {.tamper = [&](Tensors z, NodeId first, NodeId last) {
                    const Graph& g = z[0].graph();
                    EXPECT_EQ(last, g.nodes().size());
                    for (NodeId n = first; n < last; ++n) names += g.nodes()[n].op->name + " ";
                    return z;
                  }});
  EXPECT_EQ(names, "full expand mul mul mul ");
}

TEST(Programs, DrawTheSameRandomNumbersInEveryRun) {
  const Case c{"random", "dropout", {{{40}}}, [](DType, Device) {
                 return Callable{{}, [](std::span<const Tensor> x) { return Tensors{dropout(x[0], 0.5)}; }};
               }};
  Harness h(c, View::contiguous, f64, {}), twice(c, View::contiguous, f64, {.twice = true});
  const Point x = h.draw(0), r = h.draw_cotangents(0);
  const Read a = read(h, x, r), b = read(h, x, r);
  EXPECT_EQ(a.outputs, b.outputs);
  EXPECT_EQ(a.gradients, b.gradients);
  const Point z = read(twice, x, r).gradients;
  for (std::size_t k = 0; k < 40; ++k) EXPECT_DOUBLE_EQ(z[0][k], 4 * a.gradients[0][k]);
}

TEST(Programs, CountTheRoundingsOfTheirSteps) {
  const Case c{
      "roundings", "of two sums", {{{2, 5}}, {{5, 7}}}, [](DType, Device) {
        return Callable{{}, [](std::span<const Tensor> x) { return Tensors{sum(matmul(x[0], x[1]), {0})}; }};
      }};
  const Harness h(c, View::contiguous, f64, {});
  const auto of = [&](const char* op, std::vector<Shape> in, const Shape& out) {
    Graph g;
    Tensors x;
    for (const Shape& s : in) x.push_back(g.input("x", s, f64));
    const Program p = compile(g, {std::string(op) == "sum" ? sum(x[0], {0}) : matmul(x[0], x[1])});
    EXPECT_EQ(p.steps().size(), 1u);
    EXPECT_EQ(p.steps()[0].out[0].layout.shape, out);
    const Step& s = p.steps()[0];
    std::vector<Operand> from, to;
    for (const Arg& a : s.in) from.push_back({a.dtype, a.layout});
    for (const Arg& a : s.out) to.push_back({a.dtype, a.layout});
    return s.op->roundings(from, to, s.attrs);
  };
  const double product = of("matmul", {{2, 5}, {5, 7}}, {2, 7}), total = of("sum", {{2, 7}}, {7});
  EXPECT_GT(product, total);
  EXPECT_EQ(h.forward_roundings().all, product + total);
  EXPECT_EQ(h.forward_roundings().of_a_step, product);
  Pair p;  // if an op does not state its roundings, it has one
  EXPECT_EQ(Harness(p.c, View::contiguous, f64, {}).forward_roundings().all, 1);
  EXPECT_EQ(Harness(p.c, View::contiguous, f64, {}).forward_roundings().of_a_step, 1);
}

// ---- Tally

TEST(Numbers, MatchTheFormatOfEachDtype) {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    const double u = unit_roundoff(dtype), least = smallest_positive(dtype), most = largest_finite(dtype);
    EXPECT_EQ(rounded_to(dtype, 1 + 2 * u), 1 + 2 * u);
    EXPECT_EQ(dtype == f64 ? 1 + u : rounded_to(dtype, 1 + u), 1);  // a tie; it rounds to even
    EXPECT_EQ(rounded_to(dtype, least), least);
    EXPECT_EQ(dtype == f64 ? least / 2 : rounded_to(dtype, least / 2), 0);
    EXPECT_EQ(rounded_to(dtype, most), most);
    EXPECT_TRUE(std::isfinite(most));
    EXPECT_EQ(dtype == f64 ? most * (1 + 2 * u) : rounded_to(dtype, most * (1 + 2 * u)), inf);
  }
}

TEST(Numbers, LargestAndFarthestSkipNonFiniteNumbers) {
  EXPECT_EQ(largest({}), 0);
  EXPECT_EQ(largest({-3, 2, nan, inf, -inf}), 3);
  EXPECT_EQ(largest({1, -4}), 4);
  EXPECT_EQ(farthest({1, 5, 2}, {1, 3, -1}), 3);
  EXPECT_EQ(farthest({7, 0, 0}, {1, 0, 0}), 6);
  EXPECT_EQ(farthest({inf, 1}, {inf, 1}), 0);
  EXPECT_EQ(farthest({inf}, {-inf}), inf);
  EXPECT_EQ(farthest({nan, 1}, {1, 1}), inf);
  EXPECT_EQ(farthest({1}, {1}), 0);
}

TEST(Numbers, NudgesFollowTheBitsOfTheirSeed) {
  const Point x{{1, 2, 3, 4}, {5, 6, 7}, {8, -9, 10, 11, 12}};
  for (std::uint64_t seed : {0, 1, 2, 7, 104}) {
    const Point y = nudged(x, 0.25, {true, false, true}, seed);
    std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 0x7654321;  // xorshift64
    int ups = 0, downs = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t k = 0; k < x[i].size(); ++k) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const bool up = state >> 40 & 1;
        EXPECT_EQ(y[i][k], x[i][k] * (i == 1 ? 1 : up ? 1.25 : 0.75)) << seed << ": " << i << ", " << k;
        (up ? ups : downs) += i != 1;
      }
    EXPECT_GT(ups, 0);
    EXPECT_GT(downs, 0);
  }
}

TEST(Numbers, IndicesArePrintedInRowMajorOrder) {
  EXPECT_EQ(index_text({}, 0), "[]");
  EXPECT_EQ(index_text({7}, 6), "[6]");
  EXPECT_EQ(index_text({2, 3, 4}, 0), "[0, 0, 0]");
  EXPECT_EQ(index_text({2, 3, 4}, 23), "[1, 2, 3]");
  EXPECT_EQ(index_text({2, 3, 4}, 13), "[1, 0, 1]");
}

Result tallied(const std::vector<Comparison>& all, DType dtype = f64) {
  Result r;
  r.dtype = dtype;
  Tally tally(r);
  for (std::size_t i = 0; i < all.size(); ++i) tally.add(all[i], [&] { return std::to_string(i); });
  return r;
}

TEST(Tally, KeepsTheLargestErrorsAndTheElementClosestToItsBound) {
  const Result none = tallied({});
  EXPECT_EQ(none.checked, 0);
  EXPECT_EQ(none.ratio, 0);
  EXPECT_EQ(none.status, Status::ok);

  const Result exact = tallied({{2, 2, 1}, {3, 3, 1}});  // the first one is kept until a worse one follows
  EXPECT_EQ(exact.checked, 2);
  EXPECT_EQ(exact.worst.where, "0");
  EXPECT_EQ(exact.max_abs, 0);
  EXPECT_EQ(exact.max_rel, 0);

  const Result r =
      tallied({{10, 8, 4, 0, 0.5}, {1, 4, 6}, {4, 2, 8, 40}, {0.5, 0, 1}, {-5, -4, 2.5, 0, 0.25}});
  EXPECT_EQ(r.checked, 5);
  EXPECT_EQ(r.status, Status::ok);
  EXPECT_EQ(r.max_abs, 3);
  EXPECT_EQ(r.max_rel, 0.75);  // an error of 3 relative to 4; a zero without a scale is not counted
  EXPECT_EQ(r.ratio, 0.5);     // three elements have this ratio; the first one is kept
  EXPECT_EQ(r.worst.where, "0");
  EXPECT_EQ(r.worst.analytic, 10);
  EXPECT_EQ(r.worst.numeric, 8);
  EXPECT_EQ(r.worst.h, 0.5);
  EXPECT_EQ(tallied({{4, 2, 8, 40}}).max_rel, 0.05);  // relative to the scale
  EXPECT_EQ(tallied({{1, 4, 2, 3}}).max_rel, 0.75);

  EXPECT_EQ(tallied({{3, 2, 1}}).status, Status::ok);  // at the bound
  EXPECT_EQ(tallied({{3, 2, 1}}).ratio, 1);
  EXPECT_EQ(tallied({{3, 2, std::nextafter(1, 0)}}).status, Status::mismatch);
  EXPECT_EQ(tallied({{3, 2, 0}}).ratio, 1e300);  // no error is allowed
  EXPECT_EQ(tallied({{3, 2, -1}}).ratio, 1e300);
  EXPECT_EQ(tallied({{2, 2, 0}}).ratio, 0);
}

TEST(Tally, CountsUnitsInTheLastPlace) {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    const double ulp = 2 * unit_roundoff(dtype);  // the spacing of numbers in [1, 2)
    EXPECT_EQ(tallied({{1 + 3 * ulp, 1, 1}}, dtype).worst.ulp, 3);
    EXPECT_EQ(tallied({{1.5 - 3 * ulp, 1.5, 1}}, dtype).worst.ulp, 3);
    EXPECT_EQ(tallied({{4 + 8 * ulp, 4, 1}}, dtype).worst.ulp, 2);
    EXPECT_EQ(tallied({{0.5, 0.5 + 2 * ulp, 1}}, dtype).worst.ulp, 4);
    EXPECT_EQ(tallied({{1, 1 - 2 * ulp, 1, 8}}, dtype).worst.ulp, 0.25);  // relative to the scale
    EXPECT_EQ(tallied({{1, 0, 1}}, dtype).worst.ulp, 0);                  // relative to 0
  }
}

TEST(Tally, TheFirstNonFiniteNumberIsKept) {
  for (const double bad : {nan, inf, -inf}) {
    const Result r = tallied({{9, 1, 1}, {bad, 7, 1, 0, 0.5}, {nan, 2, 1}, {100, 1, 1}});
    EXPECT_EQ(r.status, Status::non_finite);
    EXPECT_EQ(r.checked, 4);
    EXPECT_EQ(r.worst.where, "1");
    EXPECT_EQ(r.worst.numeric, 7);
    EXPECT_EQ(r.worst.h, 0.5);
    EXPECT_EQ(r.worst.ulp, 0);
    EXPECT_EQ(r.ratio, inf);
  }
  EXPECT_EQ(tallied({{1, nan, 1}}).status, Status::non_finite);
}

TEST(Tally, JudgesWithoutCountingAndFailsWithNotes) {
  Result r;
  Tally tally(r);
  EXPECT_FALSE(tally.failed());
  tally.judge({3, 2, 4}, [] { return "judged"; });
  EXPECT_EQ(r.checked, 0);
  EXPECT_EQ(r.ratio, 0.25);
  tally.rule(true, "a rule");
  EXPECT_EQ(r.rules, 1);
  EXPECT_EQ(r.note, "");
  EXPECT_FALSE(tally.failed());
  tally.rule(false, "a rule");
  EXPECT_EQ(r.rules, 2);
  EXPECT_TRUE(tally.failed());
  EXPECT_EQ(r.status, Status::mismatch);
  tally.fail("a rule");  // noted once
  tally.fail("another");
  EXPECT_EQ(r.note, "a rule; another");
  tally.judge({nan, 2, 4}, [] { return "not finite"; });
  EXPECT_EQ(r.status, Status::non_finite);
  EXPECT_TRUE(tally.failed());
  tally.fail("a third");
  tally.judge({9, 2, 4}, [] { return "too far"; });
  EXPECT_EQ(r.status, Status::non_finite);  // which is worse than a mismatch
  EXPECT_EQ(r.worst.where, "not finite");
}

TEST(Numbers, ToleranceIsRelativeToTheExpectedSize) {
  const Tol tol{.rtol = 0.5, .atol = 2};
  EXPECT_EQ(tol.allowed(0), 2);
  EXPECT_EQ(tol.allowed(4), 4);
  EXPECT_EQ(tol.allowed(-4), 4);
}

TEST(Numbers, DefaultsOfTheOptionsAreDocumented) {
  const Options o;
  EXPECT_EQ(o.views.size(), 6u);
  EXPECT_EQ(o.dtypes, (std::vector<DType>{f64, f32, bf16, f16}));
  EXPECT_EQ(o.order, 1);
  EXPECT_FALSE(o.fast);
  EXPECT_EQ(o.seed, 0u);
  EXPECT_EQ(o.tol.rtol, 1e-7);
  EXPECT_EQ(o.tol.atol, 1e-9);
  EXPECT_EQ(o.h, 1e-3);
  for (const double h : {1e-300, 1.0}) {  // the ends of the range
    Options at_end;
    at_end.h = h, at_end.tol = {.rtol = 0, .atol = 0}, at_end.order = 2;
    EXPECT_NO_THROW(at_end.check_numbers());
  }
  for (const double h : {0.0, 1.0000001}) {
    Options beyond;
    beyond.h = h;
    EXPECT_THROW(beyond.check_numbers(), Error);
    const Case c = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z)}; });
    EXPECT_THROW(check(c, beyond), Error);
    EXPECT_THROW(mutate(c, beyond), Error);
    EXPECT_THROW(v_curve(c, beyond), Error);
  }
  Options third;
  third.order = 3;
  EXPECT_THROW(third.check_numbers(), Error);
  const Result r;
  EXPECT_EQ(r.checked + r.skipped + r.resampled + r.special + r.undecided + r.rules, 0);
  EXPECT_EQ(r.order, 1);
  EXPECT_EQ(r.max_abs + r.max_rel + r.ratio + r.worst.analytic + r.worst.numeric + r.worst.h + r.worst.ulp,
            0);
  EXPECT_EQ(Case().order, 1);
}

}  // namespace

// Tests gradients. Covers random graphs, the paths of gradients through values, refusals, and nodes that are
// recorded again.
#include <tilegrad/autograd/gradients.h>

#include <cmath>

#include <tilegrad/tilegrad.h>
#include "autograd/replay.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;
using Tensors = std::vector<Tensor>;

// Computes polynomials in two variables and their derivatives. Each graph that consists of sums and products
// is such a polynomial.
struct Dual {
  double value, dx, dy;
};
Dual operator+(Dual a, Dual b) {
  return {a.value + b.value, a.dx + b.dx, a.dy + b.dy};
}
Dual operator*(Dual a, Dual b) {
  return {a.value * b.value, a.dx * b.value + a.value * b.dx, a.dy * b.value + a.value * b.dy};
}

// Makes random graphs. Some nodes are recomputed, are custom ops, or are never used.
TEST(Gradients, RandomGraphsMatchDualNumbers) {
  const auto square = [](const Tensors& in) { return Tensors{in[0] * in[0], in[0] + in[0]}; };
  const CustomOp own = custom_op("own", {square, [](const Tensors& in, const Tensors&, const Tensors& z) {
                                           return Tensors{z[0] * in[0] * 2 + z[1] * 2};
                                         }});
  std::uint64_t state = 12345;
  const auto random = [&](std::size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state >> 33) % n;
  };
  for (int trial = 0; trial < 60; ++trial) {
    Graph g;
    const Tensor x = g.input("x", {1}, f64), y = g.input("y", {1}, f64);
    Tensors t{x, y};
    std::vector<Dual> d{{0.75, 1, 0}, {-0.5, 0, 1}};
    for (int i = 0; i < 12; ++i) {
      const std::size_t a = random(t.size()), b = random(t.size()), kind = random(6);
      if (kind == 0) {
        t.push_back(t[a] + t[b]), d.push_back(d[a] + d[b]);
      } else if (kind == 1) {
        t.push_back(t[a] * t[b]), d.push_back(d[a] * d[b]);
      } else if (kind == 2) {
        const Tensors two = own.all({t[a]});
        t.push_back(two[1]), d.push_back(d[a] + d[a]);
        if (i % 2) t.push_back(two[0]), d.push_back(d[a] * d[a]);
      } else if (kind == 3) {
        const auto f = [](const Tensors& in) { return Tensors{in[0] * in[1], in[0] * in[0] + in[1]}; };
        const Tensors two = checkpoint(f, {t[a], t[b]});
        t.insert(t.end(), two.begin(), two.end());
        const Dual product = d[a] * d[b], other = d[a] * d[a] + d[b];
        d.push_back(product), d.push_back(other);
      } else if (kind == 4) {
        t.push_back(stop_gradient(t[a]) * 0.5), d.push_back({d[a].value * 0.5, 0, 0});
      } else {
        t.push_back(t[a] * 0.5), d.push_back(d[a] * Dual{0.5, 0, 0});
      }
      if (std::abs(d.back().value) > 100) t.pop_back(), d.pop_back();
    }
    const Tensors z = gradients(t.back(), {x, y});
    const auto v =
        eval({t.back(), z[0], z[1]}, {{x, std::vector<double>{0.75}}, {y, std::vector<double>{-0.5}}});
    const Dual& e = d.back();
    EXPECT_NEAR(v[0].at(0), e.value, 1e-12 * std::max(1.0, std::abs(e.value))) << trial;
    EXPECT_NEAR(v[1].at(0), e.dx, 1e-11 * std::max(1.0, std::abs(e.dx))) << trial;
    EXPECT_NEAR(v[2].at(0), e.dy, 1e-11 * std::max(1.0, std::abs(e.dy))) << trial;
    if (e.dx != 0) {
      EXPECT_TRUE(depends_on(t.back(), x)) << trial;
    }
  }
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const GradientError& e) {
    const std::string what = e.what();
    return what.substr(0, what.find(" ("));
  }
  return "none";
}

TEST(Gradients, RefuseMismatchedLossesCotangentsAndTensors) {
  Graph g, other;
  const Tensor x = g.input("x", {3}, f64), i = g.input("i", {3}, i32), y = x * 2, loss = sum(y);
  const Tensor foreign = other.input("foreign", {3}, f64);
  const auto message = [](const Tensor& l, const Tensors& wrt, const Tensor& cotangent = {}) {
    return error_of([&] { gradients(l, wrt, cotangent); });
  };
  EXPECT_EQ(message({}, {x}), "[gradients] the loss is an undefined tensor");
  EXPECT_EQ(message(sum(i), {x}), "[gradients] the loss sum is i64 [], expected a floating tensor");
  EXPECT_EQ(message(y, {x}), "[gradients] the loss mul is f64 [3], expected one element, or a cotangent");
  EXPECT_EQ(message(y, {x}, foreign),
            "[gradients] the cotangent belongs to a different graph from the loss mul");
  EXPECT_EQ(message(y, {x}, sum(x)), "[gradients] the cotangent is f64 [], the loss mul is f64 [3]");
  EXPECT_EQ(message(y, {x}, cast(x, f32)), "[gradients] the cotangent is f32 [3], the loss mul is f64 [3]");
  const std::string expected = ", expected a floating tensor of the loss's graph";
  EXPECT_EQ(message(loss, {x, Tensor()}), "[gradients] tensor 1 to differentiate by is undefined" + expected);
  EXPECT_EQ(message(loss, {foreign}),
            "[gradients] tensor 0 to differentiate by is of a different graph" + expected);
  EXPECT_EQ(message(loss, {x, x, i}), "[gradients] tensor 2 to differentiate by is i32 [3]" + expected);
  EXPECT_EQ(message(y, {x}, x), "none");
  EXPECT_EQ(message(loss, {}), "none");
  EXPECT_TRUE(gradients(loss, {}).empty());
  // The gradient with respect to the loss itself is 1, and with respect to a later node 0.
  EXPECT_EQ(eval(gradients(loss, {loss})[0]).at(0), 1);
  EXPECT_EQ(eval(gradients(loss, {loss * 2})[0]).at(0), 0);
}

TEST(Gradients, CutByIntegersNameTheFirstSuchNode) {
  Graph g;
  const Tensor x = g.input("x", {3}, f64);
  const Parameter p("layer.w", Array({3}, f64));
  const auto cut = [&](const Tensor& loss, const Tensor& w) {
    const std::string what = error_of([&] { gradients(loss, {w}); });
    if (what == "none") return what;
    try {
      gradients(loss, {w});
    } catch (const GradientError& e) {
      const std::string all = e.what();
      const std::size_t by = all.find(" depends on ") + 12, first = all.find("first those of ") + 15;
      return all.substr(by, all.find(" through") - by) + " by " +
             all.substr(first, all.find(" (", first) - first);
    }
    return what;
  };
  const Tensor twice = x * 2;
  EXPECT_EQ(cut(sum(cast(greater(x, 0), f64)), x), "x f64 [3] by greater");
  EXPECT_EQ(cut(sum(cast(greater(twice, 0), f64)) * 3, x), "x f64 [3] by greater");
  EXPECT_EQ(cut(sum(cast(logical_not(greater(twice, 0)), f64)), x), "x f64 [3] by greater");
  EXPECT_EQ(cut(sum(cast(cast(twice, i32) + 1, f64)), x), "x f64 [3] by cast");
  EXPECT_EQ(cut(sum(cast(greater(twice, 0), f64)), twice), "mul f64 [3] by greater");
  const Tensor w = g.param(p);
  EXPECT_EQ(cut(sum(cast(greater(w, x), f64)), w), "layer.w f64 [3] by greater");
  EXPECT_EQ(cut(sum(cast(greater(x, 0), f64) * w), x), "x f64 [3] by greater");
  EXPECT_EQ(cut(sum(cast(greater(x, 0), f64) * w), w), "none");
  EXPECT_EQ(cut(sum(cast(greater(x, 0), f64) + x), x), "none");
  EXPECT_EQ(cut(sum(stop_gradient(cast(greater(x, 0), f64))), x), "none");
  EXPECT_EQ(cut(sum(x), w), "none");
}

TEST(Gradients, DependOnlyThroughFloatingValues) {
  Graph g, other;
  const Tensor x = g.input("x", {3}, f64), y = g.input("y", {3}, f64);
  EXPECT_TRUE(depends_on(x, x));
  EXPECT_TRUE(depends_on(sum(x * y), x));
  EXPECT_TRUE(depends_on(sum(x * y), y));
  EXPECT_FALSE(depends_on(sum(x), y));
  EXPECT_FALSE(depends_on(sum(x), sum(x)));
  EXPECT_FALSE(depends_on(sum(x), other.input("x", {3}, f64)));
  EXPECT_FALSE(depends_on(sum(cast(greater(x, 0), f64)), x));
  EXPECT_FALSE(depends_on(sum(stop_gradient(x)), x));
  EXPECT_TRUE(depends_on(sum(stop_gradient(x) + x), x));
  EXPECT_TRUE(depends_on(sum(where(greater(y, 0), x, 0)), x));
  EXPECT_FALSE(depends_on(sum(where(greater(y, 0), x, 0)), y));
  const CustomOp rounded =
      custom_op("rounded", {[](const auto& in) { return Tensors{cast(cast(in[0], i32), f64)}; },
                            [](const auto&, const auto&, const auto& z) { return Tensors(z); }});
  EXPECT_TRUE(depends_on(sum(rounded(x)), x));
}

// If an input needs a gradient, the gradient from a custom backward is checked.
TEST(Gradients, CustomGradientsMustFitTheirInputs) {
  Graph other;
  const Tensor foreign = other.input("foreign", {2}, f64);
  const auto with = [](std::function<Tensors(const Tensors& in, const Tensors& z)> backward,
                       bool by_both = true) {
    Graph g;
    const Tensor x = g.input("x", {2}, f64), y = g.input("y", {2}, f64);
    const CustomOp op = custom_op(
        "own", {[](const Tensors& in) { return Tensors{in[0] * in[1]}; },
                [=](const Tensors& in, const Tensors&, const Tensors& z) { return backward(in, z); }});
    return error_of([&] { gradients(sum(op(x, y)), by_both ? Tensors{x, y} : Tensors{x}); });
  };
  const auto right = [](const Tensors& in, const Tensors& z) { return Tensors{z[0] * in[1], z[0] * in[0]}; };
  EXPECT_EQ(with(right), "none");
  EXPECT_EQ(with([](auto&, auto& z) { return Tensors{z[0]}; }),
            "[own/custom op] its gradient returned 1 tensors for 2 inputs");
  EXPECT_EQ(with([](auto&, auto& z) {
              return Tensors{z[0], z[0], z[0]};
            }),
            "[own/custom op] its gradient returned 3 tensors for 2 inputs");
  EXPECT_EQ(with([&](auto&, auto& z) {
              return Tensors{z[0], foreign};
            }),
            "[own/custom op] gradient of input 1 is a tensor of a different graph");
  EXPECT_EQ(with([](auto&, auto& z) {
              return Tensors{sum(z[0]), z[0]};
            }),
            "[own/custom op] gradient of input 0 is f64 [], the input is f64 [2]");
  EXPECT_EQ(with([](auto&, auto& z) {
              return Tensors{z[0], cast(z[0], f32)};
            }),
            "[own/custom op] gradient of input 1 is f32 [2], the input is f64 [2]");
  EXPECT_EQ(with(
                [](auto&, auto& z) {
                  return Tensors{z[0], cast(z[0], f32)};
                },
                false),
            "none");  // not requested
  EXPECT_EQ(with([](auto&, auto& z) { return Tensors{z[0], Tensor()}; }), "none");
}

// A custom backward receives the inputs of the call and the values of its own region. The cotangent of an
// unused output is zero.
TEST(Gradients, CustomGradientsReceiveZerosAndTheirOperands) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  const CustomOp op =
      custom_op("two", {[](const Tensors& in) {
                          return Tensors{in[0] * 2, in[0] * 3};
                        },
                        [](const Tensors& in, const Tensors& out, const Tensors& z) {
                          return Tensors{in[0] * 100 + out[0] * 10 + out[1] + z[0] * 1000 + z[1] * 10000};
                        }});
  const Tensors y = op.all({x});
  const auto v = [&](const Tensor& loss) {
    return eval(gradients(loss, {x})[0], {{x, std::vector<double>{1, 2}}}).values<double>();
  };
  EXPECT_EQ(v(sum(y[0])), (std::vector<double>{1123, 1246}));
  EXPECT_EQ(v(sum(y[1])), (std::vector<double>{10123, 10246}));
  EXPECT_EQ(v(sum(y[0]) + sum(y[1] * 2)), (std::vector<double>{21123, 21246}));
}

// A decomposition may return one tensor twice. Inputs that need no gradient are not differentiated.
TEST(Gradients, DecompositionsAreDifferentiatedAsFarAsNeeded) {
  const auto infer = [](std::span<const Operand> in, const Attrs&) -> std::vector<OutSpec> {
    const OutSpec s{in[0].dtype, row_major(in[0].shape())};
    return {s, s};
  };
  static const Op opaque{.name = "opaque",
                         .infer = [](std::span<const Operand> in, const Attrs&) -> std::vector<OutSpec> {
                           return {{in[0].dtype, row_major(in[0].shape())}};
                         },
                         .not_differentiable = "it is a step"};
  const Op twice{.name = "twice", .infer = infer, .decompose = [](std::span<const Tensor> in, const Attrs&) {
                   const Tensor y = in[0] * 3 + record(opaque, {in[1]});
                   return Tensors{y, y};
                 }};
  Graph g;
  const Tensor x = g.input("x", {2}, f64), w = g.input("w", {2}, f64);
  const Tensors y = record_all(twice, {x, w});
  const auto slope = [&](const Tensor& loss) { return eval(gradients(loss, {x})[0]).at(1); };
  EXPECT_EQ(slope(sum(y[0])), 3);
  EXPECT_EQ(slope(sum(y[1])), 3);
  EXPECT_EQ(slope(sum(y[0]) + sum(y[1]) * 2), 9);
  EXPECT_EQ(error_of([&] { gradients(sum(y[0]), {w}); }),
            "[grad./opaque] the gradient cannot pass: it is a step");
}

TEST(Gradients, DecompositionsNeedEveryOutput) {
  const Op op{.name = "two_for_one",
              .infer = [](std::span<const Operand> in, const Attrs&) -> std::vector<OutSpec> {
                return {{in[0].dtype, row_major(in[0].shape())}};
              },
              .decompose =
                  [](std::span<const Tensor> in, const Attrs&) {
                    return Tensors{in[0], in[0]};
                  }};
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  EXPECT_EQ(error_of([&] { gradients(sum(record(op, {x})), {x}); }),
            "[two_for_one] its decomposition returned 2 tensors for 1 outputs");
}

// An op may have a gradient, a reason for having none, and a decomposition. The first existing one in this
// order is used. If a value needs no gradient, none of them is used.
TEST(Gradients, OpsUseTheirGradientThenReasonThenDecomposition) {
  const auto infer = [](std::span<const Operand> in, const Attrs&) -> std::vector<OutSpec> {
    const OutSpec s{in[0].dtype, row_major(in[0].shape())};
    return {s, s};
  };
  const auto decompose = [](std::span<const Tensor> in, const Attrs&) {
    return Tensors{in[0] * in[1] * 3, in[0] + in[1] * 100};
  };
  static int calls = 0;
  const auto vjp = [](const Backprop& g) {
    ++calls;
    EXPECT_EQ(g.needed, (std::vector<bool>{true, false}));
    EXPECT_TRUE(g.z[0].defined());
    EXPECT_FALSE(g.z[1].defined());
    EXPECT_EQ(g.out.size(), 2u);
    return Tensors{g.z[0] * 5, g.z[0] * 7};
  };
  const Op own{.name = "own", .infer = infer, .vjp = vjp, .decompose = decompose},
      refused{
          .name = "refused", .infer = infer, .not_differentiable = "it is a step", .decompose = decompose},
      plain{.name = "plain", .infer = infer, .decompose = decompose};
  Graph g;
  const Tensor x = g.input("x", {2}, f64), y = g.input("y", {2}, f64);
  const auto slopes = [&](const Op& op, int output, const Tensors& wrt) {
    std::vector<double> v;
    for (const Tensor& z : gradients(sum(record_all(op, {x, y})[static_cast<std::size_t>(output)]), wrt))
      v.push_back(eval(z, {{x, std::vector<double>{2, 4}}, {y, std::vector<double>{3, 5}}}).at(1));
    return v;
  };
  EXPECT_EQ(slopes(plain, 0, {x, y}), (std::vector<double>{15, 12}));
  EXPECT_EQ(slopes(plain, 1, {y, x}), (std::vector<double>{100, 1}));
  EXPECT_EQ(slopes(plain, 0, {y}), (std::vector<double>{12}));
  EXPECT_EQ(eval(gradients(sum(record_all(own, {x, y})[0]), {x})[0]).at(0), 5);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(error_of([&] {
              gradients(sum(record_all(refused, {x, y})[1]), {x});
            }),
            "[refused] the gradient cannot pass: it is a step");
  const Tensor w = g.input("w", {2}, f64);
  EXPECT_EQ(error_of([&] { gradients(sum(record_all(refused, {x, y})[0] * w), {w}); }), "none");
  EXPECT_EQ(error_of([&] { gradients(sum(record_all(own, {x, y})[0] * w), {w}); }), "none");
  EXPECT_EQ(calls, 1);
  // A custom backward is not called either.
  const CustomOp custom = custom_op("custom", {[](const Tensors& in) { return Tensors{in[0] * 2}; },
                                               [](const Tensors&, const Tensors&, const Tensors& z) {
                                                 ++calls;
                                                 return Tensors{z[0] * 2};
                                               }});
  const Tensor unused = custom(x);
  gradients(sum(w * x), {x});
  EXPECT_EQ(calls, 1);
  gradients(sum(unused * x), {x});
  EXPECT_EQ(calls, 2);
}

// Gradients of slices along any axis, with any step, accumulate.
TEST(Gradients, SlicesOfEveryAxisAndStepAccumulate) {
  for (const int axis : {0, 1})
    for (const std::int64_t step : {1, 2, 3})
      for (const std::int64_t start : {0, 1, 4}) {
        Graph g;
        const Tensor x = g.input("x", {5, 6}, f64), w = g.input("w", {5, 6}, f64);
        const Tensor part = slice(x, axis, start, axis == 0 ? 5 : 6, step);
        const Tensor of_w = slice(w, axis, start, axis == 0 ? 5 : 6, step);
        const Tensor z =
            gradients(sum(x * w) + sum(part * of_w * 10) + sum(slice(x, axis, 0, 2) * 1000), {x})[0];
        std::vector<double> ws(30), expected(30);
        for (std::size_t i = 0; i < 30; ++i) {
          ws[i] = 1 + double(i);
          const auto at = static_cast<std::int64_t>(axis == 0 ? i / 6 : i % 6);
          expected[i] = ws[i] * (at >= start && (at - start) % step == 0 ? 11 : 1) + (at < 2 ? 1000 : 0);
        }
        EXPECT_EQ(eval(z, {{x, std::vector<double>(30, 2)}, {w, ws}}).values<double>(), expected)
            << axis << ", " << step << ", " << start;
      }
}

// These slices start at positions from a tensor.
TEST(Gradients, SlicesAtGivenStartsAccumulate) {
  for (const std::int64_t start : {0, 1, 3}) {
    Graph g;
    const Tensor x = g.input("x", {5, 2}, f64), w = g.input("w", {5, 2}, f64), at = g.input("at", {}, i64);
    const Tensor z =
        gradients(sum(x * w) + sum(slice_at(x, 0, at, 2) * 10) + sum(slice_at(x, 0, at, 2) * 100), {x})[0];
    std::vector<double> ws(10), expected(10);
    for (std::size_t i = 0; i < 10; ++i) {
      const auto row = static_cast<std::int64_t>(i / 2);
      ws[i] = 1 + double(i), expected[i] = ws[i] + (row == start || row == start + 1 ? 110 : 0);
    }
    EXPECT_EQ(eval(z, {{x, std::vector<double>(10, 2)}, {w, ws}, {at, std::vector<std::int64_t>{start}}})
                  .values<double>(),
              expected);
  }
}

// The gradient of a region reaches the inputs of the region, even if other nodes are between them.
TEST(Gradients, CustomGradientsPassIntegers) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  const CustomOp rounded =
      custom_op("rounded", {[](const Tensors& in) {
                              return Tensors{cast(cast(in[0] * 10, i32), f64), cast(cast(in[1], i32), f64)};
                            },
                            [](auto&, auto&, auto& z) {
                              return Tensors{z[0] * 3 + z[1] * 5, z[0]};
                            }});
  const Tensors y = rounded.all({x * 2, g.input("other", {2}, f64)});
  EXPECT_EQ(eval(gradients(sum(y[0]), {x})[0]).values<double>(), (std::vector<double>{6, 6}));
  EXPECT_EQ(eval(gradients(sum(y[1]), {x})[0]).values<double>(), (std::vector<double>{10, 10}));
}

// Nodes before these tensors are not differentiated.
TEST(Gradients, StopAtTheTensorsToDifferentiateBy) {
  const Op opaque{.name = "opaque",
                  .infer = [](std::span<const Operand> in, const Attrs&) -> std::vector<OutSpec> {
                    return {{in[0].dtype, row_major(in[0].shape())}};
                  },
                  .not_differentiable = "it is a step"};
  Graph g;
  const Tensor x = g.input("x", {2}, f64), y = record(opaque, {x});
  const auto before = g.nodes().size();
  EXPECT_EQ(error_of([&] { gradients(y, {y}, x); }), "none");
  EXPECT_EQ(g.nodes().size(), before);
  EXPECT_EQ(gradients(y, {y}, x)[0].id(), x.id());
  EXPECT_EQ(error_of([&] { gradients(y, {x}, x); }), "[opaque] the gradient cannot pass: it is a step");
}

// No part of a gradient is recomputed. A gradient reads only the values that a segment returns.
TEST(Checkpoint, GradientsAreOutsideAllSegments) {
  const Op pair{.name = "pair",
                .infer =
                    [](std::span<const Operand> in, const Attrs&) {
                      const OutSpec s{in[0].dtype, row_major(in[0].shape())};
                      return std::vector<OutSpec>{s, s};
                    },
                .vjp =
                    [](const Backprop& g) {
                      Tensor z = g.z[1] * g.out[0];
                      if (g.z[0].defined()) z = z + g.z[0] * g.out[1];
                      return Tensors{z};
                    }};
  const auto layer = [&](const Tensors& in) {
    const Tensors two = record_all(pair, {exp(in[0])});
    return Tensors{sin(two[0]), two[1] * in[0]};
  };
  for (const bool is_first : {true, false}) {
    Graph g;
    const Tensor x = g.input("x", {2}, f64);
    const Tensor from = is_first ? x : checkpoint(layer, {x})[1];
    const Tensors y = checkpoint(layer, {from});
    const std::size_t before = g.nodes().size();
    gradients(sum(y[0] * y[1]), {x});
    int again = 0;
    for (std::size_t n = before; n < g.nodes().size(); ++n) {
      const Node& node = g.nodes()[n];
      EXPECT_EQ(node.segment, -1) << node.op->name;
      again += node.op->name == "exp";
      for (const ValueId v : node.in)
        EXPECT_TRUE(g.node_of(v).segment < 0 || v == y[0].id() || v == y[1].id() || v == from.id())
            << node.op->name << " reads " << g.node_of(v).op->name;
    }
    EXPECT_EQ(again, is_first ? 1 : 2);
  }
}

// A segment is recomputed once for the backward pass. The backward pass reads the recomputed values.
TEST(Checkpoint, RecomputesEachSegmentOnce) {
  static int runs[2];
  const auto counting = [](int which) {
    return register_host_op({.name = "counts_" + std::to_string(which),
                             .forward =
                                 [which](auto in, auto out) {
                                   ++runs[which];
                                   out[0].set(0, in[0].at(0) * 3);
                                 },
                             .backward = [](const HostGradient& h) { h.z_in[0].set(0, h.z[0].at(0) * 3); }});
  };
  const CustomOp first = counting(0), second = counting(1);
  Graph g;
  const Tensor x = g.input("x", {1}, f64);
  const auto layer = [](const CustomOp& op) {
    return [op](const Tensors& in) {
      const Tensor y = op(in[0]);
      return Tensors{y * y};
    };
  };
  const Tensor y = checkpoint(layer(second), {checkpoint(layer(first), {x})[0]})[0];
  const Tensor z = gradients(sum(y), {x})[0];
  const auto v = eval({y, z}, {{x, std::vector<double>{0.5}}});
  EXPECT_EQ(v[0].at(0), std::pow(9 * 0.25 * 3, 2));
  EXPECT_EQ(v[1].at(0), 9 * 9 * 9 * 4 * 0.125);  // (9·x²·3)² = 729·x⁴
  EXPECT_EQ(runs[0], 2);
  EXPECT_EQ(runs[1], 2);
  EXPECT_THROW(checkpoint(layer(first), {}), Error);
  EXPECT_THROW(checkpoint({}, {x}), Error);
}

// ---- Replay

struct Recorded {
  Graph g;
  Tensor x = g.input("x", {2, 3}, f64), w;
  Parameter p{"p", Array::of<double>({2, 3}, {1, 2, 3, 4, 5, 6})};
  NodeId first, last;
  Tensor y;
  Recorded() {
    w = g.param(p);
    first = static_cast<NodeId>(g.nodes().size());
    y = dropout(x * w, 0.5) + exp(x) * g.param(p);
    last = static_cast<NodeId>(g.nodes().size());
  }
};

TEST(Replay, RecordsTheSameNodesInTheSameOrADifferentGraph) {
  Recorded r;
  const std::vector<double> xs{0, 1, 2, 3, 4, 5};
  Replay again(r.g, r.g);
  again.run(r.first, r.last);
  const Tensor copy = again(r.y);
  EXPECT_NE(copy.id(), r.y.id());
  EXPECT_EQ(again(r.x).id(), r.x.id());  // an input is not copied
  const auto v = eval({r.y, copy}, {{r.x, xs}});
  EXPECT_TRUE(v[0].same_bits(v[1]));  // both drop the same elements

  Graph other;
  const Tensor in = other.input("in", {2, 3}, f64);
  Replay elsewhere(r.g, other);
  elsewhere.put(r.x, in);
  elsewhere.run(0, r.last);
  EXPECT_TRUE(eval(elsewhere(r.y), {{in, xs}}).same_bits(v[0]));
  EXPECT_EQ(elsewhere(r.x).id(), in.id());
  Replay lost(r.g, other);
  expect_error<Error>([&] { lost.run(r.first, r.last); },
                      {"[replay] a node reads a value that was not replayed"});
}

// A substitute stores its axes in the same order as the node that it replaces.
TEST(Replay, SubstitutesKeepTheLayoutOfTheirNode) {
  Graph g;
  const Tensor x = g.input("x", {4, 3, 2}, f64);
  const Tensor rotated = permute(x, {2, 0, 1}), y = exp(rotated) * 1;
  ASSERT_NE(exp(rotated).layout().strides, row_major({2, 4, 3}).strides);
  const auto last = static_cast<NodeId>(g.nodes().size());
  int seen = 0;
  Replay again(g, g, [&](const Node& node, std::span<const Tensor> in) -> std::optional<Tensors> {
    if (node.op->name != "exp") return std::nullopt;
    ++seen;
    return Tensors{contiguous(in[0]) * 2};
  });
  again.put(x, x);
  again.run(0, last);
  EXPECT_EQ(seen, 2);
  const Tensor copy = again(y);
  EXPECT_EQ(copy.layout().strides, y.layout().strides);
  std::vector<double> xs(24), expected;
  for (std::size_t i = 0; i < 24; ++i) xs[i] = double(i);
  for (std::size_t a = 0; a < 2; ++a)
    for (std::size_t b = 0; b < 4; ++b)
      for (std::size_t c = 0; c < 3; ++c) expected.push_back(2 * xs[b * 6 + c * 2 + a]);
  EXPECT_EQ(doubles(eval(contiguous(copy), {{x, xs}})), expected);
}

TEST(Replay, KeepsOrLeavesCustomGradientsAndSegments) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  const CustomOp op =
      custom_op("ten", {[](const Tensors& in) { return Tensors{in[0] * in[0]}; },
                        [](const Tensors&, const Tensors&, const Tensors& z) { return Tensors{z[0] * 10}; }});
  const auto first = static_cast<NodeId>(g.nodes().size());
  const Tensor y = checkpoint([&](const Tensors& in) { return Tensors{op(in[0]) * 3}; }, {x * 1})[0];
  const auto last = static_cast<NodeId>(g.nodes().size());
  const auto slope = [&](const Tensor& t) {
    return eval(gradients(sum(t), {x})[0], {{x, std::vector<double>{3, 4}}}).values<double>();
  };
  EXPECT_EQ(slope(y), (std::vector<double>{30, 30}));
  Replay kept(g, g), left(g, g);
  const auto copies = static_cast<NodeId>(g.nodes().size());
  kept.run(first, last);
  for (NodeId n = first; n < last; ++n) {  // all nodes of a segment are in one new segment
    const int now = g.nodes()[copies + n - first].segment;
    EXPECT_EQ(now, g.nodes()[n].segment < 0 ? -1 : g.node_of(kept(y).id()).segment) << n;
  }
  EXPECT_EQ(slope(kept(y)), (std::vector<double>{30, 30}));
  left.leave_custom_gradients();
  left.run(first, last);
  EXPECT_EQ(slope(left(y)), (std::vector<double>{18, 24}));
  // The copies are in a new segment.
  const auto segment = [&](const Tensor& t) { return g.node_of(t.id()).segment; };
  EXPECT_GE(segment(y), 0);
  EXPECT_GE(segment(kept(y)), 0);
  EXPECT_NE(segment(kept(y)), segment(y));
  EXPECT_EQ(segment(sum(x)), -1);
  // If only a part of a region is recorded, the custom gradient of the region is not recorded.
  NodeId inside = first;
  while (g.nodes()[inside].segment < 0) ++inside;
  Replay part(g, g);
  part.run(inside + 1, last);
  EXPECT_EQ(slope(part(y)), (std::vector<double>{30, 30}));
}

TEST(Replay, DecomposesOneOpOrAll) {
  Graph g;
  const Tensor x = g.input("x", {2, 3}, f64), y = softmax(gelu_tanh(x), 1) + rms_norm(x);
  const auto last = static_cast<NodeId>(g.nodes().size());
  const auto names = [&](const Replay::Substitute& substitute) {
    Graph other;
    Replay again(g, other, substitute);
    again.put(x, other.input("x", {2, 3}, f64));
    again.run(0, last);
    std::map<std::string, int> count;
    for (const Node& n : other.nodes()) ++count[n.op->name];
    const std::vector<double> xs{1, 2, 3, -1, 0, 1};
    const Array got = eval(again(y), {{again(x), xs}}), expected = eval(y, {{x, xs}});
    EXPECT_TRUE(close(doubles(got), doubles(expected), 1e-14));
    return count;
  };
  auto one = names(decomposed(*find_op("softmax")));
  EXPECT_EQ(one["softmax"], 0);
  EXPECT_EQ(one["rms_norm"], 1);
  int count = 0;
  auto all = names(decomposed_all(count));
  EXPECT_EQ(all["softmax"] + all["rms_norm"], 0);
  int fused = 0;
  for (NodeId n = 0; n < last; ++n) fused += g.nodes()[n].op->decompose != nullptr;
  EXPECT_EQ(count, fused);
  EXPECT_GE(count, 2);
}

// ---- User-defined ops

TEST(CustomOp, MayReadUngivenConstantsAndIntegers) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64), i = g.input("i", {2}, i64), y = g.input("y", {2}, f64);
  const Tensor seven = full(g, {2}, 7, f64), two = g.constant(Array::of<double>({2}, {2, 2})),
               derived = y * 2;
  const auto refused = [&](const Tensor& outside) {
    const CustomOp op =
        custom_op("reads", {[=](const Tensors& in) { return Tensors{in[0] * cast(outside, f64)}; },
                            [](const Tensors&, const Tensors&, const Tensors& z) { return z; }});
    try {
      op(x);
      return false;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("reads] its forward reads a tensor that is not among its inputs"),
                std::string::npos)
          << e.what();
      return true;
    }
  };
  EXPECT_FALSE(refused(seven));
  EXPECT_FALSE(refused(two));
  EXPECT_FALSE(refused(i));
  EXPECT_FALSE(refused(x));  // a given tensor
  EXPECT_TRUE(refused(y));
  EXPECT_TRUE(refused(derived));
  const CustomOp makes_input = custom_op(
      "makes", {[](const Tensors& in) { return Tensors{in[0] * in[0].graph().input("new", {2}, f64)}; },
                [](const Tensors&, const Tensors&, const Tensors& z) { return z; }});
  EXPECT_THROW(makes_input(x), Error);
}

TEST(CustomOp, ErrorsNameTheOp) {
  Graph g, other;
  const Tensor x = g.input("x", {2}, f64), foreign = other.input("foreign", {2}, f64);
  const auto backward = [](const Tensors&, const Tensors&, const Tensors& z) { return z; };
  const auto op = [&](std::function<Tensors(const Tensors&)> forward) {
    return custom_op("mine", {forward, backward});
  };
  const CustomOp same = op([](const Tensors& in) { return in; });
  expect_error<Error>([&] { op([](auto&) { return Tensors(); })(x); },
                      {"mine] its forward returned no output"});
  expect_error<Error>([&] { op([](auto&) { return Tensors{Tensor()}; })(x); },
                      {"mine] its forward returned a tensor that is undefined"});
  expect_error<Error>([&] { op([&](auto&) { return Tensors{foreign}; })(x); },
                      {"mine] its forward returned a tensor that is of a different graph"});
  expect_error<Error>([&] { same(x, foreign); }, {"[mine] the tensors belong to different graphs"});
  expect_error<Error>([&] { same(Tensor()); }, {"undefined"});
  for (const Tensors& in : {Tensors{Tensor()}, Tensors{x, Tensor()}})
    expect_error<Error>([&] { same.all(in, std::source_location::current()); },
                        {"[mine] got an undefined tensor"});
  const auto forward = [](const Tensors& in) { return in; };
  expect_error<Error>([&] { custom_op("half", {forward, {}}); }, {"[custom_op] half has no backward"});
  expect_error<Error>([&] { custom_op("half", {{}, backward}); }, {"[custom_op] half has no forward"});
  expect_error<Error>([&] { register_host_op({.name = "half"}); },
                      {"[register_host_op] half has no forward"});
  CustomOp moved = same;
  const CustomOp taken = std::move(moved);
  expect_error<Error>([&] { moved(x); }, {"[custom_op] an empty CustomOp was called: it was moved from"});
  // Numbers become tensors with the dtype of the first tensor.
  const Tensors three = same.all({2.5, cast(x, f32), 4});
  EXPECT_EQ(three[0].dtype(), f32);
  EXPECT_EQ(three[0].shape(), Shape());
  EXPECT_EQ(eval(three[0]).at(0), 2.5);
  EXPECT_EQ(eval(three[2]).at(0), 4);
}

// Each region ends at its own node. So each region keeps its own gradient.
TEST(CustomOp, RegionsThatEndTogetherKeepTheirGradients) {
  const auto times = [](double slope, std::function<Tensors(const Tensors&)> forward) {
    return custom_op("times" + std::to_string(int(slope)),
                     {forward, [slope](const Tensors&, const Tensors& out, const Tensors& z) {
                        Tensor sum = z[0] * slope;
                        for (std::size_t i = 1; i < out.size(); ++i) sum = sum + z[i] * (slope * 100);
                        return Tensors{sum};
                      }});
  };
  const CustomOp inner = times(2, [](const Tensors& in) { return Tensors{in[0] + 1, in[0] + 2}; });
  const CustomOp outer = times(3, [inner](const Tensors& in) { return inner.all({in[0]}); });
  const CustomOp outermost = times(5, [outer](const Tensors& in) { return outer.all({in[0]}); });
  const CustomOp second = times(7, [inner](const Tensors& in) {
    return Tensors{inner.all({in[0]})[1], in[0]};
  });
  Graph g;
  const Tensor x = g.input("x", {1}, f64);
  const auto slopes = [&](const CustomOp& op) {
    const Tensors y = op.all({x});
    const auto v = eval({gradients(sum(y[0]), {x})[0], gradients(sum(y[1]), {x})[0], y[0], y[1]},
                        {{x, std::vector<double>{4}}});
    return std::vector<double>{v[0].at(0), v[1].at(0), v[2].at(0), v[3].at(0)};
  };
  EXPECT_EQ(slopes(inner), (std::vector<double>{2, 200, 5, 6}));
  EXPECT_EQ(slopes(outer), (std::vector<double>{3, 300, 5, 6}));
  EXPECT_EQ(slopes(outermost), (std::vector<double>{5, 500, 5, 6}));
  EXPECT_EQ(slopes(second), (std::vector<double>{7, 700, 6, 4}));
}

}  // namespace

// Tests the checker itself. Correct gradients must pass. Each kind of fault must be detected at its position.
#include "tests/support/gradcheck_cases.h"

#include <cmath>
#include <limits>
#include <set>

#include <tilegrad/ops/flash_attn.h>
#include "autograd/gradcheck/harness.h"
#include "autograd/gradcheck/quotients.h"
#include "backends/cpu/kernel.h"
#include "core/graph/op_attrs.h"
#include "ops/common.h"

namespace {

using namespace tg;
using namespace tg::gradcheck;

void expect(const Case& c, Status status) {
  for (bool fast : {false, true}) {
    const Result r = one(c, fast);
    EXPECT_EQ(r.status, status) << (fast ? "fast: " : "full: ") << r.note << ", " << r.ratio
                                << " of the bound";
  }
}

TEST(Gradcheck, AcceptsARightGradient) {
  const Case c = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z)}; });
  expect(c, Status::ok);
  const Result r = one(c);
  EXPECT_EQ(r.checked, 6 * (6 + 2));  // every element, for each output and two random cotangents
  EXPECT_LT(r.max_abs, 1e-9);
  EXPECT_EQ(r.note, "");
}

TEST(Gradcheck, AcceptsEveryViewAndDType) {
  const Case c = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z)}; });
  const auto results = check(c, {});
  EXPECT_EQ(results.size(), 6u * 4);
  for (const Result& r : results)
    EXPECT_EQ(r.status, Status::ok) << name_of(r.view) << " " << tg::name_of(r.dtype) << ": " << r.note;
}

TEST(Gradcheck, CatchesAWrongSign) {
  expect(cube([](auto& in, auto&, auto& z) { return Tensors{-right(in, z)}; }), Status::mismatch);
}

TEST(Gradcheck, CatchesAFactorThatIsOffByAMillionth) {
  expect(cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z) * (1 + 1e-6)}; }), Status::mismatch);
}

TEST(Gradcheck, CatchesAZeroGradient) {
  expect(cube([](auto& in, auto&, auto&) { return Tensors{zeros_like(in[0])}; }), Status::mismatch);
}

TEST(Gradcheck, CatchesATransposedGradient) {
  expect(cube([](auto& in, auto&, auto& z) {
           return Tensors{reshape(transpose(right(in, z), 0, 1), {2, 3})};
         }),
         Status::mismatch);
}

TEST(Gradcheck, CatchesABackwardThatIgnoresTheCotangent) {
  const Result r = one(cube([](auto& in, auto&, auto&) { return Tensors{3 * in[0] * in[0]}; }));
  EXPECT_EQ(r.status, Status::mismatch);
  EXPECT_NE(r.note.find("zero cotangent"), std::string::npos) << r.note;
}

// If loss = sum(out), the gradient of softmax is zero. So is any multiple of this gradient.
TEST(Gradcheck, CatchesAScaledSoftmaxGradientThatTheSumOfOutputsHides) {
  const auto forward = [](const Tensors& in) {
    const Tensor e = exp(in[0]);
    return Tensors{e / expand(sum(e, {1}, true), {2, 3})};
  };
  const auto backward = [](double factor) {
    return [factor](const Tensors&, const Tensors& out, const Tensors& z) {
      const Tensor u = expand(sum(out[0] * z[0], {1}, true), {2, 3});
      return Tensors{out[0] * (z[0] - u) * factor};
    };
  };
  expect(custom_case(matrix, forward, backward(1)), Status::ok);
  expect(custom_case(matrix, forward, backward(3)), Status::mismatch);
}

TEST(Gradcheck, NamesTheWorstElement) {
  const Case c = cube([](auto& in, auto&, auto& z) {
    Array fault({2, 3}, f64);
    for (int i = 0; i < 6; ++i) fault.set(i, i == 5 ? 1.5 : i == 1 ? 1.01 : 1);
    return Tensors{right(in, z) * in[0].graph().constant(fault)};
  });
  for (bool fast : {false, true}) {  // a failed projection is reported for its element
    const Result r = one(c, fast);
    EXPECT_EQ(r.status, Status::mismatch);
    EXPECT_NE(r.worst.where.find("input 0 [1, 2]"), std::string::npos) << r.worst.where;
    EXPECT_NEAR(r.worst.analytic / r.worst.numeric, 1.5, 1e-6);
    EXPECT_NEAR(r.max_rel, 0.5, 1e-6);
    EXPECT_GT(r.worst.h, 0);
    EXPECT_GT(r.worst.ulp, 1e10);
    EXPECT_GT(r.ratio, 1e5);
  }
}

TEST(Gradcheck, CallsNaNAndInfinityNonFinite) {
  for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()})
    expect(cube([bad](auto& in, auto&, auto& z) { return Tensors{right(in, z) * bad}; }), Status::non_finite);
}

TEST(Gradcheck, OneNaNAmongManyIsNotOverlooked) {
  expect(cube([](auto& in, auto&, auto& z) {
           Array mask({2, 3}, f64);
           for (int i = 0; i < 6; ++i) mask.set(i, i == 2 ? std::nan("") : 1);
           return Tensors{right(in, z) * in[0].graph().constant(mask)};
         }),
         Status::non_finite);
}

TEST(Gradcheck, SkipsAKinkAndRefusesMoreThanAFewOfThem) {
  // All elements are 0. ReLU has no derivative at 0. A central difference gives 1/2.
  const Case at_zero{"relu", "zero", {{{6}, {Fill::uniform, 0, 0}}}, [](DType, Device) {
                       return Callable{{}, [](std::span<const Tensor> x) { return Tensors{relu(x[0])}; }};
                     }};
  const Result all = one(at_zero);
  EXPECT_EQ(all.status, Status::mismatch);
  EXPECT_EQ(all.skipped, 6);
  EXPECT_NE(all.note.find("kink"), std::string::npos) << all.note;
  EXPECT_GT(all.resampled, 0);
  EXPECT_EQ(one(at_zero, true).status, Status::mismatch);
  // One element in sixty: 1.7 %.
  const Case rarely{
      "abs", "one", {{{59}, {Fill::off_zero, 0.5, 2}}, {{1}, {Fill::uniform, 0, 0}}}, [](DType, Device) {
        return Callable{{}, [](std::span<const Tensor> x) { return Tensors{relu(x[0]), relu(x[1])}; }};
      }};
  const Result few = one(rarely);
  EXPECT_EQ(few.status, Status::ok) << few.note;
  EXPECT_EQ(few.skipped, 1);
}

TEST(Gradcheck, AKinkDoesNotHideAWrongGradient) {
  const Case c = custom_case(
      {{{40}}}, [](const Tensors& in) { return Tensors{relu(in[0])}; },
      [](auto& in, auto&, auto& z) { return Tensors{where(greater(in[0], 0), z[0] * 1.01, 0)}; });
  expect(c, Status::mismatch);
}

TEST(Gradcheck, CatchesAGradientThatDiffersFromRunToRun) {
  static int runs = 0;
  const CustomOp op = register_host_op({.name = "changes_its_mind",
                                        .forward =
                                            [](auto in, auto out) {
                                              for (int i = 0; i < 4; ++i) out[0].set(i, in[0].at(i));
                                            },
                                        .backward =
                                            [](const HostGradient& g) {
                                              ++runs;
                                              for (int i = 0; i < 4; ++i)
                                                g.z_in[0].set(i, g.z[0].at(i) * (1 + 1e-13 * (runs % 2)));
                                            }});
  const Case c{"changes_its_mind", "vector", {{{4}}}, [op](DType, Device) {
                 return Callable{{}, [op](std::span<const Tensor> x) { return Tensors{op(x[0])}; }};
               }};
  const Result r = one(c);
  EXPECT_EQ(r.status, Status::mismatch);
  EXPECT_NE(r.note.find("second run"), std::string::npos) << r.note;
}

// The kernel treats every operand as row-major.
TEST(Gradcheck, CatchesAKernelThatIgnoresStrides) {
  static const cpu::Kernel kernel{[](cpu::Worker& w, const cpu::Call& c) {
    w.each(1, [&](std::int64_t) {
      dispatch(c.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto* x = reinterpret_cast<const T*>(c.in[0].data);
        auto* out = reinterpret_cast<T*>(c.out[0].data);
        for (std::int64_t i = 0; i < c.out[0].layout.numel(); ++i) out[i] = x[i];
      });
    });
  }};
  cpu::register_kernel("ignores_strides", kernel);
  static const Op op{.name = "ignores_strides",
                     .infer =
                         [](std::span<const Operand> in, const Attrs&) {
                           return std::vector<OutSpec>{{in[0].dtype, row_major(in[0].shape())}};
                         },
                     .vjp = [](const Backprop& g) { return Tensors{g.z[0]}; }};
  const Case c{"ignores_strides", "matrix", matrix, [](DType, Device) {
                 return Callable{{}, [](std::span<const Tensor> x) { return Tensors{record(op, {x[0]})}; }};
               }};
  Options o;
  o.dtypes = {f64};
  for (const Result& r : check(c, o)) {
    const bool row_major_in_memory = r.view == View::contiguous || r.view == View::offset;
    EXPECT_EQ(r.status == Status::ok, row_major_in_memory) << name_of(r.view);
  }
}

TEST(Gradcheck, CatchesAGradientThatIsWrongInOneDTypeOnly) {
  const Case c = cube(
      [](auto& in, auto&, auto& z) { return Tensors{right(in, z) * (in[0].dtype() == bf16 ? 1.05 : 1.0)}; });
  for (const Result& r : check(c, {}))
    EXPECT_EQ(r.status, r.dtype == bf16 ? Status::mismatch : Status::ok) << name_of(r.view) << " " << r.note;
}

TEST(Gradcheck, CatchesALossOfPrecisionInsideTheBackward) {
  for (DType low : {f64, f32, bf16}) {  // the backward rounds an intermediate to bf16
    const Case c = cube([low](auto& in, auto&, auto& z) {
      const Tensor exact = right(in, z);
      return Tensors{in[0].dtype() == low ? cast(cast(exact, bf16), low) : exact};
    });
    Options o;
    o.views = {View::contiguous};
    o.dtypes = {low};
    EXPECT_EQ(check(c, o).at(0).status, low == bf16 ? Status::ok : Status::mismatch) << tg::name_of(low);
  }
}

TEST(Gradcheck, CatchesASecondDerivativeThatIsCutOff) {
  const Case c =
      cube([](auto& in, auto&, auto& z) { return Tensors{z[0] * 3 * stop_gradient(in[0] * in[0])}; });
  const Case good = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z)}; });
  Options o = f64_contiguous(false);
  EXPECT_EQ(check(c, o).at(0).status, Status::ok);
  o.order = 2;
  EXPECT_EQ(check(c, o).at(0).status, Status::mismatch);
  EXPECT_EQ(check(c, o).at(0).order, 2);
  EXPECT_EQ(check(good, o).at(0).status, Status::ok) << check(good, o).at(0).note;
}

TEST(Gradcheck, FirstOrderOnlyOpReportsIt) {
  register_host_op({.name = "first_order",
                    .forward =
                        [](auto in, auto out) {
                          for (int i = 0; i < 4; ++i) out[0].set(i, in[0].at(i) * in[0].at(i));
                        },
                    .backward =
                        [](const HostGradient& g) {
                          for (int i = 0; i < 4; ++i) g.z_in[0].set(i, 2 * g.in[0].at(i) * g.z[0].at(i));
                        },
                    .samples = {{"vector", {{{4}}}, {}}}});
  Options o = f64_contiguous(false);
  for (const Case& c : op_cases()) {
    if (c.owner != "first_order") continue;
    o.order = 1;
    EXPECT_EQ(check(c, o).at(0).status, Status::ok);
    o.order = 2;
    const Result r = check(c, o).at(0);
    EXPECT_EQ(r.status, Status::refused);
    EXPECT_EQ(r.note.find("first order only"), 0u) << r.note;
  }
}

TEST(Gradcheck, AnUnexplainedRefusalIsAMismatch) {
  const CustomOp silent = register_host_op({.name = "silent", .forward = [](auto in, auto out) {
                                              for (int i = 0; i < 6; ++i) out[0].set(i, in[0].at(i));
                                            }});
  const Case c{"another", "op inside", matrix, [silent](DType, Device) {
                 return Callable{{}, [silent](std::span<const Tensor> x) { return Tensors{silent(x[0])}; }};
               }};
  expect(c, Status::mismatch);
}

TEST(Gradcheck, ParametersAreDifferentiatedToo) {
  const auto layer = [](double factor) {
    return Case{
        "layer", "case", {{{3}}}, [factor](DType dtype, Device) {
          const Parameter w("w", Array({3}, dtype));
          const CustomOp op = custom_op("times", {[](const Tensors& in) { return Tensors{in[0] * in[1]}; },
                                                  [factor](auto& in, auto&, auto& z) {
                                                    return Tensors{z[0] * in[1] * factor, z[0] * in[0]};
                                                  }});
          return Callable{
              {w}, [w, op](std::span<const Tensor> x) { return Tensors{op(x[0].graph().param(w), x[0])}; }};
        }};
  };
  expect(layer(1), Status::ok);
  expect(layer(1.001), Status::mismatch);
  EXPECT_NE(one(layer(1.001)).worst.where.find("input 1 "), std::string::npos);  // after the case's own input
}

// There are two outputs. The second cotangent is lost if there is no first cotangent.
TEST(Gradcheck, CatchesAnOutputWhoseCotangentIsLost) {
  static const Op op{.name = "relu_pair",
                     .infer =
                         [](std::span<const Operand> in, const Attrs&) {
                           const OutSpec s{in[0].dtype, row_major(in[0].shape())};
                           return std::vector<OutSpec>{s, s};
                         },
                     .vjp = [](const Backprop& g) -> Tensors {
                       if (!g.z[0].defined() || !g.z[1].defined()) return {Tensor()};
                       return {g.z[0] + 2 * g.z[1]};
                     },
                     .host =
                         [](std::span<const HostView> in, std::span<const HostView> out, const Attrs&) {
                           for (int i = 0; i < 6; ++i)
                             out[0].set(i, in[0].at(i)), out[1].set(i, 2 * in[0].at(i));
                         }};
  const Case c{"relu_pair", "matrix", matrix, [](DType, Device) {
                 return Callable{{}, [](std::span<const Tensor> x) { return record_all(op, {x[0]}); }};
               }};
  const Result r = one(c);
  EXPECT_EQ(r.status, Status::mismatch);
  EXPECT_NE(r.note.find("without a cotangent"), std::string::npos) << r.note;
}

TEST(Gradcheck, CatchesADecompositionOfADifferentFunction) {
  Op op = *find_op("exp");
  op.decompose = [](std::span<const Tensor> in, const Attrs&) { return Tensors{1 + in[0]}; };
  Case c{"exp", "matrix", matrix, [&op](DType, Device) {
           return Callable{{}, [&op](std::span<const Tensor> x) { return Tensors{record(op, {x[0]})}; }};
         }};
  c.op = &op;
  const Result r = one(c);
  EXPECT_EQ(r.status, Status::mismatch);
  EXPECT_NE(r.note.find("decomposition"), std::string::npos) << r.note;
}

TEST(Gradcheck, TheSameSeedGivesTheSameNumbers) {
  const Case c = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z)}; });
  Options o = f64_contiguous(false);
  const Result a = check(c, o).at(0), b = check(c, o).at(0);
  o.seed = 1;
  const Result other = check(c, o).at(0);
  EXPECT_EQ(a.worst.analytic, b.worst.analytic);
  EXPECT_EQ(a.max_abs, b.max_abs);
  EXPECT_NE(a.worst.analytic, other.worst.analytic);
}

// If all elements of a row are equal, 1/σ ≈ 316 magnifies rounding errors. In 1 − σ, x·w′² magnifies them.
TEST(Gradcheck, AcceptsMagnifiedRounding) {
  Options o;
  o.fast = true;
  for (o.seed = 0; o.seed < 100; ++o.seed) {
    o.views = {View::expanded_last};
    o.dtypes = {f64};
    for (const Result& r : check(named("layer_norm/weight"), o))
      EXPECT_EQ(r.status, Status::ok) << "seed " << o.seed << ": " << r.ratio << " of the bound";
    o.views = {View::contiguous};
    o.dtypes = {f32};
    for (const Result& r : check(named("gelu_tanh_slope/3d"), o))
      EXPECT_EQ(r.status, Status::ok) << "seed " << o.seed << ": " << r.ratio << " of the bound";
  }
}

// y = layer_norm(x) + x. In bf16, the gradient omits one of its two summands, as if a sum were overwritten. A
// bound from the decomposition in bf16 would contain the same fault.
TEST(Gradcheck, Overwritten16BitGradientFailsByFar) {
  const auto residual = [](bool forgets) {
    return Case{"residual", "rows", {{{4, 6}}}, [forgets](DType, Device) {
                  return Callable{{}, [forgets](std::span<const Tensor> x) {
                                    const Tensor y = layer_norm(x[0]);
                                    const bool cut = forgets && x[0].dtype() == bf16;
                                    return Tensors{y + (cut ? stop_gradient(x[0]) : x[0])};
                                  }};
                }};
  };
  Options o;
  o.views = {View::contiguous};
  o.dtypes = {bf16};
  for (o.seed = 0; o.seed < 20; ++o.seed) {
    EXPECT_EQ(check(residual(false), o).at(0).status, Status::ok);
    const Result r = check(residual(true), o).at(0);
    EXPECT_EQ(r.status, Status::mismatch);
    EXPECT_GT(r.ratio, 3) << "seed " << o.seed;
  }
}

TEST(Gradcheck, CatchesAnOpThatIsWrongWhenBothOperandsAreOneTensor) {
  static const Op op{.name = "relu_of_two",
                     .infer =
                         [](std::span<const Operand> in, const Attrs&) {
                           return std::vector<OutSpec>{{in[0].dtype, row_major(in[0].shape())}};
                         },
                     .vjp = [](const Backprop& g) -> Tensors {
                       const bool one = g.in[0].id() == g.in[1].id();
                       return {g.z[0] * g.in[1], one ? Tensor() : g.z[0] * g.in[0]};
                     },
                     .host =
                         [](std::span<const HostView> in, std::span<const HostView> out, const Attrs&) {
                           for (int i = 0; i < 6; ++i) out[0].set(i, in[0].at(i) * in[1].at(i));
                         }};
  const Case both{
      "relu_of_two", "matrices", {{{2, 3}}, {{2, 3}}}, [](DType, Device) {
        return Callable{{}, [](std::span<const Tensor> x) { return Tensors{record(op, {x[0], x[1]})}; }};
      }};
  const Result r = one(both);
  EXPECT_EQ(r.status, Status::mismatch);
  EXPECT_NE(r.note.find("one tensor as inputs 0 and 1"), std::string::npos) << r.note;
}

// The product is correct in f64. It is also correct with two tensors.
TEST(Gradcheck, CatchesAnOpThatIsWrongForOneTensorInOneDTypeOnly) {
  for (DType faulty : {f32, bf16, f16}) {
    const Case c{"product", "matrices", {{{2, 3}}, {{2, 3}}}, [faulty](DType, Device) {
                   return Callable{{}, [faulty](std::span<const Tensor> x) {
                                     const bool wrong = x[0].id() == x[1].id() && x[0].dtype() == faulty;
                                     return Tensors{x[0] * x[1] * (wrong ? 1.5 : 1)};
                                   }};
                 }};
    for (const Result& r : check(c, {})) {
      const bool is_found = r.view == View::contiguous && r.dtype == faulty;
      EXPECT_EQ(r.status, is_found ? Status::mismatch : Status::ok)
          << tg::name_of(faulty) << ": " << name_of(r.view) << " " << tg::name_of(r.dtype) << " " << r.note;
      EXPECT_EQ(r.note.find("one tensor as inputs 0 and 1") != std::string::npos, is_found) << r.note;
    }
  }
}

// Strides of axes of size 1 are not compared.
TEST(Gradcheck, ViewsHaveTheStridesOfTheirNames) {
  struct Row {
    View view;
    Shape shape;
    Strides strides;
    std::int64_t offset;
  };
  const Row rows[] = {{View::contiguous, {2, 3, 4}, {12, 4, 1}, 0},
                      {View::transposed, {2, 3, 4}, {1, 2, 6}, 0},
                      {View::sliced, {2, 3, 4}, {5 * 9, 9, 2}, 5 * 9 + 9 + 1},
                      {View::offset, {2, 3, 4}, {12, 4, 1}, 3},
                      {View::expanded, {2, 3, 4}, {0, 4, 1}, 0},
                      {View::expanded_last, {2, 3, 4}, {3, 1, 0}, 0},
                      {View::expanded, {1, 3, 1, 2, 1}, {0, 0, 0, 1, 0}, 0},
                      {View::expanded_last, {1, 3, 1, 2, 1}, {0, 1, 0, 0, 0}, 0}};
  for (const Row& row : rows) {
    Layout seen;
    const Case c{"layout", "of its input", {{row.shape}}, [&seen](DType, Device) {
                   return Callable{{}, [&seen](std::span<const Tensor> x) {
                                     seen = x[0].layout();
                                     return Tensors{x[0] * 2};
                                   }};
                 }};
    const Harness h(c, row.view, f64, {});
    EXPECT_EQ(seen.shape, row.shape) << name_of(row.view);
    EXPECT_EQ(seen.offset, row.offset) << name_of(row.view);
    for (int a = 0; a < row.shape.size(); ++a)
      EXPECT_TRUE(row.shape[a] == 1 || seen.strides[a] == row.strides[a])
          << name_of(row.view) << " axis " << a << ": " << seen.strides.text();
  }
}

// The errors of the quotients of x⁵ grow with a power of the step. The check uses the largest step that is
// accurate enough.
TEST(Gradcheck, AProjectionUsesTheFirstAccurateStep) {
  const Case c = custom_case(
      {{{6}, {Fill::uniform, 0.5, 1}}},
      [](const Tensors& in) { return Tensors{in[0] * in[0] * in[0] * in[0] * in[0]}; },
      [](auto& in, auto&, auto& z) { return Tensors{z[0] * 5 * in[0] * in[0] * in[0] * in[0]}; });
  Options o = f64_contiguous(true);
  const auto step = [&](double h, Tol tol) {
    o.h = h, o.tol = tol;
    const Result r = check(c, o).at(0);
    EXPECT_EQ(r.status, Status::ok) << r.note << ", " << r.ratio << " of the bound";
    return r.worst.h;
  };
  EXPECT_EQ(step(0.01, {.rtol = 1e-3, .atol = 1e-3}), 0.01 / 2);
  EXPECT_LT(step(0.1, {.rtol = 1e-7, .atol = 1e-9}), 0.1 / 4);
}

// Counts the evaluations of f.
TEST(Gradcheck, AWrongGradientNeedsNoMoreEvaluationsThanARightOne) {
  static int runs = 0;
  static double factor = 1;
  const CustomOp op = register_host_op({.name = "counts_runs",
                                        .forward =
                                            [](auto in, auto out) {
                                              ++runs;
                                              for (int i = 0; i < 60; ++i)
                                                out[0].set(i, in[0].at(i) * in[0].at(i));
                                            },
                                        .backward =
                                            [](const HostGradient& g) {
                                              for (int i = 0; i < 60; ++i)
                                                g.z_in[0].set(i, factor * 2 * g.in[0].at(i) * g.z[0].at(i));
                                            }});
  const Case c{"counts_runs", "vector", {{{60}}}, [op](DType, Device) {
                 return Callable{{}, [op](std::span<const Tensor> x) { return Tensors{op(x[0])}; }};
               }};
  EXPECT_EQ(one(c).status, Status::ok);
  const int right = std::exchange(runs, 0);
  factor = 1.5;
  EXPECT_EQ(one(c).status, Status::mismatch);
  EXPECT_LT(runs, 2 * right);
}

TEST(Gradcheck, DrawnIndicesIncludeMoreThanTheLowest) {
  const Case c = named("slice_assign/start given");
  gradcheck::Harness h(c, View::contiguous, f64, {});
  bool highest = false;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const double start = h.draw(seed)[2][0];
    EXPECT_GT(start, 0) << seed;
    EXPECT_LT(start, 4) << seed;
    highest = highest || start == 3;
  }
  EXPECT_TRUE(highest);
}

// Outputs of samples must be finite. If an output is −∞ or NaN, it is not checked, and the check of other
// outputs is weaker.
TEST(Gradcheck, OutputsOfSamplesAreFinite) {
  for (const Case& c : op_cases()) {
    if (c.expected) continue;  // a special point
    gradcheck::Harness h(c, View::contiguous, f64, {.forward_only = true});
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      h.set(h.draw(seed));
      const Point y = h.outputs();
      for (std::size_t o = 0; o < y.size(); ++o)
        for (double e : y[o])
          EXPECT_TRUE(std::isfinite(e)) << c.text() << " output " << o << ", seed " << seed;
    }
  }
}

// At a tie, finite differences give half of the gradient to each operand. The sample contains the right
// value.
TEST(Gradcheck, ASpecialPointIsComparedWithItsSample) {
  const auto at_a_tie = [](double first, double second) {
    Case c = custom_case(
        {{.shape = {2}, .values = {1, 2}}, {.shape = {2}, .values = {1, 1}}},
        [](const Tensors& in) { return Tensors{maximum(in[0], in[1])}; },
        [=](auto& in, auto&, auto& z) {
          const Tensor tie = equal(in[0], in[1]), wins = greater(in[0], in[1]);
          return Tensors{where(tie, z[0] * first, where(wins, z[0], 0)),
                         where(tie, z[0] * second, where(wins, 0, z[0]))};
        });
    c.expected = Sample::Expected{{{1, 2}}, {{.5, 1}, {.5, 0}}};
    return c;
  };
  expect(at_a_tie(.5, .5), Status::ok);
  expect(at_a_tie(0, 1), Status::mismatch);
  EXPECT_NE(one(at_a_tie(0, 1)).worst.where.find("gradient 0, element 0"), std::string::npos);
}

// Returns the case with this name. Its op has a different vjp.
Case with_vjp(const char* text, Op& op, std::function<Tensors(const Op&, const Backprop&)> vjp) {
  Case c = named(text);
  const Op* const original = c.op;
  op = *original;
  op.vjp = [original, vjp](const Backprop& g) { return vjp(*original, g); };
  c = replayed(c, [original, &op](const Node& node, std::span<const Tensor> in) -> std::optional<Tensors> {
    if (node.op != original) return std::nullopt;
    return in[0].graph().record(op, in, node.attrs, node.where);
  });
  c.op = &op;
  return c;
}

// Both derivatives are correct at random points. So no random point shows these faults.
TEST(Gradcheck, CatchesFaultsAtSpecialPoints) {
  using Vjp = std::function<Tensors(const Op&, const Backprop&)>;
  const auto caught = [](const char* text, const char* where, const Vjp& vjp) {
    Op op;
    const Case c = with_vjp(text, op, vjp);
    for (bool fast : {false, true}) {
      const Result r = one(c, fast);
      EXPECT_TRUE(r.status == Status::mismatch || r.status == Status::non_finite) << text;
      EXPECT_NE(r.worst.where.find(where), std::string::npos) << text << ": " << r.worst.where;
      if (r.status == Status::non_finite) continue;
      // A quotient has an error and a distance from the gradient. It proves that the gradient is wrong only
      // if the error is at most a tenth of the distance.
      EXPECT_NEAR(r.ratio, 10, 1e-9) << text;
    }
  };
  // A gradient of the product that treats zeros separately. If no element is zero, this gradient and its
  // derivative are correct.
  const Vjp by_cases = [](const Op&, const Backprop& g) -> Tensors {
    const Tensor &x = g.in[0], zero = equal(x, 0), nonzero = where(zero, 1, x);
    const Axes& axes = g.attrs.as<ReduceAttrs>().axes;
    const Tensor product = prod(nonzero, axes, true), zeros = sum(cast(zero, x.dtype()), axes, true);
    const Tensor others =
        where(zero, where(equal(zeros, 1), product, 0), where(equal(zeros, 0), product / nonzero, 0));
    return {stretch(g.z[0], x.shape(), axes) * others};
  };
  caught("prod/all", "second derivative at a special point (zeros", by_cases);
  caught("prod/zeros", "second derivative at a special point (the sample's values)", by_cases);
  caught("mul/same", "first derivative at a special point (zeros", [](const Op& op, const Backprop& g) {
    Tensors z = op.vjp(g);
    if (z[0].defined()) z[0] = where(equal(g.in[0], 0), 0, z[0]);
    return z;
  });
  caught("tanh/3d", "special point (huge numbers",
         [](const Op& op, const Backprop& g) { return Tensors{op.vjp(g)[0] + 0 * (g.in[0] * 1e300)}; });
  caught("sigmoid/3d", "special point (infinity",
         [](const Op& op, const Backprop& g) { return Tensors{op.vjp(g)[0] + 0 * g.in[0]}; });
  caught("maximum/same", "first derivative at a special point", [](const Op&, const Backprop& g) {
    const Tensor first = greater_equal(g.in[0], g.in[1]), second = greater_equal(g.in[1], g.in[0]);
    return Tensors{where(first, g.z[0] * 1.5, 0) - where(logical_not(second), g.z[0] * 0.5, 0),
                   where(second, g.z[0], 0)};
  });
  caught("exp/3d", "second derivative", [](const Op& op, const Backprop& g) {
    const Tensors out{stop_gradient(g.out[0])};
    return op.vjp(Backprop{g.in, out, g.z, g.attrs, g.needed});
  });
}

TEST(Gradcheck, SecondDerivativesAtSpecialPointsAreChecked) {
  Options o;
  o.order = 2;
  for (const char* text : {"prod/zeros", "pow/zeros", "relu/kink", "max/ties", "gelu_tanh/far out"}) {
    const auto results = check(named(text), o);
    ASSERT_EQ(results.size(), 1u) << text;
    EXPECT_EQ(results[0].status, Status::ok) << text << ": " << results[0].note << results[0].worst.where;
    EXPECT_EQ(results[0].order, 2);
    EXPECT_GT(results[0].special, 0) << text;
  }
}

// The documentation promises a result for some operands. The samples include these operands.
TEST(Gradcheck, SpecialPointsAreSamples) {
  for (const char* text :
       {"maximum/ties", "minimum/ties", "max/ties", "min/ties", "pow/zeros", "relu/kink", "abs/kink",
        "prod/zeros", "softmax/one large logit", "log_softmax/one logit far below",
        "logsumexp/nothing to sum", "cross_entropy/one large logit", "squared_norm/one long"}) {
    const Case c = named(text);
    EXPECT_TRUE(c.expected) << text;
    for (const Result& r : check(c, {}))
      EXPECT_EQ(r.status, Status::ok) << text << ": " << r.note << r.worst.where;
  }
}

TEST(Gradcheck, ComparesTheDecompositionOfAnOpWithoutAGradient) {
  Op op = *find_op("adamw");
  Case c = named("adamw/2d");
  EXPECT_EQ(one(c).status, Status::refused);
  op.decompose = [](std::span<const Tensor> in, const Attrs&) {
    return Tensors{in[0], in[2], in[3], full(in[0].graph(), {0}, 0, in[0].dtype())};
  };
  c.op = &op;
  c.make = [make = c.make, &op](DType dtype, Device device) {
    const Callable f = make(dtype, device);
    return Callable{{}, [f, &op](std::span<const Tensor> x) {
                      const Node node = x[0].graph().node_of(f.call(x)[0].id());
                      Tensors in;
                      for (ValueId v : node.in) in.push_back(x[0].graph().tensor(v));
                      return x[0].graph().record(op, in, node.attrs, node.where);
                    }};
  };
  const Result r = one(c);
  EXPECT_EQ(r.status, Status::mismatch);
  EXPECT_NE(r.note.find("decomposition"), std::string::npos) << r.note;
}

// Returns the attributes of the op's call in a case.
AttentionAttrs attention_attrs(const Case& c) {
  Graph g;
  Tensors in;
  for (const SampleInput& i : c.inputs) in.push_back(g.input("x", i.shape, i.dtype.value_or(f64)));
  c.make(f64, Device::cpu()).call(in);
  for (const Node& n : g.nodes())
    if (n.op == c.op) return n.attrs.as<AttentionAttrs>();
  throw std::runtime_error(c.text() + " does not call its op");
}

// Any two options of attention occur together in at least one sample.
TEST(Gradcheck, SamplesCoverAllPairsOfAttentionOptions) {
  for (const char* name : {"flash_attn", "flash_attn_backward"}) {
    std::set<std::pair<std::string, std::string>> pairs;
    for (const Case& c : op_cases()) {
      if (c.owner != name) continue;
      const AttentionAttrs a = attention_attrs(c);
      std::vector<std::string> on;
      if (a.window_left >= 0) on.push_back("window_left");
      if (a.window_right >= 0 && !a.causal) on.push_back("window_right");
      if (a.causal) on.push_back(a.top_left ? "top_left" : "causal");
      if (a.has_lengths) on.push_back("lengths");
      if (a.packed) on.push_back("packed");
      if (a.has_sink) on.push_back("sink");
      if (a.has_bias) on.push_back("bias");
      if (a.softcap > 0) on.push_back("softcap");
      if (a.dropout > 0) on.push_back("dropout");
      for (const std::string& x : on)
        for (const std::string& y : on) pairs.emplace(x, y);
    }
    const std::vector<std::string> options{"window_left", "window_right", "causal",  "top_left", "lengths",
                                           "packed",      "sink",         "softcap", "bias",     "dropout"};
    const auto exclude = [](const std::string& x, const std::string& y) {
      const auto end = [](const std::string& o) {
        return o == "window_right" || o == "causal" || o == "top_left";
      };
      const auto keys = [](const std::string& o) { return o == "lengths" || o == "packed"; };
      return x != y && ((end(x) && end(y)) || (keys(x) && keys(y)));
    };
    for (const std::string& x : options)
      for (const std::string& y : options)
        EXPECT_TRUE(exclude(x, y) || pairs.contains({x, y})) << name << ": " << x << " with " << y;
  }
}

// In the expanded view, all 135 terms of a sum are equal. So the errors of its partial sums have the same
// sign.
TEST(Bounds, HoldForLongSumsOfEqualTerms) {
  Options o;
  o.fast = true, o.views = {View::expanded}, o.dtypes = {f32};
  for (o.seed = 100; o.seed < 140; ++o.seed)
    for (const Result& r : check(named("matmul_in_units/of k, transposed"), o))
      EXPECT_EQ(r.status, Status::ok) << "seed " << o.seed << ": " << r.worst.where;
}

// At equal numbers, one output has a slope only on one side. Another output has a slope only on the other
// side. With this seed, the cotangents of these outputs are almost equal.
TEST(SpecialPoints, KinksOfTwoOutputsDoNotMakeASmoothSum) {
  Options o = f64_contiguous(true);
  o.seed = 22;
  for (const Result& r : check(named("top_k/all"), o)) EXPECT_EQ(r.status, Status::ok) << r.worst.where;
}

}  // namespace

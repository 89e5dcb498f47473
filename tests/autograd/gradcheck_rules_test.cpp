// Tests gradcheck's rules for every gradient. Each rule uses certain runs of the gradient. A fault in one of
// these runs violates the rule. An error just inside a tolerance passes, and an error just outside it fails.
#include "autograd/gradcheck/rules.h"

#include <cmath>
#include <limits>

#include "autograd/gradcheck/quotients.h"
#include "backends/cpu/kernel.h"
#include "tests/support/gradcheck_cases.h"
#include "tests/support/host_function.h"

namespace {

using namespace tg;
using namespace tg::gradcheck;
using namespace tg::testing;
using View = gradcheck::View;

constexpr double inf = std::numeric_limits<double>::infinity();

// y₀ = x ⊛ w and y₁ = w ⊛ w. All numbers in x and w are c. In one run, the gradient has a relative error.
struct Pair {
  std::shared_ptr<HostFunction> host = std::make_shared<HostFunction>();
  int run = 0, faulty = 0;
  double share = 0;
  Case c;
  explicit Pair(double value) {
    host->outputs = [](const Point& x, DType) {
      Point y{x[0], x[1]};
      for (std::size_t k = 0; k < x[0].size(); ++k) y[0][k] *= x[1][k], y[1][k] *= x[1][k];
      return y;
    };
    host->gradients = [this](const Point& x, const Point& r, DType) {
      const double factor = ++run == faulty ? 1 + share : 1;
      Point z{r[0], r[0]};
      for (std::size_t k = 0; k < r[0].size(); ++k) {
        z[0][k] = r[0][k] * x[1][k] * factor;
        z[1][k] = (r[0][k] * x[0][k] + 2 * r[1][k] * x[1][k]) * factor;
      }
      return z;
    };
    const Fill constant{Fill::uniform, value, value};
    c = case_of(host, {{{3}, constant}, {{3}, constant}}, {{3}, {3}});
  }
};

struct Outcome {
  std::string note;
  std::int64_t rules;
  int runs;
};

template <class Check>
Outcome outcome(Pair& p, int faulty, double share, Check&& check) {
  Harness h(p.c, View::contiguous, f64, {});
  p.run = 0, p.faulty = faulty, p.share = share;
  Result r;
  check(h, r);
  EXPECT_EQ(r.status, r.note.empty() ? Status::ok : Status::mismatch);
  return {r.note, r.rules, p.run};
}

TEST(Rules, ARunThatDiffersBreaksTheRuleThatUsesIt) {
  Pair p(2);
  const auto structure = [&](Harness& h, Result& r) { check_structure(p.c, h, {}, r); };
  const Outcome right = outcome(p, 0, 0, structure);
  EXPECT_EQ(right.note, "");
  EXPECT_EQ(right.rules, 3 + 2 + 2 + 1);
  ASSERT_EQ(right.runs, 14);
  const std::string verify =
                        "[verify] the planned program and the one with a buffer per tensor give different",
                    threads = "two threads give different bits than one",
                    twice = "used twice by two calls, the gradient is not four times that of one use",
                    one = "with one tensor as inputs 0 and 1, the gradient is not the sum of both";
  const auto alone = [](int i) {
    return "the gradient of floating input " + std::to_string(i) +
           " differs if only that gradient is computed";
  };
  const auto without = [](int o) {
    return "without a cotangent for output " + std::to_string(o) + " the gradient is not that of a zero one";
  };
  const std::vector<std::string> notes{
      "in verify mode the gradient differs; " + threads + "; " + twice + "; " + alone(0) + "; " + alone(1),
      verify,
      verify,
      threads,
      twice,
      twice,
      alone(0),
      alone(1),
      without(0),
      without(0),
      without(1),
      without(1),
      one,
      one};
  for (int run = 1; run <= 14; ++run) {
    const Outcome o = outcome(p, run, 1e-3, structure);
    EXPECT_EQ(o.note.substr(0, notes[static_cast<std::size_t>(run) - 1].size()),
              notes[static_cast<std::size_t>(run) - 1])
        << "run " << run;
    EXPECT_EQ(o.note.find("; "), run == 1 ? o.note.find("; ") : std::string::npos) << o.note;
    EXPECT_EQ(o.rules, 8);
    // If a rule requires bitwise equality, it detects the smallest error.
    const bool is_exact = run == 2 || run == 3 || run == 4 || run == 7 || run == 8;
    EXPECT_EQ(outcome(p, run, 0x1p-50, structure).note != "", is_exact || run == 1) << "run " << run;
  }
}

// Computes x and the gradient of x. With two threads, the gradient is slightly wrong.
TEST(Rules, AKernelThatDependsOnTheNumberOfThreadsIsFound) {
  static const cpu::Kernel kernel{[](cpu::Worker& w, const cpu::Call& c) {
    const double factor = w.threads == 2 ? 1 + 0x1p-50 : 1;
    w.each(1, [&](std::int64_t) {
      const auto* x = reinterpret_cast<const double*>(c.in[0].data);
      auto* out = reinterpret_cast<double*>(c.out[0].data);
      for (std::int64_t i = 0; i < c.out[0].layout.numel(); ++i) out[i] = x[i] * factor;
    });
  }};
  cpu::register_kernel("counts_threads", kernel);
  static Op op{.name = "counts_threads", .infer = [](std::span<const Operand> in, const Attrs&) {
                 return std::vector<OutSpec>{{in[0].dtype, row_major(in[0].shape())}};
               }};
  op.vjp = [](const Backprop& g) { return Tensors{record(op, {contiguous(g.z[0])})}; };
  op.cost = [](auto, auto, const Attrs&) { return Cost{.flops = 1e9}; };  // enough work for two threads
  const Case c{"counts_threads", "vector", {{{4}}}, [](DType, Device) {
                 return Callable{{}, [](std::span<const Tensor> x) { return Tensors{record(op, {x[0]})}; }};
               }};
  EXPECT_EQ(one(c).note, "two threads give different bits than one");
}

// A tolerance is relative to the largest number of a gradient. If all numbers are smaller than 1, it is
// absolute.
TEST(Rules, TolerancesMatchTheDocumentation) {
  for (const double value : {0.125, 4.0}) {
    Pair p(value);
    Harness h(p.c, View::contiguous, f64, {});
    const Point r = h.draw_cotangents(0);
    Point z{r[0], r[0]};
    double largest_x = 0, largest_w = 0, largest_sum = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      z[0][k] = r[0][k] * value, z[1][k] = r[0][k] * value + 2 * r[1][k] * value;
      largest_x = std::max(largest_x, std::abs(z[0][k])), largest_w = std::max(largest_w, std::abs(z[1][k]));
      largest_sum = std::max(largest_sum, std::abs(z[0][k] + z[1][k]));
    }
    const auto structure = [&](Harness& harness, Result& result) {
      check_structure(p.c, harness, {}, result);
    };
    const auto expect_limit = [&](int run, double share) {
      EXPECT_EQ(outcome(p, run, 0.9935 * share, structure).note, "") << "run " << run << " of " << value;
      EXPECT_NE(outcome(p, run, 1.0055 * share, structure).note, "") << "run " << run << " of " << value;
    };
    const auto relative = [](double largest) { return std::max(1.0, largest) / largest; };
    // One run computes four times the gradient. Its error is relative to each gradient's largest number.
    expect_limit(5, 2 * 1e-13 * std::min(relative(4 * largest_x), relative(4 * largest_w)));
    // The sum of both gradients has an error. Its tolerance is relative to the larger gradient. It is also
    // relative to the sum.
    const double size = std::max({1.0, largest_x, largest_w});
    expect_limit(13, 1e-12 * size * relative(largest_sum));
    // Without a cotangent for y₁, the gradients are r₀·w and r₀·x. Without a cotangent for y₀, they are 0 and
    // 2·r₁·w.
    double largest_0 = 0, largest_1 = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      largest_0 = std::max(largest_0, std::abs(r[0][k] * value));
      largest_1 = std::max(largest_1, std::abs(2 * r[1][k] * value));
    }
    expect_limit(9, 1e-12 * relative(largest_1));
    expect_limit(11, 1e-12 * relative(largest_0));
  }
}

TEST(Rules, ASecondRunIsTheSameAndAZeroCotangentGivesZero) {
  Pair p(2);
  const auto check = [](Harness& h, Result& r) {
    const Point x = h.draw(0), cotangents = h.draw_cotangents(0);
    check_zero_and_repeat(h, {}, r);
    EXPECT_EQ(h.gradients()[0][0], 2 * cotangents[0][0]);  // the inputs have not changed
  };
  EXPECT_EQ(outcome(p, 0, 0, check).note, "");
  EXPECT_EQ(outcome(p, 0, 0, check).rules, 2);
  for (const int run : {1, 2})
    EXPECT_EQ(outcome(p, run, 0x1p-52, check).note, "a second run gives a different gradient");
  // If the gradient of one input is zero, the gradient of the other input is still compared. NaN equals NaN.
  for (const std::size_t input : {0u, 1u})
    for (const double bad : {1e-300, std::nan("")}) {
      Pair q(2);
      auto gradients = q.host->gradients;
      q.host->gradients = [=](const Point& x, const Point& r, DType t) {
        Point z = gradients(x, r, t);
        z[input][2] += bad;
        return z;
      };
      const auto only = [](Harness& h, Result& r) { check_zero_and_repeat(h, {}, r); };
      EXPECT_EQ(outcome(q, 0, 0, only).note, "a zero cotangent does not give exactly zero");
    }
}

// y = 4·x. The decomposition's output and gradient have these relative errors.
struct Decomposed {
  double output = 0, gradient = 0;
  Op op;
  Case c;
  explicit Decomposed(double value) {
    op = {.name = "four_times",
          .infer =
              [](std::span<const Operand> in, const Attrs&) {
                return std::vector<OutSpec>{{in[0].dtype, row_major(in[0].shape())}};
              },
          .vjp = [](const Backprop& g) { return Tensors{g.z[0] * 4}; },
          .decompose =
              [this](std::span<const Tensor> in, const Attrs&) {
                const Tensor fixed = stop_gradient(in[0]);
                return Tensors{fixed * (4 * (1 + output)) + (in[0] - fixed) * (4 * (1 + gradient))};
              },
          .host =
              [](std::span<const HostView> in, std::span<const HostView> out, const Attrs&) {
                for (std::int64_t i = 0; i < in[0].numel(); ++i) out[0].set(i, 4 * in[0].at(i));
              }};
    c = {"four_times", "constant", {{{2}, {Fill::uniform, value, value}}}, [this](DType, Device) {
           return Callable{{}, [this](std::span<const Tensor> x) { return Tensors{record(op, {x[0]})}; }};
         }};
    c.op = &op;
  }
  std::string note(double output_share, double gradient_share, std::int64_t rules = 2) {
    output = output_share, gradient = gradient_share;
    Harness h(c, View::contiguous, f64, {});
    Result r;
    check_decomposition(c, h, {}, r);
    EXPECT_EQ(r.rules, rules);
    return r.note;
  }
};

TEST(Rules, ADecompositionGivesTheSameOutputsAndGradients) {
  const std::string outputs = "its decomposition gives different outputs",
                    gradients = "its decomposition has a different gradient";
  for (const double value : {0.125, 2.0}) {
    Decomposed d(value);
    const Harness h(d.c, View::contiguous, f64, {});
    double largest = 0;
    const Values cotangents = h.draw_cotangents(0)[0];
    for (const double r : cotangents) largest = std::max(largest, std::abs(4 * r));
    const double of_output = 1e-11 * std::max(1.0, 4 * value) / (4 * value),
                 of_gradient = 1e-10 * std::max(1.0, largest) / largest;
    EXPECT_EQ(d.note(0, 0), "");
    EXPECT_EQ(d.note(0.995 * of_output, 0.995 * of_gradient), "");
    EXPECT_EQ(d.note(1.005 * of_output, 0), outputs);
    EXPECT_EQ(d.note(0, 1.005 * of_gradient), gradients);
    EXPECT_EQ(d.note(0, inf), outputs + "; " + gradients);  // both are NaN
    d.c.op = nullptr;
    EXPECT_EQ(d.note(1, 1, 0), "");
  }
}

// Numbers at a special point are compared with the tolerance 1e-13·max(1, |x|).
TEST(Rules, SpecialPointsMatchTheirSamples) {
  const auto host = std::make_shared<HostFunction>();
  host->outputs = [](const Point& x, DType) { return Point{{x[0][0] * 4, x[0][1]}, {x[0][1]}}; };
  host->gradients = [](const Point&, const Point& r, DType) {
    return Point{{4 * r[0][0], r[0][1] + r[1][0]}};
  };
  Case c = case_of(host, {{.shape = {2}, .values = {2, 0.25}}}, {{2}, {1}});
  const auto check = [&](std::vector<Values> outputs, std::vector<Values> gradients) {
    c.expected = Sample::Expected{std::move(outputs), std::move(gradients)};
    Harness h(c, View::contiguous, f64, {});
    Result r;
    check_expected(c, h, {}, r);
    EXPECT_EQ(r.status, r.ratio <= 1 && r.note.empty() ? Status::ok : Status::mismatch);
    return r;
  };
  Result r = check({{8, 0.25}, {0.25}}, {{4, 2}});
  EXPECT_EQ(r.checked, 5);
  EXPECT_EQ(r.max_abs, 0);
  const auto expect = [&](double ratio, const std::string& where) {
    EXPECT_NEAR(r.ratio, ratio, 0.005 * ratio) << where;
    EXPECT_EQ(r.worst.where, where + " at a special point");
  };
  r = check({{8 + 4e-13, 0.25}, {0.25}}, {{4, 2}});
  expect(0.5, "output 0, element 0");
  r = check({{8, 0.25 + 4e-13}, {0.25}}, {{4, 2}});
  expect(4, "output 0, element 1");
  r = check({{8, 0.25}, {0.25 - 2e-13}}, {{4, 2}});
  expect(2, "output 1, element 0");
  r = check({{8, 0.25}, {0.25}}, {{4, 2 - 6e-13}});
  expect(3, "gradient 0, element 1");
  EXPECT_EQ(check({{8, 0.25}}, {{4, 2}}).note, "the sample expects 1 tensors as its outputs, there are 2");
  EXPECT_EQ(check({{8, 0.25}, {0.25}}, {}).note,
            "the sample expects 0 tensors as its gradients, there are 1");
  EXPECT_EQ(check({{8, 0.25}, {0.25, 1}}, {{4, 2}}).note, "the sample expects another size of output 1");
  EXPECT_EQ(check({{8, 0.25}, {0.25}}, {{4}}).note, "the sample expects another size of gradient 0");
  host->outputs = [](const Point&, DType) { return Point{{inf, -inf}, {1}}; };
  EXPECT_EQ(check({{inf, -inf}, {1}}, {{4, 2}}).status, Status::ok);
  EXPECT_EQ(check({{inf, -inf}, {1}}, {{4, 2}}).max_abs, 0);
  c.expected = Sample::Expected{{{inf, inf}, {1}}, {{4, 2}}};
  Harness h(c, View::contiguous, f64, {});
  Result other;
  check_expected(c, h, {}, other);
  EXPECT_EQ(other.status, Status::non_finite);
}

// If two inputs are drawn in the same way, one tensor may be used for both. The first such pair is tested.
TEST(Rules, InputsThatAreDrawnAlikeMayBeOneTensor) {
  const SampleInput a{{3}}, other_shape{{2}}, other_rank{{3, 1}}, low{{3}, {Fill::normal, -2, 1}},
      high{{3}, {Fill::normal, -1, 2}}, kind{{3}, {Fill::uniform, -1, 1}}, index{{3}, {Fill::index, -1, 1}},
      bits{{3}, {Fill::bits, -1, 1}}, given{{3}, {}, {}, {1, 2, 3}}, fixed{{3}, {}, f32};
  const auto pair = [](std::vector<SampleInput> inputs, int order = 1) -> std::string {
    Case c{"pairs", "of inputs", std::move(inputs), [](DType, Device) {
             return Callable{{}, [](std::span<const Tensor> x) { return Tensors(x.begin(), x.end()); }};
           }};
    c.order = order;
    const auto twice = used_twice(c);
    if (!twice) return "none";
    // The call receives the first tensor for both inputs.
    Graph g;
    Tensors x;
    for (const SampleInput& in : c.inputs) x.push_back(g.input("x", in.shape, input_dtype(in, f64)));
    const Tensors seen = twice->c.make(f64, Device::cpu()).call(x);
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_EQ(seen[i].id(), x[i == twice->second ? twice->first : i].id());
    return std::to_string(twice->first) + " and " + std::to_string(twice->second);
  };
  EXPECT_EQ(pair({a, a}), "0 and 1");
  EXPECT_EQ(pair({a, a}, 2), "none");
  EXPECT_EQ(pair({a}), "none");
  for (const SampleInput& other : {other_shape, other_rank, low, high, kind, index, bits, given, fixed}) {
    EXPECT_EQ(pair({a, other}), "none");
    EXPECT_EQ(pair({other, a}), "none");
    EXPECT_EQ(pair({other, a, a}), "1 and 2");
    EXPECT_EQ(pair({a, other, a}), "0 and 2");
    EXPECT_EQ(pair({a, other, other, a}), "0 and 3");
  }
  for (const SampleInput& same : {index, bits, given, fixed}) EXPECT_EQ(pair({same, same}), "none");
  for (const SampleInput& same : {other_shape, low, high, kind}) EXPECT_EQ(pair({same, same}), "0 and 1");
}

// Input indices include inputs without a gradient. Gradient indices do not include them.
TEST(Rules, InputsThatAreOneTensorMayFollowOthers) {
  for (const bool is_right : {true, false}) {
    const Case c{
        "pairs",
        "after others",
        {{{2}}, {{2}, {Fill::index, 0, 3}}, {{3}}, {{1}}, {{2}, {Fill::bits}}, {{3}}, {{3}}},
        [=](DType, Device) {
          return Callable{
              {}, [=](std::span<const Tensor> x) {
                const bool is_one = x[2].id() == x[5].id();
                const Tensor product = x[2] * x[5] * 2 * x[6];
                return Tensors{is_one && !is_right ? stop_gradient(product) + x[6] : product, x[0] * x[3]};
              }};
        }};
    const Result r = one(c);
    EXPECT_EQ(r.note,
              is_right ? "" : "with one tensor as inputs 2 and 5, the gradient is not the sum of both");
    EXPECT_EQ(r.rules, 2 + 3 + 5 + 2 + 1);
  }
}

// If a case's nodes are recorded again, the case keeps the gradients of its regions. Options can exclude
// them.
TEST(Replayed, CasesKeepTheirCustomGradients) {
  const Case c = cube([](auto&, auto&, auto& z) { return Tensors{z[0] * 7}; });
  const auto slope = [](const Case& of) {
    Harness h(of, View::contiguous, f64, {});
    const Point r = h.draw_cotangents(0);
    return std::round(read(h, {Values(6, 2.0)}, r).gradients[0][0] / r[0][0]);
  };
  const auto nothing = [](const Node&, std::span<const Tensor>) -> std::optional<Tensors> {
    return std::nullopt;
  };
  EXPECT_EQ(slope(c), 7);
  EXPECT_EQ(slope(replayed(c, nothing)), 7);
  EXPECT_EQ(slope(replayed(c, nothing, true)), 7);
  EXPECT_EQ(slope(replayed(c, nothing, false)), 12);
}

// ---- How a check uses its parts

// The gradient is wrong only along one of the random directions. The element-by-element check uses different
// cotangents.
TEST(Checks, AFaultThatElementsDoNotShowIsReportedAsOneOfDirections) {
  const auto host = HostFunction::of_elements([](double x) { return x * x; }, [](double x) { return 2 * x; });
  const Case c = case_of(host, {{{4}}}, {{4}});
  const Values second = Harness(c, View::contiguous, f64, {}).draw_cotangents(77)[0];
  const auto gradients = host->gradients;
  host->gradients = [=](const Point& x, const Point& r, DType t) {
    Point z = gradients(x, r, t);
    if (r[0] == second)
      for (double& e : z[0]) e *= 1.01;
    return z;
  };
  const Result r = one(c, true);
  EXPECT_EQ(r.status, Status::mismatch);
  EXPECT_EQ(r.note, "along random directions only: element by element it passes");
  EXPECT_EQ(r.checked, 4);
  EXPECT_EQ(r.rules, 2 + 3);
  EXPECT_EQ(r.worst.where, "a random projection");
  EXPECT_EQ(one(c, false).status, Status::ok);
}

TEST(Checks, AFailedDirectionIsCheckedElementByElementFromTheStart) {
  const Case c = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z) * 1.5}; });
  const Result r = one(c, true), slow = one(c, false);
  EXPECT_EQ(r.checked, slow.checked);
  EXPECT_EQ(r.rules, slow.rules);
  EXPECT_EQ(r.skipped, 0);
  EXPECT_EQ(r.worst.where, slow.worst.where);
  EXPECT_EQ(r.ratio, slow.ratio);
  EXPECT_EQ(r.max_abs, slow.max_abs);
  EXPECT_EQ(r.max_rel, slow.max_rel);
  EXPECT_EQ(r.note, slow.note);
}

TEST(Checks, AnErrorOfTheCaseIsItsResult) {
  const auto check_with = [](const std::function<void()>& fail, const Op* op,
                             const std::optional<DType>& only = {}) {
    Case c{"errors", "case", {{{2}}}, [=](DType dtype, Device) {
             return Callable{{}, [=](std::span<const Tensor> x) {
                               if (!only || dtype == *only) fail();
                               return Tensors{x[0] * 2};
                             }};
           }};
    c.op = op;
    return check(c, {});
  };
  Op silent{.name = "silent"}, reasoned{.name = "reasoned", .not_differentiable = "it is a sign"},
      with_vjp{.name = "with_vjp",
               .vjp = [](const Backprop&) { return Tensors(); },
               .not_differentiable = "it is a sign"},
      first{.name = "first", .first_order_only = true};
  const auto expect = [&](const std::function<void()>& fail, const Op* op, Status status,
                          const std::string& note) {
    const auto results = check_with(fail, op);
    ASSERT_EQ(results.size(), 1u) << note;  // the same in every view
    EXPECT_EQ(results[0].status, status) << note;
    EXPECT_EQ(results[0].note, note);
    EXPECT_EQ(results[0].text(), "errors/case");
    EXPECT_EQ(results[0].view, View::contiguous);
    EXPECT_EQ(results[0].dtype, f64);
  };
  expect([] { throw DTypeError("no such type"); }, nullptr, Status::unsupported, "no such type");
  expect([] { throw DeviceError("no such kernel"); }, nullptr, Status::unsupported, "no such kernel");
  expect([] { throw ShapeError("no such shape"); }, nullptr, Status::mismatch, "no such shape");
  expect([] { throw GradientError("cut"); }, nullptr, Status::mismatch, "cut");
  expect([] { throw GradientError("it is a sign"); }, &reasoned, Status::refused, "it is a sign");
  expect([] { throw GradientError("another reason"); }, &reasoned, Status::mismatch, "another reason");
  expect([] { throw GradientError("it is a sign"); }, &with_vjp, Status::mismatch, "it is a sign");
  expect([] { throw GradientError("cut"); }, &silent, Status::mismatch, "cut");
  expect([] { throw GradientError("cut"); }, &first, Status::mismatch, "cut");  // not in the first derivative
  EXPECT_THROW(check_with([] { throw OutOfMemory("none left"); }, nullptr), OutOfMemory);
  EXPECT_THROW(check_with([] { throw std::runtime_error("another"); }, nullptr), std::runtime_error);
  // The error occurs in one dtype only. So the other dtypes are also checked.
  for (const Result& r : check_with([] { throw DTypeError("no bf16"); }, nullptr, bf16))
    EXPECT_EQ(r.status, r.dtype == bf16 ? Status::unsupported : Status::ok) << name_of(r.dtype);
}

// References run on the CPU. The checked program runs on a device that does not exist.
TEST(Checks, RunOnTheDeviceOfTheOptions) {
  const Case c = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z)}; });
  Options o;
  o.device = Device::cuda(99);
  const auto results = check(c, o);
  EXPECT_EQ(results.size(), 6u * 4);
  for (const Result& r : results) EXPECT_EQ(r.status, Status::unsupported) << tg::name_of(r.dtype) << r.note;
}

// If the second derivative reports an error, this is the only result.
TEST(Checks, AnErrorOfTheDerivativeIsTheOnlyResult) {
  const Case c{"errors", "case", {{{2}}}, [](DType, Device) {
                 return Callable{{}, [](std::span<const Tensor>) -> Tensors { throw ShapeError("none"); }};
               }};
  Options o;
  o.order = 2;
  const auto results = check(c, o);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].status, Status::mismatch);
  EXPECT_EQ(results[0].note, "none");
  EXPECT_EQ(results[0].text(), c.text());
}

// Some results apply to all views and dtypes. They are reported for any choice of views and dtypes.
TEST(Checks, OneRefusalStandsForAllDtypes) {
  const Case c{"nothing", "case", {{{2}}}, [](DType, Device) {
                 return Callable{{}, [](std::span<const Tensor> x) { return Tensors{greater(x[0], 0)}; }};
               }};
  for (const auto& dtypes : std::vector<std::vector<DType>>{{f64}, {f32}, {bf16, f16}}) {
    Options o;
    o.dtypes = dtypes, o.views = {View::offset, View::contiguous};
    const auto results = check(c, o);
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].status, Status::refused);
    EXPECT_EQ(results[0].view, View::offset);
  }
}

TEST(Checks, ResultsFollowTheOptionsInTheirOrder) {
  const Case c = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z)}; });
  Options o;
  o.views = {View::sliced, View::contiguous};
  for (const auto& dtypes : std::vector<std::vector<DType>>{{f64, f32, bf16, f16}, {f16, f32}, {bf16}}) {
    o.dtypes = dtypes;
    std::string got, expected;
    for (const Result& r : check(c, o)) {
      got += name_of(r.view) + " " + std::string(tg::name_of(r.dtype)) + ", ";
      EXPECT_EQ(r.status, Status::ok);
      EXPECT_EQ(r.order, 1);
    }
    for (const View view : o.views)
      for (const DType t : {f64, f32, bf16, f16})
        if (std::find(dtypes.begin(), dtypes.end(), t) != dtypes.end())
          expected += name_of(view) + " " + std::string(tg::name_of(t)) + ", ";
    EXPECT_EQ(got, expected);
  }
}

// If a dtype fails with two tensors, one tensor for both inputs is not checked.
TEST(Checks, OneTensorAsTwoInputsIsCheckedIfTwoTensorsPass) {
  const Case c = custom_case(
      {{{2, 3}}, {{2, 3}}}, [](const Tensors& in) { return Tensors{in[0] * in[1]}; },
      [](auto& in, auto&, auto& z) {
        const double factor = in[0].dtype() == bf16 ? 1.5 : 1;
        return Tensors{z[0] * in[1] * factor, z[0] * in[0]};
      });
  Options o;
  o.views = {View::contiguous}, o.dtypes = {bf16};
  const Result r = check(c, o).at(0);
  EXPECT_EQ(r.status, Status::mismatch);
  EXPECT_EQ(r.note, "");
}

TEST(Checks, CasesWithoutFloatingInputOrOutputAreRefused) {
  const auto refused = [](std::vector<SampleInput> inputs, const Op* op, bool is_float_output) {
    Case c{"nothing", "case", std::move(inputs), [=](DType, Device) {
             return Callable{{}, [=](std::span<const Tensor> x) {
                               return Tensors{is_float_output ? cast(x[0], f64) : greater(x[0], 0)};
                             }};
           }};
    c.op = op;
    const auto results = check(c, {});
    EXPECT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].status, Status::refused);
    return results[0].note;
  };
  const Op op{.name = "sign", .not_differentiable = "it is a sign"}, other{.name = "other"};
  const std::string nothing = "no floating input, or no floating output";
  EXPECT_EQ(refused({{{2}}}, nullptr, false), nothing);
  EXPECT_EQ(refused({{{2}, {Fill::index, 0, 5}}}, nullptr, true), nothing);
  EXPECT_EQ(refused({{{2}}}, &other, false), nothing);
  EXPECT_EQ(refused({{{2}}}, &op, false), "it is a sign");
}

TEST(Checks, SecondDerivativesOfNothingAreRefused) {
  for (const bool is_float_output : {false, true}) {
    const Case c = case_without_gradient(is_float_output);
    Options o;
    o.order = 2;
    const auto results = check(c, o);
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].status, Status::refused) << results[0].note;
    EXPECT_EQ(results[0].note, "no floating input, or no floating output");
    EXPECT_EQ(results[0].order, 2);
  }
}

// The derivative is the gradient as a function of inputs, parameters and cotangents.
TEST(Derivative, IsTheGradientOfTheWeightedOutputs) {
  const Case c{"two outputs", "case", {{{2}}, {{3}, {Fill::index, 0, 3}}, {{2}}}, [](DType dtype, Device) {
                 const Parameter w("w", Array::of<double>({2}, {2, 3}).to(dtype));
                 return Callable{{w}, [w](std::span<const Tensor> x) {
                                   const Tensor v = x[0].graph().param(w);
                                   return Tensors{x[0] * x[2] * v, greater(x[0], 0), x[0] * x[0]};
                                 }};
               }};
  const Case d = derivative(c);
  EXPECT_EQ(d.order, 2);
  EXPECT_EQ(derivative(d).order, 3);
  EXPECT_EQ(derivative(named("adamw/2d")).order, 2);  // this call needs only shapes
  ASSERT_EQ(d.inputs.size(), 5u);
  EXPECT_EQ(d.inputs[3].shape, (Shape{2}));
  EXPECT_EQ(d.inputs[4].shape, (Shape{2}));
  Harness h(d, View::contiguous, f64, {});
  ASSERT_EQ(h.leaves().size(), 6u);
  const Point x{{1, -2}, {0, 1, 2}, {5, 7}, {11, 13}, {17, 19}, {2, 3}};  // …, r₀, r₁, w
  const Read got = read(h, x, {{1, 2}, {3, 5}, {7, 11}});
  // z_x = r₀·y·w + 2·r₁·x, z_y = r₀·x·w, z_w = r₀·x·y
  EXPECT_EQ(
      got.outputs,
      (Point{{11 * 5 * 2 + 2 * 17, 13 * 7 * 3 - 4 * 19}, {11 * 2, 13 * -2 * 3}, {11 * 5, 13 * -2 * 7}}));
  // The derivative of ⟨z, s⟩ with respect to x is 2·r₁·s_x + r₀·w·s_y + r₀·y·s_w.
  ASSERT_EQ(got.gradients.size(), 5u);
  EXPECT_EQ(got.gradients[0],
            (Values{2 * 17 * 1 + 11 * 2 * 3 + 11 * 5 * 7, 2 * 19 * 2 + 13 * 3 * 5 + 13 * 7 * 11}));
}

// If an op has only a first derivative, the decomposition gives the second derivative. Gradients that are
// recorded around the op are not replaced.
TEST(Derivative, OpsOfFirstOrderAreReplacedByTheirDecompositions) {
  const Op op{
      .name = "first_order_cube",
      .infer =
          [](std::span<const Operand> in, const Attrs&) {
            return std::vector<OutSpec>{{in[0].dtype, row_major(in[0].shape())}};
          },
      .decompose = [](std::span<const Tensor> in, const Attrs&) { return Tensors{in[0] * in[0] * in[0]}; },
      .first_order_only = true};
  Case c = custom_case(
      {{{2}}}, [&](const Tensors& in) { return Tensors{record(op, {in[0]})}; },
      [](auto&, auto&, auto& z) { return Tensors{z[0] * 7}; });
  EXPECT_EQ(derivative(c).op, nullptr);
  for (const int order : {1, 2}) {
    c.op = &op, c.order = order;
    const Case d = derivative(c);
    EXPECT_EQ(d.op, order == 1 ? nullptr : &op);
    EXPECT_EQ(d.order, order + 1);
    Graph g;
    const Tensor x = g.input("x", {2}, f64), r = g.input("r", {2}, f64);
    const Tensor z = d.make(f64, Device::cpu()).call(std::vector{x, r}).at(0);
    if (order == 1) {
      EXPECT_EQ(eval(z, {{x, std::vector<double>{2, 3}}, {r, std::vector<double>{1, 10}}}).values<double>(),
                (std::vector<double>{12, 270}));
    } else {
      EXPECT_EQ(eval(z, {{r, std::vector<double>{1, 10}}}).values<double>(), (std::vector<double>{7, 70}));
    }
  }
}

TEST(Cases, UseTheSamplesOfOps) {
  register_op({.name = "without_samples", .infer = [](std::span<const Operand> in, const Attrs&) {
                 return std::vector<OutSpec>{{in[0].dtype, in[0].layout}};
               }});
  std::size_t samples = 0;
  for (const Op* op : all_ops()) samples += op->samples ? op->samples().size() : 0;
  const std::vector<Case> cases = op_cases();
  EXPECT_EQ(cases.size(), samples);
  for (const Case& c : cases) {
    EXPECT_NE(c.owner, "without_samples");
    EXPECT_EQ(c.op, find_op(c.owner));
    EXPECT_EQ(c.order, 1);
  }
  const std::size_t registered = registered_cases().size();
  register_case({"mine", "case", {}, {}});
  ASSERT_EQ(registered_cases().size(), registered + 1);
  EXPECT_EQ(registered_cases().back().text(), "mine/case");
}

TEST(Names, AreStableInReports) {
  std::string views, statuses;
  for (const View v : gradcheck::all_views) views += name_of(v) + " ";
  EXPECT_EQ(views, "contiguous transposed sliced offset expanded expanded_last ");
  for (const Status s :
       {Status::ok, Status::refused, Status::unsupported, Status::mismatch, Status::non_finite})
    statuses += name_of(s) + " ";
  EXPECT_EQ(statuses, "ok refused unsupported mismatch non-finite ");
}

}  // namespace

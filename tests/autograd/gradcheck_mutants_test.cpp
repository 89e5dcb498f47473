// Tests mutants of gradients. gradcheck injects every kind of fault and must detect it. Also tests the error
// of quotients as a function of the step h.
#include "tests/support/gradcheck_cases.h"

#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "autograd/gradcheck/tally.h"
#include "tests/support/host_function.h"

namespace {

using namespace tg;
using namespace tg::gradcheck;

// Every kind of fault is injected. If a fault changes the gradient, gradcheck detects it. Otherwise the fault
// is counted separately.
TEST(Mutants, AllFaultsOfAProductAreCaught) {
  for (const Case& c : op_cases()) {
    if (c.text() != "mul/same") continue;
    int caught = 0;
    std::string kinds;
    for (const Mutant& m : mutate(c, f64_contiguous(false))) {
      EXPECT_NE(m.fate, Mutant::survived) << m.fault;
      caught += m.fate == Mutant::caught;
      if (m.fate == Mutant::caught) kinds += m.fault + ";";
    }
    EXPECT_GE(caught, 10);
    for (const char* kind : {"sign", "scale", "dropped term", "transposed", "stale inputs", "zero"})
      EXPECT_NE(kinds.find(kind), std::string::npos) << kind;
    EXPECT_EQ(kinds.find("stale outputs"), std::string::npos);  // this gradient does not read outputs
  }
}

TEST(Mutants, InapplicableFaultsOfASumAreEquivalent) {
  for (const Case& c : op_cases()) {
    if (c.text() != "sum/all") continue;
    for (const Mutant& m : mutate(c, f64_contiguous(true))) {
      const bool changes_nothing =
          m.fault.find("transposed") == 0 || m.fault.find("stale") == 0 || m.fault == "operands held fixed";
      EXPECT_EQ(m.fate, changes_nothing ? Mutant::equivalent : Mutant::caught) << m.fault;
    }
  }
}

// Four random directions must detect a single wrong element. A different summation order must not count as a
// fault.
TEST(Mutants, AreCaughtByProjectionsForManySeeds) {
  for (const char* text : {"sub/same", "add/broadcast", "scatter_add/last", "where/broadcast"}) {
    Options o = f64_contiguous(true);
    const Case c = named(text);
    for (o.seed = 0; o.seed < 100; ++o.seed)
      for (const Mutant& m : mutate(c, o))
        EXPECT_NE(m.fate, Mutant::survived) << text << ", seed " << o.seed << ": " << m.fault;
  }
}

// The gradient is the sum of 1, 10 and 100 times z, by two additions. Each fault is named after exactly one
// summand and omits it. This requires a vjp. Without a vjp, faults change the complete gradient.
TEST(Mutants, DropTheTermThatTheyName) {
  const auto terms = [](const Tensor& z) { return Tensors{(z * 1 + z * 10) + z * 100}; };
  static const Op op{.name = "terms",
                     .infer =
                         [](std::span<const Operand> in, const Attrs&) {
                           return std::vector<OutSpec>{{in[0].dtype, row_major(in[0].shape())}};
                         },
                     .vjp = [terms](const Backprop& g) { return terms(g.z[0]); },
                     .host =
                         [](std::span<const HostView> in, std::span<const HostView> out, const Attrs&) {
                           for (int i = 0; i < 6; ++i) out[0].set(i, 111 * in[0].at(i));
                         }};
  Case of_op{"terms", "matrix", matrix, [](DType, Device) {
               return Callable{{}, [](std::span<const Tensor> x) { return Tensors{record(op, {x[0]})}; }};
             }};
  of_op.op = &op;
  const Case as_a_whole = custom_case(
      matrix, [](const Tensors& in) { return Tensors{in[0] * 111}; },
      [terms](auto&, auto&, auto& z) { return terms(z[0]); });
  const std::map<std::string, double> left{{"dropped term: first of sum 0", 10 + 100},
                                           {"dropped term: second of sum 0", 1 + 100},
                                           {"dropped term: first of sum 1", 100},
                                           {"dropped term: second of sum 1", 1 + 10}};
  for (const Case& c : {of_op, as_a_whole}) {
    std::size_t seen = 0;
    for (const Mutant& m : mutate(c, f64_contiguous(false))) {
      if (m.fault.find(" of sum ") == std::string::npos) continue;
      ++seen;
      ASSERT_TRUE(left.contains(m.fault)) << m.fault;
      EXPECT_EQ(m.fate, Mutant::caught) << m.fault;
      EXPECT_NEAR(m.result.worst.analytic / m.result.worst.numeric, left.at(m.fault) / 111, 1e-6) << m.fault;
    }
    EXPECT_EQ(seen, left.size()) << c.text();
  }
}

std::string fate_of(const Mutant& m) {
  static const char* const names[] = {"caught", "survived", "equivalent", "not_injectable", "refused"};
  return names[static_cast<int>(m.fate)];
}

// Lists all faults in order, each with its result. Each view and dtype has one line. Detected faults are
// listed by name only.
std::string fates(const Case& c, const Options& o) {
  std::string text, setting;
  for (const Mutant& m : mutate(c, o)) {
    EXPECT_EQ(m.owner + "/" + m.name, c.text());
    EXPECT_EQ(m.result.text(), c.text());
    const std::string now = name_of(m.result.view) + " " + std::string(tg::name_of(m.result.dtype));
    if (now != setting) text += (text.empty() ? "" : "\n") + now + ":";
    setting = now;
    text += " " + m.fault + (m.fate == Mutant::caught ? "" : " (" + fate_of(m) + ")") + ";";
    EXPECT_EQ(m.why.empty(), m.fate == Mutant::caught || m.fate == Mutant::survived) << m.fault;
    EXPECT_EQ(m.result.status == Status::ok, m.fate != Mutant::caught) << m.fault;
    if (m.result.status == Status::mismatch && m.result.dtype == f64 && m.result.special == 0) {
      EXPECT_EQ(m.result.worst.where.starts_with("a random projection"),
                o.fast || m.result.view != View::contiguous)
          << m.fault << ": " << m.result.worst.where;
    }
  }
  return text;
}

TEST(Mutants, MatchTheListInItsOrder) {
  const std::pair<const char*, const char*> cases[] = {
      {"mul/same",
       "contiguous f64: sign of input 0; scale of input 0; transposed of input 0; "
       "zero of input 0; sign of input 1; scale of input 1; transposed of input 1; "
       "zero of input 1; dropped term: last element of output 0; stale inputs; "
       "stale outputs (equivalent); operands held fixed; zero where input 0 is; "
       "NaN where input 0 is huge; zero where input 1 is; NaN where input 1 is huge;"},
      {"sum/all",
       "contiguous f64: sign of input 0; scale of input 0; "
       "transposed of input 0 (equivalent); zero of input 0; "
       "dropped term: last element of output 0; stale inputs (equivalent); "
       "stale outputs (equivalent); operands held fixed (equivalent); "
       "zero where input 0 is; NaN where input 0 is huge;"},
      {"matmul/2d",
       "contiguous f64: sign of input 0; scale of input 0; transposed of input 0; "
       "zero of input 0; sign of input 1; scale of input 1; transposed of input 1; "
       "zero of input 1; dropped term: last element of output 0; stale inputs; "
       "stale outputs (equivalent); operands held fixed; zero where input 0 is; "
       "NaN where input 0 is huge; zero where input 1 is; NaN where input 1 is huge;"},
      {"exp/3d",
       "contiguous f64: sign of input 0; scale of input 0; transposed of input 0; "
       "zero of input 0; dropped term: last element of output 0; "
       "stale inputs (equivalent); stale outputs; operands held fixed; "
       "zero where input 0 is; NaN where input 0 is huge;"},
      {"where/broadcast",
       "contiguous f64: sign of input 1; scale of input 1; transposed of input 1; "
       "zero of input 1; sign of input 2; scale of input 2; "
       "transposed of input 2 (equivalent); zero of input 2; "
       "dropped term: last element of output 0; stale inputs (equivalent); "
       "stale outputs (equivalent); operands held fixed (equivalent); "
       "zero where input 1 is; NaN where input 1 is huge; zero where input 2 is; "
       "NaN where input 2 is huge;"},
      {"softmax/rows",
       "contiguous f64: sign of input 0; scale of input 0; transposed of input 0; "
       "zero of input 0; dropped term: last element of output 0; "
       "stale inputs (equivalent); stale outputs; operands held fixed; "
       "zero where input 0 is; NaN where input 0 is huge;"}};
  for (const auto& [name, expected] : cases)
    EXPECT_EQ(fates(named(name), f64_contiguous(true)), expected) << name;
  Options narrow = f64_contiguous(true);
  narrow.dtypes = {f64, bf16};
  EXPECT_EQ(fates(named("cast/to f64"), narrow),  // records nothing in f64
            "contiguous f32: sign of input 0; scale of input 0; transposed of input 0; zero of input 0; "
            "dropped term: last element of output 0; stale inputs (equivalent); stale outputs (equivalent);\n"
            "contiguous bf16: scale of floating input 0;");
  EXPECT_EQ(fates(named("prod/zeros"), f64_contiguous(true)), "");  // a special point
  EXPECT_EQ(fates(named("adamw/2d"), f64_contiguous(true)), "");    // no gradient
}

// In other views and dtypes, a scaled gradient is tested for each input. One other fault is also tested. The
// seed determines this fault.
TEST(Mutants, OtherSettingsRotateThroughTheFaults) {
  const Case c{
      "residual", "rows", {{{3, 4}}, {{4}}}, [](DType, Device) {
        return Callable{{}, [](std::span<const Tensor> x) { return Tensors{tanh(x[0] * x[1]) + x[0]}; }};
      }};
  const char* const expected[] = {
      "contiguous f64: sign of floating input 0; scale of floating input 0; "
      "transposed of floating input 0; zero of floating input 0; "
      "sign of floating input 1; scale of floating input 1; zero of floating input 1; "
      "dropped term: second of sum 0; dropped term: first of sum 0; "
      "dropped term: second of sum 1; dropped term: first of sum 1;\n"
      "transposed f64: sign of floating input 0; scale of floating input 0; "
      "scale of floating input 1;\n"
      "sliced f64: scale of floating input 0; scale of floating input 1;\n"
      "offset f64: zero of floating input 0; scale of floating input 0; "
      "scale of floating input 1;\n"
      "expanded f64: scale of floating input 0; scale of floating input 1;\n"
      "expanded_last f64: zero of floating input 1; scale of floating input 0; "
      "scale of floating input 1;\n"
      "contiguous f32: sign of floating input 1; scale of floating input 0; "
      "scale of floating input 1;\n"
      "contiguous bf16: transposed of floating input 0; "
      "scale of floating input 0 (equivalent); scale of floating input 1 (equivalent);\n"
      "contiguous f16: sign of floating input 0; scale of floating input 0; "
      "scale of floating input 1;",
      "contiguous f64: sign of floating input 0; scale of floating input 0; "
      "transposed of floating input 0; zero of floating input 0; "
      "sign of floating input 1; scale of floating input 1; zero of floating input 1; "
      "dropped term: second of sum 0; dropped term: first of sum 0; "
      "dropped term: second of sum 1; dropped term: first of sum 1;\n"
      "transposed f64: scale of floating input 0; scale of floating input 1;\n"
      "sliced f64: zero of floating input 0; scale of floating input 0; "
      "scale of floating input 1;\n"
      "offset f64: scale of floating input 0; scale of floating input 1;\n"
      "expanded f64: zero of floating input 1; scale of floating input 0; "
      "scale of floating input 1;\n"
      "expanded_last f64: sign of floating input 1; scale of floating input 0; "
      "scale of floating input 1;\n"
      "contiguous f32: transposed of floating input 0; scale of floating input 0; "
      "scale of floating input 1;\n"
      "contiguous bf16: sign of floating input 0; "
      "scale of floating input 0 (equivalent); scale of floating input 1 (equivalent);\n"
      "contiguous f16: scale of floating input 0; scale of floating input 1;",
      "contiguous f64: sign of floating input 0; scale of floating input 0; "
      "transposed of floating input 0; zero of floating input 0; "
      "sign of floating input 1; scale of floating input 1; zero of floating input 1; "
      "dropped term: second of sum 0; dropped term: first of sum 0; "
      "dropped term: second of sum 1; dropped term: first of sum 1;\n"
      "transposed f64: zero of floating input 0; scale of floating input 0; "
      "scale of floating input 1;\n"
      "sliced f64: scale of floating input 0; scale of floating input 1;\n"
      "offset f64: zero of floating input 1; scale of floating input 0; "
      "scale of floating input 1;\n"
      "expanded f64: sign of floating input 1; scale of floating input 0; "
      "scale of floating input 1;\n"
      "expanded_last f64: transposed of floating input 0 (equivalent); "
      "zero of floating input 0; scale of floating input 0; scale of floating input 1;\n"
      "contiguous f32: sign of floating input 0; scale of floating input 0; "
      "scale of floating input 1;\n"
      "contiguous bf16: zero of floating input 1; "
      "scale of floating input 0 (equivalent); scale of floating input 1 (equivalent);\n"
      "contiguous f16: zero of floating input 0; scale of floating input 0; "
      "scale of floating input 1;"};
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    Options o;
    o.seed = seed;
    EXPECT_EQ(fates(c, o), expected[seed]) << seed;
  }
  Options one;
  one.views = {View::sliced}, one.dtypes = {f16}, one.seed = 2;
  std::string settings;
  for (const Mutant& m : mutate(c, one)) settings += name_of(m.result.view) + " ";
  EXPECT_EQ(settings.find("sliced"), std::string::npos);  // its dtype is f64
}

// If all faults are equivalent, each setting tests the next four faults.
TEST(Mutants, ZeroGradientsMakeAllEquivalent) {
  const std::pair<std::vector<SampleInput>, std::vector<std::string>> rows[] = {
      {{{{2, 3}}, {{2, 3}}},
       {"sign of floating input 0", "scale of floating input 0", "transposed of floating input 0",
        "zero of floating input 0", "sign of floating input 1", "scale of floating input 1",
        "transposed of floating input 1", "zero of floating input 1"}},
      {{{{3}}}, {"sign of floating input 0", "scale of floating input 0", "zero of floating input 0"}}};
  for (const auto& [inputs, faults] : rows)
    for (std::size_t seed = 0; seed < 5; ++seed) {
      const bool is_matrix = inputs.size() == 2;
      const Case c = custom_case(
          inputs, [](const Tensors& in) { return Tensors{in[0] * 0}; },
          [](const Tensors& in, auto&, auto&) {
            Tensors z;
            for (const Tensor& x : in) z.push_back(zeros_like(x));
            return z;
          });
      const auto line = [&](const char* setting, const std::vector<std::string>& names) {
        std::string text = setting;
        for (const std::string& name : names) text += " " + name + " (equivalent);";
        return text;
      };
      std::string expected = line("contiguous f64:", faults);
      std::size_t order = seed;
      for (const char* setting :
           {"transposed f64:", "sliced f64:", "offset f64:", "expanded f64:", "expanded_last f64:",
            "contiguous f32:", "contiguous bf16:", "contiguous f16:"}) {
        const std::size_t first = 5 * order++;
        if (!is_matrix && setting == std::string("transposed f64:")) continue;
        std::vector<std::string> names;
        for (std::size_t i = 0; i < std::min<std::size_t>(4, faults.size()); ++i) {
          const std::string& name = faults[(first + i) % faults.size()];
          if (!name.starts_with("scale")) names.push_back(name);
        }
        for (const std::string& name : faults)
          if (name.starts_with("scale")) names.push_back(name);
        expected += "\n" + line(setting, names);
      }
      Options o;
      o.seed = seed;
      EXPECT_EQ(fates(c, o), expected) << seed;
    }
}

Op host_op(std::string name, std::size_t outputs, std::function<Tensors(const Backprop&)> vjp,
           std::function<double(std::span<const HostView> in, std::size_t output, std::int64_t i)> f) {
  return {.name = std::move(name),
          .infer =
              [outputs](std::span<const Operand> in, const Attrs&) {
                return std::vector<OutSpec>(outputs, {in[0].dtype, row_major(in[0].shape())});
              },
          .vjp = std::move(vjp),
          .host =
              [f](std::span<const HostView> in, std::span<const HostView> out, const Attrs&) {
                for (std::size_t o = 0; o < out.size(); ++o)
                  for (std::int64_t i = 0; i < out[o].numel(); ++i) out[o].set(i, f(in, o, i));
              }};
}

// Calls of one op may differ in operands and in the outputs that are used.
TEST(Mutants, CallsOfOneOpMayDiffer) {
  const Op sums = host_op(
      "sum_of_all", 1,
      [](const Backprop& g) {
        Tensors z;
        for (std::size_t k = 0; k < g.in.size(); ++k) z.push_back(g.z[0] * 1);
        return z;
      },
      [](auto in, std::size_t, std::int64_t i) {
        double sum = 0;
        for (const HostView& v : in) sum += v.at(i);
        return sum;
      });
  Case c{"sum_of_all", "calls", {{{2, 3}}, {{2, 3}}}, [&](DType, Device) {
           return Callable{{}, [&](std::span<const Tensor> x) {
                             return Tensors{record(sums, {x[0]}) * 2 + record(sums, {x[1], x[0]}) * 3};
                           }};
         }};
  c.op = &sums;
  EXPECT_EQ(fates(c, f64_contiguous(false)),
            "contiguous f64: sign of input 0; scale of input 0; transposed of input 0; zero of input 0; "
            "sign of input 1; scale of input 1; transposed of input 1; zero of input 1; "
            "dropped term: last element of output 0; stale inputs (equivalent); stale outputs (equivalent);");

  const Op pair = host_op(
      "pair", 2,
      [](const Backprop& g) {
        Tensor z = g.z[0].defined() ? g.z[0] * 2 : zeros_like(g.in[0]);
        if (g.z[1].defined()) z = z + g.z[1] * 3;
        return Tensors{z, Tensor()};
      },
      [](auto in, std::size_t output, std::int64_t i) { return in[0].at(i) * (output == 0 ? 2 : 3); });
  for (const bool both : {true, false}) {
    Case of_pair{"pair", "outputs", {{{2, 3}}, {{2, 3}, {Fill::index, 0, 3}}}, [&](DType, Device) {
                   return Callable{{}, [&](std::span<const Tensor> x) {
                                     Tensors y = record_all(pair, {x[0], x[1]});
                                     if (!both) y.pop_back();
                                     return y;
                                   }};
                 }};
    of_pair.op = &pair;
    const std::string of_sums = both ? "dropped term: second of sum 0; dropped term: first of sum 0; " : "";
    EXPECT_EQ(fates(of_pair, f64_contiguous(false)),
              "contiguous f64: sign of input 0; scale of input 0; transposed of input 0; zero of input 0; "
              "dropped term: last element of output 0; dropped term: last element of output 1" +
                  std::string(both ? "" : " (equivalent)") + "; " + of_sums +
                  "stale inputs (equivalent); stale outputs (equivalent);");
  }
}

// The slope is 5·10⁻⁶. If it is missing, the error is within the tolerance for special points. It exceeds the
// tolerance for other points.
TEST(Mutants, ChangesWithinTheToleranceSurvive) {
  Op op = host_op(
      "small_slope", 1, [](const Backprop& g) { return Tensors{g.z[0] * 5e-6}; },
      [](auto in, std::size_t, std::int64_t i) { return 5e-6 * in[0].at(i); });
  op.samples = [] { return std::vector<Sample>{{"vector", {}}}; };
  Case c{"small_slope", "vector", {{{3}}}, [&](DType, Device) {
           return Callable{{}, [&](std::span<const Tensor> x) { return Tensors{record(op, {x[0]})}; }};
         }};
  c.op = &op;
  EXPECT_EQ(fates(c, f64_contiguous(false)),
            "contiguous f64: sign of input 0; scale of input 0; transposed of input 0 (equivalent); "
            "zero of input 0; dropped term: last element of output 0; stale inputs (equivalent); "
            "stale outputs (equivalent); operands held fixed (equivalent); "
            "zero where input 0 is (survived); NaN where input 0 is huge;");
}

// If a gradient is wrong in one view or dtype, no mutants are made in this setting or later ones.
TEST(Mutants, EndAtTheFirstSettingWithAFailedCheck) {
  const std::tuple<View, DType, const char*> rows[] = {
      {View::contiguous, f64, "contiguous f64 "},
      {View::offset, f64, "contiguous f64 transposed f64 sliced f64 offset f64 "},
      {View::contiguous, bf16,
       "contiguous f64 transposed f64 sliced f64 offset f64 expanded f64 expanded_last f64 contiguous f32 "
       "contiguous bf16 "}};
  for (const auto& [view, dtype, settings] : rows) {
    const std::int64_t offset = view == View::offset ? 3 : 0;
    const Case c = cube([dtype = dtype, offset](auto& in, auto&, auto& z) {
      const Layout& seen = in[0].layout();
      const bool is_wrong = in[0].dtype() == dtype && seen.offset == offset && seen.is_contiguous();
      return Tensors{right(in, z) * (is_wrong ? 1.5 : 1)};
    });
    Options o;
    if (dtype == f64) o.dtypes = {f64, f32};
    std::string seen, last;
    const std::vector<Mutant> mutants = mutate(c, o);
    for (const Mutant& m : mutants) {
      const std::string now = name_of(m.result.view) + " " + std::string(tg::name_of(m.result.dtype)) + " ";
      if (now != last) seen += now;
      last = now;
      EXPECT_EQ(m.fate == Mutant::refused, &m == &mutants.back()) << m.fault << " " << now;
    }
    EXPECT_EQ(seen, settings);
    EXPECT_EQ(mutants.back().why, "its check fails without a fault, so no fault was injected");
    EXPECT_EQ(mutants.back().fault, "none");
    EXPECT_EQ(mutants.back().owner + "/" + mutants.back().name, c.text());
    EXPECT_EQ(mutants.back().result.text(), c.text());
  }
}

TEST(Mutants, CasesWithoutAGradientHaveNone) {
  for (const bool is_float_output : {false, true}) {
    EXPECT_TRUE(mutate(case_without_gradient(is_float_output), {}).empty());
  }
}

// The gradient of Σx, or of x if `of_cotangents`. A nudge moves each input by `step`, with the signs from
// `sign`. If `of_cotangents`, it moves each cotangent. For one nudge only, the gradient has a relative error
// of `share`.
struct Nudged {
  std::shared_ptr<tg::testing::HostFunction> host = std::make_shared<tg::testing::HostFunction>();
  DType dtype = f64;  // the dtype in which the gradient is wrong
  double step = 0;    // the step of the nudge
  std::uint64_t sign = 0;
  double share = 0;
  Point cotangents;
  Case c;
  explicit Nudged(bool of_cotangents) {
    host->outputs = [of_cotangents](const Point& x, DType) {
      if (of_cotangents) return x;
      double sum = 0;
      for (const double e : x[0]) sum += e;
      return Point{{sum}};
    };
    host->gradients = [this, of_cotangents](const Point& x, const Point& r, DType t) {
      Values off = nudged(of_cotangents ? cotangents : Point{Values(8, 1.0)}, step, {true},
                          of_cotangents ? sign + 100 : sign)[0];
      for (double& e : off) e = tg::testing::rounded_to(t, e);
      const bool is_off = t == dtype && (of_cotangents ? r : x)[0] == off;
      Point z{of_cotangents ? r[0] : Values(8, r[0][0])};
      for (double& e : z[0]) e *= is_off ? 1 + share : 1;
      return z;
    };
    c = tg::testing::case_of(host, {{{8}, {Fill::uniform, 1, 1}}}, {{of_cotangents ? 8 : 1}});
  }
  std::string fate_of_scale(DType checked) {
    cotangents = Harness(c, View::contiguous, checked, {}).draw_cotangents(0);
    Options o;
    o.views = {View::contiguous}, o.dtypes = {checked};
    std::string fate;
    for (const Mutant& m : mutate(c, o))
      if (m.fault == "scale of floating input 0" && m.result.dtype == checked) fate = fate_of(m);
    return fate;
  }
};

// A fault within the measured noise counts as equivalent. In f64, four nudges of 4 units of roundoff change
// the gradient. The noise is 100 times the largest change. In other dtypes, rounding at four points changes
// the gradient. The noise is 20 times this change.
TEST(Mutants, WithinTheMeasuredNoiseAreEquivalent) {
  struct Row {
    DType checked, off;
    double step, limit;
  };
  const Row rows[] = {{f64, f64, 4 * 0x1p-53, 0.001 / 100},
                      {f32, f32, 4 * 0x1p-24, 0.1 / 100},
                      {f32, f64, 0x1p-24, 0.1 / 20},
                      {f16, f32, 4 * 0x1p-24, 0.1 / 100}};
  for (const Row& row : rows)
    for (std::uint64_t number = 0; number < 10; ++number) {
      Nudged n(number >= 5);
      const std::uint64_t sign = number % 5;
      n.dtype = row.off, n.step = row.step, n.sign = sign;
      n.share = 0.995 * row.limit;
      EXPECT_EQ(n.fate_of_scale(row.checked), "caught") << tg::name_of(row.checked) << " " << number;
      n.share = 1.005 * row.limit;
      EXPECT_EQ(n.fate_of_scale(row.checked), sign < 4 ? "equivalent" : "caught")
          << tg::name_of(row.checked) << " " << number;
    }
}

// Each fault changes the gradient of x²/2 at a constant x. The change follows from the fault's name.
TEST(Mutants, ChangeTheGradientByTheirFactors) {
  static Op op{.name = "half_square",
               .infer =
                   [](std::span<const Operand> in, const Attrs&) {
                     return std::vector<OutSpec>{{in[0].dtype, row_major(in[0].shape())}};
                   },
               .vjp = [](const Backprop& g) { return Tensors{g.z[0] * g.in[0]}; },
               .host =
                   [](std::span<const HostView> in, std::span<const HostView> out, const Attrs&) {
                     for (int i = 0; i < 2; ++i) out[0].set(i, in[0].at(i) * in[0].at(i) / 2);
                   }};
  for (const double x : {1., 2.}) {
    Case of_op{"half_square", "constant", {{{2}, {Fill::uniform, x, x}}}, [](DType, Device) {
                 return Callable{{}, [](std::span<const Tensor> in) { return Tensors{record(op, {in[0]})}; }};
               }};
    const Case as_a_whole = of_op;
    of_op.op = &op;
    for (const Case& c : {of_op, as_a_whole}) {
      std::map<std::string, double> factors;
      Options o;
      o.views = {View::contiguous};
      for (const Mutant& m : mutate(c, o)) {
        if (m.fate == Mutant::equivalent) continue;
        const std::string name = m.fault + " " + std::string(tg::name_of(m.result.dtype));
        factors[name] = m.result.worst.analytic / m.result.worst.numeric;
        // The check ends at the first wrong element. This is the last element, or the first of two.
        if (m.result.dtype == f64 && m.result.special == 0 && m.result.status == Status::mismatch) {
          EXPECT_EQ(m.result.checked, m.fault.find("last element") != std::string::npos ? 8 : 4) << m.fault;
        }
      }
      const std::string input = c.op ? " of input 0 f64" : " of floating input 0 f64",
                        other = " of floating input 0 ";
      const auto expect = [&](const std::string& name, double factor) {
        ASSERT_TRUE(factors.contains(name)) << name;
        EXPECT_NEAR(factors[name], factor, 1e-6) << name << " at " << x;
      };
      expect("sign" + input, -1);
      expect("scale" + input, 1.001);
      expect("zero" + input, 0);
      if (c.op) {
        expect("stale inputs f64", 1.01 + 0.01 / x);
        expect("dropped term: last element of output 0 f64", 0);
      }
      EXPECT_NEAR(factors["scale" + other + "f32"], 1.1, 1e-6);
      EXPECT_NEAR(factors["scale" + other + "f16"], 1.1, 0x1p-9);
    }
  }
}

// Eight units of roundoff, relative to the largest number, always count as noise.
TEST(Mutants, WithinEightUnitsOfRoundoffAreEquivalent) {
  for (const auto& [size, units, fate] : {std::tuple(1.0, 8, "equivalent"),
                                          {1.0, 10, "survived"},
                                          {1.9, 14, "equivalent"},
                                          {1.9, 16, "survived"}}) {
    const auto host = std::make_shared<tg::testing::HostFunction>();
    host->outputs = [](const Point& x, DType) { return Point{{x[0][0] + x[0][1] + x[0][2] + x[0][3]}}; };
    const double own = size, more = own + units * 0x1p-53;
    host->gradients = [=](const Point&, const Point& r, DType) {
      Point z{{own, more, own, own}};
      for (double& e : z[0]) e = std::copysign(e, r[0][0]);
      return z;
    };
    const Case c = tg::testing::case_of(host, {{{2, 2}, {Fill::uniform, 1, 1}}}, {{1}});
    Options o = f64_contiguous(false);
    o.tol = {.rtol = 1, .atol = 1};
    std::string transposed;
    for (const Mutant& m : mutate(c, o))
      if (m.fault == "transposed of floating input 0") transposed = fate_of(m);
    EXPECT_EQ(transposed, fate) << size << ", " << units;
  }
}

// For some x, only one step gives finite quotients of x^y at y = −2·10¹³.
TEST(Mutants, FaultWithFewFiniteQuotientsIsCaught) {
  Options o = f64_contiguous(true);
  o.seed = 3;
  int seen = 0;
  for (const Mutant& m : mutate(named("pow/same"), o)) {
    if (m.fault != "NaN where input 1 is huge") continue;
    ++seen;
    EXPECT_EQ(m.fate, Mutant::caught) << m.why;
  }
  EXPECT_EQ(seen, 1);
}

TEST(Mutants, WrongGradientGetsNoMutants) {
  const Case wrong = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z) * 1.01}; });
  for (bool fast : {false, true}) {
    const std::vector<Mutant> mutants = mutate(wrong, f64_contiguous(fast));
    ASSERT_EQ(mutants.size(), 1u);
    EXPECT_EQ(mutants[0].fate, Mutant::refused);
    EXPECT_EQ(mutants[0].result.status, Status::mismatch);
  }
}

TEST(Mutants, UnrecordableFaultsReportTheReason) {
  Op op = *find_op("exp");
  op.vjp = [](const Backprop& g) -> Tensors {
    if (g.out[0].graph().node_of(g.out[0].id()).op->name != "exp")
      throw ShapeError("moved outputs do not fit");
    return {g.z[0] * g.out[0]};
  };
  Case c{"exp", "matrix", matrix, [&op](DType, Device) {
           return Callable{{}, [&op](std::span<const Tensor> x) { return Tensors{record(op, {x[0]})}; }};
         }};
  c.op = &op;
  int not_injectable = 0;
  for (const Mutant& m : mutate(c, f64_contiguous(true))) {
    if (m.fate != Mutant::not_injectable) continue;
    ++not_injectable;
    EXPECT_TRUE(m.fault == "stale outputs" || m.fault == "operands held fixed") << m.fault;
    EXPECT_NE(m.why.find("moved outputs do not fit"), std::string::npos) << m.why;
  }
  EXPECT_EQ(not_injectable, 2);
}

// Layers and decomposed ops have no vjp. So faults change the complete gradient, in every view and dtype.
TEST(Mutants, FaultsOfEveryViewAndDTypeAreCaught) {
  const Case c{"residual", "rows", {{{3, 4}}, {{4}}}, [](DType, Device) {
                 return Callable{{}, [](std::span<const Tensor> x) {
                                   return Tensors{rms_norm(x[0], x[1]) + tanh(x[0])};
                                 }};
               }};
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Options o;
    o.seed = seed;
    std::set<std::string> settings;
    bool dropped = false;
    for (const Mutant& m : mutate(c, o)) {
      EXPECT_NE(m.fate, Mutant::survived) << m.fault << " " << name_of(m.result.view) << " seed " << seed;
      if (m.fate != Mutant::caught) continue;
      settings.insert(name_of(m.result.view) + std::string(tg::name_of(m.result.dtype)));
      dropped = dropped || m.fault.starts_with("dropped term");
    }
    EXPECT_EQ(settings.size(), 6u + 3) << "seed " << seed;
    EXPECT_TRUE(dropped);
  }
}

TEST(VCurve, FallsWithTheStepAndRisesWithRounding) {
  const Case e{"exp", "matrix", matrix, [](DType, Device) {
                 return Callable{{}, [](std::span<const Tensor> x) { return Tensors{exp(x[0])}; }};
               }};
  const VCurve v = v_curve(e, {});
  ASSERT_GT(v.h.size(), 20u);
  const auto least = std::min_element(v.four_point.begin(), v.four_point.end());
  EXPECT_LT(*least, 1e-11);
  EXPECT_GT(v.four_point.front(), 100 * *least);
  EXPECT_GT(v.four_point.back(), 100 * *least);
  EXPECT_LT(*least, *std::min_element(v.two_point.begin(), v.two_point.end()));
}

TEST(VCurve, WrongGradientIsFlat) {
  const VCurve v = v_curve(cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z) * 1.01}; }), {});
  EXPECT_GT(*std::min_element(v.four_point.begin(), v.four_point.end()), 1e-3);
}

}  // namespace

// gradcheck's own mutants: every kind of fault is planted and caught; and its errors over steps h.
#include "tests/support/gradcheck_cases.h"

#include <cmath>
#include <map>
#include <set>

namespace {

using namespace tg;
using namespace tg::gradcheck;

// Every kind of fault is planted, caught where it changes the gradient, and otherwise counted apart.
TEST(Mutants, OfAProductAreAllCaught) {
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
    EXPECT_EQ(kinds.find("stale outputs"), std::string::npos);  // not read by its gradient
  }
}

TEST(Mutants, OfASumKnowWhatDoesNotApply) {
  for (const Case& c : op_cases()) {
    if (c.text() != "sum/all") continue;
    for (const Mutant& m : mutate(c, f64_contiguous(true))) {
      const bool changes_nothing =
          m.fault.find("transposed") == 0 || m.fault.find("stale") == 0 || m.fault == "operands held fixed";
      EXPECT_EQ(m.fate, changes_nothing ? Mutant::equivalent : Mutant::caught) << m.fault;
    }
  }
}

// Four random directions must not miss one element, nor call a sum in another order a fault.
TEST(Mutants, AreCaughtByProjectionsForManySeeds) {
  for (const char* text : {"sub/same", "add/broadcast", "scatter_add/last", "where/broadcast"}) {
    Options o = f64_contiguous(true);
    const Case c = named(text);
    for (o.seed = 0; o.seed < 100; ++o.seed)
      for (const Mutant& m : mutate(c, o))
        EXPECT_NE(m.fate, Mutant::survived) << text << ", seed " << o.seed << ": " << m.fault;
  }
}

// A gradient of 1, 10 and 100 times z, from two sums: each fault leaves out the term that it names, and no
// other. The op has a vjp; without one, the gradient is changed as a whole.
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

// For some x, the quotients of x^y at y = −2·10¹³ are finite for one step only.
TEST(Mutants, WhereFewQuotientsAreFiniteAreCaught) {
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

TEST(Mutants, AreNotPlantedIntoAGradientThatIsWrong) {
  const Case wrong = cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z) * 1.01}; });
  for (bool fast : {false, true}) {
    const std::vector<Mutant> mutants = mutate(wrong, f64_contiguous(fast));
    ASSERT_EQ(mutants.size(), 1u);
    EXPECT_EQ(mutants[0].fate, Mutant::refused);
    EXPECT_EQ(mutants[0].result.status, Status::mismatch);
  }
}

TEST(Mutants, ThatCannotBeRecordedSaySo) {
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
  int unplantable = 0;
  for (const Mutant& m : mutate(c, f64_contiguous(true))) {
    if (m.fate != Mutant::unplantable) continue;
    ++unplantable;
    EXPECT_TRUE(m.fault == "stale outputs" || m.fault == "operands held fixed") << m.fault;
    EXPECT_NE(m.why.find("moved outputs do not fit"), std::string::npos) << m.why;
  }
  EXPECT_EQ(unplantable, 2);
}

// Layers and ops by decomposition have no vjp of their own: the gradient is changed as a whole, in every view
// and dtype.
TEST(Mutants, OfEveryViewAndDTypeAreCaught) {
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

TEST(VCurve, OfAWrongGradientIsFlat) {
  const VCurve v = v_curve(cube([](auto& in, auto&, auto& z) { return Tensors{right(in, z) * 1.01}; }), {});
  EXPECT_GT(*std::min_element(v.four_point.begin(), v.four_point.end()), 1e-3);
}

}  // namespace

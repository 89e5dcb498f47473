// Tests programs: repeated runs, feeds and fetches, assignments, in-place plans, and errors.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include <tilegrad/tilegrad.h>
#include "tests/support/count_allocations.h"

namespace {

using namespace tg;
using Values = std::vector<double>;

template <class E, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "(nothing thrown)";
}

TEST(Program, RunsManyTimesOnNewInputs) {
  Graph g;
  const Tensor x = g.input("x", {3}, f64), y = x * 2 + 1;
  Program p = compile(g, {y}, {.verify = true});
  for (double k : {0.0, 1.0, -5.0}) {
    p.run({{x, Values{k, k + 1, k + 2}}});
    EXPECT_EQ(p.fetch(y).values<double>(), (Values{2 * k + 1, 2 * k + 3, 2 * k + 5}));
  }
  p.run();  // inputs keep their values
  EXPECT_EQ(p.fetch(y).values<double>(), (Values{-9, -7, -5}));
}

TEST(Program, FetchesViewsInRowMajorOrder) {
  Graph g;
  const Tensor x = g.input("x", {2, 3}, f64);
  const Tensor t = transpose(exp(x * 0) * x, 0, 1), e = expand(x.reshape({2, 3, 1}), {2, 3, 2});
  const auto v = eval({t, e}, {{x, Values{1, 2, 3, 4, 5, 6}}});
  EXPECT_EQ(v[0].values<double>(), (Values{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(v[1].values<double>(), (Values{1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6}));
}

// A fetched view requires that its value is computed separately. This is also true if the only reader is a
// fused step.
TEST(Program, FetchesViewsOfTheInputsOfAFusedStep) {
  Graph g;
  const Tensor x = g.input("x", {2, 2}, f64), y = x * 3, t = transpose(y, 0, 1), z = y + 1;
  const auto v = eval({t, z}, {{x, Values{1, 2, 3, 4}}}, {.verify = true});
  EXPECT_EQ(v[0].values<double>(), (Values{3, 9, 6, 12}));
  EXPECT_EQ(v[1].values<double>(), (Values{4, 7, 10, 13}));
}

TEST(Program, HasNoResultsBeforeARun) {
  for (const bool verify : {false, true}) {
    Graph g;
    const Tensor x = g.input("x", {2}), y = x + 1, c = g.constant(Array::of<float>({1}, {3})), other = x * 2;
    Program p = compile(g, {y, x, c}, {.verify = verify});
    p.feed({x, std::vector<float>{1, 2}});
    for (const Tensor& t : {x, y, c}) {
      EXPECT_NE(message_of<Error>([&] { p.fetch(t); }).find("no results yet"), std::string::npos);
      EXPECT_NE(message_of<Error>([&] { p.fetch_later({t}); }).find("no results yet"), std::string::npos);
    }
    EXPECT_NE(message_of<Error>([&] { p.fetch_later({}); }).find("no results yet"), std::string::npos);
    const std::string error = message_of<Error>([&] { p.fetch_later({other}); });
    EXPECT_EQ(error, message_of<Error>([&] { p.fetch(other); }));
    EXPECT_EQ(error.find("no results yet"), std::string::npos) << "it never has one";
    EXPECT_THROW(p.item<float>(c), Error);
    p.run();
    EXPECT_EQ(p.fetch(y).values<float>(), (std::vector<float>{2, 3}));
    EXPECT_EQ(p.item<float>(c), 3);
  }
}

TEST(Program, HasNoResultsAfterARunThatFailed) {
  Graph g;
  const Tensor table = g.constant(Array::of<double>({3}, {5, 6, 7})), i = g.input("i", {1}, i64);
  const Tensor y = index_select(table, 0, i), late = g.input("late", {1}), other = late * 2;
  Program p = compile(g, {y});
  const std::vector<std::int64_t> good{2}, bad{9};
  p.run({{i, good}});
  EXPECT_EQ(p.item<double>(y), 7);
  const Pending before = p.fetch_later({y});
  EXPECT_THROW(p.run({{i, bad}}), Error);
  EXPECT_NE(message_of<Error>([&] { p.fetch(y); }).find("failed"), std::string::npos);
  EXPECT_NE(message_of<Error>([&] { p.fetch_later({y}); }).find("failed"), std::string::npos);
  EXPECT_EQ(before.item<double>(y), 7);  // the value of an earlier run
  p.run({{i, good}});
  EXPECT_EQ(p.item<double>(y), 7);

  Program unfed = compile(g, {other});  // a refused run is not counted
  EXPECT_THROW(unfed.run(), Error);
  EXPECT_NE(message_of<Error>([&] { unfed.fetch(other); }).find("no results yet"), std::string::npos);
  unfed.run({{late, std::vector<float>{4}}});
  EXPECT_THROW(unfed.run({{late, std::vector<double>{4}}}), Error);
  EXPECT_EQ(unfed.item<float>(other), 8);
}

TEST(Parameter, HasNoValueBeforeItIsWritten) {
  const Parameter p("cache", Shape{4}, f32, Device::cpu());
  EXPECT_NE(message_of<Error>([&] { p.read(); }).find("no value yet"), std::string::npos);
  EXPECT_THROW(p.part(1, 2).read(), Error);
  Parameter part = p.part(0, 4);
  part.write(Array::of<float>({4}, {1, 2, 3, 4}));
  EXPECT_EQ(p.read().values<float>(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(Parameter("none", Shape{0}, f32, Device::cpu()).read().numel(), 0);
  const Parameter assigned("assigned", Shape{1}, f32, Device::cpu());
  Graph g;
  Program program = compile(g, {}, {.assign = {{assigned, full(g, {1}, 3, f32)}}});
  EXPECT_THROW(assigned.read(), Error);
  program.run();
  EXPECT_EQ(assigned.read().at(0), 3);
}

TEST(Program, OnlyFetchedTensorsCanBeRead) {
  Graph g;
  const Tensor x = g.input("x", {2}), y = x + 1, z = y * 2;
  Program p = compile(g, {z});
  p.run({{x, std::vector<float>{1, 2}}});
  EXPECT_NE(message_of<Error>([&] { p.fetch(y); }).find("reused"), std::string::npos);
}

TEST(Program, FeedsOfTheWrongKindAreRefusedByName) {
  Graph g;
  const Tensor x = g.input("tokens", {2}, i32), y = x + 1;
  Program p = compile(g, {y});
  EXPECT_NE(message_of<DTypeError>([&] {
              p.run({{x, std::vector<float>{1, 2}}});
            }).find("tokens"),
            std::string::npos);
  EXPECT_NE(message_of<ShapeError>([&] {
              p.run({{x, std::vector<std::int32_t>{1}}});
            }).find("1 elements"),
            std::string::npos);
  EXPECT_NE(message_of<Error>([&] {
              p.feed({y, std::vector<std::int32_t>{1, 2}});
            }).find("[feed] add is not an input (program_test.cpp"),
            std::string::npos);
}

TEST(Program, AssignsParametersAfterReadingThem) {
  Parameter w("w", Array::of<double>({2}, {1, 2}));
  Graph g;
  const Tensor t = g.param(w), x = g.input("x", {2}, f64);
  const Tensor loss = sum(t * x), next = t - 0.5 * x;
  Program p = compile(g, {loss, t}, {.assign = {{w, next}}, .verify = true});
  p.run({{x, Values{2, 4}}});
  EXPECT_EQ(p.item<double>(loss), 10);
  EXPECT_EQ(p.fetch(t).values<double>(), (Values{1, 2}));  // the value at the start of the run
  EXPECT_EQ(w.read().values<double>(), (Values{0, 0}));
  p.run();
  EXPECT_EQ(w.read().values<double>(), (Values{-1, -2}));
}

TEST(Program, ARunAllocatesNothing) {
  Parameter w("w", Array(Shape{300, 300}, f32));
  Graph g;
  const Tensor x = g.input("x", {300, 300}), y = sum(gelu(x * g.param(w)) + transpose(x, 0, 1), {1});
  const Array xs({300, 300}, f32);
  for (int threads : {1, 2}) {
    Program p = compile(g, {y}, {.assign = {{w, x + 1}}, .threads = threads});
    p.run({{x, xs}});
    const long before = allocations;
    for (int i = 0; i < 10; ++i) p.run({{x, xs}});
    EXPECT_EQ(allocations - before, 0) << threads << " threads";
  }
}

// Each run of the program gives different results: small, large, strided and integer results.
struct Counting {
  Graph g;
  Tensor x = g.input("x", {4}, f64), scale = g.input("scale", {}, f64);
  Tensor y = x * scale, total = sum(y), transposed = transpose(expand(y.reshape({4, 1}), {4, 3}) + 1, 0, 1);
  Tensor large = expand(scale.reshape({1}), {5000}) + 0;
  Program p = compile(g, {y, total, transposed, large, x});
  std::vector<double> xs = Values(4), s = {0};

  void run(double k) {
    xs = {k, k + 1, k + 2, k + 3}, s = {k};
    p.run({{x, xs}, {scale, s}});
    xs.assign(4, -1), s[0] = -1;  // changes the caller's vectors after the feed
  }
  static double expected(double k) { return k * (4 * k + 6); }
};

TEST(Pending, KeepsTheValuesOfItsRunDuringLaterRuns) {
  Counting c;
  std::vector<Pending> all;
  for (int k = 0; k < 6; ++k) {
    c.run(k);
    all.push_back(c.p.fetch_later({c.total, c.large, c.transposed, c.x}));
  }
  for (int k : {3, 0, 5, 1, 2, 4}) {
    const Pending& p = all[static_cast<std::size_t>(k)];
    EXPECT_EQ(p.item<double>(c.total), Counting::expected(k));
    EXPECT_EQ(p.fetch(c.large).values<double>(), Values(5000, k));
    EXPECT_EQ(p.fetch(c.transposed).at(2), k * (k + 2) + 1);
    EXPECT_EQ(p.fetch(c.x).at(3), k + 3);
    EXPECT_TRUE(p.ready());
  }
}

TEST(Pending, OutlivesItsProgram) {
  Pending p;
  Graph g;
  const Tensor x = g.input("x", {}, f64), y = x + 1;
  {
    Program program = compile(g, {y});
    program.run({{x, Values{2}}});
    p = program.fetch_later({y});
  }
  EXPECT_EQ(p.item<double>(y), 3);
}

TEST(Pending, ReusesItsMemoryInSteadyState) {
  Counting c;
  Pending before;
  const auto step = [&](int k) {
    c.run(k);
    Pending now = c.p.fetch_later({c.total});
    const double value = k > 0 ? before.item<double>(c.total) : 0;
    before = std::move(now);
    return value;
  };
  for (int k = 0; k < 3; ++k) step(k);
  const long start = allocations;
  for (int k = 3; k < 10; ++k) EXPECT_EQ(step(k), Counting::expected(k - 1));
  EXPECT_EQ(allocations - start, 0);
}

TEST(Pending, RefusesTensorsThatWereNotRequested) {
  Counting c;
  c.run(1);
  const Pending p = c.p.fetch_later({c.total, c.y});
  EXPECT_NE(message_of<Error>([&] { p.fetch(c.x); }).find("fetch_later"), std::string::npos);
  EXPECT_THROW(c.p.fetch_later({c.x + 1}), Error);
  EXPECT_THROW(p.item<float>(c.total), DTypeError);
  EXPECT_THROW(p.item<double>(c.y), ShapeError);
  EXPECT_THROW(Pending().ready(), Error);
  EXPECT_THROW(Pending().fetch(c.x), Error);
}

struct Recorded {
  Program program;
  Tensor x, y;
};

// The Graph is destroyed when this function returns.
Recorded record_locally(double k) {
  Graph g;
  const Tensor x = g.input("x", {3}, f64), noise = uniform(g, {3}, 0, 1, f64) * 0;
  const Tensor y = where(greater(x, 0), x * k, 0 - x) + noise + g.constant(Array::of<double>({3}, {1, 2, 3}));
  return {compile(g, {y}, {.verify = true}), x, y};
}

TEST(Program, OutlivesTheGraphItWasCompiledFrom) {
  Recorded r = record_locally(2);
  const Recorded other = record_locally(3);  // this Graph has the address of the first one
  r.program.run({{r.x, Values{1, -1, 2}}});
  EXPECT_EQ(r.program.fetch(r.y).values<double>(), (Values{3, 3, 7}));
  EXPECT_EQ(r.y.shape(), Shape{3});
  EXPECT_TRUE(r.program.graph().has(r.x));
  EXPECT_FALSE(r.program.graph().has(other.x));
  EXPECT_GT(r.program.graph().nodes().size(), 5u);
  EXPECT_NE(r.program.text().find("program_test.cpp"), std::string::npos);
  EXPECT_NE(message_of<Error>([&] {
              r.program.run({{other.x, Values{1, 2, 3}}});
            }).find("[feed]"),
            std::string::npos);
  const Tensor more = r.y * 2;  // the graph is still extended after compile()
  EXPECT_EQ(eval(more, {{r.x, Values{1, 1, 1}}}).at(0), 6);
}

TEST(Pending, OutlivesItsProgramAndItsGraph) {
  Pending p;
  Tensor y;
  {
    Recorded r = record_locally(2);
    r.program.run({{r.x, Values{1, 2, 3}}});
    p = r.program.fetch_later({r.y});
    y = r.y;
  }
  EXPECT_EQ(p.fetch(y).at(2), 9);
}

TEST(Program, OversizedProgramIsRefusedWithTheSizes) {
  Graph g;
  const Tensor x = g.input("x", {1}), big = exp(expand(x, {1LL << 50}));
  const std::string m = message_of<OutOfMemory>([&] { compile(g, {big}); });
  EXPECT_NE(m.find(std::to_string(1LL << 32) + " MiB"), std::string::npos) << m;
}

TEST(Program, SwapsParameters) {
  Parameter a("a", Array::of<double>({2}, {1, 2})), b("b", Array::of<double>({2}, {3, 4}));
  Graph g;
  const Tensor ta = g.param(a), tb = g.param(b);
  Program p = compile(g, {}, {.assign = {{a, tb}, {b, ta}}, .verify = true});
  p.run();
  EXPECT_EQ(a.read().values<double>(), (Values{3, 4}));
  EXPECT_EQ(b.read().values<double>(), (Values{1, 2}));
}

TEST(Program, AssignsTheSameValueTwiceAndViewsOfItself) {
  Parameter a("a", Array::of<double>({2, 2}, {1, 2, 3, 4})), b("b", Array::of<double>({2, 2}, {0, 0, 0, 0}));
  Graph g;
  const Tensor t = g.param(a), y = t * 10;
  Program p = compile(g, {y}, {.assign = {{a, transpose(t, 0, 1)}, {b, y}}, .verify = true});
  p.run();
  EXPECT_EQ(a.read().values<double>(), (Values{1, 3, 2, 4}));
  EXPECT_EQ(b.read().values<double>(), (Values{10, 20, 30, 40}));
  EXPECT_EQ(p.fetch(y).values<double>(), (Values{10, 20, 30, 40}));
}

TEST(Program, AnUpdateIsWrittenDirectlyToTheParameter) {
  Parameter w("w", Array(Shape{1000}, f32));
  Graph g;
  const Tensor next = g.param(w) * 0.9 + 1;
  Program p = compile(g, {}, {.assign = {{w, next}}});
  EXPECT_EQ(p.steps().size(), 1u);
  EXPECT_EQ(p.memory().arena, 0u);
  p.run();
  EXPECT_EQ(w.read().at(999), 1);
}

// A part is a separate parameter in the memory of the whole parameter.
TEST(Program, PartsOfAParameterAreReadAndAssigned) {
  Parameter whole("w", Array::of<float>({2, 3}, {1, 2, 3, 4, 5, 6}));
  const Parameter part = whole.part(1, 3);
  EXPECT_EQ(part.shape(), Shape{3});
  Graph g;
  compile(g, {}, {.assign = {{part, g.param(part) * 10}}}).run();
  EXPECT_EQ(whole.read().values<float>()[0], 1);
  EXPECT_EQ(whole.read().values<float>()[1], 20);
  EXPECT_EQ(whole.read().values<float>()[3], 40);
  EXPECT_EQ(whole.read().values<float>()[4], 5);
  EXPECT_EQ(whole.last_change(), part.last_change());
  EXPECT_THROW(whole.part(4, 3), ShapeError);
  EXPECT_THROW(whole.part(-1, 2), ShapeError);
}

TEST(Program, AParameterAndItsPartAreNotAssignedTogether) {
  const Parameter whole("w", Array({8}, f32)), front = whole.part(0, 4), back = whole.part(4, 4),
                                               middle = whole.part(3, 2);
  const auto compiled = [](const Parameter& read, const Parameter& assigned) {
    Graph g;
    const Tensor y = sum(g.param(read));
    return compile(g, {y}, {.assign = {{assigned, full(g, assigned.shape(), 1)}}});
  };
  compiled(front, back);
  for (const auto& [read, assigned] :
       {std::pair(whole, front), {back, whole}, {middle, front}, {middle, back}})
    EXPECT_THROW(compiled(read, assigned), Error);
  Graph g;  // a program may read both
  compile(g, {sum(g.param(whole)) + sum(g.param(front))}, {});
}

TEST(Program, AssignmentsOfTheWrongShapeOrTypeAreRefusedByName) {
  Parameter w("layer.weight", Array(Shape{3}, f32));
  Graph g;
  const Tensor t = g.param(w);
  EXPECT_NE(message_of<ShapeError>([&] {
              compile(g, {}, {.assign = {{w, sum(t)}}});
            }).find("layer.weight"),
            std::string::npos);
  EXPECT_THROW(compile(g, {}, {.assign = {{w, t.to(f64)}}}), DTypeError);
}

TEST(Program, AFusedPointwiseStepNeedsNoMemory) {
  Graph g;
  const Tensor x = g.input("x", {100});
  const Tensor y = gelu(x * 2 + 1) * sigmoid(x) - 3;
  EXPECT_EQ(compile(g, {y}).steps().size(), 1u);
  EXPECT_GT(compile(g, {y}, {.fuse = false}).steps().size(), 4u);
}

TEST(Program, FusionIncludesAValueThatOneStepReadsTwice) {
  Graph g;
  const Tensor x = g.input("x", {100});
  const Tensor s = sigmoid(x);
  const Tensor y = s * (1 - s);
  EXPECT_EQ(compile(g, {y}).steps().size(), 1u);
  const Program both = compile(g, {y, s});  // a fetched value is also a result
  ASSERT_EQ(both.steps().size(), 1u);
  EXPECT_EQ(both.steps()[0].out.size(), 2u);
}

TEST(Program, FusedAndUnfusedAgree) {
  Graph g;
  const Tensor x = g.input("x", {7, 33}, f64), r = g.input("r", {33}, f64);
  const Tensor y = where(greater(x, r), tanh(x * r), exp(-abs(x)) / (2 + r * r));
  Array xs({7, 33}, f64), rs({33}, f64);
  for (int i = 0; i < 7 * 33; ++i) xs.set(i, std::sin(i * 0.7) * 3);
  for (int i = 0; i < 33; ++i) rs.set(i, std::cos(i * 1.3));
  const Array a = eval(y, {{x, xs}, {r, rs}}), b = eval(y, {{x, xs}, {r, rs}}, {.fuse = false});
  EXPECT_TRUE(a.same_bits(b));
}

TEST(Program, DeadBuffersAreReused) {
  Graph g;
  Tensor x = g.input("x", {1000});
  for (int i = 0; i < 50; ++i) x = exp(transpose(x.reshape({10, 100}), 0, 1)).reshape({1000});
  const Program p = compile(g, {x}, {.fuse = false});
  EXPECT_LE(p.memory().arena, 3u * 4032);
  EXPECT_GT(compile(g, {x}, {.fuse = false, .reuse = false}).memory().arena, 50u * 4000);
}

TEST(Program, PeakIsKnownBeforeTheFirstRun) {
  Graph g;
  const Tensor x = g.input("x", {16}),
               y = sum(exp(x) * g.constant(Array::of<float>({16}, std::vector<float>(16, 2))));
  const MemoryReport m = compile(g, {y}).memory();
  EXPECT_EQ(m.inputs, 64u);
  EXPECT_EQ(m.constants, 64u);
  EXPECT_GE(m.arena, m.alive);
  EXPECT_EQ(m.results, 64u);
  EXPECT_EQ(m.peak(), m.arena + m.inputs + m.constants + m.workspace + m.results + m.parameters);
}

// In a program with branches, buffers must not overlap while they are alive at the same time. The highest
// buffer must end at the end of the arena. Without reuse, no two buffers overlap.
TEST(Program, BuffersOfThePlanDoNotOverlapAndFillTheArena) {
  for (const bool reuse : {true, false}) {
    Graph g;
    const Tensor x = g.input("x", {50, 40});
    Tensor y = x;
    for (int i = 0; i < 6; ++i) y = matmul(transpose(y, 0, 1), softmax(y, -1)) + sum(y);
    const Tensor z = gradients(sum(y), {x})[0];
    const Program p = compile(g, {z}, {.reuse = reuse, .plan_only = true});
    const auto buffers = p.buffers();
    ASSERT_GT(buffers.size(), 10u);
    std::size_t end = 0, sum = 0;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const ArenaBuffer& a = buffers[i];
      EXPECT_LE(a.first, a.last);
      EXPECT_GE(a.first, 0);
      EXPECT_LE(a.last, static_cast<int>(p.steps().size()));
      EXPECT_GT(a.bytes, 0u);
      end = std::max(end, a.offset + a.bytes);
      sum += a.bytes;
      for (std::size_t j = 0; j < i; ++j) {
        const ArenaBuffer& b = buffers[j];
        EXPECT_LE(b.first, a.first);
        const bool together = !reuse || (a.first <= b.last && b.first <= a.last);
        EXPECT_FALSE(together && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes)
            << i << ", " << j;
      }
    }
    EXPECT_EQ(end, p.memory().arena);
    if (reuse) {
      EXPECT_LT(end, sum);
    } else {
      EXPECT_EQ(end, sum);
    }
    EXPECT_TRUE(p.graph() == g);
    EXPECT_EQ(std::vector<ValueId>(p.outputs().begin(), p.outputs().end()), std::vector<ValueId>{z.id()});
  }
}

TEST(Program, ListingNamesEachStepWithItsOperands) {
  Graph g;
  const Tensor x = g.input("x", {2, 3}), w = g.input("w", {3, 2}, f32);
  const std::string line = std::to_string(__LINE__ + 2);  // line of the scope
  {
    const Scope scope("h");
    const Tensor y = softmax(matmul(x, w), -1), z = exp(x);
    EXPECT_EQ(compile(g, {y, z}, {.plan_only = true}).text(),
              "h/matmul: f32[2, 3] f32[3, 2] → f32[2, 2]  wide=false  (program_test.cpp:" + line + ")\n" +
                  "h/softmax: f32[2, 2] → f32[2, 2]  axis=1  (program_test.cpp:" + line + ")\n" +
                  "h/exp: f32[2, 3] → f32[2, 3]  code=\"exp(in0)\"  (program_test.cpp:" + line + ")\n");
  }
}

TEST(Program, AGraphOfAHundredThousandNodesRunsAndDifferentiates) {
  Graph g;
  const Tensor x = g.input("x", {4}, f64);
  Tensor y = x;
  for (int i = 0; i < 50000; ++i) y = y * 0.9999 + 1e-5;
  const Tensor z = gradients(sum(y), {x})[0];
  EXPECT_GT(g.nodes().size(), 100000u);
  const auto v = eval({y, z}, {{x, Values{1, 2, 3, 4}}}, {.threads = 1});
  EXPECT_NEAR(v[1].at(0), std::pow(0.9999, 50000), 1e-12);
}

TEST(Program, ThreadsDoNotChangeTheResultBitwise) {
  Graph g;
  const Tensor x = g.input("x", {300, 300});
  const Tensor y = sum(exp(x) * transpose(x, 0, 1), {0});
  Array xs({300, 300}, f32);
  for (int i = 0; i < 90000; ++i) xs.set(i, std::sin(i * 0.1));
  const Array one = eval(y, {{x, xs}}, {.threads = 1});
  for (int threads : {2, 3, 7}) EXPECT_TRUE(eval(y, {{x, xs}}, {.threads = threads}).same_bits(one));
}

TEST(Errors, NameTheOpTheOperandsAndTheLine) {
  Graph g;
  const Tensor a = g.input("a", {4, 8}), b = g.input("b", {9, 3});
  const std::string m = message_of<ShapeError>([&] { a + b; });
  EXPECT_NE(m.find("[add]"), std::string::npos) << m;
  EXPECT_NE(m.find("[4, 8] with [9, 3]"), std::string::npos) << m;
  EXPECT_NE(m.find("program_test.cpp:" + std::to_string(__LINE__ - 3)), std::string::npos) << m;
  const std::string v = message_of<ShapeError>([&] { transpose(a, 0, 1).view({32}); });
  EXPECT_NE(v.find("[view]"), std::string::npos) << v;
  EXPECT_NE(v.find("f32 [8, 4]"), std::string::npos) << v;
  EXPECT_NE(v.find("program_test.cpp:" + std::to_string(__LINE__ - 3)), std::string::npos) << v;
}

TEST(Errors, TensorsOfTwoGraphsDoNotMix) {
  Graph g, h;
  EXPECT_THROW(g.input("a", {2}) + h.input("b", {2}), Error);
  EXPECT_THROW(Tensor() + g.input("c", {2}), Error);
}

TEST(Graph, HashesByStructure) {
  const auto build = [](double k, const char* name) {
    Graph g;
    g.input(name, {3}) * k;
    return g.hash();
  };
  EXPECT_EQ(build(2, "x"), build(2, "y"));
  EXPECT_NE(build(2, "x"), build(3, "x"));
}

TEST(Steps, CountTheReadersOfTheirResults) {
  Graph g;
  const Tensor x = g.input("x", {3, 3}), y = matmul(x, x), z = matmul(transpose(y, 0, 1), y),
               w = matmul(z, x);
  const Program p = compile(g, {w, z});
  ASSERT_EQ(p.steps().size(), 3u);
  EXPECT_EQ(p.steps()[0].reads, std::vector<int>{2});  // one step reads the value directly and as a view
  EXPECT_EQ(p.steps()[1].reads, std::vector<int>{2});  // a step reads it, and it is fetched after the run
  EXPECT_EQ(p.steps()[2].reads, std::vector<int>{1});
  // If values are joined, each read of the joined result counts as a read of each value.
  Graph other;
  const Tensor a = other.input("a", {3, 3}), whole = concat({matmul(a, a), matmul(transpose(a, 0, 1), a)}, 1);
  const Program q = compile(other, {matmul(transpose(whole, 0, 1), whole)});
  ASSERT_EQ(q.steps().size(), 3u);
  EXPECT_EQ(q.steps()[0].reads, std::vector<int>{2});
  EXPECT_EQ(q.steps()[1].reads, std::vector<int>{2});
}

TEST(Program, PlanOnlyIsRefusedByCallsThatNeedMemory) {
  Graph g;
  const Tensor x = g.input("x", {2}), y = x + 1;
  const std::vector<float> in{1, 2};
  for (const bool verify : {false, true}) {
    Program p = compile(g, {y}, {.verify = verify, .plan_only = true});
    const std::pair<const char*, std::function<void()>> calls[] = {{"run", [&] { p.run(); }},
                                                                   {"profile", [&] { p.profile(); }},
                                                                   {"feed",
                                                                    [&] {
                                                                      p.feed({x, in});
                                                                    }},
                                                                   {"fetch", [&] { p.fetch(y); }},
                                                                   {"fetch", [&] { p.fetch(x); }},
                                                                   {"fetch", [&] { p.item<float>(y); }},
                                                                   {"fetch", [&] { p.fetch_later({y}); }},
                                                                   {"fetch", [&] { p.fetch_later({}); }}};
    for (const auto& [who, call] : calls)
      EXPECT_EQ(message_of<Error>(call),
                "[" + std::string(who) + "] this program was compiled with plan_only and has no memory");
  }
}

// This op and the next two ops violate a rule for kernels.
const CustomOp writes_nothing = register_host_op(
    {.name = "test_writes_nothing", .forward = [](std::span<const HostView>, std::span<const HostView>) {}});

const CustomOp counts_its_calls =
    register_host_op({.name = "test_counts_its_calls",
                      .forward = [](std::span<const HostView>, std::span<const HostView> out) {
                        static int calls = 0;
                        ++calls;
                        for (std::int64_t i = 0; i < out[0].numel(); ++i) out[0].set(i, calls);
                      }});

// The first op stores the address of its input. The second op reads from this address.
HostView kept{f32, {}};
const CustomOp keeps = register_host_op(
    {.name = "test_keeps", .forward = [](std::span<const HostView> in, std::span<const HostView> out) {
       kept = in[0];
       for (std::int64_t i = 0; i < out[0].numel(); ++i) out[0].set(i, in[0].at(i));
     }});
const CustomOp reads_what_was_kept =
    register_host_op({.name = "test_reads_what_was_kept",
                      .forward = [](std::span<const HostView>, std::span<const HostView> out) {
                        std::vector<double> read;
                        for (std::int64_t i = 0; i < kept.numel(); ++i) read.push_back(kept.at(i));
                        for (std::int64_t i = 0; i < out[0].numel(); ++i)
                          out[0].set(i, read.at(static_cast<std::size_t>(i)));
                      }});

TEST(Verify, MemoryWithoutAValueIsNaN) {
  for (const DType dtype : {f64, f32, bf16, f16})
    for (const bool reuse : {true, false}) {
      Graph g;
      const Tensor x = g.input("x", {70}, dtype);
      const Tensor result = writes_nothing(x), read = writes_nothing(x) * 2,
                   dead = reads_what_was_kept(keeps(x * 2));
      const auto got =
          eval({result, read, dead}, {{x, Array({70}, dtype)}}, {.reuse = reuse, .verify = true});
      for (std::size_t i = 0; i < got.size(); ++i)
        for (std::int64_t n = 0; n < 70; ++n)
          EXPECT_TRUE(std::isnan(got[i].at(n))) << name_of(dtype) << ", result " << i << ", number " << n;
    }
}

TEST(Verify, BitwiseDifferencesAreRefusedAnywhere) {
  for (std::size_t wrong = 0; wrong < 4; ++wrong) {
    Parameter first("first", Array::of<float>({1}, {1})), second("second", Array::of<float>({1}, {2}));
    Graph g;
    const Tensor x = g.input("x", {1});
    const auto value = [&](std::size_t i) { return i == wrong ? counts_its_calls(x) : x + double(i); };
    const Tensor a = value(0), b = value(1);
    Program p = compile(g, {a, b}, {.assign = {{first, value(2)}, {second, value(3)}}, .verify = true});
    const std::string message = message_of<Error>([&] { p.run({{x, 3}}); });
    const std::string what = wrong < 2 ? "give different bits for test_counts_its_calls/test_counts_its_calls"
                             : wrong == 2 ? "assign different bits to first"
                                          : "assign different bits to second";
    EXPECT_EQ(message.substr(0, message.find(" (")),
              "[verify] the planned program and the one with a buffer per tensor " + what);
  }
}

// Both programs of `verify` start with the same values as the run.
TEST(Verify, ParametersAreAssignedOnce) {
  Parameter first("first", Array::of<float>({1}, {1})), second("second", Array::of<float>({1}, {2}));
  Graph g;
  const Tensor a = g.param(first), b = g.param(second);
  Program p = compile(g, {a * b}, {.assign = {{first, a * 3}, {second, b + 5}}, .verify = true});
  for (int i = 0; i < 2; ++i) p.run();
  EXPECT_EQ(first.read().item<float>(), 9);
  EXPECT_EQ(second.read().item<float>(), 12);
}

}  // namespace

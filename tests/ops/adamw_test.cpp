// Compares adamw with the published formula over several steps. Covers updates in place, any memory layout,
// single tensors and lists. Also tests squared_norm.
#include "tests/support/op_testing.h"
#include "tests/support/parameter_list.h"

namespace {

using namespace tg;
using namespace tg::testing;

struct Plain {
  Vector p, m, v;
  void step(const Vector& g, double rate, int t, double scale, const AdamWOptions& o) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double gi = g[i] * scale;
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * gi;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * gi * gi;
      const double m_hat = m[i] / (1 - std::pow(o.beta1, t)), v_hat = v[i] / (1 - std::pow(o.beta2, t));
      p[i] -= rate * o.weight_decay * p[i];
      p[i] -= rate * m_hat / (std::sqrt(v_hat) + o.eps);
    }
  }
};

TEST(AdamW, AgreesWithThePublishedFormulaOverSteps) {
  for (DType dtype : {f64, f32}) {
    Graph g;
    const Given start = given(g, {37, 61}, dtype);
    const Parameter p("p", start.array), m("m", Array({37, 61}, dtype)), v("v", Array({37, 61}, dtype));
    const Tensor z = g.input("z", {37, 61}, dtype), rate = g.input("rate", {}, f32),
                 t = g.input("t", {}, i64), scale = g.input("scale", {1}, dtype);
    const AdamWOptions o{.beta2 = 0.95, .weight_decay = 0.1};
    const auto after = adamw(g.param(p), z, g.param(m), g.param(v), rate, t, scale, o);
    Program program = compile(
        g, {}, {.assign = {{p, after[0]}, {m, after[1]}, {v, after[2]}}, .threads = 3, .verify = true});
    Plain plain{start.values, Vector(37 * 61, 0.0), Vector(37 * 61, 0.0)};
    for (int step = 1; step <= 5; ++step) {
      const Array zs = Array::of({37, 61}, random_vector(37 * 61, step)).to(dtype);
      const float r = 0.01f * static_cast<float>(step);
      program.run({{z, zs},
                   {rate, std::vector<float>{r}},
                   {t, std::vector<std::int64_t>{step}},
                   {scale, Array::of({1}, Vector{0.5}).to(dtype)}});
      plain.step(zs.to(f64).values<double>(), r, step, 0.5, o);
    }
    const double tolerance = dtype == f64 ? 1e-13 : 1e-6;
    EXPECT_TRUE(close(doubles(p.read()), plain.p, tolerance));
    EXPECT_TRUE(close(doubles(m.read()), plain.m, tolerance));
    EXPECT_TRUE(close(doubles(v.read()), plain.v, tolerance));
  }
}

TEST(AdamW, NeedsNoMemoryBeyondItsParameters) {
  Graph g;
  const Parameter p("p", Array({64, 64}, f32)), m("m", Array({64, 64}, f32)), v("v", Array({64, 64}, f32));
  const Tensor z = g.input("z", {64, 64}), rate = g.input("rate", {}), t = g.input("t", {}, i64);
  const auto after = adamw(g.param(p), z, g.param(m), g.param(v), rate, t, rate);
  const Program program = compile(g, {}, {.assign = {{p, after[0]}, {m, after[1]}, {v, after[2]}}});
  EXPECT_EQ(program.memory().arena, 0u);
  EXPECT_EQ(program.steps().size(), 1u);
}

TEST(AdamW, MatchesItsDecompositionOnEveryViewAndType) {
  for (View view : all_views)
    for (DType dtype : float_dtypes) {
      Graph g;
      const Given p = given(g, {5, 33}, dtype, view, 1), z = given(g, {5, 33}, dtype, view, 2),
                  m = given(g, {5, 33}, compute_type(dtype), View::contiguous, 3),
                  v = given(g, {5, 33}, compute_type(dtype), View::contiguous, 4, 0, 1);
      const std::vector<Tensor> in{p.tensor,
                                   z.tensor,
                                   m.tensor,
                                   v.tensor,
                                   full(g, {}, 0.01, f64),
                                   full(g, {}, 3, i64),
                                   full(g, {}, 0.5, f32)};
      const auto fused = adamw(p.tensor, z.tensor, m.tensor, v.tensor, in[4], in[5], in[6]);
      const auto plain = adamw_op.decompose(in, g.node_of(fused[0].id()).attrs);
      const auto r = run_checked({fused[0], fused[1], fused[2], plain[0], plain[1], plain[2]},
                                 {p.feed(), z.feed(), m.feed(), v.feed()});
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_TRUE(close(doubles(r[i]), doubles(r[i + 3]), 4 * rounding(i == 0 ? dtype : m.tensor.dtype())));
    }
}

TEST(AdamW, AListMatchesSingleUpdates) {
  ParameterList list;
  const AdamWOptions options{.beta2 = 0.95};
  const auto together = adamw(list.all, 0.01, 3, 0.5, options);
  std::vector<Tensor> fetch;
  for (const AdamWResults& r : together) fetch.insert(fetch.end(), {r.p, r.m, r.v});
  const std::size_t count = fetch.size();
  for (const AdamWTensors& x : list.all) {
    AdamWOptions own = options;
    own.weight_decay = x.weight_decay;
    for (const Tensor& t : adamw(x.p, x.g, x.m, x.v, 0.01, 3, 0.5, own)) fetch.push_back(t);
  }
  const auto r = run_checked(fetch, list.feeds);
  for (std::size_t i = 0; i < count; ++i) EXPECT_TRUE(r[i].same_bits(r[count + i])) << "result " << i;
}

TEST(AdamW, WritesCopiesOfTheNewValuesIn16BitTypes) {
  for (const double scale : {0.5, 0.0}) {
    ParameterList list;
    std::vector<Tensor> fetch;
    for (const AdamWResults& r : adamw(list.with_copies(), 0.01, 3, scale))
      if (r.copy.defined()) fetch.insert(fetch.end(), {r.copy, cast(r.p, r.copy.dtype())});
    ASSERT_GE(fetch.size(), 8u);
    const auto r = run_checked(fetch, list.feeds);
    for (std::size_t i = 0; i < fetch.size(); i += 2)
      EXPECT_TRUE(r[i].same_bits(r[i + 1])) << "copy " << i / 2;
  }
  Graph g;
  const Tensor wide = g.input("p", {3}), half = g.input("q", {3}, bf16);
  EXPECT_THROW(adamw({{wide, wide, wide, wide, 0, f64}}, 0.1, 1), DTypeError);
  EXPECT_THROW(adamw({{half, wide, wide, wide, 0, f16}}, 0.1, 1), DTypeError);
}

TEST(AdamW, UpdatesAListInPlace) {
  Graph g;
  const Tensor rate = g.input("rate", {}), t = g.input("t", {}, i64);
  std::vector<Parameter> parameters;
  std::vector<AdamWTensors> all;
  for (const Shape& s : {Shape{64, 64}, Shape{64}, Shape{3, 5}}) {
    for (const char* name : {"p", "m", "v"}) parameters.emplace_back(name, Array(s, f32));
    const std::size_t n = parameters.size();
    all.push_back({g.param(parameters[n - 3]), g.input("z", s), g.param(parameters[n - 2]),
                   g.param(parameters[n - 1]), 0.1});
  }
  std::vector<Assign> assign;
  const auto updates = [&](const std::vector<AdamWResults>& results) {
    assign.clear();
    for (std::size_t i = 0; i < results.size(); ++i) {
      const AdamWResults& r = results[i];
      assign.insert(assign.end(),
                    {{parameters[3 * i], r.p}, {parameters[3 * i + 1], r.m}, {parameters[3 * i + 2], r.v}});
    }
  };
  updates(adamw(all, rate, t, rate));
  const Program program = compile(g, {}, {.assign = assign});
  EXPECT_EQ(program.memory().arena, 0u);
  EXPECT_EQ(program.steps().size(), 1u);
  // An update may overwrite a value that another parameter of the list still reads. In this case, the old
  // value must be copied. This needs one more copy.
  all[1].g = all[0].p.reshape({4096}).slice(0, 0, 64);
  updates(adamw(all, rate, t, rate));
  EXPECT_EQ(compile(g, {}, {.assign = assign}).steps().size(), 2u);
}

TEST(AdamW, NamesTheParameterThatDoesNotFit) {
  Graph g;
  const Tensor p = g.input("p", {3}), q = g.input("q", {4});
  try {
    adamw({{p, p, p, p}, {q, p, q, q}}, 0.1, 1);
    FAIL() << "nothing thrown";
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("[3] and [4]"), std::string::npos) << e.what();
  }
  EXPECT_THROW(adamw({}, g.input("rate", {}), 1), Error);
}

TEST(SquaredNorm, IsTheSumOfAllSquares) {
  ParameterList list;
  std::vector<Tensor> xs;
  double expected = 0;
  for (std::size_t i = 1; i < list.feeds.size(); i += 4) xs.push_back(list.all[i / 4].g);
  const Tensor together = squared_norm(xs);
  EXPECT_EQ(together.dtype(), f64);
  std::vector<Tensor> fetch{together};
  for (const Tensor& x : xs) fetch.push_back(sum_squares(cast(x, f64)));
  const auto r = run_checked(fetch, list.feeds);
  for (std::size_t i = 1; i < r.size(); ++i) expected += r[i].at(0);
  EXPECT_NEAR(r[0].at(0), expected, 1e-13 * expected);
  xs.pop_back();  // the only tensor in f64
  EXPECT_EQ(squared_norm(xs).dtype(), f32);
  EXPECT_NEAR(run_checked({squared_norm(xs)}, list.feeds)[0].at(0), expected - r.back().at(0),
              1e-6 * expected);
}

TEST(SquaredNorm, MillionsOfElementsAreExact) {
  Graph g;
  const std::int64_t n = (1 << 22) + 3;
  const Tensor x = g.input("x", {n});
  Array ones({n}, f32);
  for (std::int64_t i = 0; i < n; ++i) ones.data<float>()[i] = 1;
  EXPECT_EQ(run_checked({squared_norm({x, x, x, x, x})}, {{x, ones}})[0].at(0), static_cast<float>(5 * n));
}

// A single tensor has one or two chunks of about 8192 elements.
TEST(SquaredNorm, OneLongTensorIncludesEveryChunk) {
  for (const DType dtype : {f32, f64, bf16})
    for (const std::int64_t n : {1, 1023, 1024, 1025, 8191, 8192, 8193, 16384, 16385, 20000}) {
      Graph g;
      const Tensor x = g.input("x", {n}, dtype);
      Array ones({n}, dtype);
      for (std::int64_t i = 0; i < n; ++i) ones.set(i, 1);
      const auto y = run_checked({squared_norm({x}), squared_norm({x, x})}, {{x, ones}});
      EXPECT_EQ(y[0].at(0), static_cast<double>(n)) << name_of(dtype) << " " << n;
      EXPECT_EQ(y[1].at(0), static_cast<double>(2 * n)) << name_of(dtype) << " " << n;
    }
}

TEST(AdamW, IsNotDifferentiableAndReportsIt) {
  Graph g;
  const Given p = given(g, {3});
  const auto after = adamw(p.tensor, p.tensor, p.tensor, p.tensor, 0.1, 1);
  EXPECT_THROW(gradients(sum(after[0]), {p.tensor}), GradientError);
  EXPECT_THROW(adamw(p.tensor, g.input("z", {4}, f64), p.tensor, p.tensor, 0.1, 1), ShapeError);
}

}  // namespace

// adamw against the published formula, over several steps, in place and from any memory layout.
#include "tests/op_testing.h"

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

TEST(AdamW, NeedsNoMemoryBesideItsParameters) {
  Graph g;
  const Parameter p("p", Array({64, 64}, f32)), m("m", Array({64, 64}, f32)), v("v", Array({64, 64}, f32));
  const Tensor z = g.input("z", {64, 64}), rate = g.input("rate", {}), t = g.input("t", {}, i64);
  const auto after = adamw(g.param(p), z, g.param(m), g.param(v), rate, t, rate);
  const Program program = compile(g, {}, {.assign = {{p, after[0]}, {m, after[1]}, {v, after[2]}}});
  EXPECT_EQ(program.memory().arena, 0u);
  EXPECT_EQ(program.steps().size(), 1u);
}

TEST(AdamW, IsItsDecompositionOnEveryViewAndType) {
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

TEST(AdamW, HasNoGradientAndSaysSo) {
  Graph g;
  const Given p = given(g, {3});
  const auto after = adamw(p.tensor, p.tensor, p.tensor, p.tensor, 0.1, 1);
  EXPECT_THROW(gradients(sum(after[0]), {p.tensor}), GradientError);
  EXPECT_THROW(adamw(p.tensor, g.input("z", {4}, f64), p.tensor, p.tensor, 0.1, 1), ShapeError);
}

}  // namespace

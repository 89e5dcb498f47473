// Score and mask functions of flash_attn. Compares twenty functions with loops in f64, the fused kernels with
// the decomposition, and results of different numbers of threads. Covers errors of recording and of running.
#include <tilegrad/ops/attention_expression.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <tilegrad/tilegrad.h>
#include "tests/reference/reference_checks.h"
#include "tests/support/hostile_calls.h"

namespace tg {
namespace {

using reference::random_vector;
using reference::Vector;
using X = const ScoreAt&;
using Index = std::int64_t;

constexpr double none = -std::numeric_limits<double>::infinity();

struct Size {
  Index B = 2, H = 4, Hk = 2, L = 37, T = 53, d = 8, dv = 8;
};

// A pair of a query and a key, and its score before the function.
struct Pair {
  Index b, h, i, t;
  double s;
};

// A captured tensor: floats if `is_index` is false, otherwise i32.
struct Captured {
  Shape shape;
  Vector values;
  bool is_index = false;
};

struct Mod {
  std::string name;
  std::vector<Captured> captured;
  std::function<AttentionOptions(const std::vector<Tensor>&)> options;
  // A of a pair, or −∞ if the functions or options make it invisible.
  std::function<double(const Pair&)> a;
};

Captured floats(const Shape& shape, std::uint64_t seed) {
  return {shape, random_vector(numel(shape), seed)};
}
Captured whole(const Shape& shape, const std::function<double(Index)>& f) {
  Captured c{shape, {}, true};
  for (Index e = 0; e < numel(shape); ++e) c.values.push_back(f(e));
  return c;
}
// Positive numbers, one per head: ALiBi's slopes decay with the distance.
Captured slopes_of(Index heads) {
  Captured c = floats({heads}, 1);
  for (double& x : c.values) x = 0.05 + std::abs(x) / 4;
  return c;
}
double clipped(double x, double low, double high) {
  return std::min(std::max(x, low), high);
}
double bucket(double n) {  // T5's buckets of causal distances
  return n < 16 ? n : std::min(31., 16 + std::floor(std::log(std::max(n, 1.) / 16) * (16 / std::log(8.))));
}

// The functions that users of attention write most often, by the numbers of docs/attention-expressions.md.
std::vector<Mod> mods(const Size& z) {
  using O = AttentionOptions;
  using C = const std::vector<Tensor>&;
  const Index S = std::max(z.L, z.T), W = 5, tiles = 7;
  const Captured prefix = whole({z.B}, [](Index b) { return 5 + 9. * static_cast<double>(b); }),
                 documents =
                     whole({z.B, S}, [S](Index e) { return std::floor(static_cast<double>(e % S) / 11); }),
                 slopes = slopes_of(z.H), table = floats({z.H, 2 * W + 1}, 2), buckets = floats({z.H, 32}, 3),
                 pairs = floats({z.H, S, S}, 4), forget = floats({z.B, z.H, S}, 5),
                 distance = whole({z.B, S, S}, [](Index e) { return static_cast<double>(e * 7 % 6); }),
                 spatial = floats({z.H, 6}, 6),
                 group = whole({z.B, S}, [](Index e) { return static_cast<double>(e * 5 % 3); }),
                 before = whole({z.B}, [&](Index b) { return static_cast<double>(z.T - z.L - b); });
  const Captured ancestors =
      whole({z.B, z.L + 1, z.L + 1}, [](Index e) { return static_cast<double>(e * 3 % 2); });
  const auto at = [](const Captured& c, std::initializer_list<double> index) {
    Index e = 0, axis = 0;
    for (const double n : index) e = e * c.shape[axis++] + static_cast<Index>(n);
    return c.values[static_cast<std::size_t>(e)];
  };
  const auto d = [](Index x) { return static_cast<double>(x); };
  const auto seen = [](bool visible, double a) { return visible ? a : none; };
  return {
      {"causal",
       {},
       [](C) { return O{.mask = [](X x) { return less_equal(x.t, x.i); }}; },
       [=](const Pair& p) { return seen(p.t <= p.i, p.s); }},
      {"window",
       {},
       [W](C) { return O{.causal = true, .mask = [W](X x) { return less(x.i - x.t, W); }}; },
       [=](const Pair& p) { return seen(p.t <= p.i && p.i - p.t < W, p.s); }},
      {"prefix",
       {prefix},
       [](C c) {
         return O{
             .mask = [p = c[0]](X x) { return logical_or(less_equal(x.t, x.i), less(x.t, x.at(p, {x.b}))); }};
       },
       [=](const Pair& p) { return seen(p.t <= p.i || d(p.t) < at(prefix, {d(p.b)}), p.s); }},
      {"documents",
       {documents},
       [](C c) {
         return O{.mask = [D = c[0]](X x) { return equal(x.at(D, {x.b, x.i}), x.at(D, {x.b, x.t})); }};
       },
       [=](const Pair& p) {
         return seen(at(documents, {d(p.b), d(p.i)}) == at(documents, {d(p.b), d(p.t)}), p.s);
       }},
      {"first keys and a window",
       {},
       [W](C) {
         return O{.causal = true, .mask = [W](X x) { return logical_or(less(x.t, 4), less(x.i - x.t, W)); }};
       },
       [=](const Pair& p) { return seen(p.t <= p.i && (p.t < 4 || p.i - p.t < W), p.s); }},
      {"dilated",
       {},
       [](C) { return O{.mask = [](X x) { return equal(remainder(x.i - x.t, 3), 0); }}; },
       [=](const Pair& p) { return seen(((p.i - p.t) % 3 + 3) % 3 == 0, p.s); }},
      {"ALiBi",
       {slopes},
       [](C c) {
         return O{.causal = true,
                  .score = [m = c[0]](X x) { return x.score + x.at(m, {x.h}) * (x.t - x.i); }};
       },
       [=](const Pair& p) { return seen(p.t <= p.i, p.s + at(slopes, {d(p.h)}) * d(p.t - p.i)); }},
      {"clipped table",
       {table},
       [W](C c) {
         return O{.score = [R = c[0], W](X x) {
           return x.score + x.at(R, {x.h, minimum(maximum(x.t - x.i, -W), W) + W});
         }};
       },
       [=](const Pair& p) {
         return p.s + at(table, {d(p.h), clipped(d(p.t - p.i), d(-W), d(W)) + d(W)});
       }},
      {"T5",
       {buckets},
       [](C c) {
         return O{.causal = true, .score = [R = c[0]](X x) {
                    const Tensor n = x.i - x.t;
                    const Tensor far = 16 + floor(log(maximum(n, 1) / 16) * (16 / std::log(8.)));
                    return x.score + x.at(R, {x.h, where(less(n, 16), n, minimum(far, 31))});
                  }};
       },
       [=](const Pair& p) {
         return seen(p.t <= p.i, p.t > p.i ? 0 : p.s + at(buckets, {d(p.h), bucket(d(p.i - p.t))}));
       }},
      {"soft cap",
       {},
       [](C) { return O{.score = [](X x) { return 2 * tanh(x.score / 2); }}; },
       [](const Pair& p) { return 2 * std::tanh(p.s / 2); }},
      {"temperature",
       {slopes},
       [](C c) { return O{.score = [tau = c[0]](X x) { return x.score * x.at(tau, {x.h}); }}; },
       [=](const Pair& p) { return p.s * at(slopes, {d(p.h)}); }},
      {"scalable softmax",
       {slopes},
       [](C c) {
         return O{.causal = true,
                  .score = [a = c[0]](X x) { return x.score * x.at(a, {x.h}) * log(x.i + 1); }};
       },
       [=](const Pair& p) { return seen(p.t <= p.i, p.s * at(slopes, {d(p.h)}) * std::log(d(p.i + 1))); }},
      {"pair bias",
       {pairs},
       [](C c) { return O{.score = [B = c[0]](X x) {
                   return x.score + x.at(B, {x.h, x.i, x.t});
                 }}; },
       [=](const Pair& p) {
         return p.s + at(pairs, {d(p.h), d(p.i), d(p.t)});
       }},
      {"Graphormer",
       {spatial, distance},
       [](C c) {
         return O{.score = [S = c[0], dist = c[1]](X x) {
           return x.score + x.at(S, {x.h, x.at(dist, {x.b, x.i, x.t})});
         }};
       },
       [=](const Pair& p) {
         return p.s + at(spatial, {d(p.h), at(distance, {d(p.b), d(p.i), d(p.t)})});
       }},
      {"forgetting",
       {forget},
       [](C c) {
         return O{.causal = true, .score = [F = c[0]](X x) {
                    return x.score + x.at(F, {x.b, x.h, x.i}) - x.at(F, {x.b, x.h, x.t});
                  }};
       },
       [=](const Pair& p) {
         return seen(p.t <= p.i,
                     p.s + at(forget, {d(p.b), d(p.h), d(p.i)}) - at(forget, {d(p.b), d(p.h), d(p.t)}));
       }},
      {"gate",
       {slopes},
       [](C c) {
         return O{.score = [g = c[0]](X x) { return x.score * sigmoid(x.at(g, {x.h}) * x.score); }};
       },
       [=](const Pair& p) { return p.s / (1 + std::exp(-at(slopes, {d(p.h)}) * p.s)); }},
      {"2D neighborhood",
       {},
       [tiles](C) {
         return O{.mask = [tiles](X x) {
           const auto near = [](const Tensor& a) { return less_equal(abs(a), 2); };
           return logical_and(near(floor(x.i / tiles) - floor(x.t / tiles)),
                              near(remainder(x.i, tiles) - remainder(x.t, tiles)));
         }};
       },
       [=](const Pair& p) {
         return seen(std::abs(p.i / tiles - p.t / tiles) <= 2 && std::abs(p.i % tiles - p.t % tiles) <= 2,
                     p.s);
       }},
      {"block diffusion",
       {},
       [](C) { return O{.mask = [](X x) { return less_equal(floor(x.t / 8), floor(x.i / 8)); }}; },
       [=](const Pair& p) { return seen(p.t / 8 <= p.i / 8, p.s); }},
      {"tree",
       {before, ancestors},
       [](C c) {
         return O{.mask = [n = c[0], anc = c[1]](X x) {
           const Tensor first = x.at(n, {x.b}), r = x.t - first;
           return logical_or(less(r, 0), not_equal(x.at(anc, {x.b, x.i - first, maximum(r, 0)}), 0));
         }};
       },
       [=](const Pair& p) {
         const double first = at(before, {d(p.b)}), r = d(p.t) - first;
         return seen(r < 0 || at(ancestors, {d(p.b), d(p.i) - first, r}) != 0, p.s);
       }},
      {"shared prefix",
       {group},
       [](C c) {
         return O{.causal = true, .mask = [G = c[0]](X x) {
                    const Tensor own = x.at(G, {x.b, x.t});
                    return logical_or(equal(own, 0), equal(own, x.at(G, {x.b, x.i})));
                  }};
       },
       [=](const Pair& p) {
         const double own = at(group, {d(p.b), d(p.t)});
         return seen(p.t <= p.i && (own == 0 || own == at(group, {d(p.b), d(p.i)})), p.s);
       }},
  };
}

// The inputs of a problem as a graph.
struct Build {
  Build(const Size& z, const Mod& mod, DType dtype) : n(z) {
    q = input({z.B, z.H, z.L, z.d}, 11, dtype), k = input({z.B, z.Hk, z.T, z.d}, 12, dtype);
    v = input({z.B, z.Hk, z.T, z.dv}, 13, dtype);
    for (const Captured& c : mod.captured) {
      captured.push_back(g.input("captured", c.shape, c.is_index ? i32 : dtype));
      feeds.push_back({captured.back(), Array::of(c.shape, c.values).to(captured.back().dtype())});
    }
    options = mod.options(captured);
  }
  Tensor input(const Shape& shape, std::uint64_t seed, DType dtype) {
    const Tensor x = g.input("x", shape, dtype);
    feeds.push_back({x, Array::of(shape, random_vector(numel(shape), seed)).to(dtype)});
    return x;
  }
  // o, ξ, and the gradients of q, k, v and the floating captured tensors.
  std::vector<Tensor> outputs(bool fused) {
    const AttentionResult y = fused ? flash_attn(q, k, v, options) : standard_attn(q, k, v, options);
    const Tensor z = input(y.o.shape(), 14, y.o.dtype());
    std::vector<Tensor> wrt{q, k, v};
    for (const Tensor& c : captured)
      if (is_float(c.dtype())) wrt.push_back(c);
    std::vector<Tensor> out = gradients(sum(y.o.to(f64) * z.to(f64)), wrt);
    out.insert(out.begin(), {y.o, y.lse});
    return out;
  }
  std::vector<Vector> run(const std::vector<Tensor>& out, int threads = 0) {
    Program p = compile(g, out, {.threads = threads});
    for (const auto& [tensor, value] : feeds) p.feed({tensor, value});
    p.run();
    std::vector<Vector> values;
    for (const Tensor& x : out) values.push_back(p.fetch(x).to(f64).values<double>());
    return values;
  }

  const Size n;
  Graph g;
  Tensor q, k, v;
  std::vector<Tensor> captured;
  AttentionOptions options;
  std::vector<std::pair<Tensor, Array>> feeds;
};

// o and ξ, by loops.
std::pair<Vector, Vector> by_loops(const Size& z, const Mod& mod) {
  const Vector q = random_vector(z.B * z.H * z.L * z.d, 11), k = random_vector(z.B * z.Hk * z.T * z.d, 12),
               v = random_vector(z.B * z.Hk * z.T * z.dv, 13);
  Vector o(static_cast<std::size_t>(z.B * z.H * z.L * z.dv)), lse;
  for (Index b = 0; b < z.B; ++b)
    for (Index h = 0; h < z.H; ++h)
      for (Index r = 0; r < z.L; ++r) {
        const Index head = b * z.Hk + h / (z.H / z.Hk), row = (b * z.H + h) * z.L + r;
        Vector a;
        for (Index t = 0; t < z.T; ++t) {
          double s = 0;
          for (Index e = 0; e < z.d; ++e)
            s += q[static_cast<std::size_t>(row * z.d + e)] *
                 k[static_cast<std::size_t>((head * z.T + t) * z.d + e)];
          a.push_back(mod.a({b, h, r + z.T - z.L, t, s / std::sqrt(static_cast<double>(z.d))}));
        }
        const double top = *std::max_element(a.begin(), a.end());
        double pi = 0;
        for (const double x : a) pi += top == none ? 0 : std::exp(x - top);
        lse.push_back(top == none ? none : top + std::log(pi));
        for (Index t = 0; t < z.T && top != none; ++t)
          for (Index e = 0; e < z.dv; ++e)
            o[static_cast<std::size_t>(row * z.dv + e)] +=
                std::exp(a[static_cast<std::size_t>(t)] - top) / pi *
                v[static_cast<std::size_t>((head * z.T + t) * z.dv + e)];
      }
  return {o, lse};
}

void expect_close(const Vector& a, const Vector& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double most = 0, largest = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    most = std::max(most, std::isnan(a[i] - b[i]) ? INFINITY : std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  EXPECT_LE(most, tolerance * std::max(1., largest)) << what;
}

TEST(AttentionExpression, AgreesWithLoops) {
  const Size z;
  for (const Mod& mod : mods(z)) {
    const auto [o, lse] = by_loops(z, mod);
    for (const DType dtype : {f64, f32})
      for (const bool fused : {true, false}) {
        Build b(z, mod, dtype);
        const AttentionResult y =
            fused ? flash_attn(b.q, b.k, b.v, b.options) : standard_attn(b.q, b.k, b.v, b.options);
        const std::vector<Vector> now = b.run({y.o, y.lse});
        const std::string what =
            mod.name + (fused ? ", fused, " : ", by simpler ops, ") + std::string(name_of(dtype));
        expect_close(now[0], o, dtype == f64 ? 1e-13 : 2e-6, what);
        expect_close(now[1], lse, dtype == f64 ? 1e-13 : 2e-6, what + ", ξ");
      }
  }
}

TEST(AttentionExpression, HasTheGradientsOfTheDecomposition) {
  for (const Size& z : {Size{}, Size{1, 2, 1, 130, 430, 8, 8}, Size{1, 2, 2, 3, 300, 4, 4}})
    for (const Mod& mod : mods(z)) {
      Build exact(z, mod, f64);
      const std::vector<Vector> expected = exact.run(exact.outputs(false));
      for (const DType dtype : {f64, f32}) {
        Build b(z, mod, dtype);
        const std::vector<Vector> now = b.run(b.outputs(true));
        ASSERT_EQ(now.size(), expected.size());
        for (std::size_t i = 0; i < now.size(); ++i)
          expect_close(now[i], expected[i],
                       dtype == f64 ? 1e-12
                       : i < 5      ? 1e-5
                                    : 1e-6,
                       mod.name + ", " + std::string(name_of(dtype)) + ", T " + std::to_string(z.T) +
                           ", output " + std::to_string(i));
      }
    }
}

// Equal uses of a tensor, and slopes that are constants.
TEST(AttentionExpression, GradientsOfUsesAreAdded) {
  const Size z{1, 2, 1, 5, 6, 4, 4};
  const Mod mod{"two uses",
                {slopes_of(z.H)},
                [](const std::vector<Tensor>& c) {
                  return AttentionOptions{.score = [m = c[0]](X x) {
                    return x.score + x.at(m, {x.h}) * x.t + 3 * x.at(m, {1 - x.h}) - x.at(m, {x.h}) * x.score;
                  }};
                },
                {}};
  const Mod scaled{
      "a factor",
      {floats({z.T}, 7)},
      [](const std::vector<Tensor>& c) {
        return AttentionOptions{.score = [m = c[0]](X x) { return x.score + 3 * x.at(m, {x.t}); }};
      },
      {}};
  for (const Mod& m : {mod, scaled}) {
    Build fused(z, m, f64), simple(z, m, f64);
    const std::vector<Vector> now = fused.run(fused.outputs(true)),
                              expected = simple.run(simple.outputs(false));
    for (std::size_t i = 0; i < now.size(); ++i) expect_close(now[i], expected[i], 1e-13, m.name);
  }
  // The gradient of a factor's tensor is 3 times that of the tensor without the factor.
  const auto gradient = [&](double factor) {
    Graph g;
    const Tensor q = g.input("q", {1, 1, 3, 2}, f64), m = g.input("m", {3}, f64);
    const AttentionResult y =
        flash_attn(q, q, q, {.score = [&](X x) { return x.score + factor * x.at(m, {x.t}); }});
    const Tensor z_m = gradients(sum(y.o * y.o), {m})[0];
    return eval(z_m, {{q, Array::of({1, 1, 3, 2}, Vector{1, 2, 0, 1, 3, 1})},
                      {m, Array::of({3}, Vector{0, 0, 0})}})
        .values<double>();
  };
  const Vector one = gradient(1), three = gradient(3);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(three[i], 3 * one[i], 1e-13);
  EXPECT_GT(std::abs(one[0]), 1e-3);
}

TEST(AttentionExpression, HasTheSameBitsForAnyNumberOfThreads) {
  const Size z{2, 4, 2, 130, 450, 8, 8};
  for (const Mod& mod : mods(z)) {
    Build b(z, mod, f32);
    const std::vector<Tensor> out = b.outputs(true);
    const std::vector<Vector> one = b.run(out, 1);
    for (const int threads : {2, 3, 7})
      EXPECT_EQ(b.run(out, threads), one) << mod.name << ", threads " << threads;
  }
}

TEST(AttentionExpression, MemoryGrowsWithTheLength) {
  const auto bytes = [](Index L) {
    Build b({1, 2, 2, L, L, 8, 8}, mods({1, 2, 2, L, L})[6], f32);
    const AttentionResult y = flash_attn(b.q, b.k, b.v, b.options);
    return compile(b.g, gradients(sum(y.o), {b.q, b.k, b.v, b.captured[0]}), {.threads = 1}).memory().peak();
  };
  EXPECT_LT(bytes(4096), 2.1 * static_cast<double>(bytes(2048)));
}

TEST(AttentionExpression, SecondDerivativesUseTheDecomposition) {
  for (const Mod& mod : mods({1, 2, 1, 6, 7, 4, 4})) {
    Vector second[2];
    for (const bool fused : {false, true}) {
      Build b({1, 2, 1, 6, 7, 4, 4}, mod, f64);
      const AttentionResult y =
          fused ? flash_attn(b.q, b.k, b.v, b.options) : standard_attn(b.q, b.k, b.v, b.options);
      const Tensor z = gradients(sum(y.o * y.o), {b.k})[0];
      second[fused] = b.run(gradients(sum(z * z), {b.q}))[0];
    }
    expect_close(second[1], second[0], 1e-11, mod.name);
  }
}

struct Refused : testing::Hostile {
  Tensor q = g.input("q", {1, 2, 3, 4}), slopes = g.input("slopes", {2});
  testing::MistakenCall score(const char* name, const ScoreFunction& f, const std::string& part) {
    return {name, [this, f] { flash_attn(q, q, q, {.score = f}); }, part};
  }
  testing::MistakenCall mask(const char* name, const ScoreFunction& f, const std::string& part) {
    return {name, [this, f] { flash_attn(q, q, q, {.mask = f}); }, part};
  }
};

TEST_F(Refused, WrongFunctionsAreNamed) {
  const Scope scope("h.0.attn");
  testing::expect_errors<Error>(
      {score(
           "reduction", [](X x) { return sum(x.score); },
           "score: sum is not a pointwise op; an expression computes one pair of a query and a key"),
       score(
           "dropout", [](X x) { return dropout(x.score, 0.5); }, "is not a pointwise op"),
       score(
           "a tensor of the model", [&](X x) { return x.score * slopes; },
           "score: it uses a tensor of the model; write x.at(tensor, {index, …})"),
       score(
           "the result is a tensor of the model", [&](X) { return slopes; },
           "score: it must return a scalar of the expression"),
       score(
           "undefined", [](X) { return Tensor(); }, "score: it must return a scalar of the expression"),
       score(
           "a vector", [](X x) { return expand(x.score, {3}); }, "score: it must return a scalar"),
       score(
           "another leaf", [](X x) { return x.score + x.score.graph().input("y", {}); },
           "score: input is not a pointwise op"),
       score(
           "at() of a scalar of the expression", [](X x) { return x.at(x.score, {}); },
           "score: at() needs a tensor of the model"),
       score(
           "at() of an undefined tensor", [](X x) { return x.at({}, {}); },
           "score: at() needs a tensor of the model"),
       score(
           "an index of the model", [&](X x) { return x.at(slopes, {sum(slopes)}); },
           "score: an index of at() must be a number or a scalar of the expression"),
       mask(
           "reads the score", [](X x) { return less(x.score, 3); },
           "mask: it reads the score; let the score function return −∞ instead")});
  testing::expect_errors<DTypeError>(
      {mask(
           "a number", [](X x) { return x.i - x.t; }, "mask: it returns f32 [], expected bool"),
       score(
           "a boolean", [](X x) { return less(x.i, x.t); }, "score: it returns bool [], expected f32"),
       score(
           "a cast", [](X x) { return cast(x.score, bf16); }, "expected f32")});
  testing::expect_errors<ShapeError>(
      {score(
           "too few indices", [&](X x) { return x.at(slopes, {}); }, "score: at() got 0 indices for f32 [2]"),
       score(
           "too many indices",
           [&](X x) {
             return x.at(slopes, {x.h, x.t});
           },
           "score: at() got 2 indices")});
  testing::expect_errors<Error>({score(
      "any", [](X x) { return sum(x.score); }, "[h.0.attn/flash_attn] score: ")});
}

TEST_F(Refused, LongExpressionsAreRefused) {
  const auto repeated = [](int count) {
    return [count](X x) {
      Tensor y = x.score;
      for (int n = 0; n < count; ++n) y = sin(y);
      return y;
    };
  };
  flash_attn(q, q, q, {.score = repeated(40)});
  testing::expect_errors<Error>(
      {score("ops", repeated(129), "score: more than 128 ops, with the derivatives"),
       score(
           "captured tensors",
           [&](X x) {
             Tensor y = x.score;
             for (int n = 0; n < 9; ++n) y = y + x.at(g.input("captured", {2}), {x.h});
             return y;
           },
           "score: more than 8 captured tensors"),
       score(
           "uses",
           [&](X x) {
             Tensor y = x.score;
             for (int n = 0; n < 17; ++n) y = y + x.at(slopes, {x.h + n});
             return y;
           },
           "score: more than 16 uses of captured tensors")});
}

TEST_F(Refused, ArgumentsAreInvalidAfterTheCall) {
  std::optional<ScoreAt> kept;
  flash_attn(q, q, q, {.score = [&](X x) {
               kept = x;
               return x.score;
             }});
  testing::expect_errors<Error>({{"later", [&] { kept->at(slopes, {0}); },
                                  "[flash_attn] at() was called after the function had returned"}});
}

TEST(AttentionExpression, IndicesOutOfRangeFailTheRun) {
  const auto message = [](bool fused, bool backward, const AttentionOptions& options, const Tensor& q,
                          Graph& g) {
    const AttentionResult y = fused ? flash_attn(q, q, q, options) : standard_attn(q, q, q, options);
    Program p = compile(g, {backward ? gradients(sum(y.o), {q})[0] : y.o}, {.threads = 1});
    for (const Node& n : g.nodes())
      if (n.op->name == "input" && p.reads(g.tensor(n.first_out)))
        p.feed({g.tensor(n.first_out), Array(g.tensor(n.first_out).shape(), g.tensor(n.first_out).dtype())});
    try {
      p.run();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const bool backward : {false, true}) {
    Graph g;
    const Tensor q = g.input("q", {1, 2, 5, 4}, f32), table = g.input("table", {2, 3}, f32);
    const auto at = [&](const std::function<Tensor(X)>& index) {
      return AttentionOptions{.causal = true, .score = [=](X x) {
                                return x.score + x.at(table, {x.h, index(x)});
                              }};
    };
    // i − t is 3 and more for two pairs of each head.
    EXPECT_NE(message(true, backward, at([](X x) { return x.i - x.t; }), q, g)
                  .find("index 3 of captured tensor 0, axis 1, is out of range at b = 0, h = 0, i = 3, t = "
                        "0: expected "
                        "0 to 2"),
              std::string::npos);
    EXPECT_NE(message(false, backward, at([](X x) { return x.i - x.t; }), q, g).find("out of range"),
              std::string::npos);
    EXPECT_NE(message(true, backward, at([](X x) { return x.i * 0 - 1; }), q, g).find("index -1 of captured"),
              std::string::npos);
    EXPECT_NE(message(true, backward, at([](X x) { return x.t / 0.; }), q, g).find("index -1 of captured"),
              std::string::npos);
    // Pairs that are not visible may have any index.
    for (const bool fused : {true, false}) {
      EXPECT_EQ(message(fused, backward, at([](X x) { return minimum(x.i - x.t, 2); }), q, g), "");
      AttentionOptions masked = at([](X x) { return x.i - x.t; });
      masked.mask = [](X x) { return logical_or(less(x.i - x.t, 3), less(x.t, 0)); };  // not an option
      EXPECT_EQ(message(fused, backward, masked, q, g), "");
    }
  }
}

// The score of each pair is 18. With the first element of the table, A is 0, which is a valid index.
TEST(AttentionExpression, AScoreOutOfRangeFailsTheRun) {
  Graph g;
  const Tensor q = g.input("q", {1, 1, 20, 4}, f32), table = g.input("table", {3}, f32);
  const AttentionResult y =
      flash_attn(q, q, q, {.score = [&](X x) { return x.score + x.at(table, {x.score}); }});
  testing::expect_error<Error>(
      [&] {
        eval(y.o, {{q, Array::of({1, 1, 20, 4}, Vector(80, 3)).to(f32)},
                   {table, Array::of({3}, Vector{-18, 0, 0}).to(f32)}});
      },
      {"index 18 of captured tensor 0, axis 0, is out of range at b = 0, h = 0, i = 0, t = 0: expected 0 to "
       "2"});
}

TEST(AttentionExpression, AttributesPrintTheCode) {
  Graph g;
  const Tensor q = g.input("q", {1, 2, 3, 4}), m = g.input("m", {2});
  flash_attn(q, q, q,
             {.score =
                  [&](X x) {
                    const Tensor n = x.i - x.t;
                    return x.score - x.at(m, {x.h}) * n * n * 0.5;
                  },
              .mask = [](X x) { return less_equal(x.t, x.i * 2); }});
  const std::string text = g.nodes().back().attrs.non_default_text();
  EXPECT_NE(text.find(R"x(score="%0 = sub(i, t); sub(score, mul(mul(mul(c0[h], %0), %0), 0.5))")x"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(R"x(mask="less_equal(t, mul(i, 2))")x"), std::string::npos) << text;
}

// Kernels are faster with options than with functions.
TEST(AttentionExpression, CommonFormsBecomeOptions) {
  using O = AttentionOptions;
  const auto attrs = [](const O& options) {
    Graph g;
    const Tensor q = g.input("q", {1, 2, 3, 4});
    flash_attn(q, q, q, options);
    return g.nodes().back().attrs.non_default_text();
  };
  const std::pair<O, O> same[] = {
      {{.mask = [](X x) { return less_equal(x.t, x.i); }}, {.causal = true}},
      {{.mask = [](X x) { return greater_equal(x.i - x.t, 0); }}, {.causal = true}},
      {{.mask = [](X x) { return less(x.t, x.i + 1); }}, {.causal = true}},
      {{.mask = [](X x) { return less(x.i - x.t, 5); }}, {.window_left = 4}},
      {{.mask = [](X x) { return greater(x.t + 5, x.i); }}, {.window_left = 4}},
      {{.mask = [](X x) { return less_equal(x.i, x.t + 2.5); }}, {.window_left = 2}},
      {{.mask = [](X x) { return less_equal(x.t - x.i, 3); }}, {.window_right = 3}},
      {{.window_left = 2, .mask = [](X x) { return less(x.i - x.t, 5); }}, {.window_left = 2}},
      {{.mask = [](X x) { return logical_and(less_equal(x.t, x.i), less(x.i - x.t, 3)); }},
       {.causal = true, .window_left = 2}},
      {{.score = [](X x) { return 3 * tanh(x.score / 3); }}, {.softcap = 3}},
      {{.score = [](X x) { return tanh(x.score / 3) * 3; }}, {.softcap = 3}},
      {{.score = [](X x) { return x.score; }}, {}},
  };
  for (const auto& [function, option] : same) EXPECT_EQ(attrs(function), attrs(option));
  const O others[] = {
      {.mask = [](X x) { return less(x.t, x.i); }},  // a negative window
      {.mask = [](X x) { return less_equal(x.t, 2 * x.i); }},
      {.mask = [](X x) { return less(x.t, 5); }},
      {.mask = [](X x) { return less(x.i + x.t, 5); }},
      {.mask = [](X x) { return equal(x.i, x.t); }},
      {.causal = true, .alignment = O::top_left, .mask = [](X x) { return less(x.i - x.t, 5); }},
      {.softcap = 2, .score = [](X x) { return 3 * tanh(x.score / 3); }},
      {.score = [](X x) { return 3 * tanh(x.score / 2); }},
      {.score = [](X x) { return -3 * tanh(x.score / -3); }},
  };
  for (const O& options : others) EXPECT_NE(attrs(options).find("(", 0), std::string::npos) << attrs(options);
  // The rest of a conjunction stays a function.
  const std::string rest = attrs({.mask = [](X x) {
    return logical_and(logical_and(less_equal(x.t, x.i), equal(x.t, x.b)), less(x.i - x.t, 3));
  }});
  EXPECT_EQ(rest, R"x(causal=true, window_left=2, mask="equal(t, b)")x");
}

TEST(AttentionExpression, ChangesTheHashOfAGraph) {
  const auto hash = [](const AttentionOptions& options) {
    Graph g;
    const Tensor q = g.input("q", {1, 2, 3, 4});
    flash_attn(q, q, q, options);
    return g.hash();
  };
  const auto scaled = [](double by) { return AttentionOptions{.score = [by](X x) { return x.score * by; }}; };
  EXPECT_EQ(hash(scaled(2)), hash(scaled(2)));
  EXPECT_NE(hash(scaled(2)), hash(scaled(3)));
  EXPECT_NE(hash(scaled(2)), hash({}));
  EXPECT_NE(hash({.mask = [](X x) { return less(x.t, 2); }}),
            hash({.mask = [](X x) { return less(x.i, 2); }}));
}

}  // namespace
}  // namespace tg

// Tests each option of an optimizer by itself, in pairs, and in two optimizers of one loss. Compares results
// with plain loops that implement the published formulas. One step of each run has an infinite gradient and
// is skipped.
#include <limits>

#include <tilegrad/nn/optimizers/optimizers.h>
#include "core/run/ranks.h"
#include "tests/support/op_testing.h"
#include "tests/support/option_pairs.h"
#include "tests/support/plain_orthogonalized.h"

namespace tg::optim {

auto fields_of(const LossScale& o) {
  const auto& [initial, growth, backoff, interval] = o;
  return std::tie(initial, growth, backoff, interval);
}
bool operator==(const LossScale& a, const LossScale& b) {
  return fields_of(a) == fields_of(b);
}
auto fields_of(const AdamW::Options& o) {
  const auto& [beta1, beta2, eps, weight_decay, clip, loss_scale, decay, ranks] = o;
  return std::tie(beta1, beta2, eps, weight_decay, clip, loss_scale, decay, ranks);
}
auto fields_of(const Sgd::Options& o) {
  const auto& [momentum, nesterov, weight_decay, clip, loss_scale, decay, ranks] = o;
  return std::tie(momentum, nesterov, weight_decay, clip, loss_scale, decay, ranks);
}
auto fields_of(const Muon::Options& o) {
  const auto& [momentum, weight_decay, clip, beta1, beta2, eps, iterations, products, loss_scale, takes,
               decay, ranks] = o;
  return std::tie(momentum, weight_decay, clip, beta1, beta2, eps, iterations, products, loss_scale, takes,
                  decay, ranks);
}

namespace {

using namespace testing;

constexpr double inf = std::numeric_limits<double>::infinity();

template <class O>
using Rows = std::vector<void (*)(O&)>;

double decay_by_name(const Parameter& p) {
  return p.name().starts_with("gain") ? 0.3 : 0.2;
}
// Sets the options that all optimizers have.
template <class O>
Rows<O> common_rows() {
  return {
      [](O& o) { o.weight_decay = 0.25; },
      [](O& o) { o.weight_decay = 1; },
      [](O& o) { o.clip = 0; },
      [](O& o) { o.clip = 0.125; },
      [](O& o) { o.decay = decay_by_name; },
      [](O& o) { o.loss_scale = LossScale{}; },
      [](O& o) { o.loss_scale = LossScale{.initial = 8, .interval = 2}; },
      [](O& o) { o.loss_scale = LossScale{.initial = 32, .growth = 4, .backoff = 0.25, .interval = 1}; },
      [](O& o) { o.ranks = std::make_shared<OneRank>(); },
  };
}
template <class O>
Rows<O> with_common(Rows<O> rows) {
  for (const auto& row : common_rows<O>()) rows.push_back(row);
  return rows;
}
const Rows<AdamW::Options> adamw_rows = with_common<AdamW::Options>({
    [](auto& o) { o.beta1 = 0.5; },
    [](auto& o) { o.beta2 = 0.75; },
    [](auto& o) { o.eps = 0.01; },
});
const Rows<Sgd::Options> sgd_rows = with_common<Sgd::Options>({
    [](auto& o) { o.momentum = 0; },
    [](auto& o) { o.momentum = 0.5; },
    [](auto& o) { o.nesterov = true; },
});
const Rows<Muon::Options> muon_rows = with_common<Muon::Options>({
    [](auto& o) { o.momentum = 0.5; },
    [](auto& o) { o.beta1 = 0.5; },
    [](auto& o) { o.beta2 = 0.75; },
    [](auto& o) { o.eps = 0.01; },
    [](auto& o) { o.iterations = 2; },
    [](auto& o) { o.products = f32; },
    [](auto& o) { o.takes = [](const Parameter& p) { return p.name().starts_with("wte"); }; },
    [](auto& o) { o.takes = [](const Parameter& p) { return p.shape().size() == 2; }; },
});

template <class O>
O both(const Rows<O>& rows, std::size_t a, std::size_t b) {
  O o;
  rows[a](o);
  if (a != b) rows[b](o);
  return o;
}

bool is_refused(const Sgd::Options& o) {
  return o.nesterov && o.momentum == 0;
}
template <class O>
bool is_refused(const O&) {
  return false;
}

// A parameter and its moments. Plain loops update them.
struct Weight {
  Parameter parameter;
  std::size_t rows, columns;  // 0 rows: a vector
  Vector p, m, v;
};

double decay_of(const auto& o, const Weight& w) {
  if (o.decay) return o.decay(w.parameter);
  return w.rows == 0 ? 0 : o.weight_decay;
}

void plain_step(const AdamW::Options& o, Weight& w, const Vector& g, double rate, int t) {
  for (std::size_t i = 0; i < g.size(); ++i) {
    w.m[i] = o.beta1 * w.m[i] + (1 - o.beta1) * g[i], w.v[i] = o.beta2 * w.v[i] + (1 - o.beta2) * g[i] * g[i];
    const double m = w.m[i] / (1 - std::pow(o.beta1, t)), v = w.v[i] / (1 - std::pow(o.beta2, t));
    w.p[i] -= rate * (m / (std::sqrt(v) + o.eps) + decay_of(o, w) * w.p[i]);
  }
}
void plain_step(const Sgd::Options& o, Weight& w, const Vector& g, double rate, int) {
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double z = g[i] + decay_of(o, w) * w.p[i];
    w.m[i] = o.momentum * w.m[i] + z;
    w.p[i] -= rate * (o.nesterov ? z + o.momentum * w.m[i] : w.m[i]);
  }
}
void plain_step(const Muon::Options& o, Weight& w, const Vector& g, double rate, int t) {
  const bool is_hidden = w.rows > 0 && !w.parameter.name().starts_with("wte");
  const bool is_taken = o.takes ? o.takes(w.parameter) : is_hidden;
  if (!is_taken) {
    plain_step(AdamW::Options{.beta1 = o.beta1,
                              .beta2 = o.beta2,
                              .eps = o.eps,
                              .weight_decay = o.weight_decay,
                              .decay = o.decay},
               w, g, rate, t);
    return;
  }
  const std::size_t r = w.rows, c = w.columns;
  Vector y(r * c);
  for (std::size_t i = 0; i < g.size(); ++i)
    w.m[i] = o.momentum * w.m[i] + g[i], y[i] = g[i] + o.momentum * w.m[i];
  y = plain_orthogonalized(y, r, c, static_cast<int>(o.iterations));
  const double size = 0.2 * std::sqrt(static_cast<double>(std::max(r, c)));
  for (std::size_t i = 0; i < g.size(); ++i)
    w.p[i] = (1 - rate * decay_of(o, w)) * w.p[i] - rate * size * y[i];
}

// Runs an optimizer of three parameters in a graph, and also in plain loops.
template <class T>
struct Trained {
  using O = typename T::Options;
  Trained(Graph& g, const O& o, const std::string& name) : options(o) {
    const auto create = [&](const std::string& what, const Shape& shape) {
      all.push_back(params.create(what + name, shape, nn::Init::normal(1)));
      slopes.push_back(g.input("slope of " + what + name, shape, f64));
      const Vector p = all.back().read().template values<double>();
      const bool is_vector = shape.size() == 1;
      weights.push_back({all.back(), is_vector ? 0 : static_cast<std::size_t>(shape[0]),
                         static_cast<std::size_t>(shape.back()), p, Vector(p.size()), Vector(p.size())});
    };
    create("matrix", {2, 3}), create("wte", {3, 2}), create("gain", {3});
    optimizer = std::make_unique<T>(params.all(), o);
    if (o.loss_scale) scale = o.loss_scale->initial;
  }
  Tensor loss(Graph& g) const {
    Tensor total = sum(g.param(all[0]) * slopes[0]);
    for (std::size_t i = 1; i < all.size(); ++i) total = total + sum(g.param(all[i]) * slopes[i]);
    return total;
  }
  // Returns the gradients of a step. If `is_bad` is set, one of them is infinite.
  std::vector<Vector> gradients_of(int step, bool is_bad, std::uint64_t seed) const {
    std::vector<Vector> g;
    for (std::size_t i = 0; i < weights.size(); ++i)
      g.push_back(random_vector(weights[i].p.size(), seed + 10 * static_cast<std::uint64_t>(step) + i));
    if (is_bad) g[1][2] = inf;
    return g;
  }
  void plain(const std::vector<Vector>& g, double rate, bool skips) {
    double squares = 0;
    for (const Vector& x : g)
      for (const double e : x) squares += e * e;
    norm = std::sqrt(squares);
    if (skips) {
      good = 0, scale = std::max(1.0, options.loss_scale ? options.loss_scale->backoff * scale : 1);
      return;
    }
    const double factor = options.clip > 0 ? options.clip / std::max(options.clip, norm) : 1;
    ++taken;
    for (std::size_t i = 0; i < g.size(); ++i) {
      Vector clipped = g[i];
      for (double& e : clipped) e *= factor;
      plain_step(options, weights[i], clipped, rate, taken);
    }
    if (options.loss_scale && ++good == options.loss_scale->interval)
      good = 0, scale *= options.loss_scale->growth;
  }
  // Bounds the rounding error. An iteration of Muon adds several terms. For singular values s up to 1.2,
  // their sum is at most a·s + b·s³ + c·s⁵ < 18. Each term has up to 4 roundings. The slope of an iteration
  // is at most 4, so five iterations have 18·4·(4⁵ - 1)/3 roundings. Six steps of rate 1/16 and size 0.2·√3
  // add these errors to a weight. In each of seven steps, the other formulas have 20 roundings of numbers up
  // to 4.
  double tolerance() const {
    if constexpr (std::is_same_v<T, Muon>)
      return (options.products ? 0x1p-24 : 0x1p-53) * 18 * 4 * 341 * 6 * 0.0625 * 0.35;
    return 0x1p-53 * 20 * 4 * 7;
  }
  void expect_equal(const Program& p) const {
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(close(all[i].read().template values<double>(), weights[i].p, tolerance())) << all[i].name();
    EXPECT_EQ(p.item<float>(update.skipped), 1);
    if (!options.loss_scale) return;
    EXPECT_EQ(p.item<float>(update.loss_scale), static_cast<float>(scale));
    EXPECT_EQ(p.item<float>(update.overflowed), 0);  // the loss is also infinite
  }

  O options;
  nn::Params params{1, f64};
  std::vector<Parameter> all;
  std::vector<Tensor> slopes;
  std::vector<Weight> weights;
  std::unique_ptr<Optimizer> optimizer;
  Optimizer::Update update;
  double norm = 0, scale = 1;
  int taken = 0;
  std::int64_t good = 0;
};

constexpr int steps = 7, bad_step = 4;

// If optimizers share a loss, either all of them step or all skip the step.
template <class... T>
void check_together(Graph& g, T&... trained) {
  const Tensor loss = (trained.loss(g) + ...);
  ((trained.update = trained.optimizer->minimize(loss)), ...);
  std::vector<Tensor> fetched;
  std::vector<Assign> assign;
  const auto add = [&](const Optimizer::Update& u) {
    fetched.insert(fetched.end(), {u.skipped, u.grad_norm});
    if (u.loss_scale.defined()) fetched.insert(fetched.end(), {u.loss_scale, u.overflowed});
    assign.insert(assign.end(), u.assign.begin(), u.assign.end());
  };
  (add(trained.update), ...);
  Program program = compile(g, fetched, {.assign = assign, .threads = 1, .verify = true});
  for (int step = 0; step < steps; ++step) {
    std::vector<Feed> feeds;
    const double rate = 0x1p-5 * (1 + step % 2);
    std::uint64_t seed = 0;
    const auto run_one = [&](auto& t) {
      const bool is_bad = step == bad_step && seed == 0;
      const auto slopes = t.gradients_of(step, is_bad, seed += 100);
      for (std::size_t i = 0; i < slopes.size(); ++i)
        feeds.emplace_back(t.slopes[i], Array::of(t.slopes[i].shape(), slopes[i]));
      feeds.emplace_back(t.update.learning_rate, Array::of<float>({}, {static_cast<float>(rate)}));
      t.plain(slopes, rate, step == bad_step);
    };
    (run_one(trained), ...);
    program.run(feeds);
    const auto expect_norm = [&](const auto& t) {
      const double got = program.item<float>(t.update.grad_norm);
      EXPECT_TRUE(got == t.norm || std::abs(got - t.norm) <= 0x1p-23 * t.norm) << got << ", " << t.norm;
    };
    (expect_norm(trained), ...);
  }
  (trained.expect_equal(program), ...);
}

template <class T>
void check_pairs(const Rows<typename T::Options>& rows) {
  expect_each_field_is_set(rows.size(), [&](std::size_t i) { return both(rows, i, i); });
  each_pair(rows.size(), [&](std::size_t a, std::size_t b) {
    SCOPED_TRACE("rows " + std::to_string(a) + " and " + std::to_string(b));
    Graph one, two;
    if (const auto o = both(rows, a, b); is_refused(o)) {
      EXPECT_THROW(Trained<T>(one, o, ""), Error);
    } else {
      Trained<T> alone(one, o, "");
      check_together(one, alone);
    }
    Trained<T> first(two, both(rows, a, a), " a"), second(two, both(rows, b, b), " b");
    check_together(two, first, second);
  });
}

TEST(OptimizerPairs, AdamWAgreesWithLoops) {
  check_pairs<AdamW>(adamw_rows);
}
TEST(OptimizerPairs, SgdAgreesWithLoops) {
  check_pairs<Sgd>(sgd_rows);
}
TEST(OptimizerPairs, MuonAgreesWithLoops) {
  check_pairs<Muon>(muon_rows);
}

template <class A, class B>
void check_two_kinds() {
  Graph g;
  Trained<A> a(g, {.clip = 0.5}, " a");
  Trained<B> b(g, {.weight_decay = 0.2}, " b");
  check_together(g, a, b);
}
TEST(OptimizerPairs, TwoKindsAgreeWithLoops) {
  check_two_kinds<AdamW, Sgd>(), check_two_kinds<AdamW, Muon>(), check_two_kinds<Sgd, Muon>();
  check_two_kinds<Sgd, AdamW>(), check_two_kinds<Muon, AdamW>(), check_two_kinds<Muon, Sgd>();
}

}  // namespace
}  // namespace tg::optim

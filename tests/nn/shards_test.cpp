// Ranks divide updates among themselves. Compares these updates with plain loops over complete parameters,
// for every optimizer, dtype and kind of copy. The ranks are threads.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <map>
#include <numeric>

#include <tilegrad/nn/optimizers/optimizers.h>
#include "tests/support/op_testing.h"
#include "tests/support/plain_orthogonalized.h"
#include "tests/support/thread_ranks.h"

namespace tg::optim {
namespace {

using namespace testing;

constexpr double inf = std::numeric_limits<double>::infinity();

// A communicator that cannot communicate. Graphs that never run need no other.
struct Alone final : Communicator {
  using Communicator::Communicator;
  void share(std::span<const std::byte>, const Reader&) override { throw Error("there is no other rank"); }
};

// The number of elements that n ranks divide is a multiple of this number. The number is the same for 1, 2,
// 4, 8 and 16 ranks.
std::int64_t granule(int n) {
  for (const int power : {1, 2, 4, 8, 16})
    if (n == power) return 16384;
  return 1024 * n;
}

TEST(Shards, AreOnePiecePerRankAndARest) {
  for (const int n : {1, 2, 3, 4, 5, 8, 12, 16, 17}) {
    const std::int64_t g = granule(n);
    std::vector<Parameter> parameters;
    for (const std::int64_t count : {std::int64_t{7}, g - 1, g, g + 1, 2 * g - 1, 2 * g, 3 * g + 5})
      parameters.emplace_back("p" + std::to_string(count), Shape{count}, f32, Device::cpu());
    parameters.emplace_back("whole", Shape{2, g}, f32, Device::cpu());
    parameters.emplace_back("wide", Shape{2, g}, f64, Device::cpu());
    for (const int rank : {0, n / 2, n - 1}) {
      const detail::Shards shards(parameters, std::make_shared<Alone>(rank, n),
                                  [](const Parameter& p) { return p.name() != "whole"; });
      std::size_t at = 0;
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const std::int64_t count = numel(parameters[p].shape());
        const std::int64_t rest = count % g,
                           divided = n == 1 || parameters[p].name() == "whole" ? 0 : count - rest;
        const auto expect = [&](Shard::Kind kind, std::int64_t first, std::int64_t elements) {
          ASSERT_LT(at, shards.list().size());
          const Shard& s = shards.list()[at];
          EXPECT_EQ(std::tuple(s.place, s.kind, s.first, s.count), std::tuple(p, kind, first, elements)) << n;
          EXPECT_EQ(shards.shape_of(at),
                    kind == Shard::Kind::whole ? parameters[p].shape() : Shape{elements});
          EXPECT_EQ(shards.parameter_of(at).key(), parameters[p].key());
          EXPECT_EQ(shards.has_rest(at), kind == Shard::Kind::piece && rest > 0) << n << " " << p;
          ++at;
        };
        if (divided == 0) {
          expect(Shard::Kind::whole, 0, count);
        } else {
          expect(Shard::Kind::piece, divided / n * rank, divided / n);
          if (rest > 0) expect(Shard::Kind::rest, divided, rest);
        }
      }
      EXPECT_EQ(at, shards.list().size());
    }
  }
}

// An early sum covers adjacent gradients. Together, they have a quarter of all bytes, or 16 MiB.
TEST(Shards, EarlySumsHaveAQuarterOfTheBytes) {
  const std::int64_t g = granule(2);
  const std::vector<std::int64_t> lists[] = {{1, 1, 1, 1, 1, 1, 1, 1},
                                             {4, 1, 1, 1, 1},
                                             {1, 1, 1, 1, 4},
                                             {3},
                                             {1, 2},
                                             {1, 1, 1},
                                             {2, 1, 1, 2, 1, 1},
                                             {100, 300, 100, 700, 100, 100, 100},
                                             {250, 6, 400, 400}};  // in f32, 16 MiB are 256 units
  for (const std::array dtypes : {std::array{f32, f32}, std::array{bf16, bf16}, std::array{f32, bf16}})
    for (const auto& list : lists)
      for (const bool early : {false, true}) {
        Graph graph;
        std::vector<Parameter> parameters;
        std::vector<Tensor> z;
        std::size_t all = 0;
        for (const std::int64_t count : list) {
          const DType dtype = dtypes[z.size() % 2];
          parameters.emplace_back("p" + std::to_string(z.size()), Shape{count * g}, f32, Device::cpu());
          z.push_back(graph.input("z", {count * g}, dtype));
          all += static_cast<std::size_t>(count * g) * size_of(dtype);
        }
        const detail::Shards shards(parameters, std::make_shared<Alone>(1, 2), {});
        const auto [loss, sums] = shards.sums(sum(cast(z[0], f32)), z, early);
        std::vector<std::size_t> expected;  // number of gradients in each step
        std::size_t bytes = 0, count = 0;
        for (std::size_t i = 0; i < list.size(); ++i) {
          ++count, bytes += static_cast<std::size_t>(list[i] * g) * size_of(dtypes[i % 2]);
          if (early && bytes >= std::min(all / 4, std::size_t{16} << 20))
            expected.push_back(count), count = bytes = 0;
        }
        if (count > 0) expected.push_back(count);
        std::vector<std::size_t> got;
        for (const Node& n : graph.nodes())
          if (std::string_view(n.op->name) == "reduce_scatter") got.push_back(n.in.size());
        EXPECT_EQ(got, expected) << list.size() << " gradients of " << name_of(dtypes[0]) << " and "
                                 << name_of(dtypes[1]);
        ASSERT_EQ(sums.size(), list.size());
        for (std::size_t i = 0; i < sums.size(); ++i) {
          EXPECT_EQ(sums[i].shape(), (Shape{list[i] * g / 2}));
          EXPECT_EQ(sums[i].dtype(), f32);
        }
      }
}

// For any number of ranks, the divided part of a parameter and the rest are in separate blocks. Each block is
// a tensor.
TEST(Shards, NormsUseTheSameTensorsForAnyNumberOfRanks) {
  const std::vector<std::int64_t> counts{7, 16384, 16385, 3 * 16384 + 2000, 16383, 2 * 16384};
  for (const int n : {1, 2, 4, 8})
    for (const bool is_divisible : {true, false}) {
      Graph graph;
      std::vector<Parameter> parameters;
      for (const std::int64_t count : counts)
        parameters.emplace_back("p" + std::to_string(count), Shape{count}, f32, Device::cpu());
      const detail::Shards shards(parameters, std::make_shared<Alone>(n - 1, n),
                                  [&](const Parameter&) { return is_divisible; });
      std::vector<Tensor> z;
      for (std::size_t i = 0; i < shards.list().size(); ++i)
        z.push_back(graph.input("z" + std::to_string(i), shards.shape_of(i)));
      shards.norm(z);
      const int parts = is_divisible ? n : 1;  // blocks of each divided tensor
      std::vector<std::int64_t> expected, got, gathered;
      std::size_t pieces = 0;
      for (const std::int64_t count : counts) {
        const std::int64_t divided = count / 16384 * 16384;
        if (divided > 0) expected.push_back(divided / parts), ++pieces;
        if (count > divided) expected.push_back(count - divided);
      }
      for (const Node& node : graph.nodes())
        for (const ValueId v : node.in) {
          const std::string_view op = node.op->name;
          if (op == "block_norms") got.push_back(graph.tensor(v).numel());
          if (op == "all_gather") gathered.push_back(graph.tensor(v).numel());
        }
      EXPECT_EQ(got, expected) << n << " ranks";
      EXPECT_EQ(gathered.size(), parts > 1 ? pieces : 0) << n << " ranks";
    }
}

// If pieces consist of complete rows, they are gathered directly into the parameter. Other pieces need a view
// of the result.
TEST(Shards, PiecesOfWholeRowsNeedNoView) {
  constexpr int n = 2;
  const std::int64_t g = granule(n);
  const struct {
    Shape shape;
    std::string op;  // the op that computes the new value
  } cases[] = {{{4, g / 4}, "all_gather"}, {{g}, "all_gather"},      {{2, 3, g}, "all_gather"},
               {{1, g}, "view"},           {{3, g}, "view"},         {{g + 7}, "concat"},
               {{2, g / 2 + 5}, "view"},   {{5, g / 5 + 20}, "view"}};
  for (const auto& c : cases) {
    Graph graph;
    const detail::Shards shards({Parameter("p", c.shape, f32, Device::cpu())}, std::make_shared<Alone>(1, n),
                                {});
    std::vector<NewWeight> news;
    for (std::size_t i = 0; i < shards.list().size(); ++i)
      news.push_back({graph.input("w" + std::to_string(i), shards.shape_of(i))});
    std::vector<Assign> assign;
    shards.assign(news, {}, assign);
    ASSERT_EQ(assign.size(), 1u);
    EXPECT_EQ(assign[0].value.shape(), c.shape);
    EXPECT_EQ(graph.node_of(assign[0].value.id()).op->name, c.op) << c.shape.text();
  }
}

// If an f32 weight is read in a 16-bit type, its gradient is cast to f32. The sum uses the gradient before
// this cast.
TEST(Optimizers, ReadGradientsBeforeTheirCast) {
  for (const DType weight : {f32, f64})
    for (const DType used : {f64, f32, bf16, f16}) {
      nn::Params params(1, weight);
      const Parameter p = params.create("p", {3}, nn::Init::ones());
      Graph g;
      const Tensor x = cast(g.param(p), used);
      const Sgd sgd(params.all(), {});
      const Tensor z = sgd.differentiate(cast(sum(x * x), f32))[0];
      EXPECT_EQ(z.dtype(), weight == f32 && (used == bf16 || used == f16) ? used : weight) << name_of(used);
    }
}

enum class Kind { adamw, sgd, nesterov, plain_sgd, muon };
enum class Copies { none, all, only };

struct How {
  Kind kind;
  DType dtype = f32;
  Copies copies = Copies::none;
  DType copy = bf16;
  bool early = false, blocks = false;
  double clip = 0.5, scale = 0;  // gradients of the loss
};

// A rank's gradient of element i of parameter p in step t. All gradients differ.
double slope(int rank, int step, std::size_t p, std::int64_t i) {
  static const Vector pool = random_vector(9973, 5);
  const std::size_t at = static_cast<std::size_t>(i) * 7 + static_cast<std::size_t>(rank) * 131 +
                         static_cast<std::size_t>(step) * 1009 + p * 29;
  return std::round(pool[at % pool.size()] * 256) / 256;  // exact in every dtype
}

struct Plain {
  std::string name;
  Shape shape;
  Vector w, m, v;
};

constexpr double rate = 0x1p-5, decay = 0.25, beta1 = 0.75, beta2 = 0.5, eps = 0x1p-10, momentum = 0.5;

// Rounds a number to the dtype, as a step does when it stores a value.
void store(Vector& x, DType dtype) {
  if (dtype == f64) return;
  x = doubles(Array::of({std::ssize(x)}, x).to(dtype));
}

void plain_update(const How& how, Plain& p, const Vector& g, int t) {
  const bool is_matrix = p.shape.size() == 2;
  const double lambda = is_matrix ? decay : 0;
  Vector direction(g.size());
  if (how.kind == Kind::muon && is_matrix && p.name != "wte") {
    Vector u(g.size());
    for (std::size_t i = 0; i < g.size(); ++i)
      p.m[i] = momentum * p.m[i] + g[i], u[i] = g[i] + momentum * p.m[i];
    const Vector o = plain_orthogonalized(u, static_cast<std::size_t>(p.shape[0]),
                                          static_cast<std::size_t>(p.shape[1]), 1);
    const double size = 0.2 * std::sqrt(static_cast<double>(std::max(p.shape[0], p.shape[1])));
    for (std::size_t i = 0; i < g.size(); ++i) p.w[i] = (1 - rate * lambda) * p.w[i] - rate * size * o[i];
  } else if (how.kind == Kind::adamw || how.kind == Kind::muon) {
    const double first = 1 - std::pow(beta1, t), second = 1 - std::pow(beta2, t);
    for (std::size_t i = 0; i < g.size(); ++i) {
      p.m[i] = beta1 * p.m[i] + (1 - beta1) * g[i], p.v[i] = beta2 * p.v[i] + (1 - beta2) * g[i] * g[i];
      p.w[i] -= rate * (p.m[i] / first / (std::sqrt(p.v[i] / second) + eps) + lambda * p.w[i]);
    }
  } else {
    const double mu = how.kind == Kind::plain_sgd ? 0 : momentum;
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double z = g[i] + lambda * p.w[i];
      p.m[i] = mu * p.m[i] + z;
      p.w[i] -= rate * (how.kind == Kind::nesterov ? z + mu * p.m[i] : p.m[i]);
    }
  }
  store(p.w, how.dtype), store(p.m, how.dtype), store(p.v, how.dtype);
}

std::unique_ptr<Optimizer> made(const How& how, const std::vector<Parameter>& all,
                                const std::shared_ptr<Communicator>& ranks) {
  const auto scale =
      how.scale > 0 ? std::optional(LossScale{.initial = how.scale, .interval = 2}) : std::nullopt;
  if (how.kind == Kind::adamw)
    return std::make_unique<AdamW>(all, AdamW::Options{beta1, beta2, eps, decay, how.clip, scale, {}, ranks});
  if (how.kind == Kind::muon)
    return std::make_unique<Muon>(all, Muon::Options{.momentum = momentum,
                                                     .weight_decay = decay,
                                                     .clip = how.clip,
                                                     .beta1 = beta1,
                                                     .beta2 = beta2,
                                                     .eps = eps,
                                                     .iterations = 1,
                                                     .loss_scale = scale,
                                                     .ranks = ranks});
  return std::make_unique<Sgd>(all, Sgd::Options{.momentum = how.kind == Kind::plain_sgd ? 0 : momentum,
                                                 .nesterov = how.kind == Kind::nesterov,
                                                 .weight_decay = decay,
                                                 .clip = how.clip,
                                                 .loss_scale = scale,
                                                 .ranks = ranks});
}

struct StepResult {
  double loss, norm, skipped, overflowed, scale;
};

constexpr int steps = 4, bad_step = 2;

// The state of one rank after all steps.
struct Left {
  std::vector<StepResult> results;
  std::vector<Vector> weights, own_weights, copies;
  std::vector<std::pair<std::string, Vector>> state;
};

// Shapes with sizes near multiples of granule(n).
std::vector<std::pair<std::string, Shape>> shapes(int n) {
  const std::int64_t g = granule(n);
  return {{"matrix", {2 * n, g / (2 * n)}},
          {"wte", {5, g / 5 + 20}},
          {"row", {1, g}},
          {"flat", {g}},  // the pieces of "row" have this shape
          {"gain", {2 * g + 1}},
          {"short", {g - 1}},
          {"bias", {7}}};
}

Left trained(const How& how, int n, const std::vector<Vector>& initial,
             const std::shared_ptr<Communicator>& ranks) {
  nn::Params params(1, how.dtype);
  Graph g;
  std::vector<Tensor> c;
  Tensor loss = full(g, {}, 0, compute_type(how.dtype));
  WeightReading reading;
  std::size_t p = 0;
  for (const auto& [name, shape] : shapes(n)) {
    Parameter w = params.create(name, shape, nn::Init::zeros());
    w.write(Array::of(shape, initial[p]).to(how.dtype));
    c.push_back(g.input("c " + name, shape, how.dtype));
    // All parameters except one have copies. Some weights are read only through their copies.
    const bool has_copy = how.copies != Copies::none && name != "short";
    reading.copies.push_back(has_copy ? Parameter("copy of " + name, w.read().to(how.copy)) : Parameter());
    reading.only_copies.push_back(has_copy && how.copies == Copies::only && name != "bias" && name != "row");
    const Tensor read = g.param(reading.only_copies.back() ? reading.copies.back() : w);
    loss = loss + sum(cast(read, compute_type(how.dtype)) * cast(c.back(), compute_type(how.dtype)));
    ++p;
  }
  if (how.copies == Copies::none) reading.copies.clear();
  if (how.copies != Copies::only) reading.only_copies.clear();
  const auto optimizer = made(how, params.all(), ranks);
  const Optimizer::Update update = optimizer->update(
      loss, c, {.reading = reading, .hoist_collectives = how.early, .norm_of_blocks = how.blocks});
  std::vector<Tensor> fetched{update.loss, update.grad_norm, update.skipped};
  if (how.scale > 0) fetched.push_back(update.overflowed), fetched.push_back(update.loss_scale);
  Program program = compile(g, fetched, {.assign = update.assign, .threads = 1, .ranks = ranks});
  Left left;
  const int rank = ranks ? ranks->rank() : 0;
  for (int t = 0; t < steps; ++t) {
    std::vector<Array> slopes;
    for (std::size_t i = 0; i < c.size(); ++i) {
      Vector s(static_cast<std::size_t>(c[i].numel()));
      for (std::size_t k = 0; k < s.size(); ++k) s[k] = slope(rank, t, i, static_cast<std::int64_t>(k));
      if (t == bad_step && rank == (ranks ? ranks->size() : 1) - 1 && i == 2) s[5] = inf;
      slopes.push_back(Array::of(c[i].shape(), s).to(how.dtype));
    }
    std::vector<Feed> feeds{{update.learning_rate, rate}};
    for (std::size_t i = 0; i < c.size(); ++i) feeds.emplace_back(c[i], slopes[i]);
    program.run(feeds);
    const auto number = [&](const Tensor& x) { return x.defined() ? program.fetch(x).at(0) : 0; };
    left.results.push_back({number(update.loss), number(update.grad_norm), number(update.skipped),
                            number(update.overflowed), number(update.loss_scale)});
  }
  for (const Parameter& w : params.all()) left.own_weights.push_back(doubles(w.read()));
  Graph whole_graph;
  const std::vector<Assign> whole = optimizer->shards().whole_weights(whole_graph, reading);
  if (!whole.empty()) compile(whole_graph, {}, {.assign = whole, .threads = 1, .ranks = ranks}).run();
  for (const Parameter& w : params.all()) left.weights.push_back(doubles(w.read()));
  for (const Parameter& copy : reading.copies)
    left.copies.push_back(copy.key() ? doubles(copy.read()) : Vector());
  const std::vector<Parameter> state = optimizer->whole_state();
  optimizer->gather_state(rank == 1 ? std::vector<Parameter>() : state);
  if (rank != 1)
    for (const Parameter& s : state) left.state.emplace_back(s.name(), doubles(s.read()));
  return left;
}

void expect_near(const Vector& got, const Vector& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(got[i] - expected[i]), tolerance * std::max(1.0, std::abs(expected[i])))
        << what << ", element " << i << ": " << got[i] << ", expected " << expected[i];
}

void check(const How& how, int n) {
  SCOPED_TRACE("kind " + std::to_string(static_cast<int>(how.kind)) + ", " + std::string(name_of(how.dtype)) +
               ", copies " + std::to_string(static_cast<int>(how.copies)) + ", scale " +
               std::to_string(how.scale) + ", " + std::to_string(n) + " ranks");
  std::vector<Plain> plain;
  std::vector<Vector> initial;
  for (const auto& [name, shape] : shapes(n)) {
    Vector w(static_cast<std::size_t>(numel(shape)));
    for (std::size_t i = 0; i < w.size(); ++i)
      w[i] = slope(50, 60, plain.size(), static_cast<std::int64_t>(i));
    initial.push_back(w);
    plain.push_back({name, shape, w, Vector(w.size()), Vector(w.size())});
  }
  std::vector<Left> left(static_cast<std::size_t>(n));
  run_thread_ranks(n, [&](const std::shared_ptr<Communicator>& ranks) {
    left[static_cast<std::size_t>(ranks->rank())] = trained(how, n, initial, n == 1 ? nullptr : ranks);
  });
  // The magnitudes of weights and summed gradients are at most n. Each of 4 steps has up to 30 roundings.
  // Near a tie, a 16-bit number may be rounded in the other direction.
  const double tolerance = how.dtype == f64 ? 1e-12 : how.dtype == f32 ? 2e-4 * rate : 0x1p-6;
  double scale = how.scale, skipped = 0, overflowed = 0;
  int taken = 0, good = 0;
  for (int t = 0; t < steps; ++t) {
    double loss = 0, squares = 0;
    std::vector<Vector> g;
    for (std::size_t p = 0; p < plain.size(); ++p) {
      Vector total(plain[p].w.size());
      for (int r = 0; r < n; ++r)
        for (std::size_t i = 0; i < total.size(); ++i)
          total[i] += slope(r, t, p, static_cast<std::int64_t>(i));
      for (std::size_t i = 0; i < total.size(); ++i) {
        if (how.scale > 0) total[i] /= scale;  // the fed value is the gradient of the scaled loss
        loss += total[i] * (how.scale > 0 ? scale : 1) * plain[p].w[i], squares += total[i] * total[i];
      }
      g.push_back(std::move(total));
    }
    const double norm = std::sqrt(squares);
    if (t == bad_step) {
      ++skipped, good = 0, scale = std::max(1.0, scale / 2);  // the loss is also infinite
    } else {
      const double factor = how.clip > 0 ? how.clip / std::max(norm, how.clip) : 1;
      for (Vector& x : g)
        for (double& e : x) e *= factor;
      ++taken;
      for (std::size_t p = 0; p < plain.size(); ++p) plain_update(how, plain[p], g[p], taken);
      if (++good == 2) good = 0, scale *= 2;
    }
    for (const Left& l : left) {
      const StepResult& r = l.results[static_cast<std::size_t>(t)];
      EXPECT_EQ(r.skipped, skipped) << t;
      EXPECT_EQ(r.overflowed, overflowed) << t;
      if (how.scale > 0) {
        EXPECT_EQ(r.scale, scale) << t;
      }
      if (t == bad_step) {
        EXPECT_FALSE(std::isfinite(r.norm));
        continue;
      }
      EXPECT_NEAR(r.norm / norm, 1, how.dtype == f64 ? 1e-6 : 1e-5) << t;
      const double size = std::max(std::abs(loss), std::sqrt(squares) * n * (how.scale > 0 ? scale * 2 : 1));
      const bool is_rounded = how.dtype == bf16 || how.copies == Copies::only;
      EXPECT_NEAR(r.loss, loss, (is_rounded ? 0x1p-7 : 1e-5) * size) << t;
    }
  }
  const std::int64_t unit = granule(n);
  for (std::size_t rank = 0; rank < left.size(); ++rank) {
    const Left& l = left[rank];
    for (std::size_t p = 0; p < plain.size(); ++p) {
      expect_near(l.weights[p], plain[p].w, tolerance, plain[p].name);
      EXPECT_EQ(l.weights[p], left[0].weights[p]) << "the same bits on all ranks";
      if (!l.copies.empty() && plain[p].name != "short") {
        Vector rounded = l.weights[p];
        store(rounded, how.copy);
        EXPECT_EQ(l.copies[p], rounded) << plain[p].name;
      }
      // If weights are read only through copies, a rank updates only its own pieces of the weights. Later,
      // all pieces are gathered.
      const bool is_taken_whole =
          how.kind == Kind::muon && (plain[p].name == "matrix" || plain[p].name == "row");
      const bool is_only = how.copies == Copies::only && n > 1 && !is_taken_whole &&
                           plain[p].name != "short" && plain[p].name != "bias" && plain[p].name != "row";
      const std::int64_t all = std::ssize(plain[p].w), divided = is_only ? all / unit * unit : 0;
      const std::int64_t piece = divided / n;
      for (std::int64_t i = 0; i < all; ++i) {
        const bool is_other =
            i < divided && i / std::max<std::int64_t>(1, piece) != static_cast<std::int64_t>(rank);
        const auto k = static_cast<std::size_t>(i);
        ASSERT_EQ(l.own_weights[p][k], is_other ? initial[p][k] : l.weights[p][k])
            << plain[p].name << ", element " << i << " on rank " << rank;
      }
    }
    if (rank == 1) continue;  // rank 1 gathered nothing
    std::map<std::string, Vector> state(l.state.begin(), l.state.end());
    for (const Plain& p : plain) {
      const auto expect = [&](const std::string& what, const Vector& moment, bool is_kept) {
        const std::string name = "optimizer." + what + "." + p.name;
        ASSERT_EQ(state.contains(name), is_kept) << name;
        if (is_kept) expect_near(state[name], moment, tolerance * 8, name);
      };
      const bool is_muons = how.kind == Kind::muon && p.shape.size() == 2 && p.name != "wte";
      const bool is_adams = how.kind == Kind::adamw || (how.kind == Kind::muon && !is_muons);
      expect("m", p.m, is_adams), expect("v", p.v, is_adams);
      expect("momentum", p.m, is_muons || how.kind == Kind::sgd || how.kind == Kind::nesterov);
    }
    EXPECT_EQ(state["optimizer.step"], Vector{static_cast<double>(taken)});
    EXPECT_EQ(state["optimizer.skipped"], Vector{skipped});
    EXPECT_EQ(state.contains("optimizer.loss_scale"), how.scale > 0);
    if (how.scale > 0) {
      EXPECT_EQ(state["optimizer.loss_scale"], Vector{scale});
      EXPECT_EQ(state["optimizer.good_steps"], Vector{static_cast<double>(good)});
      EXPECT_EQ(state["optimizer.overflowed"], Vector{overflowed});
    }
  }
}

const Kind kinds[] = {Kind::adamw, Kind::sgd, Kind::nesterov, Kind::plain_sgd, Kind::muon};

TEST(DividedUpdates, EveryOptimizerAndDtypeMatchesLoops) {
  for (const Kind kind : kinds)
    for (const DType dtype : {f64, f32, bf16}) check({.kind = kind, .dtype = dtype}, 3);
}

TEST(DividedUpdates, EveryKindOfCopyIsWritten) {
  for (const Kind kind : kinds) {
    check({.kind = kind, .copies = Copies::all}, 3);
    check({.kind = kind, .copies = Copies::only, .copy = f16}, 3);
  }
  check({.kind = Kind::adamw, .dtype = f64, .copies = Copies::only}, 3);
  check({.kind = Kind::sgd, .copies = Copies::all}, 1);
}

TEST(DividedUpdates, ScalesAndOptionsMatchLoops) {
  for (const Kind kind : {Kind::adamw, Kind::muon}) {
    check({.kind = kind, .scale = 8}, 3);
    check({.kind = kind, .early = true, .clip = 0}, 3);
    check({.kind = kind, .blocks = true, .clip = 1000}, 1);
    check({.kind = kind, .scale = 1}, 1);
  }
}

TEST(DividedUpdates, PowersOfTwoOfRanksMatchLoops) {
  check({.kind = Kind::adamw, .copies = Copies::only, .early = true}, 2);
  check({.kind = Kind::sgd, .dtype = f64}, 4);
}

// The next step uses the restored state. Each rank gets its shards of this state.
TEST(DividedUpdates, ContinueFromAState) {
  constexpr int n = 3;
  std::vector<std::vector<Vector>> kept(n), read(n);
  std::vector<Vector> values;
  run_thread_ranks(n, [&](const std::shared_ptr<Communicator>& ranks) {
    const auto rank = static_cast<std::size_t>(ranks->rank());
    nn::Params params(1, f32);
    for (const auto& [name, shape] : shapes(n)) params.create(name, shape, nn::Init::zeros());
    const AdamW optimizer(params.all(), {.ranks = ranks});
    std::vector<Array> all;
    double next = 1;
    for (const Parameter& p : optimizer.whole_state()) {
      Array a(p.shape(), p.dtype());
      for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, next++);
      all.push_back(a);
    }
    if (rank == 0)
      for (const Array& a : all) values.push_back(doubles(a));
    optimizer.set_state(all);
    for (const Parameter& p : optimizer.state()) kept[rank].push_back(doubles(p.read()));
    const std::vector<Parameter> whole = optimizer.whole_state();
    optimizer.gather_state(whole);
    for (const Parameter& p : whole) read[rank].push_back(doubles(p.read()));
    EXPECT_THROW(optimizer.gather_state({whole[0]}), Error);
    all.pop_back();
    EXPECT_THROW(optimizer.set_state(all), Error);
  });
  const std::int64_t unit = granule(n);
  for (std::size_t rank = 0; rank < n; ++rank) {
    EXPECT_EQ(read[rank], values);
    std::size_t at = 0;
    for (const Vector& v : values) {  // each parameter has m and v, each with a piece and a rest
      const std::int64_t divided = std::ssize(v) / unit * unit;
      if (divided > 0) {
        const std::int64_t piece = divided / n, first = piece * static_cast<std::int64_t>(rank);
        EXPECT_EQ(kept[rank][at++], Vector(v.begin() + first, v.begin() + first + piece));
      }
      if (divided < std::ssize(v)) {
        EXPECT_EQ(kept[rank][at++], Vector(v.begin() + divided, v.end()));
      }
    }
    EXPECT_EQ(at, kept[rank].size());
  }
}

// The piece is larger than the data that ranks share at a time.
TEST(DividedUpdates, LargeStatesAreGatheredInParts) {
  static constexpr std::int64_t piece = Communicator::most_shared / 4 + 16384;
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& ranks) {
    nn::Params params(1);
    params.create("p", {2 * piece + 5}, nn::Init::zeros());
    const AdamW optimizer(params.all(), {.ranks = ranks});
    ASSERT_EQ(optimizer.shards().list()[0].count, piece);
    std::vector<Array> values;
    for (const Parameter& p : optimizer.whole_state()) {
      std::vector<float> numbers(static_cast<std::size_t>(numel(p.shape())));
      std::iota(numbers.begin(), numbers.end(), static_cast<float>(values.size()));
      values.push_back(Array::of<float>(p.shape(), numbers));
    }
    optimizer.set_state(values);
    const std::vector<Parameter> whole = optimizer.whole_state();
    optimizer.gather_state(whole);
    for (std::size_t i = 0; i < whole.size(); ++i)
      EXPECT_TRUE(whole[i].read().same_bits(values[i])) << whole[i].name();
  });
}

// A user's optimizer may create a state for a shard.
TEST(DividedUpdates, StateOfAShardHasItsShape) {
  nn::Params params(1, f64);
  params.create("p", {2 * granule(2) + 3}, nn::Init::zeros()), params.create("q", {2, 3}, nn::Init::zeros());
  const AdamW optimizer(params.all(), {.ranks = std::make_shared<Alone>(1, 2)});
  const std::pair<std::string, Shape> expected[] = {
      {"optimizer.x.p", {granule(2)}}, {"optimizer.x.p", {3}}, {"optimizer.x.q", {2, 3}}};
  for (std::size_t s = 0; s < 3; ++s) {
    const Parameter p = optimizer.zeros_like_shard(s, "x");
    EXPECT_EQ(p.name(), expected[s].first);
    EXPECT_EQ(p.shape(), expected[s].second);
    EXPECT_EQ(p.dtype(), f64);
  }
  for (const std::size_t s : {std::size_t{3}, SIZE_MAX})
    expect_error<Error>([&] { optimizer.zeros_like_shard(s, "x"); },
                        {"there is no shard " + std::to_string(s) + " among 3"});
}

}  // namespace
}  // namespace tg::optim

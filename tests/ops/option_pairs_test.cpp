// Tests losses, norms, rope, sample and the random ops. Uses each single option, pairs of options, and two
// calls of one graph. Values and gradients are compared with loops in f64.
#include "tests/support/option_pairs.h"

#include <tilegrad/core/base/rng.h>
#include <tilegrad/ops/linear_cross_entropy.h>
#include "tests/support/op_testing.h"

namespace tg {

auto fields_of(const CrossEntropyOptions& o) {
  const auto& [ignore_index, reduction, label_smoothing] = o;
  return std::tie(ignore_index, reduction, label_smoothing);
}
auto fields_of(const LinearCrossEntropyOptions& o) {
  const auto& [ignore_index, reduction, label_smoothing, z_loss, chunk_rows, unit_rows] = o;
  return std::tie(ignore_index, reduction, label_smoothing, z_loss, chunk_rows, unit_rows);
}
auto fields_of(const RopeOptions& o) {
  const auto& [theta, dims, interleaved, start, frequencies] = o;
  return std::tie(theta, dims, interleaved, start, frequencies);
}

namespace {

using namespace testing;

void add(Vector& to, const Vector& x) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += x[i];
}

// Sets the options of both rows. If the rows are the same, sets the options of one row.
template <class O>
O both(const std::vector<void (*)(O&)>& rows, std::size_t a, std::size_t b) {
  O o;
  rows[a](o);
  if (a != b) rows[b](o);
  return o;
}

// Calls check(options of the calls) for each single row and each pair in one call. Then does the same for
// pairs in two calls.
template <class O, class F>
void check_pairs(const std::vector<void (*)(O&)>& rows, F check) {
  each_pair(rows.size(), [&](std::size_t a, std::size_t b) {
    SCOPED_TRACE("rows " + std::to_string(a) + " and " + std::to_string(b));
    check(std::vector<O>{both(rows, a, b)});
    check(std::vector<O>{both(rows, a, a), both(rows, b, b)});
  });
}

// Computes the losses of rows of logits, and the gradient of Σ factors ⊛ loss.
struct PlainLoss {
  Vector loss, z;
};
PlainLoss plain_loss(const Vector& logits, std::size_t V, const std::vector<std::int64_t>& targets,
                     const LinearCrossEntropyOptions& o, const Vector& factors) {
  double counted = 0;
  for (const std::int64_t t : targets) counted += t != o.ignore_index;
  PlainLoss all{{}, Vector(logits.size(), 0.0)};
  const double each = o.reduction == Reduction::mean ? 1 / std::max(counted, 1.0) : 1;
  for (std::size_t r = 0; r < targets.size(); ++r) {
    const double* x = &logits[r * V];
    const double top = *std::max_element(x, x + V);
    double sum = 0, mean = 0;
    for (std::size_t i = 0; i < V; ++i) sum += std::exp(x[i] - top), mean += x[i] / static_cast<double>(V);
    const double lse = top + std::log(sum);
    if (targets[r] == o.ignore_index) {
      all.loss.push_back(0);
      continue;
    }
    const auto t = static_cast<std::size_t>(targets[r]);
    all.loss.push_back(lse - (1 - o.label_smoothing) * x[t] - o.label_smoothing * mean +
                       o.z_loss * lse * lse);
    for (std::size_t i = 0; i < V; ++i)
      all.z[r * V + i] = each * (o.reduction == Reduction::none ? factors[r] : factors[0]) *
                         (std::exp(x[i] - lse) * (1 + 2 * o.z_loss * lse) -
                          (1 - o.label_smoothing) * (i == t) - o.label_smoothing / static_cast<double>(V));
  }
  if (o.reduction == Reduction::none) return all;
  double sum = 0;
  for (const double e : all.loss) sum += each * e;
  all.loss = {sum};
  return all;
}

constexpr std::size_t loss_rows = 230, width = 5, classes = 7;  // more than three units of 64 rows

// Makes targets. Some of them are ignored.
std::vector<std::int64_t> targets_for(std::int64_t ignore_index) {
  std::vector<std::int64_t> t;
  for (std::size_t r = 0; r < loss_rows; ++r) t.push_back(static_cast<std::int64_t>(r * 5 % classes));
  if (ignore_index < 0)
    for (const std::size_t r : {std::size_t{1}, std::size_t{70}, loss_rows - 1}) t[r] = ignore_index;
  return t;
}

// Returns the sum of a loss's elements. Each element is multiplied by a different factor.
Tensor with_factors(const Tensor& loss, const Vector& factors) {
  Vector some(factors.begin(), factors.begin() + loss.numel());
  return sum(loss * loss.graph().constant(Array::of(loss.shape(), some).to(loss.dtype())));
}

// In the dtype, results are sums of at most n + V terms of about 2.
double loss_tolerance(DType dtype) {
  return 2 * (loss_rows + classes) * rounding(dtype);
}

void check_linear_losses(const std::vector<LinearCrossEntropyOptions>& calls, DType dtype) {
  Graph g;
  const Given x = given(g, {loss_rows, width}, dtype, View::contiguous, 1, -2, 2),
              w = given(g, {width, classes}, dtype, View::contiguous, 2, -2, 2);
  Vector logits(loss_rows * classes), z_x(loss_rows * width), z_w(width * classes);
  for (std::size_t r = 0; r < loss_rows; ++r)
    for (std::size_t i = 0; i < classes; ++i)
      for (std::size_t k = 0; k < width; ++k)
        logits[r * classes + i] += x.values[r * width + k] * w.values[k * classes + i];
  std::vector<Tensor> results;
  std::vector<Vector> expected;
  std::vector<Feed> feeds{x.feed(), w.feed()};
  Tensor total;
  for (std::size_t c = 0; c < calls.size(); ++c) {
    const Tensor t = g.input("targets" + std::to_string(c), {loss_rows}, i64);
    const auto targets = targets_for(calls[c].ignore_index);
    feeds.emplace_back(t, Array::of(targets));
    const Vector factors = random_vector(loss_rows, 40 + c);
    const Tensor loss = linear_cross_entropy(x.tensor, w.tensor, t, calls[c]);
    results.push_back(loss);
    total = c == 0 ? with_factors(loss, factors) : total + with_factors(loss, factors);
    const PlainLoss plain = plain_loss(logits, classes, targets, calls[c], factors);
    expected.push_back(plain.loss);
    for (std::size_t r = 0; r < loss_rows; ++r)
      for (std::size_t i = 0; i < classes; ++i)
        for (std::size_t k = 0; k < width; ++k) {
          z_x[r * width + k] += plain.z[r * classes + i] * w.values[k * classes + i];
          z_w[k * classes + i] += plain.z[r * classes + i] * x.values[r * width + k];
        }
  }
  expected.insert(expected.end(), {z_x, z_w});
  for (const Tensor& z : gradients(total, {x.tensor, w.tensor})) results.push_back(z);
  const auto got = run_checked(results, feeds);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(close(doubles(got[i]), expected[i], loss_tolerance(dtype))) << "result " << i;
}

const std::vector<void (*)(LinearCrossEntropyOptions&)> linear_losses = {
    [](auto& o) { o.ignore_index = 3; },
    [](auto& o) { o.reduction = Reduction::sum; },
    [](auto& o) { o.reduction = Reduction::none; },
    [](auto& o) { o.label_smoothing = 0.2; },
    [](auto& o) { o.z_loss = 0.03; },
    [](auto& o) { o.chunk_rows = 64; },
    [](auto& o) { o.unit_rows = 64; },
    // Chunks consist of units. Three units are followed by a longer last unit.
    [](auto& o) { o.chunk_rows = 1, o.unit_rows = 64; },
};

TEST(LossPairs, LinearCrossEntropyMatchesLoops) {
  using O = LinearCrossEntropyOptions;
  expect_each_field_is_set(linear_losses.size(), [](std::size_t i) { return both(linear_losses, i, i); });
  for (const DType dtype : {f64, f32})
    check_pairs<O>(linear_losses, [&](const std::vector<O>& calls) { check_linear_losses(calls, dtype); });
}

void check_losses(const std::vector<CrossEntropyOptions>& calls, DType dtype) {
  Graph g;
  const Given x = given(g, {loss_rows, classes}, dtype, View::contiguous, 1, -8, 8);
  std::vector<Tensor> results;
  std::vector<Vector> expected;
  std::vector<Feed> feeds{x.feed()};
  Tensor total;
  Vector z(loss_rows * classes);
  for (std::size_t c = 0; c < calls.size(); ++c) {
    const auto& [ignore_index, reduction, label_smoothing] = calls[c];
    const Tensor t = g.input("targets" + std::to_string(c), {loss_rows}, i64);
    const auto targets = targets_for(ignore_index);
    feeds.emplace_back(t, Array::of(targets));
    const Vector factors = random_vector(loss_rows, 40 + c);
    const Tensor loss = cross_entropy(x.tensor, t, calls[c]);
    results.push_back(loss);
    total = c == 0 ? with_factors(loss, factors) : total + with_factors(loss, factors);
    const PlainLoss plain = plain_loss(
        x.values, classes, targets,
        {.ignore_index = ignore_index, .reduction = reduction, .label_smoothing = label_smoothing}, factors);
    expected.push_back(plain.loss);
    add(z, plain.z);
  }
  expected.push_back(z);
  results.push_back(gradients(total, {x.tensor})[0]);
  const auto got = run_checked(results, feeds);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(close(doubles(got[i]), expected[i], 4 * loss_tolerance(dtype))) << "result " << i;  // |x| ≤ 8
}

const std::vector<void (*)(CrossEntropyOptions&)> losses = {
    [](auto& o) { o.ignore_index = 3; },
    [](auto& o) { o.reduction = Reduction::sum; },
    [](auto& o) { o.reduction = Reduction::none; },
    [](auto& o) { o.label_smoothing = 0.2; },
};

TEST(LossPairs, CrossEntropyMatchesLoops) {
  using O = CrossEntropyOptions;
  expect_each_field_is_set(losses.size(), [](std::size_t i) { return both(losses, i, i); });
  for (const DType dtype : {f64, f32})
    check_pairs<O>(losses, [&](const std::vector<O>& calls) { check_losses(calls, dtype); });
}

// Tests layer_norm or rms_norm with optional operands.
struct NormCall {
  bool is_rms = false, weight = false, bias = false;
  double eps = 0;  // 0: the default is used
};
const std::vector<void (*)(NormCall&)> norms = {
    [](NormCall& c) { c.is_rms = true; },
    [](NormCall& c) { c.weight = true; },
    [](NormCall& c) { c.bias = true; },
    [](NormCall& c) { c.eps = 0.5; },
    [](NormCall& c) { c.weight = c.bias = true, c.eps = 0.5; },
    [](NormCall& c) { c.is_rms = c.weight = true, c.eps = 0.5; },
};

struct PlainNorm {
  Vector y, z_x, z_w, z_b;
};
PlainNorm plain_norm(const NormCall& c, const Vector& x, const Vector& w, const Vector& b, const Vector& z) {
  const std::size_t n = w.size();
  PlainNorm all{Vector(x.size()), Vector(x.size()), Vector(n), Vector(n)};
  for (std::size_t row = 0; row < x.size(); row += n) {
    double mean = 0, squares = 0, g_mean = 0, g_x = 0;
    for (std::size_t i = 0; i < n; ++i) mean += c.is_rms ? 0 : x[row + i] / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i)
      squares += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(n);
    const double rate = 1 / std::sqrt(squares + (c.eps > 0 ? c.eps : c.is_rms ? 1e-6 : 1e-5));
    const auto scaled = [&](std::size_t i) { return (x[row + i] - mean) * rate; };
    const auto g = [&](std::size_t i) { return z[row + i] * (c.weight ? w[i] : 1); };
    for (std::size_t i = 0; i < n; ++i)
      g_mean += g(i) / static_cast<double>(n), g_x += g(i) * scaled(i) / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) {
      all.y[row + i] = scaled(i) * (c.weight ? w[i] : 1) + (c.bias ? b[i] : 0);
      all.z_x[row + i] = rate * (g(i) - (c.is_rms ? 0 : g_mean) - scaled(i) * g_x);
      all.z_w[i] += z[row + i] * scaled(i), all.z_b[i] += z[row + i];
    }
  }
  return all;
}

// All calls share x. If they have a weight or a bias, they also share it.
void check_norms(const std::vector<NormCall>& calls) {
  Graph g;
  const std::int64_t rows = 6, n = 21;
  for (const NormCall& c : calls) {
    if (c.is_rms && c.bias) return;  // rms_norm has no bias
    if (!c.bias || c.weight) continue;
    const Tensor x = g.input("x", {rows, n}), b = g.input("b", {n});
    expect_error<Error>([&] { layer_norm(x, {}, b, 0.5); }, {"[layer_norm]", "a bias needs a weight"});
    return;
  }
  const Given x = given(g, {rows, n}, f64, View::contiguous, 1), w = given(g, {n}, f64, View::contiguous, 2),
              b = given(g, {n}, f64, View::contiguous, 3);
  std::vector<Tensor> results, wrt{x.tensor};
  std::vector<Vector> expected;
  Vector z_x(x.values.size()), z_w(w.values.size()), z_b(w.values.size());
  Tensor total;
  bool has_weight = false, has_bias = false;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const NormCall& c = calls[i];
    const TensorArg weight = c.weight ? TensorArg(w.tensor) : TensorArg{},
                    bias = c.bias ? TensorArg(b.tensor) : TensorArg{};
    results.push_back(c.is_rms ? (c.eps > 0 ? rms_norm(x.tensor, weight, c.eps) : rms_norm(x.tensor, weight))
                      : c.eps > 0 ? layer_norm(x.tensor, weight, bias, c.eps)
                                  : layer_norm(x.tensor, weight, bias));
    const Vector z = random_vector(x.values.size(), 50 + i);
    total = i == 0 ? with_factors(results.back(), z) : total + with_factors(results.back(), z);
    const PlainNorm plain = plain_norm(c, x.values, w.values, b.values, z);
    expected.push_back(plain.y);
    add(z_x, plain.z_x);
    if (c.weight) add(z_w, plain.z_w), has_weight = true;
    if (c.bias) add(z_b, plain.z_b), has_bias = true;
  }
  expected.push_back(z_x);
  if (has_weight) wrt.push_back(w.tensor), expected.push_back(z_w);
  if (has_bias) wrt.push_back(b.tensor), expected.push_back(z_b);
  for (const Tensor& z : gradients(total, wrt)) results.push_back(z);
  const auto got = run_checked(results, {x.feed(), w.feed(), b.feed()});
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(close(doubles(got[i]), expected[i], 1e-13)) << "result " << i;
}

TEST(NormPairs, AgreeWithLoops) {
  check_pairs<NormCall>(norms, check_norms);
}

struct RopeCall {
  RopeOptions o = {};
  bool positions = false;
};
const std::vector<void (*)(RopeCall&)> ropes = {
    [](RopeCall& c) { c.o.theta = 50; },
    [](RopeCall& c) { c.o.dims = 4; },
    [](RopeCall& c) { c.o.interleaved = true; },
    [](RopeCall& c) { c.o.start = 11; },
    [](RopeCall& c) {
      c.o.frequencies = {0.3, 2, 0.01};
    },
    [](RopeCall& c) { c.positions = true; },
};

void check_ropes(const std::vector<RopeCall>& calls) {
  Graph g;
  const std::int64_t heads = 2, length = 5, d = 8;
  const Given x = given(g, {heads, length, d});
  const std::vector<std::int64_t> given_positions{7, 0, 100, 3, 3};
  const Tensor at = g.input("positions", {length}, i64);
  std::vector<Tensor> results;
  std::vector<Vector> expected;
  Tensor total;
  Vector z_x(x.values.size());
  for (std::size_t c = 0; c < calls.size(); ++c) {
    const RopeOptions& o = calls[c].o;
    results.push_back(calls[c].positions ? rope(x.tensor, at, o) : rope(x.tensor, {}, o));
    const Vector z = random_vector(x.values.size(), 60 + c);
    total = c == 0 ? with_factors(results.back(), z) : total + with_factors(results.back(), z);
    const std::int64_t dims = o.dims == 0 ? d : o.dims;
    Vector f = o.frequencies, y = x.values, back = z;
    if (f.empty())
      for (std::int64_t i = 0; i < dims / 2; ++i)
        f.push_back(std::pow(o.theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims)));
    for (std::size_t row = 0; row < static_cast<std::size_t>(heads * length); ++row)
      for (std::size_t i = 0; i < f.size(); ++i) {
        const auto l = static_cast<std::int64_t>(row) % length;
        const double position = static_cast<double>(
                         calls[c].positions ? given_positions[static_cast<std::size_t>(l)] : o.start + l),
                     cosine = std::cos(position * f[i]), sine = std::sin(position * f[i]);
        const std::size_t a = row * d + (o.interleaved ? 2 * i : i),
                          b = row * d + (o.interleaved ? 2 * i + 1 : i + f.size());
        y[a] = x.values[a] * cosine - x.values[b] * sine, y[b] = x.values[a] * sine + x.values[b] * cosine;
        back[a] = z[a] * cosine + z[b] * sine, back[b] = z[b] * cosine - z[a] * sine;
      }
    expected.push_back(y);
    add(z_x, back);
  }
  expected.push_back(z_x);
  results.push_back(gradients(total, {x.tensor})[0]);
  const auto got = run_checked(results, {x.feed(), {at, given_positions}});
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(close(doubles(got[i]), expected[i], 1e-12)) << "result " << i;
}

TEST(RopePairs, AgreeWithLoops) {
  expect_each_field_is_set(ropes.size(), [](std::size_t i) { return both(ropes, i, i).o; });
  check_pairs<RopeCall>(ropes, check_ropes);
}

// The form in which a setting of sample is given.
enum class As { absent, number, tensor, narrow_tensor };  // narrow: i32 or f32
struct SampleCall {
  As temperature = As::absent, top_k = As::absent, top_p = As::absent;
  std::int64_t keys = 0;  // key of the first row
};
const std::vector<void (*)(SampleCall&)> samples = {
    [](SampleCall&) {},
    [](SampleCall& c) { c.temperature = As::number; },
    [](SampleCall& c) { c.temperature = As::tensor; },
    [](SampleCall& c) { c.temperature = As::narrow_tensor; },
    [](SampleCall& c) { c.top_k = As::number; },
    [](SampleCall& c) { c.top_k = As::tensor; },
    [](SampleCall& c) { c.top_k = As::narrow_tensor; },
    [](SampleCall& c) { c.top_p = As::number; },
    [](SampleCall& c) { c.top_p = As::tensor; },
    [](SampleCall& c) { c.top_p = As::narrow_tensor; },
    [](SampleCall& c) { c.keys = 1000; },
};

// Returns the token at quantile u in the distribution of the kept logits. Tokens are in ascending order.
std::int32_t plain_sample(const Vector& logits, double temperature, std::int64_t top_k, double top_p,
                          double u) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(top_k)));
  const double best = logits[order[0]];
  const auto weight = [&](std::size_t i) { return std::exp((logits[i] - best) / temperature); };
  double total = 0, kept = 0;
  for (const std::size_t i : order) total += weight(i);
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < top_p * total)) kept += weight(order[count++]);
  order.resize(count);
  std::ranges::sort(order);
  double reached = 0;
  for (const std::size_t i : order)
    if ((reached += weight(i)) > u * kept) return static_cast<std::int32_t>(i);
  return static_cast<std::int32_t>(order.back());
}

void check_samples(const std::vector<SampleCall>& calls) {
  Graph g;
  const std::int64_t rows = 40, V = 13;
  const Given logits = given(g, {rows, V}, f64, View::contiguous, 5, -2, 2);
  std::vector<Feed> feeds{logits.feed()};
  std::vector<Tensor> drawn;
  std::vector<std::vector<std::int32_t>> expected;
  for (const SampleCall& c : calls) {
    const std::string call = std::to_string(drawn.size());
    // Returns the settings of row r. A tensor has a separate value for each row.
    const auto temperature = [&](std::int64_t r) {
      return c.temperature == As::absent   ? 1
             : c.temperature == As::number ? 0.5
                                           : 0.25 * static_cast<double>(1 + r % 5);
    };
    const auto top_k = [&](std::int64_t r) {
      return c.top_k == As::absent ? 0 : c.top_k == As::number ? 4 : r % 6;
    };
    const auto top_p = [&](std::int64_t r) {
      return c.top_p == As::absent   ? 1
             : c.top_p == As::number ? 0.75
                                     : 0.125 * static_cast<double>(1 + r % 8);
    };
    const auto setting = [&](const char* name, As as, DType wide, DType narrow, auto value) -> TensorArg {
      if (as == As::absent) return {};
      if (as == As::number) return static_cast<double>(value(0));
      Array all({rows}, as == As::tensor ? wide : narrow);
      for (std::int64_t r = 0; r < rows; ++r) all.set(r, static_cast<double>(value(r)));
      const Tensor t = g.input(name + call, {rows}, all.dtype());
      feeds.emplace_back(t, all);
      return t;
    };
    std::vector<std::int64_t> keys;
    for (std::int64_t r = 0; r < rows; ++r) keys.insert(keys.end(), {c.keys + r / 2, r % 2});
    const Tensor key = g.input("keys" + call, {rows, 2}, i64);
    feeds.emplace_back(key, Array::of({rows, 2}, keys));
    drawn.push_back(sample(logits.tensor, setting("temperature", c.temperature, f64, f32, temperature), key,
                           setting("top_k", c.top_k, i64, i32, top_k),
                           setting("top_p", c.top_p, f64, f32, top_p)));
    expected.emplace_back();
    for (std::int64_t r = 0; r < rows; ++r) {
      const PhiloxBlock words = philox({}, node_key(static_cast<std::uint64_t>(c.keys + r / 2),
                                                    static_cast<std::uint64_t>(r % 2), 0xffffff01u));
      const auto first = logits.values.begin() + r * V;
      expected.back().push_back(
          plain_sample({first, first + V}, temperature(r), top_k(r), top_p(r), uniform(words[0], words[1])));
    }
  }
  const auto got = run_checked(drawn, feeds);
  for (std::size_t c = 0; c < calls.size(); ++c)
    EXPECT_EQ(got[c].values<std::int32_t>(), expected[c]) << "call " << c;
}

TEST(SamplePairs, DrawTheTokensOfLoops) {
  check_pairs<SampleCall>(samples, check_samples);
}

// Two nodes of one graph with the same op and options draw different numbers.
TEST(RandomPairs, TwoNodesOfAGraphDrawDifferentNumbers) {
  const std::pair<const char*, Tensor (*)(Graph&)> ops[] = {
      {"dropout", [](Graph& g) { return dropout(full(g, {64}, 1), 0.5); }},
      {"uniform", [](Graph& g) { return uniform(g, {64}); }},
      {"normal", [](Graph& g) { return normal(g, {64}); }},
      {"bernoulli", [](Graph& g) { return bernoulli(g, {64}, 0.5); }},
      {"randint", [](Graph& g) { return randint(g, {64}, 0, 1000); }},
  };
  for (const auto& [name, op] : ops) {
    Graph g;
    const std::vector<Tensor> nodes{op(g), op(g), op(g)};
    const auto got = run_checked(nodes, {});
    for (std::size_t i = 0; i < nodes.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        EXPECT_FALSE(got[i].same_bits(got[k])) << name << " " << k << " and " << i;
  }
}

// Each dropout of a graph has a different mask. Its gradient uses the same mask.
TEST(RandomPairs, EachDropoutHasItsOwnMaskForwardAndBackward) {
  Graph g;
  const Given x = given(g, {200}, f64, View::contiguous, 1, 1, 2);
  const std::vector<std::pair<double, bool>> calls{
      {0.25, true}, {0.5, true}, {0.5, true}, {0.5, false}, {0, true}};
  std::vector<Tensor> results;
  for (const auto& [p, training] : calls) results.push_back(dropout(x.tensor, p, training));
  Tensor total;
  for (std::size_t c = 0; c < calls.size(); ++c)
    total = c == 0 ? results[c] : total + static_cast<double>(1 << c) * results[c];
  results.push_back(gradients(sum(total), {x.tensor})[0]);
  const auto got = run_checked(results, {x.feed()});
  Vector z(x.values.size());
  for (std::size_t c = 0; c < calls.size(); ++c)
    for (std::size_t i = 0; i < z.size(); ++i) {
      const double y = got[c].at(static_cast<std::int64_t>(i)),
                   kept = calls[c].second ? 1 / (1 - calls[c].first) : 1;
      const bool drops = calls[c].second && calls[c].first > 0;
      if (y != 0 || !drops) {
        EXPECT_NEAR(y, kept * x.values[i], 1e-15 * y);
      }
      z[i] += static_cast<double>(1 << c) * (y == 0 ? 0 : kept);
    }
  EXPECT_TRUE(close(doubles(got.back()), z, 1e-15));
}

}  // namespace
}  // namespace tg

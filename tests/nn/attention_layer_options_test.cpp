// Compares every option of the attention layers with plain f64 code. Each option is tested in a single call,
// with a contiguous cache, and with a paged cache.
#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/ops/flash_attn.h>
#include <tilegrad/tilegrad.h>
#include "tests/reference/reference_checks.h"

namespace {

using namespace tg;
using namespace tg::nn;
using Vector = std::vector<double>;
using Rows = std::vector<Vector>;
using Grouped = GroupedAttention::Options;
using Latent = LatentAttention::Options;
using QueryKeyNorm = GroupedAttention::QueryKeyNorm;

constexpr std::int64_t width = 12, heads = 4, length = 6;

struct Weights {
  Params params{3, f64};
  // Makes all numbers of all parameters distinct, including biases and gains.
  void fill() {
    double n = 0;
    for (Parameter p : params.all()) {
      Array a = p.read();
      for (std::int64_t i = 0; i < a.numel(); ++i)
        a.set(i, 0.9 * std::sin(++n * 1.7) + (p.shape().size() == 1 ? 0.5 : 0));
      p.write(a);
    }
  }
  bool has(const std::string& name) const { return params.find("attn." + name); }
  Vector values(const std::string& name) const {
    return params.find("attn." + name)->read().values<double>();
  }
  // Computes x·Wᵀ + b.
  Rows linear(const Rows& x, const std::string& name) const {
    const Vector w = values(name + ".weight");
    const std::size_t in = x[0].size(), out = w.size() / in;
    const Vector b = has(name + ".bias") ? values(name + ".bias") : Vector(out, 0);
    Rows y;
    for (const Vector& row : x) {
      y.emplace_back(b);
      for (std::size_t o = 0; o < out; ++o)
        for (std::size_t i = 0; i < in; ++i) y.back()[o] += row[i] * w[o * in + i];
    }
    return y;
  }
};

Vector normalized(Vector x, const Vector& gain, double eps, double plus) {
  double square = 0;
  for (const double e : x) square += e * e;
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] *= (gain[i] + plus) / std::sqrt(square / double(x.size()) + eps);
  return x;
}

// Rotates the first 2·ω.size() numbers by position·ω.
Vector rotated(Vector x, double position, const Vector& omega, bool interleaved) {
  for (std::size_t i = 0; i < omega.size(); ++i) {
    const std::size_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + omega.size();
    const double angle = position * omega[i], u = x[a], v = x[b];
    x[a] = u * std::cos(angle) - v * std::sin(angle);
    x[b] = u * std::sin(angle) + v * std::cos(angle);
  }
  return x;
}

Vector powers_of(double theta, std::int64_t dims) {
  Vector omega;
  for (std::int64_t i = 0; i < dims / 2; ++i) omega.push_back(std::pow(theta, -2 * double(i) / double(dims)));
  return omega;
}

Vector part(const Vector& v, std::int64_t begin, std::int64_t n) {
  return {v.begin() + begin, v.begin() + begin + n};
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Computes the softmax of the scores of the last `window` keys up to t. Multiplies it by the values.
Vector attended(const std::function<double(std::size_t)>& score,
                const std::function<Vector(std::size_t)>& value, std::size_t t, std::int64_t window) {
  const std::size_t first =
      window > 0 && static_cast<std::int64_t>(t) >= window ? t + 1 - static_cast<std::size_t>(window) : 0;
  Vector o;
  double sum = 0;
  for (std::size_t j = first; j <= t; ++j) {
    const double p = std::exp(score(j));
    const Vector v = value(j);
    o.resize(v.size());
    for (std::size_t i = 0; i < v.size(); ++i) o[i] += p * v[i];
    sum += p;
  }
  for (double& e : o) e /= sum;
  return o;
}

Rows plain_grouped(const Weights& w, const Rows& x, const Grouped& o) {
  const std::int64_t d = o.head_width == 0 ? width / heads : o.head_width,
                     keys = o.key_heads == 0 ? heads : o.key_heads;
  Vector omega = o.rope.frequencies;
  if (omega.empty()) omega = powers_of(o.rope.theta, o.rope.dims == 0 ? d : o.rope.dims);
  if (!o.rotate) omega.clear();
  const Rows q = w.linear(x, "q_proj"), k = w.linear(x, "k_proj"), v = w.linear(x, "v_proj");
  const auto head = [&](const Rows& all, const char* norm, std::size_t t, std::int64_t h) {
    Vector row = all[t];
    if (o.qk_norm == QueryKeyNorm::whole)
      row = normalized(row, w.values(norm + std::string(".weight")), o.eps, o.plus_one ? 1 : 0);
    row = part(row, h * d, d);
    if (o.qk_norm == QueryKeyNorm::head)
      row = normalized(row, w.values(norm + std::string(".weight")), o.eps, o.plus_one ? 1 : 0);
    return rotated(row, double(t), omega, o.rope.interleaved);
  };
  const double scale = o.scale == 0 ? 1 / std::sqrt(double(d)) : o.scale, a = o.rotate ? o.magnitude : 1;
  Rows y;
  for (std::size_t t = 0; t < x.size(); ++t) {
    y.emplace_back();
    for (std::int64_t h = 0; h < heads; ++h) {
      const Vector query = head(q, "q_norm", t, h);
      const std::int64_t of = h / (heads / keys);
      const auto score = [&](std::size_t j) {
        const Vector key = head(k, "k_norm", j, of);
        const auto n = static_cast<std::int64_t>(2 * omega.size());
        const double s = scale * (a * a * dot(part(query, 0, n), part(key, 0, n)) +
                                  dot(part(query, n, d - n), part(key, n, d - n)));
        return o.softcap == 0 ? s : o.softcap * std::tanh(s / o.softcap);
      };
      const Vector out = attended(
          score, [&](std::size_t j) { return part(v[j], of * d, d); }, t, o.window);
      y.back().insert(y.back().end(), out.begin(), out.end());
    }
  }
  return w.linear(y, "o_proj");
}

Rows plain_latent(const Weights& w, const Rows& x, const Latent& o) {
  const std::int64_t d = o.head_width == 0 ? width / heads : o.head_width,
                     dv = o.value_width == 0 ? d : o.value_width, p = o.rope_width, m = o.latent;
  const Vector omega = o.frequencies.empty() ? powers_of(o.theta, p) : o.frequencies;
  Rows q = w.linear(x, o.query_latent == 0 ? "q_proj" : "q_a_proj");
  if (o.query_latent > 0) {
    for (Vector& row : q) row = normalized(row, w.values("q_a_layernorm.weight"), o.eps, 0);
    q = w.linear(q, "q_b_proj");
  }
  const Rows a = w.linear(x, "kv_a_proj_with_mqa");
  Rows z, k_rope;
  for (std::size_t t = 0; t < x.size(); ++t) {
    z.push_back(normalized(part(a[t], 0, m), w.values("kv_a_layernorm.weight"), o.eps, 0));
    k_rope.push_back(rotated(part(a[t], m, p), double(t), omega, o.interleaved));
  }
  const Rows kv = w.linear(z, "kv_b_proj");
  const double scale = o.scale == 0 ? 1 / std::sqrt(double(d + p)) : o.scale;
  Rows y;
  for (std::size_t t = 0; t < x.size(); ++t) {
    y.emplace_back();
    for (std::int64_t h = 0; h < heads; ++h) {
      const Vector own = part(q[t], h * (d + p), d),
                   turning = rotated(part(q[t], h * (d + p) + d, p), double(t), omega, o.interleaved);
      const auto score = [&](std::size_t j) {
        return scale *
               (dot(own, part(kv[j], h * (d + dv), d)) + o.magnitude * o.magnitude * dot(turning, k_rope[j]));
      };
      const Vector out = attended(
          score, [&](std::size_t j) { return part(kv[j], h * (d + dv) + d, dv); }, t, 0);
      y.back().insert(y.back().end(), out.begin(), out.end());
    }
  }
  return w.linear(y, "o_proj");
}

Rows some_rows(std::uint64_t seed, std::int64_t n = length) {
  const Vector all = reference::random_vector(static_cast<std::size_t>(n * width), seed);
  Rows x;
  for (std::int64_t t = 0; t < n; ++t) x.push_back(part(all, t * width, width));
  return x;
}

Vector joined(const std::vector<Rows>& all) {
  Vector v;
  for (const Rows& rows : all)
    for (const Vector& row : rows) v.insert(v.end(), row.begin(), row.end());
  return v;
}

Rows piece(const Rows& x, std::int64_t begin, std::int64_t end) {
  return {x.begin() + begin, x.begin() + end};
}

void expect_close(const Vector& got, const Vector& expected, const std::string& what) {
  EXPECT_TRUE(reference::close(got, expected, 1e-11)) << what;
}

// Checks the layer on two sequences, without a cache and with both kinds of caches.
void expect_everywhere(const Module& layer, const Rows& a, const Rows& b, const Rows& of_a, const Rows& of_b,
                       const std::string& what) {
  {
    Graph g;
    const Tensor x = g.input("x", {2, length, width}, f64), r = g.input("r", {2, length, width}, f64);
    const Vector rest = reference::random_vector(2 * length * width, 9);
    const auto y =
        eval({layer(x), layer(x, {.mode = Mode::train, .residual = r})}, {{x, joined({a, b})}, {r, rest}});
    Vector expected = joined({of_a, of_b});
    expect_close(y[0].values<double>(), expected, what);
    for (std::size_t i = 0; i < rest.size(); ++i) expected[i] += rest[i];
    expect_close(y[1].values<double>(), expected, what + ", with a residual");
  }
  KvCache whole(2, length);
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 3}, {3, 4}, {4, 6}}) {
    Graph g;
    CacheCall call(g, whole, end - begin);
    const Tensor x = g.input("x", {2, end - begin, width}, f64), y = layer(x, {.cache = &call});
    Program program = compile(g, {y}, {.assign = call.assign()});
    program.run({{x, joined({piece(a, begin, end), piece(b, begin, end)})},
                 {call.cached(), std::vector<std::int32_t>(2, static_cast<std::int32_t>(begin))}});
    expect_close(program.fetch(y).values<double>(),
                 joined({piece(of_a, begin, end), piece(of_b, begin, end)}),
                 what + ", after " + std::to_string(begin) + " tokens");
  }
  // Pages have two tokens. Sequence a has pages 5, 1, 6, and sequence b has pages 2, 7, 0.
  KvCache paged(8, 2);
  const std::vector<std::int32_t> pages_a{5, 1, 6}, pages_b{2, 7, 0};
  struct Step {
    CacheCall::InPages call;
    std::vector<std::pair<bool, std::int64_t>> rows;     // whether the row belongs to b; index of its token
    std::vector<std::pair<bool, std::int32_t>> entries;  // whether the row belongs to b; tokens so far
  };
  const Step steps[] = {{{.groups = 2, .length = 3, .room = 3},
                         {{false, 0}, {false, 1}, {false, 2}, {true, 0}, {true, 1}, {true, 2}},
                         {{false, 3}, {true, 3}}},
                        {{.singles = 1, .groups = 1, .length = 2, .room = 3},
                         {{true, 3}, {false, 3}, {false, 4}},
                         {{true, 4}, {false, 5}}},
                        {{.singles = 2, .room = 3}, {{true, 4}, {false, 5}}, {{true, 5}, {false, 6}}},
                        {{.singles = 1, .room = 3}, {{true, 5}}, {{true, 6}}}};
  for (const Step& step : steps) {
    Graph g;
    CacheCall call(g, paged, step.call);
    const auto n = std::ssize(step.rows);
    const Tensor x = g.input("x", {n, 1, width}, f64), y = layer(x, {.cache = &call});
    std::vector<std::int32_t> rows, positions, lengths, table;
    Rows in, expected;
    for (const auto& [of_b_too, t] : step.rows) {
      rows.push_back((of_b_too ? pages_b : pages_a)[static_cast<std::size_t>(t / 2)] * 2 +
                     static_cast<std::int32_t>(t % 2));
      positions.push_back(static_cast<std::int32_t>(t));
      in.push_back((of_b_too ? b : a)[static_cast<std::size_t>(t)]);
      expected.push_back((of_b_too ? of_b : of_a)[static_cast<std::size_t>(t)]);
    }
    for (const auto& [of_b_too, count] : step.entries) {
      lengths.push_back(count);
      const auto& pages = of_b_too ? pages_b : pages_a;
      table.insert(table.end(), pages.begin(), pages.end());
    }
    Program program = compile(g, {y, call.positions()},
                              {.assign = call.assign()});  // some layers do not read the positions
    program.run({{x, joined({in})},
                 {call.rows(), rows},
                 {call.positions(), positions},
                 {call.lengths(), lengths},
                 {call.table(), table}});
    expect_close(program.fetch(y).values<double>(), joined({expected}), what + ", in pages");
  }
}

TEST(GroupedAttention, EachOptionMatchesPlainCode) {
  const Grouped all[] = {
      {},
      {.key_heads = 2},
      {.key_heads = 1, .bias = true},
      {.head_width = 4, .rope = {.theta = 50}},
      {.key_heads = 2, .head_width = 6, .qkv_bias = true},
      {.head_width = 4, .qk_norm = QueryKeyNorm::head, .eps = 0.3},
      {.key_heads = 2, .head_width = 4, .qk_norm = QueryKeyNorm::head, .eps = 0.1, .plus_one = true},
      {.key_heads = 2, .head_width = 4, .qk_norm = QueryKeyNorm::whole, .eps = 0.2},
      {.head_width = 4, .qk_norm = QueryKeyNorm::whole, .plus_one = true, .window = 2},
      {.head_width = 4, .window = 1},
      {.head_width = 4, .window = 3, .softcap = 0.8},
      {.head_width = 4, .window = 6},
      {.head_width = 4, .scale = 0.2},
      {.head_width = 4, .scale = -0.7, .softcap = 1.5},
      {.head_width = 4, .rotate = false},
      {.head_width = 4, .rotate = false, .magnitude = 3},
      {.head_width = 4, .scale = 0.2, .rotate = false},
      {.head_width = 4, .scale = 0.2, .rotate = false, .magnitude = 3},
      {.head_width = 4, .rope = {.theta = 20, .interleaved = true}},
      {.head_width = 6, .rope = {.theta = 20, .dims = 4}},
      {.head_width = 6, .rope = {.dims = 2, .interleaved = true, .start = 3}},
      {.head_width = 6, .rope = {.frequencies = {0.7, 0.1}}},
      {.head_width = 4, .magnitude = 1.5},
      {.head_width = 4, .scale = 0.3, .magnitude = 0.5},
      {.key_heads = 2, .head_width = 6, .rope = {.theta = 9, .dims = 4}, .magnitude = 1.5},
      {.head_width = 6, .scale = 0.3, .softcap = 2, .rope = {.frequencies = {0.7, 0.1}}, .magnitude = 1.2},
      {.head_width = 4, .dropout = 0}};
  int number = 0;
  for (Grouped o : all) {
    if (o.head_width == 0 && o.rope.dims == 0) o.rope.dims = 2;  // of 3 keys
    Weights w;
    const GroupedAttention layer(Path(w.params) / "attn", width, heads, o);
    w.fill();
    const Rows a = some_rows(1), b = some_rows(2);
    expect_everywhere(layer, a, b, plain_grouped(w, a, o), plain_grouped(w, b, o),
                      "case " + std::to_string(number++));
  }
}

TEST(LatentAttention, EachOptionMatchesPlainCode) {
  const Latent all[] = {
      {.latent = 5, .rope_width = 2, .head_width = 4},
      {.latent = 5, .rope_width = 4, .head_width = 2, .value_width = 3},
      {.latent = 5, .query_latent = 3, .rope_width = 4, .head_width = 2, .theta = 30},
      {.latent = 3, .rope_width = 4, .head_width = 2, .frequencies = {0.7, 0.1}},
      {.latent = 5, .rope_width = 4, .head_width = 6, .theta = 30, .interleaved = false},
      {.latent = 5,
       .query_latent = 7,
       .rope_width = 4,
       .head_width = 2,
       .value_width = 5,
       .interleaved = false},
      {.latent = 5, .rope_width = 4, .head_width = 2, .magnitude = 1.4},
      {.latent = 5, .rope_width = 4, .head_width = 2, .interleaved = false, .magnitude = 0.6, .scale = 0.25},
      {.latent = 5, .rope_width = 2, .head_width = 4, .scale = 0.25},
      {.latent = 5, .query_latent = 3, .rope_width = 2, .head_width = 4, .eps = 0.3},
      {.latent = 5, .query_latent = 3, .rope_width = 2, .head_width = 4, .bias = true},
      {.latent = 5, .rope_width = 2, .head_width = 4, .bias = true}};
  int number = 0;
  for (const Latent& o : all) {
    Weights w;
    const LatentAttention layer(Path(w.params) / "attn", width, heads, o);
    w.fill();
    const Rows a = some_rows(1), b = some_rows(2);
    expect_everywhere(layer, a, b, plain_latent(w, a, o), plain_latent(w, b, o),
                      "case " + std::to_string(number++));
  }
}

TEST(SelfAttention, MatchesPlainCodeAfterEachCache) {
  for (const bool bias : {false, true}) {
    Weights w;
    const SelfAttention layer(Path(w.params) / "attn", width, heads, {.bias = bias});
    w.fill();
    const auto plain = [&](const Rows& x) {
      const Rows qkv = w.linear(x, "c_attn");
      Rows y;
      for (std::size_t t = 0; t < x.size(); ++t) {
        y.emplace_back();
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t d = width / heads;
          const auto score = [&](std::size_t j) {
            return dot(part(qkv[t], h * d, d), part(qkv[j], width + h * d, d)) / std::sqrt(double(d));
          };
          const Vector o = attended(
              score, [&](std::size_t j) { return part(qkv[j], 2 * width + h * d, d); }, t, 0);
          y.back().insert(y.back().end(), o.begin(), o.end());
        }
      }
      return w.linear(y, "c_proj");
    };
    const Rows a = some_rows(1), b = some_rows(2);
    expect_everywhere(layer, a, b, plain(a), plain(b), bias ? "with biases" : "without");
  }
}

// In training, attention applies dropout if there is no cache.
TEST(AttentionLayers, HaveDropoutInTrainingOnly) {
  const auto dropouts = [](const std::function<Layer(const Path&)>& make) {
    Params params;
    const Layer layer = make(Path(params) / "attn");
    std::string text;
    for (const Mode mode : {Mode::evaluate, Mode::train}) {
      Graph g;
      layer(g.input("x", {1, 4, width}), {.mode = mode});
      for (const Node& n : g.nodes())
        if (n.op == &flash_attn_op) text += tg::detail::attr_text(n.attrs.as<AttentionAttrs>().dropout) + " ";
    }
    return text;
  };
  EXPECT_EQ(dropouts([](const Path& at) { return SelfAttention(at, width, heads, {.dropout = 0.25}); }),
            "0 0.25 ");
  EXPECT_EQ(dropouts([](const Path& at) { return GroupedAttention(at, width, 3, {.dropout = 0.125}); }),
            "0 0.125 ");
  EXPECT_EQ(dropouts([](const Path& at) { return LatentAttention(at, width, 3, {.dropout = 0.5}); }),
            "0 0.5 ");
}

// ---- Caches

TEST(KvCache, ContainsRowsUnderTheNamesOfItsLayers) {
  Params params(1, f64);
  const GroupedAttention grouped(Path(params) / "a" / "attn", width, heads,
                                 {.key_heads = 2, .head_width = 4});
  const LatentAttention latent(Path(params) / "b", width, heads,
                               {.latent = 5, .rope_width = 2, .head_width = 4});
  KvCache cache(3, 4);
  EXPECT_EQ(cache.pages(), 3);
  EXPECT_EQ(cache.page_size(), 4);
  EXPECT_EQ(cache.bytes(), 0u);
  Graph g;
  CacheCall call(g, cache, 2);
  const Tensor x = g.input("x", {3, 2, width}, f64);
  grouped(x, {.cache = &call}), latent(x, {.cache = &call});
  std::string text;
  for (const auto& [name, tensor] : cache.tensors())
    text += name + " " + tensor.name() + " " + tensor.shape().text() + " ";
  EXPECT_EQ(text,
            "a.attn.k cache.a.attn.k [12, 2, 4] a.attn.v cache.a.attn.v [12, 2, 4] b.latent cache.b.latent "
            "[12, 1, 7] ");
  EXPECT_EQ(cache.bytes(), 8u * (12 * 8 + 12 * 8 + 12 * 7));
  EXPECT_EQ(call.assign().size(), 3u);
  EXPECT_EQ(call.positions().shape(), (Shape{3, 2}));
  EXPECT_EQ(call.cached().shape(), (Shape{3}));
  EXPECT_EQ(
      eval(call.positions(), {{call.cached(), std::vector<std::int32_t>{0, 2, 1}}}).values<std::int32_t>(),
      (std::vector<std::int32_t>{0, 1, 2, 3, 1, 2}));
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    const std::string what = e.what();
    return what.substr(0, what.find(" (attention_layer"));
  }
  return "";
}

TEST(KvCache, AcceptsSizesUpToTheirLimits) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const auto cache = [](std::int64_t pages, std::int64_t size) {
    return message([&] { KvCache(pages, size); });
  };
  const auto refused = [](std::int64_t pages, std::int64_t size) {
    return "[kv_cache] expected positive numbers of pages and of tokens in a page, of 2^31 - 1 tokens at "
           "most, got " +
           std::to_string(pages) + " and " + std::to_string(size);
  };
  for (const auto& [pages, size] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {most, 1}, {1, most}, {65536, 32767}})
    EXPECT_EQ(cache(pages, size), "");
  for (const auto& [pages, size] : {std::pair<std::int64_t, std::int64_t>{0, 1},
                                    {1, 0},
                                    {-1, 4},
                                    {4, -1},
                                    {most + 1, 1},
                                    {1, most + 1},
                                    {65536, 32768}})
    EXPECT_EQ(cache(pages, size), refused(pages, size));
  EXPECT_EQ(message([] { KvCache(1, 1, Device::cpu(), i32); }),
            "[kv_cache] expected a floating dtype, got i32");

  KvCache held(2, 5);
  const auto call = [&](std::int64_t n) {
    Graph g;
    return message([&] { CacheCall(g, held, n); });
  };
  EXPECT_EQ(call(1), "");
  EXPECT_EQ(call(5), "");
  EXPECT_EQ(call(0), "[kv_cache] a call of 0 tokens, expected 1 to 5, the size of a page");
  EXPECT_EQ(call(6), "[kv_cache] a call of 6 tokens, expected 1 to 5, the size of a page");
  const auto in_pages = [&](CacheCall::InPages p) {
    Graph g;
    const bool is_refused = !message([&] { CacheCall(g, held, p); }).empty();
    return is_refused;
  };
  EXPECT_FALSE(in_pages({.singles = 1}));
  EXPECT_FALSE(in_pages({.groups = 1}));
  EXPECT_FALSE(in_pages({.singles = most}));
  EXPECT_FALSE(in_pages({.groups = 2, .length = most / 2}));
  EXPECT_TRUE(in_pages({}));
  EXPECT_TRUE(in_pages({.length = 3}));
  EXPECT_TRUE(in_pages({.singles = -1, .groups = 2}));
  EXPECT_TRUE(in_pages({.singles = 2, .groups = -1}));
  EXPECT_TRUE(in_pages({.singles = 1, .length = 0}));
  EXPECT_TRUE(in_pages({.singles = 1, .room = 0}));
  EXPECT_TRUE(in_pages({.singles = most + 1}));
  EXPECT_TRUE(in_pages({.groups = 2, .length = most / 2 + 1}));
  EXPECT_EQ(
      message([&] {
        Graph g;
        CacheCall(g, held, CacheCall::InPages{.singles = 1, .groups = 2, .length = 3, .room = 0});
      }),
      "[kv_cache] a call of 1 tokens and of 2 groups of 3 with room for 0 pages, expected positive sizes");
}

TEST(KvCache, RowsMustFitTheCall) {
  KvCache cache(2, 5);
  Graph g;
  CacheCall call(g, cache, 3);
  const auto in = [&](Shape s, DType t = f32) { return g.input("x", s, t); };
  const auto check = [&](Shape s) { return message([&] { call.check(in(s)); }); };
  EXPECT_EQ(check({2, 3}), "");
  EXPECT_EQ(check({2, 3, 7}), "");
  const std::string of = "[kv_cache] the call is for 3 tokens in each of 2 sequences, got ";
  EXPECT_TRUE(check({2}).starts_with(of + "x f32 [2]") || check({2}).starts_with(of + "f32 [2]"))
      << check({2});
  for (const Shape& s : {Shape{3, 3}, Shape{1, 3, 7}, Shape{2, 2, 7}, Shape{2, 4}, Shape{3, 2}})
    EXPECT_TRUE(check(s).starts_with(of)) << s.text();
  const Tensor q = in({2, 4, 3, 8});
  const auto attend = [&](Shape k, Shape v) {
    return message([&] { call.attend("layer", q, in(k), in(v)); });
  };
  EXPECT_EQ(attend({2, 2, 3, 8}, {2, 2, 3, 6}), "");
  EXPECT_TRUE(
      attend({2, 2, 3}, {2, 2, 3, 6}).starts_with("[cache/kv_cache] expected layer.k [2, heads, 3, n], got"))
      << attend({2, 2, 3}, {2, 2, 3, 6});
  EXPECT_TRUE(attend({1, 2, 3, 8}, {2, 2, 3, 6})
                  .starts_with("[cache/kv_cache] expected layer.k [2, heads, 3, n], got"));
  EXPECT_TRUE(attend({2, 2, 2, 8}, {2, 2, 3, 6})
                  .starts_with("[cache/kv_cache] expected layer.k [2, heads, 3, n], got"));
  EXPECT_TRUE(attend({2, 2, 3, 8}, {2, 2, 4, 6})
                  .starts_with("[cache/kv_cache] expected layer.v [2, heads, 3, n], got"));
  EXPECT_TRUE(attend({2, 1, 3, 8}, {2, 2, 3, 6})
                  .starts_with("[cache/kv_cache] layer.k holds [10, 2, 8], which does not fit rows"));
  EXPECT_TRUE(attend({2, 2, 3, 8}, {2, 2, 3, 5})
                  .starts_with("[cache/kv_cache] layer.v holds [10, 2, 6], which does not fit rows"));
  const Tensor wide = in({2, 2, 3, 8}, f64);
  EXPECT_TRUE(message([&] {
                call.attend("layer", q, wide, in({2, 2, 3, 6}));
              }).starts_with("[cache/kv_cache] layer.k holds"));
  const auto shared = [&](std::int64_t n) {
    return message([&] { call.attend("shared", q, in({2, 1, 3, 8}), n); });
  };
  EXPECT_EQ(shared(1), "");
  EXPECT_EQ(shared(8), "");
  EXPECT_TRUE(shared(0).starts_with("[kv_cache] the first 0 numbers of a key as its value, of keys "));
  EXPECT_TRUE(shared(9).starts_with("[kv_cache] the first 9 numbers of a key as its value, of keys "));
  EXPECT_TRUE(message([&] {
                call.attend("shared", q, in({}), 1);
              }).starts_with("[cache/kv_cache] expected shared [2, heads, 3, n], got"));
}

// If keys and values have different dtypes, a separate step extends each of them.
TEST(KvCache, KeysAndValuesMayHaveDifferentDtypes) {
  KvCache cache(1, 4);
  Graph g;
  CacheCall call(g, cache, 2);
  const Tensor q = g.input("q", {1, 1, 2, 4}, f64), k = g.input("k", {1, 1, 2, 4}, f64),
               v = g.input("v", {1, 1, 2, 4}, f32);
  EXPECT_THROW(call.attend("layer", q, k, v), DTypeError);  // thrown by attention
  EXPECT_EQ(cache.tensors().at("layer.k").dtype(), f64);
  EXPECT_EQ(cache.tensors().at("layer.v").dtype(), f32);
  EXPECT_EQ(call.assign().size(), 2u);
}

// If a token is beyond the page of its sequence, the run fails.
TEST(KvCache, TokensFillTheirPageAndNoMore) {
  Params params(1, f64);
  const SelfAttention layer(Path(params) / "attn", width, heads);
  KvCache cache(2, 4);
  Graph g;
  CacheCall call(g, cache, 2);
  const Tensor x = g.input("x", {2, 2, width}, f64), y = layer(x, {.cache = &call});
  Program program = compile(g, {y}, {.assign = call.assign()});
  const Vector values = reference::random_vector(4 * width, 1);
  const auto run = [&](std::int32_t a, std::int32_t b) {
    program.run({{x, values}, {call.cached(), std::vector<std::int32_t>{a, b}}});
  };
  run(0, 2);
  const Array k = cache.tensors().at("attn.k").read();
  for (const std::int64_t row : {0, 1, 6, 7}) EXPECT_NE(k.at(row * width), 0) << row;
  for (const std::int64_t row : {2, 3, 4, 5}) EXPECT_EQ(k.at(row * width), 0) << row;
  EXPECT_NO_THROW(run(2, 0));
  EXPECT_THROW(run(3, 0), Error);
  EXPECT_THROW(run(0, 3), Error);
  EXPECT_THROW(run(4, 0), Error);
}

}  // namespace

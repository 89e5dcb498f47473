// Tests flash_attn and standard_attn with each single option, with pairs of options, and in two calls of one
// graph. Values and gradients are compared with loops in f64. Options that exclude each other are refused.
#include <tilegrad/core/base/rng.h>
#include "tests/reference/masked_attention.h"
#include "tests/support/op_testing.h"
#include "tests/support/option_pairs.h"

namespace tg {

auto fields_of(const AttentionOptions& o) {
  const auto& [scale, causal, alignment, window_left, window_right, bias, softcap, sink, cu_seqlens_q,
               cu_seqlens_k, kv_lengths, dropout, nondeterministic, kernels, score, mask] = o;
  return std::tie(scale, causal, alignment, window_left, window_right, bias, softcap, sink, cu_seqlens_q,
                  cu_seqlens_k, kv_lengths, dropout, nondeterministic, kernels, score, mask);
}

namespace {

using namespace testing;
using reference::AttentionShape;
using reference::Index;

// A call with the reference's options and other options.
struct Spec {
  reference::AttentionOptions o = {};
  bool is_mask = false;   // whether the bias is boolean
  bool own_keys = false;  // whether cu_seqlens_k is given
  bool nondeterministic = false;
  AttentionKernels kernels = AttentionKernels::best;
};

struct Row {
  const char* name;
  void (*set)(Spec&, const AttentionShape&);
};
const Row rows[] = {
    {"scale", [](Spec& s, const AttentionShape&) { s.o.scale = 0.7; }},
    {"causal", [](Spec& s, const AttentionShape&) { s.o.causal = true; }},
    {"top-left", [](Spec& s, const AttentionShape&) { s.o.top_left = true; }},
    {"left window", [](Spec& s, const AttentionShape&) { s.o.window_left = 3; }},
    {"right window", [](Spec& s, const AttentionShape&) { s.o.window_right = 2; }},
    {"bias",
     [](Spec& s, const AttentionShape& n) {
       s.o.bias = random_vector(n.H * n.L * n.T, 6), s.o.bias_shape = {1, n.H, n.L, n.T}, s.is_mask = false;
     }},
    {"mask",
     [](Spec& s, const AttentionShape& n) {
       s.o.bias.assign(n.B * n.L * n.T, 0), s.o.bias_shape = {n.B, 1, n.L, n.T}, s.is_mask = true;
       for (std::size_t e = 0; e < s.o.bias.size(); e += 3) s.o.bias[e] = -INFINITY;
     }},
    {"softcap", [](Spec& s, const AttentionShape&) { s.o.softcap = 1.3; }},
    {"sink", [](Spec& s, const AttentionShape& n) { s.o.sink = random_vector(n.H, 8); }},
    {"packed",
     [](Spec& s, const AttentionShape& n) {
       s.o.cu_q = {0, 3, 3, n.L - 2};
     }},
    {"packed keys",
     [](Spec& s, const AttentionShape& n) {
       s.o.cu_k = {1, 5, 6, n.T}, s.own_keys = true;
     }},
    {"packed queries and keys",
     [](Spec& s, const AttentionShape& n) {
       s.o.cu_q = {0, 3, 3, n.L - 2}, s.o.cu_k = {1, 5, 6, n.T}, s.own_keys = true;
     }},
    {"lengths",
     [](Spec& s, const AttentionShape& n) {
       for (Index b = 0; b < n.B; ++b) s.o.kv_lengths.push_back(b == 1 ? 0 : n.T - 3);
     }},
    {"dropout", [](Spec& s, const AttentionShape&) { s.o.dropout = 0.25; }},
    {"nondeterministic", [](Spec& s, const AttentionShape&) { s.nondeterministic = true; }},
    {"plain kernels", [](Spec& s, const AttentionShape&) { s.kernels = AttentionKernels::plain; }},
    {"score function",
     [](Spec& s, const AttentionShape&) {
       s.o.score = [](double x, Index b, Index h, Index i, Index t) {
         const double by = 1 + static_cast<double>(h) / 4, y = std::tanh(x * by);
         return std::array{2 * y + 0.1 * static_cast<double>(t - i) + static_cast<double>(b) / 2,
                           2 * (1 - y * y) * by};
       };
     }},
    {"mask function",
     [](Spec& s, const AttentionShape&) {
       s.o.mask = [](Index b, Index, Index i, Index t) { return (i + 2 * t + b) % 3 != 0; };
     }},
};

// Returns the options that are not tensors.
AttentionOptions numbers_of(const Spec& s) {
  const ScoreFunction score = [](const ScoreAt& x) {
    return 2 * tanh(x.score * (1 + x.h / 4)) + 0.1 * (x.t - x.i) + x.b / 2;
  };
  const ScoreFunction mask = [](const ScoreAt& x) { return not_equal(remainder(x.i + 2 * x.t + x.b, 3), 0); };
  return {.scale = s.o.scale,
          .causal = s.o.causal,
          .alignment = s.o.top_left ? AttentionOptions::top_left : AttentionOptions::bottom_right,
          .window_left = s.o.window_left,
          .window_right = s.o.window_right,
          .softcap = s.o.softcap,
          .dropout = s.o.dropout,
          .nondeterministic = s.nondeterministic,
          .kernels = s.kernels,
          .score = s.o.score ? score : ScoreFunction(),
          .mask = s.o.mask ? mask : ScoreFunction()};
}

// If these options are refused, returns the reason. Otherwise returns "".
std::string refusal(const Spec& s) {
  if (s.own_keys && s.o.cu_q.empty()) return "cu_seqlens_k is given without cu_seqlens_q";
  if (s.o.top_left && !s.o.causal) return "top-left alignment needs causal = true";
  if (!s.o.cu_q.empty() && !s.o.kv_lengths.empty()) return "exclude each other";
  return "";
}

// Calls in one graph with the same q, k and v. The results have the same order as the graph's outputs.
struct Calls {
  AttentionShape n{2, 4, 2, 9, 11, 4, 3};
  std::vector<Spec> specs;
  Graph g;
  std::vector<Feed> feeds;
  std::vector<std::string> names;
  std::vector<Tensor> outputs;
  std::vector<std::uint64_t> keys;  // node of each call's dropout
  Vector q, k, v;

  // Makes two calls, or one call with the options of both rows.
  Calls(std::size_t a, std::size_t b, bool together, bool fused) {
    specs.resize(together ? 1 : 2);
    const auto is_packed = [](std::size_t row) { return std::string(rows[row].name).starts_with("packed"); };
    if (is_packed(a) || is_packed(b)) n.B = 1;
    rows[a].set(specs[0], n);
    if (a != b || !together) rows[b].set(specs.back(), n);
    for (Spec& s : specs)
      if (!s.own_keys) s.o.cu_k = s.o.cu_q;
    build(fused);
  }

  Tensor floats(const std::string& name, const Shape& shape, const Vector& values) {
    const Tensor t = g.input(name, shape, f64);
    feeds.emplace_back(t, Array::of(shape, values));
    return t;
  }
  Tensor ints(const std::string& name, const std::vector<Index>& values, DType dtype) {
    const Array a = Array::of(std::vector<std::int64_t>(values.begin(), values.end())).to(dtype);
    const Tensor t = g.input(name, a.shape(), dtype);
    feeds.emplace_back(t, a);
    return t;
  }

  AttentionOptions options_of(const Spec& s, const std::string& call) {
    AttentionOptions a = numbers_of(s);
    const auto& b = s.o.bias_shape;
    if (s.is_mask) {
      std::vector<bool> sees;
      for (const double e : s.o.bias) sees.push_back(e == 0);
      a.bias = g.input("mask" + call, {b[0], b[1], b[2], b[3]}, boolean);
      Array visible({b[0], b[1], b[2], b[3]}, boolean);
      for (std::size_t e = 0; e < sees.size(); ++e) visible.set(static_cast<std::int64_t>(e), sees[e]);
      feeds.emplace_back(a.bias, visible);
    } else if (!s.o.bias.empty()) {
      a.bias = floats("bias" + call, {b[0], b[1], b[2], b[3]}, s.o.bias);
    }
    if (!s.o.sink.empty()) a.sink = floats("sink" + call, {n.H}, s.o.sink);
    if (!s.o.cu_q.empty()) a.cu_seqlens_q = ints("cu_q" + call, s.o.cu_q, i32);
    if (s.own_keys) a.cu_seqlens_k = ints("cu_k" + call, s.o.cu_k, i32);
    if (!s.o.kv_lengths.empty()) a.kv_lengths = ints("lengths" + call, s.o.kv_lengths, i64);
    return a;
  }

  Vector z_o(std::size_t call) const { return random_vector(n.B * n.H * n.L * n.dv, 20 + call); }
  Vector z_lse(std::size_t call) const { return random_vector(n.B * n.H * n.L, 30 + call); }

  void build(bool fused) {
    q = random_vector(n.B * n.H * n.L * n.d, 1), k = random_vector(n.B * n.Hk * n.T * n.d, 2);
    v = random_vector(n.B * n.Hk * n.T * n.dv, 3);
    for (double& e : q) e *= 3;
    const Tensor tq = floats("q", {n.B, n.H, n.L, n.d}, q), tk = floats("k", {n.B, n.Hk, n.T, n.d}, k),
                 tv = floats("v", {n.B, n.Hk, n.T, n.dv}, v);
    std::vector<Tensor> wrt{tq, tk, tv};
    std::vector<std::string> wrt_names{"z_q", "z_k", "z_v"};
    Tensor loss;
    for (std::size_t c = 0; c < specs.size(); ++c) {
      const std::string call = " of call " + std::to_string(c);
      const AttentionOptions a = options_of(specs[c], call);
      const AttentionResult y = fused ? flash_attn(tq, tk, tv, a) : standard_attn(tq, tk, tv, a);
      const auto& nodes = g.nodes();
      const auto call_node = std::find_if(nodes.rbegin(), nodes.rend(), [&](const Node& node) {
        return node.op->name == (fused ? "flash_attn" : "standard_attn");
      });
      keys.push_back(
          node_key(0, 0, static_cast<std::uint32_t>(call_node->attrs.as<AttentionAttrs>().stream)));
      outputs.insert(outputs.end(), {y.o, y.lse});
      names.insert(names.end(), {"o" + call, "lse" + call});
      const Tensor zo = floats("z_o" + call, y.o.shape(), z_o(c)),
                   zl = floats("z_lse" + call, y.lse.shape(), z_lse(c));
      // If a query sees no key, ξ is −∞ and has no gradient.
      const Tensor own = sum(y.o * zo) + sum(where(equal(y.lse, -INFINITY), 0, y.lse) * zl);
      loss = c == 0 ? own : loss + own;
      if (a.bias.defined() && !specs[c].is_mask) wrt.push_back(a.bias), wrt_names.push_back("z_bias" + call);
      if (a.sink.defined()) wrt.push_back(a.sink), wrt_names.push_back("z_sink" + call);
    }
    for (const Tensor& z : gradients(loss, wrt)) outputs.push_back(z);
    names.insert(names.end(), wrt_names.begin(), wrt_names.end());
  }

  // Returns the expected results in the order of the outputs.
  std::vector<Vector> expected() const {
    std::vector<Vector> results, own;
    Vector z_q(q.size()), z_k(k.size()), z_v(v.size());
    const auto add = [](Vector& to, const Vector& x) {
      for (std::size_t e = 0; e < to.size(); ++e) to[e] += x[e];
    };
    for (std::size_t c = 0; c < specs.size(); ++c) {
      reference::AttentionOptions o = specs[c].o;
      o.keep = [&, c](Index b, Index h, Index i, Index t) {
        const auto u = [](Index x) { return static_cast<std::uint32_t>(x); };
        const auto words = philox(attention_counter(u(b * n.H + h), u(i), u(t)), keys.at(c));
        return words[static_cast<std::size_t>(t % 4)] >= dropout_bound(specs[c].o.dropout);
      };
      const auto f = standard_attention_reference(n, q, k, v, o);
      const auto z = standard_attention_reference_backward(n, q, k, v, z_o(c), z_lse(c), o);
      results.insert(results.end(), {f.o, f.lse});
      add(z_q, z.z_q), add(z_k, z.z_k), add(z_v, z.z_v);
      if (!o.bias.empty() && !specs[c].is_mask) own.push_back(z.z_bias);
      if (!o.sink.empty()) own.push_back(z.z_sink);
    }
    results.insert(results.end(), {z_q, z_k, z_v});
    results.insert(results.end(), own.begin(), own.end());
    return results;
  }

  // Results are sums in f64. They have at most 400 terms of about 10.
  void expect_reference() {
    const std::vector<Array> got = eval(outputs, feeds, {.threads = 1, .verify = true});
    const std::vector<Vector> e = expected();
    ASSERT_EQ(got.size(), e.size());
    for (std::size_t i = 0; i < e.size(); ++i) EXPECT_TRUE(close(doubles(got[i]), e[i], 1e-12)) << names[i];
    if (specs.size() == 2 && specs[0].o.dropout > 0 && specs[1].o.dropout > 0) {
      EXPECT_FALSE(got[0].same_bits(got[2])) << "both calls drop the same elements";
    }
  }
};

void check(std::size_t a, std::size_t b, bool together) {
  for (const bool fused : {true, false}) {
    SCOPED_TRACE(std::string(fused ? "flash_attn: " : "standard_attn: ") + rows[a].name + " and " +
                 rows[b].name + (together ? "" : " in two calls"));
    std::string why;
    for (const std::size_t row : {a, b}) {  // in one call, or in two
      Spec s;
      rows[row].set(s, {1, 4, 2, 9, 11, 4, 3});
      if (together) rows[row == a ? b : a].set(s, {1, 4, 2, 9, 11, 4, 3});
      if (why.empty()) why = refusal(s);
    }
    if (why.empty())
      Calls(a, b, together, fused).expect_reference();
    else
      expect_error<Error>([&] { Calls(a, b, together, fused); },
                          {fused ? "[flash_attn]" : "[standard_attn]", why});
  }
}

TEST(AttentionPairs, EachFieldHasARow) {
  Graph g;
  const Tensor given = g.input("given", {1});
  expect_each_field_is_set(std::size(rows), [&](std::size_t i) {
    Spec s;
    rows[i].set(s, {1, 4, 2, 9, 11, 4, 3});
    AttentionOptions a = numbers_of(s);
    if (!s.o.bias.empty()) a.bias = given;
    if (!s.o.sink.empty()) a.sink = given;
    if (!s.o.cu_q.empty()) a.cu_seqlens_q = given;
    if (s.own_keys) a.cu_seqlens_k = given;
    if (!s.o.kv_lengths.empty()) a.kv_lengths = given;
    return a;
  });
}

TEST(AttentionPairs, OneCallMatchesLoops) {
  each_pair(std::size(rows), [](std::size_t a, std::size_t b) { check(a, b, true); });
}

TEST(AttentionPairs, TwoCallsOfAGraphMatchLoops) {
  each_pair(std::size(rows), [](std::size_t a, std::size_t b) { check(a, b, false); });
}

TEST(AttentionPairs, KernelsThatABackendLacksAreRefused) {
  for (const AttentionKernels kernels : {AttentionKernels::tensor_cores, AttentionKernels::wgmma}) {
    Graph g;
    const Tensor q = g.input("q", {1, 1, 2, 4}, f32);
    const Tensor o = flash_attn(q, q, q, {.kernels = kernels}).o;
    expect_error<DeviceError>([&] { compile(g, {o}); }, {"flash_attn", std::string(name_of(kernels))});
  }
}

}  // namespace
}  // namespace tg

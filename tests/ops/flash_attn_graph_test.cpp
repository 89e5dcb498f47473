// Tests flash_attn in graphs. Covers the worked example of [Attention To Tiling], identities, layouts,
// memory, refusals, unused memory, second derivatives and recomputation.
#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/tilegrad.h>
#include "tests/reference/reference_checks.h"

namespace tg {
namespace {

using reference::close;
using reference::prints_as;
using reference::random_vector;
using reference::Vector;

// Makes inputs. Each input is filled with different numbers.
struct Inputs {
  Tensor input(const Shape& shape, DType dtype = f64) {
    const Tensor t = g.input("x" + std::to_string(feeds.size()), shape, dtype);
    arrays.push_back(Array::of(shape, random_vector(t.numel(), feeds.size() + 1)).to(dtype));
    feeds.emplace_back(t, arrays.back());
    return t;
  }
  Vector value(const Tensor& t, const CompileOptions& options = {}) {
    return eval(t, feeds, options).to(f64).values<double>();
  }
  Graph g;
  std::deque<Array> arrays;
  std::vector<Feed> feeds;
};

// Computes the example in [Attention To Tiling] with X = I, so the weights equal Q, K and V. One program
// computes the forward, the backward and the update.
TEST(FlashAttnGraph, TrainsTheWorkedExample) {
  Graph g;
  const auto parameter = [](const char* name, const Vector& values) {
    return Parameter(name, Array::of({4, 4}, values));
  };
  Parameter wq = parameter("wq", {1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0}),
            wk = parameter("wk", {1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1}),
            wv = parameter("wv", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
  const Tensor x = g.constant(Array::of({4, 4}, Vector{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}));
  const Tensor z_o =
      g.constant(Array::of({1, 1, 4, 4}, Vector{1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0}));
  std::vector<Tensor> weights, projected;
  for (const Parameter& w : {wq, wk, wv}) {
    weights.push_back(g.param(w));
    projected.push_back(matmul(x, weights.back()).view({1, 1, 4, 4}));
  }
  const Tensor o = flash_attn(projected[0], projected[1], projected[2], {.scale = 1}).o;
  const auto z = gradients(o, weights, z_o);
  Program p = compile(
      g, {o, z[0], z[1], z[2]},
      {.assign = {
           {wq, weights[0] - 0.1 * z[0]}, {wk, weights[1] - 0.1 * z[1]}, {wv, weights[2] - 0.1 * z[2]}}});
  p.run();
  EXPECT_TRUE(
      prints_as(p.fetch(o).values<double>(),
                "7.20 8.20 9.20 10.20 9.88 10.88 11.88 12.88 6.08 7.08 8.08 9.08 7.92 8.92 9.92 10.92"));
  EXPECT_TRUE(
      prints_as(p.fetch(z[0]).values<double>(),  // three of these differ from the paper: 1.18, −3.14 and 3.14
                "-1.19 1.18679888 4.38 1.91 0 0 0 0 -3.14579093 3.14579093 4.28 3.72 0 0 0 0"));
  EXPECT_TRUE(prints_as(p.fetch(z[1]).values<double>(),
                        "-12.99 0 -5.57 0 -1.31 0 -0.73 0 8.66 0 4.38 0 5.64 0 1.91 0"));
  EXPECT_TRUE(prints_as(
      p.fetch(z[2]).values<double>(),
      "0.590 0.590 0.590 0.590 0.217 0.217 0.217 0.217 0.976 0.976 0.976 0.976 0.217 0.217 0.217 0.217"));
  EXPECT_TRUE(
      prints_as(wv.read().values<double>(),
                "0.94 1.94 2.94 3.94 4.98 5.98 6.98 7.98 8.90 9.90 10.90 11.90 12.98 13.98 14.98 15.98"));
  const Vector new_q = wq.read().values<double>(), new_k = wk.read().values<double>();
  EXPECT_TRUE(prints_as(Vector(new_q.begin(), new_q.begin() + 4), "1.12 -0.12 0.56 -0.19"));
  EXPECT_TRUE(prints_as(Vector(new_k.begin(), new_k.begin() + 4), "2.30 0 0.56 0"));
}

// u = (P ⊛ z_P).sum = (O ⊛ z_O).sum [Stratos, FlashAttention Lemma 2.1]. Rows of z_S sum to z_ξ, because
// P.sum = 1.
TEST(FlashAttnGraph, SatisfiesTheIdentitiesOfSoftmaxGradients) {
  Inputs x;
  const Tensor q = x.input({2, 3, 7, 5}), k = x.input({2, 3, 9, 5}), v = x.input({2, 3, 9, 4}),
               bias = x.input({2, 3, 7, 9}), z_o = x.input({2, 3, 7, 4}), z_lse = x.input({2, 3, 7});
  const auto [o, lse] = flash_attn(q, k, v, {.bias = bias});
  const Tensor p = exp(matmul(q, transpose(k, 2, 3)) / std::sqrt(5.0) + bias - lse.unsqueeze(3));
  EXPECT_TRUE(close(x.value(sum(p, {3})), Vector(2 * 3 * 7, 1.0)));
  EXPECT_TRUE(close(x.value(sum(p * matmul(z_o, transpose(v, 2, 3)), {3})), x.value(sum(o * z_o, {3}))));
  const Tensor z_s = gradients(sum(o * z_o) + sum(lse * z_lse), {bias})[0];
  EXPECT_TRUE(close(x.value(sum(z_s, {3})), x.value(z_lse)));
}

// Multi-head attention copies no data from the projections to the merged heads. Its backward copies no data
// either.
TEST(FlashAttnGraph, SplitsAndMergesHeadsWithoutACopy) {
  Graph g;
  const std::int64_t B = 2, L = 6, H = 4, Hk = 2, d = 8, dv = 4, C = 16;
  const Tensor x = g.input("x", {B, L, C}), wq = g.input("wq", {C, H * d}), wk = g.input("wk", {C, Hk * d}),
               wv = g.input("wv", {C, Hk * dv}), wo = g.input("wo", {H * dv, C});
  const auto heads = [&](const Tensor& w, std::int64_t n) {
    return linear(x, w).view({B, L, n, -1}).transpose(1, 2);
  };
  const AttentionResult a = flash_attn(heads(wq, H), heads(wk, Hk), heads(wv, Hk), {.causal = true});
  const Tensor merged = a.o.transpose(1, 2).view({B, L, H * dv});  // throws if the result is not a view
  EXPECT_TRUE(merged.layout().is_contiguous());
  const Tensor y = linear(merged, wo);
  const auto z = gradients(y, {wq, wk, wv, wo}, g.input("z", y.shape()));
  const Program p = compile(g, z);
  int products = 0;
  for (const Step& s : p.steps()) {
    products += s.op->name == "matmul";
    EXPECT_TRUE(s.op->name == "matmul" || s.op == &flash_attn_op || s.op == &flash_attn_backward_op)
        << s.name;
  }
  EXPECT_EQ(products, 3 + 1 + 4);  // projections of x; gradients of merged heads and weights
}

TEST(FlashAttnGraph, GradientsHaveTheLayoutOfTheirTensors) {
  Graph g;
  const Tensor q = g.input("q", {2, 5, 3, 4}).transpose(1, 2), k = g.input("k", {2, 3, 6, 4}),
               v = g.input("v", {2, 6, 2, 3, 4}).slice(2, 1, 2).squeeze(2).transpose(1, 2);
  const AttentionResult a = flash_attn(q, k, v);
  EXPECT_EQ(transpose(a.o.layout(), 1, 2), row_major({2, 5, 3, 4}));
  const auto z = gradients(a.o, {q, k, v}, a.o);
  EXPECT_EQ(z[0].layout(), q.layout());
  EXPECT_EQ(z[1].layout(), k.layout());
  EXPECT_EQ(transpose(z[2].layout(), 1, 2), row_major({2, 6, 3, 4}));
}

// The option affects only the backward. On the CPU, the backward always adds in the same order.
TEST(FlashAttnGraph, PassesNondeterministicToTheBackward) {
  Inputs x;
  const Tensor q = x.input({1, 2, 70, 8}, f32), k = x.input({1, 1, 90, 8}, f32),
               z_o = x.input(q.shape(), f32);
  std::vector<Array> gradient;
  for (const bool nondeterministic : {false, true}) {
    const AttentionResult a = flash_attn(q, k, k, {.causal = true, .nondeterministic = nondeterministic});
    const Tensor z = gradients(a.o, {q}, z_o)[0];
    const Node& node = x.g.node_of(z.id());
    ASSERT_EQ(node.op, &flash_attn_backward_op);
    EXPECT_EQ(node.attrs.as<AttentionAttrs>().nondeterministic, nondeterministic);
    gradient.push_back(eval(z, x.feeds));
  }
  EXPECT_TRUE(gradient[0].same_bits(gradient[1]));
}

// The backward uses the same kernels as the forward. The CPU's kernels use multiply-adds. compile() refuses
// other kernels. The error names the layer, the operands and the line of the call.
TEST(FlashAttnGraph, PassesTheKernelsToTheBackwardAndRefusesUnsupportedOnes) {
  using enum AttentionKernels;
  Inputs x;
  const Tensor q = x.input({1, 2, 7, 8}, f32), k = x.input({1, 1, 9, 8}, f32), z_o = x.input(q.shape(), f32);
  std::vector<Array> o, z_q;
  for (const AttentionKernels kernels : {best, plain, tensor_cores, wgmma}) {
    const Scope scope("h.3.attn");
    const AttentionResult a = flash_attn(q, k, k, {.causal = true, .kernels = kernels});
    const Tensor z = gradients(a.o, {q}, z_o)[0];
    const Node& node = x.g.node_of(z.id());
    ASSERT_EQ(node.op, &flash_attn_backward_op);
    EXPECT_EQ(node.attrs.as<AttentionAttrs>().kernels, kernels);
    const std::string asked = "kernels=\"" + std::string(name_of(kernels)) + "\"";
    EXPECT_EQ(x.g.node_of(a.o.id()).attrs.non_default_text().find(asked) != std::string::npos,
              kernels != best);
    if (kernels == best || kernels == plain) {
      o.push_back(eval(a.o, x.feeds)), z_q.push_back(eval(z, x.feeds));
      continue;
    }
    try {
      compile(x.g, {a.o}, {.plan_only = true});
      ADD_FAILURE() << name_of(kernels) << " on the CPU";
    } catch (const DeviceError& e) {
      const std::string why = "[h.3.attn/flash_attn] kernels = " + std::string(name_of(kernels)) +
                              ": the CPU has multiply-adds only; got f32 [1, 2, 7, 8], f32 [1, 1, 9, 8], f32 "
                              "[1, 1, 9, 8] with ";
      EXPECT_EQ(std::string(e.what()).substr(0, why.size()), why);
      for (const std::string& part : {asked, std::string("causal=true"), std::string("_graph_test.cpp:")})
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
  EXPECT_TRUE(o[0].same_bits(o[1]) && z_q[0].same_bits(z_q[1]));
  EXPECT_NO_THROW(eval(standard_attn(q, k, k, {.kernels = wgmma}).o, x.feeds));
}

// Queries, keys and values are parts of one projection. The backward writes directly to the projection's
// gradient, without a copy.
TEST(FlashAttnGraph, WritesTheGradientOfAProjectionInPlace) {
  const std::int64_t B = 2, L = 5, d = 4;
  for (const std::int64_t key_heads : {1, 3}) {
    Inputs x;
    const Tensor all = x.input({B, L, (3 + 2 * key_heads) * d}), z_o = x.input({B, 3, L, d});
    const auto parts = split(all, {3 * d, key_heads * d, key_heads * d}, 2);
    const auto heads = [&](const Tensor& t) { return transpose(view(t, {B, L, t.size(2) / d, d}), 1, 2); };
    const AttentionResult a = flash_attn(heads(parts[0]), heads(parts[1]), heads(parts[2]), {.causal = true});
    const Tensor z = gradients(a.o, {all}, z_o)[0];
    const Program in_place = compile(x.g, {z});
    for (const Step& s : in_place.steps()) EXPECT_NE(s.op, &concat_op);

    // If a part of the gradient is also fetched, it has separate memory, and the parts are copied.
    const auto parts_of_z = gradients(a.o, {parts[0], parts[1], parts[2]}, z_o);
    const Tensor joined = concat({parts_of_z[0], parts_of_z[1], parts_of_z[2]}, 2);
    const auto both = eval({joined, parts_of_z[1]}, x.feeds, {.verify = true});
    EXPECT_TRUE(eval(z, x.feeds, {.verify = true}).same_bits(both[0]));
  }
}

TEST(FlashAttnGraph, ReturnsLseInTheComputeType) {
  Graph g;
  const auto lse_of = [&](DType t) {
    const Tensor q = g.input("q", {1, 1, 2, 4}, t);
    return flash_attn(q, q, q).lse.dtype();
  };
  EXPECT_EQ(lse_of(f64), f64);
  EXPECT_EQ(lse_of(f32), f32);
  EXPECT_EQ(lse_of(bf16), f32);
}

// One head has L = T = 32768 and d = 64. The program needs memory for the inputs, o, ξ and the gradients, and
// less than 4 MiB in addition. The attention matrix would need 4 GiB.
TEST(FlashAttnGraph, NeedsNoMemoryForTheMatrix) {
  Graph g;
  const std::int64_t L = 32768, d = 64;
  const Tensor q = g.input("q", {1, 1, L, d}), k = g.input("k", {1, 1, L, d}), v = g.input("v", {1, 1, L, d}),
               z_o = g.input("z_o", {1, 1, L, d});
  for (const bool causal : {false, true})
    for (const int threads : {1, 2, 8}) {
      const AttentionResult a = flash_attn(q, k, v, {.causal = causal});
      const auto z = gradients(a.o, {q, k, v}, z_o);
      const MemoryReport m = compile(g, {a.o, a.lse, z[0], z[1], z[2]}, {.threads = threads}).memory();
      const std::size_t outputs = (4 * L * d + L) * sizeof(float);
      EXPECT_EQ(m.inputs, 4 * L * d * sizeof(float));
      EXPECT_LT(m.arena + m.constants + m.workspace - outputs, std::size_t{4} << 20) << threads << " threads";
    }
}

TEST(FlashAttnGraph, RefusesMismatchedOperands) {
  Graph g;
  const auto t = [&](const Shape& s, DType dtype = f32) { return g.input("x", s, dtype); };
  const auto message = [&](const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionOptions& o = {}) -> std::string {
    std::string messages[2];
    for (const bool fused : {true, false}) {
      try {
        fused ? flash_attn(q, k, v, o) : standard_attn(q, k, v, o);
        return "nothing refused";
      } catch (const Error& e) {
        messages[fused ? 0 : 1] = e.what();
      }
    }
    // flash_attn and standard_attn report the same error with different op names.
    const std::string name = "[flash_attn] ";
    if (messages[0].find("flash_attn_graph_test.cpp:") == std::string::npos) return "no line: " + messages[0];
    if (!messages[0].starts_with(name)) return "no name: " + messages[0];
    return "[standard_attn] " + messages[0].substr(name.size()) == messages[1] ? messages[0] : messages[1];
  };
  const auto expect = [](const std::string& got, const std::string& part) {
    EXPECT_NE(got.find(part), std::string::npos) << got;
    EXPECT_NE(got.find("[flash_attn] "), std::string::npos) << got;
  };
  const Tensor q = t({2, 4, 5, 8}), k = t({2, 2, 6, 8}), v = t({2, 2, 6, 3}), n = t({2}, i32),
               cu = t({3}, i32);
  expect(message(t({2, 3, 5, 8}), k, v), "3 query heads are not a multiple of 2 key heads");
  expect(message(q, t({2, 2, 6, 7}), v), "q and k differ in head size");
  expect(message(q, k, t({2, 2, 5, 3})), "k and v differ in heads or length");
  expect(message(q, t({1, 2, 6, 8}), v), "differ in batch size");
  expect(message(t({4, 5, 8}), k, v), "needs q [B, H, L, d]");
  expect(message(q, t({2, 2, 6, 8}, bf16), v), "q, k and v differ in dtype");
  expect(message(t({2, 4, 5, 8}, i32), t({2, 2, 6, 8}, i32), v), "needs a floating tensor");
  expect(message(t({2, 4, 5, 0}), t({2, 2, 6, 0}), v), "head size d must be at least 1");
  expect(message(q, k, v, {.scale = INFINITY}), "scale is out of range: got inf");
  expect(message(q, k, v, {.alignment = AttentionOptions::top_left}), "top-left alignment");
  expect(message(q, k, v, {.window_left = -2}), "window_left is out of range: got -2");
  expect(message(q, k, v, {.bias = t({5, 7})}), "the bias [1, 1, 5, 7] does not broadcast to [2, 4, 5, 6]");
  expect(message(q, k, v, {.softcap = -1}), "softcap");
  expect(message(q, k, v, {.sink = t({2})}), "sink is [2], expected [4]");
  expect(message(q, k, v, {.dropout = 1}), "dropout is out of range: got 1");
  expect(message(q, k, v, {.kv_lengths = t({3}, i32)}), "kv_lengths is [3], expected [2]");
  expect(message(q, k, v, {.kv_lengths = t({2})}), "needs indices of type i64 or i32");
  expect(message(q, k, v, {.cu_seqlens_q = cu, .kv_lengths = n}), "exclude each other");
  expect(message(q, k, v, {.cu_seqlens_q = cu}), "need a batch of 1");
  expect(message(t({1, 4, 5, 8}), t({1, 2, 6, 8}), t({1, 2, 6, 3}),
                 {.cu_seqlens_q = cu, .cu_seqlens_k = t({4}, i32)}),
         "cu_seqlens_k is [4], expected [3]");
  expect(message(q, k, v, {.cu_seqlens_k = cu}), "without cu_seqlens_q");
}

// Each run checks the values that are fed.
TEST(FlashAttnGraph, RefusesARunWithLengthsOutsideTheTensors) {
  Graph g;
  const Tensor q = g.input("q", {2, 1, 3, 4}), k = g.input("k", {2, 1, 8, 4}), n = g.input("n", {2}, i32),
               cu = g.input("cu", {3}, i32), one_q = slice(q, 0, 0, 1), one_k = slice(k, 0, 0, 1);
  const Tensor o = flash_attn(q, k, k, {.kv_lengths = n}).o;
  const Tensor packed = flash_attn(one_q, one_k, one_k, {.cu_seqlens_q = cu}).o;
  for (const int threads : {1, 3}) {
    Program by_length = compile(g, {o}, {.threads = threads}),
            by_sequence = compile(g, {packed}, {.threads = threads});
    for (Program* p : {&by_length, &by_sequence})
      for (const Tensor& x : {q, k}) p->feed({x, Array(x.shape(), f32)});
    using Ints = std::vector<std::int32_t>;
    by_length.run({{n, Ints{0, 8}}});
    EXPECT_THROW(by_length.run({{n, Ints{0, 9}}}), Error);
    EXPECT_THROW(by_length.run({{n, Ints{-1, 3}}}), Error);
    by_sequence.run({{cu, Ints{0, 2, 3}}});
    EXPECT_THROW(by_sequence.run({{cu, Ints{0, 2, 4}}}), Error);
    EXPECT_THROW(by_sequence.run({{cu, Ints{0, 3, 2}}}), Error);
    EXPECT_THROW(by_sequence.run({{cu, Ints{-1, 2, 3}}}), Error);
  }
}

// Keys beyond a row's length may have any values, and so may rows outside all sequences. They must not affect
// the results.
TEST(FlashAttnGraph, NeverReadsUnattendedKeysAndRows) {
  const auto run = [](bool packed, bool fused, double softcap, double rest) {
    Graph g;
    const std::int64_t L = 5, T = 300, d = 6;
    Vector keys = random_vector(T * d, 1), values = random_vector(T * d, 2),
           queries = random_vector(L * d, 3);
    std::fill(keys.begin() + 7 * d, keys.end(), rest);
    std::fill(values.begin() + 7 * d, values.end(), rest);
    if (packed) std::fill(queries.begin() + 4 * d, queries.end(), rest);
    const Tensor q = g.input("q", {1, 1, L, d}, f64), k = g.input("k", {1, 1, T, d}, f64),
                 v = g.input("v", {1, 1, T, d}, f64);
    AttentionOptions o{.softcap = softcap};
    if (packed) {
      o.cu_seqlens_q = g.constant(Array::of(std::vector<std::int32_t>{0, 2, 4}));
      o.cu_seqlens_k = g.constant(Array::of(std::vector<std::int32_t>{0, 4, 7}));
    } else {
      o.kv_lengths = g.constant(Array::of(std::vector<std::int64_t>{7}));
    }
    const AttentionResult a = fused ? flash_attn(q, k, v, o) : standard_attn(q, k, v, o);
    const auto z = gradients(sum(a.o * a.o), {q, k, v});
    Vector all;
    for (const Array& x : eval({a.o, a.lse, z[0], z[1], z[2]}, {{q, queries}, {k, keys}, {v, values}}))
      for (double e : x.values<double>()) all.push_back(e);
    return all;
  };
  for (const bool packed : {false, true})
    for (const bool fused : {false, true})
      for (const double softcap : {0, 2}) {
        const Vector clean = run(packed, fused, softcap, 0);
        for (double e : clean) ASSERT_FALSE(std::isnan(e));
        EXPECT_TRUE(close(run(packed, fused, softcap, NAN), clean, 0))
            << "packed " << packed << " fused " << fused << " softcap " << softcap;
      }
}

// The second derivative uses the decomposition of flash_attn_backward. It is compared with difference
// quotients of the first derivative.
TEST(FlashAttnGraph, CanBeDifferentiatedTwice) {
  Graph g;
  const Tensor q = g.input("q", {1, 2, 3, 2}, f64), k = g.input("k", {1, 1, 4, 2}, f64),
               v = g.input("v", {1, 1, 4, 2}, f64), sink = g.input("sink", {2}, f64);
  const AttentionResult a = flash_attn(q, k, v, {.causal = true, .softcap = 2, .sink = sink, .dropout = 0.2});
  const auto first = gradients(sum(a.o * a.o) + sum(a.lse * a.lse), {q, k, v, sink});
  Tensor mixed = sum(first[0] * first[0]);
  for (int i = 1; i < 4; ++i) mixed = mixed + sum(first[i] * first[i]);
  const auto second = gradients(mixed, {q, k, v, sink});
  Program value = compile(g, {mixed}), slope = compile(g, second);
  std::vector<Tensor> inputs{q, k, v, sink};
  std::vector<Vector> x;
  for (const Tensor& t : inputs) x.push_back(random_vector(t.numel(), x.size() + 1));
  const auto feed = [&](Program& p) {
    p.set_step(0);  // every run uses the same dropout mask
    p.run({{q, x[0]}, {k, x[1]}, {v, x[2]}, {sink, x[3]}});
  };
  feed(slope);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Vector by_differences =
        reference::four_point_gradient(x[i], [&] { return feed(value), value.item<double>(mixed); });
    EXPECT_TRUE(
        close(slope.fetch(second[i]).values<double>(), by_differences, reference::kDifferenceTolerance))
        << i;
  }
}

// For a fixed mask, o is linear in v. So ⟨o, z_o⟩ = ⟨v, z_v⟩ requires that the backward uses the forward's
// mask. The same applies to a recomputed forward. A different step draws a different mask.
TEST(FlashAttnGraph, DropsTheSameElementsInTheBackwardAndWhenRecomputed) {
  Inputs x;
  const Tensor q = x.input({1, 2, 20, 4}), k = x.input({1, 2, 30, 4}), v = x.input({1, 2, 30, 4}),
               z_o = x.input({1, 2, 20, 4});
  const Tensor o = checkpoint(
      [](const std::vector<Tensor>& in) {
        const Tensor y = flash_attn(in[0], in[1], in[2], {.dropout = 0.5}).o;
        return std::vector<Tensor>{y * y / y};
      },
      {q, k, v})[0];
  const Tensor z_v = gradients(o, {v}, z_o)[0], left = sum(o * z_o), right = sum(v * z_v);
  Program p = compile(x.g, {left, right, o});
  p.run(x.feeds);
  EXPECT_NEAR(p.item<double>(left), p.item<double>(right), 1e-12);
  const Array first = p.fetch(o).copy();
  p.run(x.feeds);
  EXPECT_FALSE(p.fetch(o).same_bits(first));
  p.set_step(0);
  p.run(x.feeds);
  EXPECT_TRUE(p.fetch(o).same_bits(first));
}

}  // namespace
// Boundaries must be within the rows and must not decrease. The first boundary need not be 0. Lengths must
// not exceed the number of keys. The error names the first wrong value or the decrease.
TEST(FlashAttnGraph, WrongSequencesAndLengthsAreNamed) {
  using Numbers = std::vector<std::int32_t>;
  const auto expect_fault = [](Program& p, const std::string& fault) {
    try {
      p.run();
      EXPECT_EQ(fault, "");
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find("[flash_attn] index " + fault + " "), 0u)
          << fault << ": " << e.what();
    }
  };
  for (const int threads : {1, 2}) {
    Graph g;
    const Tensor q = g.input("q", {1, 2, 6, 4}), k = g.input("k", {1, 2, 9, 4}),
                 cu_q = g.input("cu_q", {4}, i32), cu_k = g.input("cu_k", {4}, i32);
    const Tensor o = flash_attn(q, k, k, {.cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k}).o;
    Program p = compile(g, {o, gradients(o, {q}, q)[0]}, {.threads = threads});
    p.feed({q, Array(q.shape(), f32)}), p.feed({k, Array(k.shape(), f32)});
    struct Case {
      Numbers q, k;
      std::string fault;
    };
    for (const Case& c :
         {Case{{0, 2, 4, 6}, {0, 3, 5, 9}, ""}, Case{{1, 2, 2, 5}, {2, 2, 3, 3}, ""},
          Case{{6, 6, 6, 6}, {9, 9, 9, 9}, ""},
          Case{{0, 2, 4, 7}, {0, 3, 5, 9}, "7 at position 3 is out of range: expected 0 to 6"},
          Case{{0, 4, 3, 6}, {0, 3, 2, 9}, "-1 at position 2 is out of range: expected 0 to 6"},
          Case{{-1, 2, 4, 6}, {0, 3, 5, 9}, "-1 at position 0 is out of range: expected 0 to 6"},
          Case{{0, 2, 4, 6}, {0, 3, 5, 10}, "10 at position 3 is out of range: expected 0 to 9"},
          Case{{0, 2, 4, 6}, {5, 3, 5, 9}, "-2 at position 1 is out of range: expected 0 to 9"},
          Case{{0, 2, 4, 6}, {-3, 3, 5, 9}, "-3 at position 0 is out of range: expected 0 to 9"}}) {
      p.feed({cu_q, Array::of(c.q)}), p.feed({cu_k, Array::of(c.k)});
      expect_fault(p, c.fault);
    }
  }
  for (const DType type : {i32, i64}) {
    Graph g;
    const Tensor q = g.input("q", {2, 2, 6, 4}), k = g.input("k", {2, 2, 9, 4}), n = g.input("n", {2}, type);
    const Tensor o = flash_attn(q, k, k, {.kv_lengths = n}).o;
    Program p = compile(g, {o, gradients(o, {q}, q)[0]}, {.threads = 2});
    p.feed({q, Array(q.shape(), f32)}), p.feed({k, Array(k.shape(), f32)});
    for (const auto& [lengths, fault] : {std::pair<Numbers, std::string>{{9, 0}, ""},
                                         {{0, 9}, ""},
                                         {{9, 10}, "10 at position 1 is out of range: expected 0 to 9"},
                                         {{10, 11}, "10 at position 0 is out of range: expected 0 to 9"},
                                         {{3, -1}, "-1 at position 1 is out of range: expected 0 to 9"}}) {
      p.feed({n, Array::of(lengths).to(type)});
      expect_fault(p, fault);
    }
  }
}

}  // namespace tg

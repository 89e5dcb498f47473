// Tests decoding on a GPU, with few queries and with heads that share keys. Results are compared with the
// CPU's flash_attn in f64 and with plain multiply-adds. Lengths are near the ends of ranges. Unused memory is
// poisoned. Results must be bitwise independent of the rest of the batch. Skipped if there is no GPU.
#include "tests/backends/cuda/attention_problem.h"

namespace tg {
namespace {

using namespace testing;

class CudaDecoding : public OnGpu {};

using O = AttentionOptions;

// If heads are wider than 64, a cache with this number of keys is split into ranges of 256 keys. decoding.cpp
// uses the same rule.
constexpr int keys = 600, range = 256;

struct Decoded {
  Array o, lse;
  std::string choice;
};

// Describes a call of the forward.
struct Call {
  Array q, k, v, sink = {};
  std::vector<std::int64_t> lengths = {};
  std::int64_t values_in_keys = 0;  // if not 0, the values are this number of columns of k

  static Call random(const Sizes& n, DType t) {
    return {random_array({n.B, n.H, n.L, n.d}, 1, t, 2), random_array({n.B, n.Hk, n.T, n.d}, 2, t),
            random_array({n.B, n.Hk, n.T, n.dv}, 3, t), random_array({n.H}, 4, t)};
  }
  static Call of_latents(const Sizes& n, DType t) {
    Call c = random(n, t);
    c.values_in_keys = n.dv;
    return c;
  }
  // Returns entry b as a batch of one.
  Call alone(std::int64_t b) const {
    const auto of = [&](const Array& a) {
      Shape shape = a.shape();
      const std::int64_t each = a.numel() / shape[0];
      shape[0] = 1;
      const Vector all = doubles(a);
      return Array::of(shape, Vector(all.begin() + b * each, all.begin() + (b + 1) * each)).to(a.dtype());
    };
    return {
        of(q),         of(k), of(v), sink, lengths.empty() ? lengths : std::vector{lengths[std::size_t(b)]},
        values_in_keys};
  }
  Decoded run(AttentionOptions o, bool with_sink = true, Device where = Device::cuda()) const {
    Graph g;
    const Tensor tq = g.input("q", q.shape(), q.dtype()), tk = g.input("k", k.shape(), k.dtype()),
                 tv =
                     values_in_keys > 0 ? tk.slice(3, 0, values_in_keys) : g.input("v", v.shape(), v.dtype());
    std::vector<Feed> feeds{{tq, q}, {tk, k}};
    if (values_in_keys == 0) feeds.emplace_back(tv, v);
    if (with_sink) {
      o.sink = g.input("sink", sink.shape(), sink.dtype());
      feeds.emplace_back(o.sink, sink);
    }
    const Array n = lengths.empty() ? Array() : Array::of(lengths);
    if (!lengths.empty()) {
      o.kv_lengths = g.input("lengths", n.shape(), n.dtype());
      feeds.emplace_back(o.kv_lengths, n);
    }
    const AttentionResult y = flash_attn(tq, tk, tv, o);
    Program p = compile(g, {y.o, y.lse}, {.device = where, .batch_invariant = true, .verify = true});
    for (const Feed& f : feeds) p.feed(f);
    p.run();
    Decoded r{p.fetch(y.o), p.fetch(y.lse), {}};
    for (std::size_t i = 0; i < p.steps().size(); ++i)
      if (p.steps()[i].op->name == "flash_attn") r.choice = p.choice(i);
    return r;
  }
  // Compares the forward's result with the CPU's result in f64 for the same numbers. On the GPU, keys beyond
  // the lengths are NaN.
  void expect_reference(const AttentionOptions& o, bool with_sink) const {
    Call exact = *this, dead = *this;
    for (Array* a : {&exact.q, &exact.k, &exact.v, &exact.sink}) *a = a->to(f64);
    for (Array* a : {&dead.k, &dead.v}) {
      const Shape& s = a->shape();
      for (std::int64_t e = 0; e < a->numel() && !lengths.empty(); ++e)
        if (e / s[3] % s[2] >= lengths[static_cast<std::size_t>(e / (s[1] * s[2] * s[3]))]) a->set(e, NAN);
    }
    const Decoded got = dead.run(o, with_sink), expected = exact.run(o, with_sink, Device::cpu());
    for (const auto& [is, was] : {std::pair{got.o, expected.o}, {got.lse, expected.lse}}) {
      const Vector g = doubles(is), w = doubles(was);
      const auto [units, where] = distance(g, w, q.dtype());
      EXPECT_LE(units, 1) << "at " << where << ": got " << g[where] << ", expected " << w[where];
    }
    EXPECT_NE(got.choice.find("decoding"), std::string::npos) << got.choice;
  }
};

std::string text(const Sizes& n) {
  std::string s;
  for (std::int64_t e : {n.B, n.H, n.Hk, n.L, n.T, n.d, n.dv}) s += std::to_string(e) + " ";
  return s;
}

bool has_wgmma() {
  return Call::of_latents({1, 17, 1, 1, keys, 576, 512}, bf16).run({}).choice.find("wgmma") !=
         std::string::npos;
}

TEST_F(CudaDecoding, IsUsedForFewQueries) {
  const auto choice = [](const Sizes& n, AttentionKernels kernels) {
    const std::string all = Call::random(n, bf16).run({.kernels = kernels}).choice;
    return all.substr(all.find(", ") + 2);  // after the architecture
  };
  using enum AttentionKernels;
  for (const AttentionKernels kernels : {best, tensor_cores})
    EXPECT_EQ(choice({1, 8, 2, 1, keys, 128, 128}, kernels), "tensor cores, decoding, ranges of 256 keys");
  EXPECT_EQ(choice({1, 8, 2, 1, keys, 64, 64}, best), "tensor cores, decoding");
  EXPECT_EQ(choice({1, 8, 2, 1, 64, 64, 64}, best), "tensor cores, decoding");
  EXPECT_EQ(choice({1, 1, 1, 1, 40000, 8, 8}, best), "tensor cores, decoding, ranges of 2048 keys");
  EXPECT_EQ(choice({1, 16, 2, 1, keys, 256, 256}, best), "tensor cores, decoding, ranges of 128 keys");
  EXPECT_EQ(choice({1, 18, 2, 1, keys, 256, 256}, tensor_cores), "tensor cores, wide heads");  // 9 rows
  const auto of_latents = [](std::int64_t H) {
    return Call::of_latents({1, H, 1, 1, keys, 576, 512}, bf16).run({.kernels = tensor_cores}).choice;
  };
  EXPECT_TRUE(of_latents(16).ends_with("tensor cores, decoding, ranges of 128 keys")) << of_latents(16);
  EXPECT_TRUE(of_latents(17).ends_with("tensor cores, wide heads")) << of_latents(17);
  EXPECT_EQ(choice({1, 8, 2, 1, 64, 64, 64}, plain), "plain multiply-adds");
  EXPECT_EQ(choice({1, 34, 2, 1, keys, 64, 64}, tensor_cores), "tensor cores");  // 17 rows
}

// f32 operands are read in place if their row size is divisible by 16 bytes. The f16 split is not used,
// because it would require a copy of the whole cache.
TEST_F(CudaDecoding, IsUsedForFewQueriesInF32) {
  const auto choice = [](const Sizes& n, AttentionKernels kernels = AttentionKernels::best) {
    const std::string all = Call::random(n, f32).run({.kernels = kernels}).choice;
    return all.substr(all.find(", ") + 2);  // after the architecture
  };
  EXPECT_EQ(choice({1, 8, 2, 1, keys, 128, 128}), "multiply-adds, decoding, ranges of 256 keys");
  EXPECT_EQ(choice({1, 8, 2, 2, keys, 12, 4}), "multiply-adds, decoding");
  EXPECT_EQ(choice({1, 1, 1, 8, keys, 256, 16}), "multiply-adds, decoding, ranges of 128 keys");
  EXPECT_EQ(choice({1, 1, 1, 1, keys, 260, 16}), "plain multiply-adds");
  EXPECT_EQ(choice({1, 8, 2, 1, keys, 66, 66}), "plain multiply-adds");
  for (const AttentionKernels kernels : {AttentionKernels::best, AttentionKernels::tensor_cores}) {
    const std::string nine_rows = choice({1, 18, 2, 1, keys, 64, 64}, kernels);
    EXPECT_NE(nine_rows.find("f32 split into two f16"), std::string::npos) << nine_rows;
  }
}

// Tests groups with any number of heads. Covers several queries for each head, padded sizes and several
// ranges.
TEST_F(CudaDecoding, AgreesOnEveryOption) {
  for (const Sizes& n :
       {Sizes{2, 4, 2, 1, 150, 64, 64}, Sizes{1, 5, 1, 3, 330, 128, 128}, Sizes{3, 7, 1, 1, 270, 96, 40},
        Sizes{1, 2, 2, 7, 260, 8, 128}, Sizes{2, 3, 1, 5, 129, 72, 64}, Sizes{1, 2, 1, 1, 1100, 64, 64}}) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t b = 0; b < n.B; ++b) lengths.push_back(b == 1 ? 0 : n.T - 70 * b - 3);
    const std::tuple<const char*, AttentionOptions, Extras> all[] = {
        {"none", {}, {}},
        {"projected causal", {.causal = true}, {.projected = true}},
        {"top-left", {.causal = true, .alignment = O::top_left}, {.sink = true}},
        {"window", {.window_left = 90, .window_right = 2}, {}},
        {"narrow window", {.window_left = 3, .window_right = 0}, {.sink = true}},
        {"softcap", {.causal = true, .softcap = 1.3}, {.sink = true}},
        {"scales", {.scale = -0.3}, {}},
        {"lengths", {}, {.lengths = lengths, .beyond = NAN}},
        {"causal lengths", {.causal = true}, {.sink = true, .lengths = lengths, .beyond = NAN}},
        {"window lengths", {.causal = true, .window_left = 70}, {.lengths = lengths, .beyond = INFINITY}},
    };
    for (const auto& [name, o, more] : all) check({n, o, more}, text(n) + name, {bf16});
    check({n, {.causal = true}, {.sink = true}}, text(n), {f16});
  }
}

TEST_F(CudaDecoding, AcceptsLengthsAroundRanges) {
  const std::vector<std::int64_t> lengths{0, 1, range - 1, range, range + 1, 2 * range, 16, 17, keys};
  for (const std::int64_t L : {1, 3})
    for (const std::int64_t d : {64, 128}) {
      const Sizes n{static_cast<std::int64_t>(lengths.size()), 4, 2, L, keys, d, d};
      check({n, {.causal = L > 1}, {.sink = d == 64, .lengths = lengths, .beyond = NAN}}, text(n), {bf16});
      Call c = Call::random(n, f32);
      c.lengths = lengths;
      c.expect_reference({.causal = L > 1}, d == 64);
    }
}

// Sums are computed with the precision of f32.
TEST_F(CudaDecoding, AgreesInF32) {
  const std::pair<const char*, AttentionOptions> options[] = {
      {"none", {}},
      {"causal", {.causal = true}},
      {"top-left", {.causal = true, .alignment = O::top_left}},
      {"window", {.window_left = 90, .window_right = 2}},
      {"narrow window", {.window_left = 3, .window_right = 0}},
      {"softcap", {.causal = true, .softcap = 1.3}},
      {"scale", {.scale = -0.3}},
  };
  for (const Sizes& n :
       {Sizes{2, 4, 2, 1, 150, 64, 64}, Sizes{1, 5, 5, 3, 330, 128, 128}, Sizes{3, 7, 1, 1, 270, 96, 40},
        Sizes{1, 2, 2, 7, 260, 12, 128}, Sizes{2, 1, 1, 8, 129, 72, 64}, Sizes{1, 2, 1, 1, 1100, 32, 32}}) {
    Call c = Call::random(n, f32);
    for (const auto& [name, o] : options) {
      SCOPED_TRACE(text(n) + name);
      c.expect_reference(o, o.causal);
    }
    for (std::int64_t b = 0; b < n.B; ++b) c.lengths.push_back(b == 1 ? 0 : n.T - 70 * b - 3);
    for (const AttentionOptions& o : {O{}, O{.causal = true, .window_left = 70}}) {
      SCOPED_TRACE(text(n) + "lengths");
      c.expect_reference(o, true);
    }
  }
}

// Tests wide heads and latents. In latents, the first columns of the keys are the values. Groups have any
// size. There are several queries.
TEST_F(CudaDecoding, AgreesOnWideHeads) {
  const std::pair<const char*, AttentionOptions> options[] = {
      {"none", {}},
      {"causal", {.causal = true}},
      {"window", {.window_left = 50, .window_right = 0}},
      {"softcap and scale", {.scale = -0.3, .softcap = 1.3}},
  };
  for (const Sizes& n :
       {Sizes{2, 7, 1, 1, 260, 256, 256}, Sizes{2, 2, 1, 4, 190, 136, 24}, Sizes{1, 3, 3, 2, 140, 40, 192},
        Sizes{1, 1, 1, 1, 300, 192, 128}, Sizes{2, 16, 1, 1, 200, 576, 512}, Sizes{1, 1, 1, 1, 70, 576, 512},
        Sizes{2, 3, 1, 5, 130, 264, 72}, Sizes{1, 10, 2, 1, 200, 320, 320},
        Sizes{2, 70, 1, 1, 160, 576, 512}})
    for (const DType t : {bf16, f16, f32}) {
      if (t == f32 && (n.d > 256 || n.H / n.Hk * n.L > 8)) continue;
      if (n.H > 16 && !has_wgmma()) continue;  // more than 16 heads require wgmma
      Call c = n.d > 256 ? Call::of_latents(n, t) : Call::random(n, t);
      for (const auto& [name, o] : options) {
        SCOPED_TRACE(text(n) + name);
        c.expect_reference(o, o.causal);
      }
      for (std::int64_t b = 0; b < n.B; ++b) c.lengths.push_back(n.T - 40 * b - 3);
      SCOPED_TRACE(text(n) + "lengths");
      c.expect_reference({.causal = n.L > 1}, true);
    }
}

TEST_F(CudaDecoding, AcceptsLengthsAroundRangesOfWideHeads) {
  constexpr int each = range / 2;
  for (const auto& [d, t] : {std::pair{256, bf16}, {280, bf16}, {256, f32}}) {
    Call c = d > 256 ? Call::of_latents({9, 5, 1, 1, keys, d, 24}, t)
                     : Call::random({9, 3, 1, 1, keys, d, 256}, t);
    c.lengths = {0, 1, each - 1, each, each + 1, 2 * each, 64, 65, keys};
    c.expect_reference({}, false);
  }
}

// Runs an entry in a batch of one, and in a batch with shorter and longer entries. Unused memory has any
// contents.
TEST_F(CudaDecoding, MatchesBitwiseInAnyBatch) {
  for (const DType t : {bf16, f16, f32})
    for (const AttentionOptions& o : {O{}, O{.causal = true, .window_left = 200}, O{.softcap = 3.}})
      for (const Sizes& n : {Sizes{6, 8, 2, 1, keys, 72, 72}, Sizes{6, 3, 1, 4, keys, 128, 128},
                             Sizes{6, 1, 1, 4, keys, 128, 128}, Sizes{6, 3, 1, 1, keys, 136, 16},
                             Sizes{6, 9, 1, 1, keys, 264, 16}, Sizes{6, 16, 1, 1, keys, 264, 16}}) {
        if (t == f32 && (n.d > 256 || n.H / n.Hk * n.L > 8)) continue;
        SCOPED_TRACE(text(n) + std::string(name_of(t)));
        Call all = n.d > 256 ? Call::of_latents(n, t) : Call::random(n, t);
        all.lengths = {keys, 0, 1, 256, 320, 577};
        const Decoded together = all.run(o);
        for (std::int64_t b = 0; b < n.B; ++b) {
          Call one = all.alone(b);
          for (std::int64_t e = 0; e < one.k.numel(); ++e)
            if (e % (n.T * n.d) / n.d >= one.lengths[0]) one.k.set(e, 7);
          for (std::int64_t e = 0; e < one.v.numel(); ++e)
            if (e % (n.T * n.dv) / n.dv >= one.lengths[0]) one.v.set(e, NAN);
          const Decoded got = one.run(o);
          const auto same = [&](const Array& x, const Array& whole) {
            const Vector w = doubles(whole), g = doubles(x);
            for (std::size_t e = 0; e < g.size(); ++e)
              if (g[e] != w[g.size() * std::size_t(b) + e]) return false;
            return true;
          };
          EXPECT_TRUE(same(got.o, together.o)) << "entry " << b;
          EXPECT_TRUE(same(got.lse, together.lse)) << "entry " << b;
        }
        // A query's result must also be independent of the other queries in its tile. With wgmma, the rows of
        // a tile are heads of the same token. All rows of a warp change c at the same time.
        if (n.H >= 16) continue;
        Call loud = all;
        for (std::int64_t e = 0; e < loud.q.numel(); ++e)
          if (e / (n.L * n.d) % n.H != 1) loud.q.set(e, 30);
        const Vector x = doubles(loud.run(o).o), y = doubles(together.o);
        for (std::size_t e = 0; e < x.size(); ++e)
          if (e / std::size_t(n.L * n.dv) % std::size_t(n.H) == 1) {
            ASSERT_EQ(x[e], y[e]);
          }
      }
}

// A GPU has two short entries for each multiprocessor. The emulator needs fewer.
#ifndef TG_CROWD
#define TG_CROWD 330
#endif
// With many entries, one warp computes each short entry.
TEST_F(CudaDecoding, AShortEntryMatchesBitwiseInALargeBatch) {
  for (const Sizes& n : {Sizes{TG_CROWD, 2, 1, 1, 300, 64, 64}, Sizes{TG_CROWD, 4, 1, 2, 300, 72, 8}})
    for (const auto& [t, o] : {std::pair{bf16, O{}},
                               {bf16, O{.causal = true, .window_left = 40}},
                               {f32, O{}},
                               {f32, O{.causal = true, .window_left = 20}}}) {
      SCOPED_TRACE(text(n) + std::string(name_of(t)));
      Call all = Call::random(n, t);
      constexpr std::int64_t borders[] = {0, 1, 15, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 300};
      for (int b = 0; b < n.B; ++b) all.lengths.push_back(b < 14 ? borders[b] : 1 + b * 5 % 60);
      const Decoded together = all.run(o);
      for (std::int64_t b = 0; b < n.B; b += b < 16 ? 1 : 29) {
        const Decoded one = all.alone(b).run(o);
        const std::pair<Vector, Vector> results[] = {{doubles(one.o), doubles(together.o)},
                                                     {doubles(one.lse), doubles(together.lse)}};
        for (const auto& [alone, whole] : results)
          for (std::size_t e = 0; e < alone.size(); ++e)
            ASSERT_EQ(alone[e], whole[alone.size() * std::size_t(b) + e]) << "entry " << b << " at " << e;
      }
    }
}

TEST_F(CudaDecoding, RefusesLengthsBeyondTheKeys) {
  for (const std::int64_t L : {1, 0}) {
    Call c = Call::random({3, 2, 1, L, 70, 16, 16}, bf16);
    c.lengths = {70, 0, 70};
    c.run({});
    for (const std::int64_t length : {71, -1}) {
      c.lengths[2] = length;
      try {
        c.run({});
        ADD_FAILURE() << length << " was accepted";
      } catch (const Error& e) {
        const std::string expected = "index " + std::to_string(length) + " at position 2 is out of range";
        EXPECT_NE(std::string(e.what()).find(expected), std::string::npos) << e.what();
      }
    }
  }
}

}  // namespace
}  // namespace tg

// Compares flash_attn and flash_attn_backward on a GPU with the CPU in f64. Covers options, dtypes and TF32,
// head sizes, ragged lengths and memory orders. Unused memory is poisoned. Also compares f32 with unfused
// attention. Repeated runs must be bitwise identical. Skipped if there is no GPU.
#include "tests/backends/cuda/attention_problem.h"

namespace tg {
namespace {

using namespace testing;

class CudaAttention : public OnGpu {};

std::string text(const Sizes& n) {
  std::string s;
  for (std::int64_t e : {n.B, n.H, n.Hk, n.L, n.T, n.d, n.dv}) s += std::to_string(e) + " ";
  return s;
}

using O = AttentionOptions;

struct Option {
  const char* name;
  AttentionOptions o;
  Extras more = {};
};

std::vector<Option> all_options(const Sizes& n) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < n.B; ++b)
    lengths.push_back(b == 1 ? 0 : std::max<std::int64_t>(0, n.T - 40 * b - 3));
  std::vector<Option> all = {
      {"none", {}},
      {"projected", {.scale = 0.2}, {.projected = true}},
      {"without z_lse", {}, {.z_lse = false}},
      {"causal", {.causal = true}},
      {"top-left", {.causal = true, .alignment = O::top_left}},
      {"window", {.window_left = 30, .window_right = 9}},
      {"causal window", {.causal = true, .window_left = 40}, {.projected = true}},
      {"softcap", {.softcap = 1.3}},
      {"bias", {}, {.bias = {n.B, n.H, n.L, n.T}}},
      {"key bias", {}, {.bias = {n.T}}},
      {"row bias", {}, {.bias = {n.B, 1, n.L, 1}}},
      {"hiding bias", {.causal = true}, {.bias = {n.L, n.T}, .hiding = true}},
      {"sink", {}, {.sink = true}},
      {"lengths", {.causal = true}, {.lengths = lengths}},
      {"dropout", {.dropout = 0.25}},
      {"everything",
       {.scale = 0.4, .causal = true, .window_left = 90, .softcap = 2, .dropout = 0.1},
       {.bias = {n.H, 1, n.T}, .sink = true, .projected = true, .lengths = lengths}},
  };
  if (n.B == 1) {
    const auto l = static_cast<std::int32_t>(n.L), t = static_cast<std::int32_t>(n.T);
    const Extras packed{.cu_q = {0, 3, 3, l / 2, l - 2}, .cu_k = {1, 5, 6, t / 2, t}};
    all.push_back({"packed", {.causal = true}, packed});
    all.push_back({"packed window dropout", {.window_left = 20, .dropout = 0.1}, packed});
  }
  return all;
}

void check_options(const Sizes& n) {
  for (const Option& o : all_options(n)) check({n, o.o, o.more}, o.name);
}
// Checks only the kernels of 16-bit types.
void check_narrow(const Sizes& n, bool nondeterministic) {
  for (Option o : all_options(n)) {
    o.o.nondeterministic = nondeterministic;
    check({n, o.o, o.more}, text(n) + o.name, {bf16, f16});
  }
}

TEST_F(CudaAttention, AgreesOnEveryOption) {
  check_options({2, 2, 2, 150, 170, 32, 32});
}
TEST_F(CudaAttention, AgreesOnEveryOptionForAGroupOfHeads) {
  check_options({1, 4, 2, 133, 197, 64, 64});
}
TEST_F(CudaAttention, AgreesOnEveryOptionForWideHeads) {
  check_options({3, 2, 1, 70, 129, 128, 128});
}
TEST_F(CudaAttention, AgreesOnEveryOptionForOddHeads) {
  check_options({1, 2, 1, 65, 130, 20, 7});
}

TEST_F(CudaAttention, AgreesOnEveryOptionNondeterministically) {
  check_narrow({1, 2, 1, 70, 140, 64, 64}, true);
  check_narrow({1, 2, 1, 70, 140, 128, 128}, true);
  check_narrow({2, 1, 1, 40, 60, 96, 72}, true);
}
// With 132 multiprocessors, the backward of long sequences is one pass. Several blocks compute each head.
TEST_F(CudaAttention, AgreesIfBlocksIterateOverKeys) {
  for (const bool causal : {false, true})
    for (const Sizes& n : {Sizes{2, 16, 8, 20, 4090, 128, 128}, Sizes{1, 32, 32, 70, 2048, 64, 56}}) {
      check({n, {.causal = causal}}, text(n), {bf16});
      check({n, {.causal = causal, .dropout = 0.1}}, text(n) + "dropout", {f16});
    }
}

TEST_F(CudaAttention, AgreesOnEveryOptionForHeadsBeyond128) {
  check_narrow({1, 2, 1, 70, 70, 192, 128}, false);
  check_narrow({2, 1, 1, 70, 70, 256, 256}, false);
  check_narrow({1, 1, 1, 40, 70, 576, 512}, false);
}
TEST_F(CudaAttention, AgreesOnEveryOptionForHeadsBeyond128Nondeterministically) {
  check_narrow({1, 2, 1, 70, 70, 192, 128}, true);
  check_narrow({2, 1, 1, 70, 70, 256, 256}, true);
  check_narrow({1, 1, 1, 40, 70, 576, 512}, true);
}

TEST_F(CudaAttention, AcceptsEveryHeadSize) {
  const std::int64_t pairs[][2] = {{8, 8},     {16, 24},   {40, 40},   {48, 64},  {72, 72},
                                   {80, 96},   {96, 96},   {104, 128}, {128, 64}, {192, 128},
                                   {256, 256}, {136, 200}, {576, 512}, {1, 1},    {33, 100},
                                   {300, 40},  {304, 40},  {8, 512},   {4, 12},   {100, 36}};
  for (const auto& [d, dv] : pairs) {
    const Sizes n{1, 2, 1, 70, 140, d, dv};
    check({n, {.causal = true}, {.projected = true}}, text(n));
    check({n, {.causal = true, .nondeterministic = true}, {.projected = true}}, text(n) + "free", {bf16});
  }
}

TEST_F(CudaAttention, AcceptsRaggedLengths) {
  const std::int64_t pairs[][2] = {{1, 1},     {1, 17},    {17, 1},    {64, 128},  {128, 192}, {239, 1},
                                   {299, 3},   {113, 203}, {128, 217}, {108, 256}, {256, 512}, {257, 127},
                                   {384, 255}, {63, 65},   {0, 3},     {3, 0},     {512, 384}};
  for (const auto& [L, T] : pairs)
    for (const bool causal : {false, true}) {
      const Sizes n{1, 2, 1, L, T, 64, 64};
      check({n, {.causal = causal}}, text(n), {f32, bf16});
      if (L * T > 30000) continue;
      check({n, {.causal = causal, .nondeterministic = true}}, text(n) + "free", {bf16});
      const Sizes full{1, 2, 1, L, T, 128, 112};
      check({full, {.causal = causal, .nondeterministic = true}}, text(full) + "free", {bf16});
      for (const Sizes& wide : {Sizes{1, 2, 1, L, T, 136, 104}, Sizes{1, 2, 1, L, T, 200, 256}})
        check({wide, {.causal = causal}}, text(wide), {bf16});
    }
}

// Covers every head size of Hopper's compiled kernels, with several tiles of queries and of keys.
TEST_F(CudaAttention, RunsOnHoppersKernels) {
  const std::int64_t pairs[][2] = {{64, 64}, {40, 72}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};
  for (const auto& [d, dv] : pairs) {
    const Sizes n{1, 2, 1, 200, 290, d, dv};
    check({n, {.causal = true}, {.projected = true}}, text(n),
          d <= 128 ? std::vector{bf16, f32} : std::vector{bf16});
  }
  const Sizes some{2, 2, 1, 70, 300, 64, 64}, wide{2, 2, 1, 70, 300, 256, 256};
  check({some, {}, {.sink = true, .lengths = {290, 131}, .beyond = NAN}}, "lengths", {f16, f32});
  check({wide, {}, {.sink = true, .lengths = {290, 131}, .beyond = NAN}}, "wide lengths", {f16});
  check({some, {.causal = true, .softcap = 2}}, "softcap", {bf16, f32});
  check({wide, {.causal = true, .softcap = 2}}, "wide softcap", {f16});
  check({{1, 2, 1, 70, 140, 128, 128}, {.causal = true, .softcap = 2}}, "128 softcap", {bf16, f32});
  check({{1, 1, 1, 70, 140, 192, 128}, {.causal = true, .softcap = 2}}, "192 softcap", {bf16});
  check({wide, {.window_left = 100, .nondeterministic = true}}, "wide window", {bf16});
  const Extras packed{.cu_q = {0, 3, 3, 40, 68}, .cu_k = {1, 65, 66, 200, 290}};
  check({{1, 2, 1, 70, 300, 256, 256}, {.causal = true}, packed}, "wide packed", {bf16});
  check({{1, 2, 1, 70, 300, 128, 128}, {.causal = true, .nondeterministic = true}, packed}, "packed", {f32});
  check({some, {.scale = -0.1, .causal = true}}, "negative scale", {bf16, f32});
}

// With few heads and short sequences, each block computes one head.
TEST_F(CudaAttention, AcceptsShortHeads) {
  const std::int64_t sizes[][4] = {
      {32, 32, 16, 16}, {64, 64, 64, 64}, {1, 1, 8, 8}, {33, 64, 40, 24}, {64, 5, 24, 64}};
  for (const auto& [L, T, d, dv] : sizes) {
    const Sizes n{1, 3, 3, L, T, d, dv};
    for (const bool projected : {false, true})
      check({n, {.causal = true}, {.projected = projected}}, text(n), {bf16, f16});
    check({n, {}}, text(n) + " full", {bf16});
    check({n, {.window_left = 7, .window_right = 3}}, text(n) + " window", {bf16});
    check({n, {.causal = true, .alignment = O::top_left}, {.z_lse = false}}, text(n) + " top left", {f16});
  }
}

// A backward computes P = exp(A − ξ) from its input ξ. This ξ may include other keys, as in ring attention.
// If the scores exceed a limit, the backward computes P from its own keys only. All scores of a call are
// equal.
TEST_F(CudaAttention, ShortHeadsUseTheGivenXiUpToALimit) {
  constexpr double limit = 8192;  // for 16-bit types
  for (const double part : {-1.5, -1.0625, -0.9375, -0.75, 0.75, 0.9375, 1.0625, 1.5})
    for (const DType t : {bf16, f16}) {
      Problem p{{1, 2, 2, 20, 24, 16, 8}, {.scale = std::abs(part) * limit / 2048}, {.z_lse = false}};
      p.more.change = [&](const std::string& name, Array& a) {
        if (name != "q" && name != "k") return;
        const double each = name == "k" ? 8 : part < 0 ? -16 : 16;  // q·k = ±2048
        for (std::int64_t e = 0; e < a.numel(); ++e) a.set(e, each);
      };
      const auto z_v = [&](double off) {
        p.more.off = off;
        return doubles(p.run(t, t, {.device = Device::cuda()}).values[4]);
      };
      Vector expected = z_v(0);
      for (double& e : expected) e *= std::abs(part) < 1 ? std::exp(-0.75) : 1;
      const auto [units, where] = distance(z_v(0.75), expected, t);
      EXPECT_LE(units, 1) << "at " << where << ", scores " << part * limit << ", " << name_of(t);
    }
}

// Heads wider than 256 have a portable backward. Values are a separate tensor or the first columns of the
// keys.
TEST_F(CudaAttention, RunsOnHoppersKernelsForHeadsBeyond256) {
  for (const bool shared : {true, false}) {
    const std::string what = shared ? "values are keys" : "values";
    const auto more = [&](Extras e) {
      e.values_are_keys = shared;
      return e;
    };
    check({{1, 2, 1, 70, 150, 576, 512}, {.causal = true}, more({.projected = true})}, what, {bf16});
    check({{1, 2, 2, 130, 70, 320, 264}, {.window_left = 40}, more({})}, what + " window", {f16});
    check({{2, 2, 1, 20, 140, 512, 512}, {}, more({.sink = true, .lengths = {131, 70}, .beyond = NAN})},
          what + " lengths", {bf16});
    check({{1, 1, 1, 70, 70, 576, 40}, {.softcap = 2}, more({})}, what + " softcap", {f16});
    check({{1, 1, 1, 65, 70, 264, 8}, {.scale = -0.1, .causal = true}, more({})}, what + " scale", {bf16});
  }
  const Extras packed{.values_are_keys = true, .cu_q = {0, 3, 3, 40, 68}, .cu_k = {1, 5, 6, 70, 90}};
  check({{1, 2, 1, 70, 90, 576, 512}, {.causal = true}, packed}, "packed", {bf16});
  check({{1, 1, 1, 70, 70, 8, 512}, {.causal = true}}, "narrow keys", {bf16});
}

// Tests few queries with many keys. On Hopper, the keys are split into ranges, and the results of the ranges
// are merged. Several heads can share keys. Their queries are rows of one tile.
std::vector<Option> options_for_few_queries(const Sizes& n) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < n.B; ++b)
    lengths.push_back(b == 1 ? 0 : std::max<std::int64_t>(1, n.T - 190 * b - 3));
  const auto l = static_cast<std::int32_t>(n.L), t = static_cast<std::int32_t>(n.T);
  std::vector<Option> all = {
      {"none", {}},
      {"projected causal", {.causal = true}, {.projected = true}},
      {"top-left", {.causal = true, .alignment = O::top_left}, {.sink = true}},
      {"window", {.window_left = 150, .window_right = 9}},
      {"softcap", {.causal = true, .softcap = 1.3}, {.sink = true}},
      {"lengths", {}, {.lengths = lengths, .beyond = NAN}},
      {"causal lengths", {.causal = true}, {.sink = true, .lengths = lengths, .beyond = NAN}},
  };
  if (n.B == 1) {
    const Extras packed{.sink = true, .cu_q = {0, l / 2, l / 2, l}, .cu_k = {1, t / 3, t / 3 + 2, t - 5}};
    all.push_back({"packed", {.causal = true}, packed});
  }
  return all;
}
TEST_F(CudaAttention, SplitsKeysIntoRanges) {
  for (const Sizes& n : {Sizes{1, 1, 1, 1, 700, 64, 64}, Sizes{1, 4, 1, 5, 650, 128, 128},
                         Sizes{3, 2, 1, 3, 390, 64, 40}, Sizes{1, 2, 2, 70, 600, 96, 72}})
    for (const Option& o : options_for_few_queries(n)) check({n, o.o, o.more}, text(n) + o.name, {bf16});
  check({{1, 4, 2, 9, 500, 64, 64}, {.causal = true}}, "f16", {f16});
  for (const Sizes& n : {Sizes{1, 8, 1, 1, 2100, 256, 256}, Sizes{1, 2, 1, 20, 2100, 192, 128},
                         Sizes{1, 1, 1, 1, 20000, 8, 8}})
    check({n, {.causal = true}}, text(n), {bf16});
}
TEST_F(CudaAttention, SplitsKeysOfHeadsBeyond256IntoRanges) {
  const Sizes n{2, 2, 1, 3, 260, 320, 264};
  for (Option o : options_for_few_queries(n)) {
    o.more.values_are_keys = !o.more.sink;
    check({n, o.o, o.more}, text(n) + o.name, {bf16});
  }
  check({{1, 70, 1, 1, 300, 576, 512}, {}, {.values_are_keys = true}}, "two tiles of heads", {bf16});
}

TEST_F(CudaAttention, AcceptsEmptyBatchesAndHeads) {
  check({{0, 2, 1, 3, 4, 8, 8}}, "no batch");
  check({{2, 0, 0, 3, 4, 8, 8}}, "no heads");
  check({{2, 2, 1, 0, 4, 8, 8}}, "no queries");
  check({{1, 2, 1, 3, 0, 8, 8}, {}, {.sink = true}}, "only a sink");
}

// Adds 0.3 to the expected numbers and then subtracts 0.3, in the dtype. Returns twice the largest change.
double slack(const Vector& expected, DType t) {
  const auto rounded = [&](const Vector& x) { return doubles(Array::of(x).to(t)); };
  const double more = rounded({0.3})[0];
  Vector x = rounded(expected);
  for (double& e : x) e = std::isfinite(e) ? e + more : more;
  x = rounded(x);
  for (double& e : x) e -= more;
  x = rounded(x);
  double most = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (std::isfinite(expected[i])) most = std::max(most, std::abs(x[i] - expected[i]));
  return 2 * most;
}

// Checks FlashAttention's rule: max|x − expected| ≤ 2·max|unfused − expected| + slack. With a softcap, the
// factor is 3 and the slack increases by 3e-4.
void expect_as_close_as_unfused(const Problem& p, const std::string& what, DType t, bool tf32 = false) {
  SCOPED_TRACE(what + " " + (tf32 ? "TF32" : std::string(name_of(t))));
  const CompileOptions how{.device = Device::cuda(), .tf32 = tf32};
  const Results expected = p.run(t, f64, {}), got = p.run(t, t, how), plain = p.run(t, t, how, 1, false);
  const bool capped = p.options.softcap > 0 && t != f32;
  for (std::size_t k = 0; k < expected.values.size(); ++k) {
    const Vector w = doubles(expected.values[k]), g = doubles(got.values[k]), u = doubles(plain.values[k]);
    double apart = 0, allowed = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      if (w[i] == -INFINITY) {
        EXPECT_EQ(g[i], w[i]) << got.names[k] << " at " << i;
        continue;
      }
      const double e = std::abs(g[i] - w[i]);
      apart = std::isnan(e) ? INFINITY : std::max(apart, e);
      allowed = std::max(allowed, std::abs(u[i] - w[i]));
    }
    EXPECT_LE(apart, (capped ? 3 : 2) * allowed + slack(w, got.values[k].dtype()) + (capped ? 3e-4 : 0))
        << got.names[k] << ", unfused " << allowed;
  }
}

// Sizes are multiples of 4. cuBLASLt multiplies in TF32 only if operands are aligned to 16 bytes.
TEST_F(CudaAttention, F32IsAsCloseAsUnfusedAttention) {
  for (const bool tf32 : {false, true}) {
    expect_as_close_as_unfused({{1, 2, 1, 152, 172, 64, 64}}, "full", f32, tf32);
    expect_as_close_as_unfused({{1, 2, 2, 132, 132, 32, 32}, {.causal = true}, {.sink = true}}, "causal", f32,
                               tf32);
    expect_as_close_as_unfused({{1, 1, 1, 100, 92, 128, 128}, {.softcap = 5, .dropout = 0.2}}, "any", f32,
                               tf32);
    expect_as_close_as_unfused({{1, 1, 1, 64, 3000, 64, 64}}, "long", f32, tf32);
    if (!tf32)  // cuBLASLt multiplies these small matrices in f32
      expect_as_close_as_unfused({{2, 96, 48, 12, 44, 32, 32}, {.causal = true}, {.z_lse = false}},
                                 "enough heads for a block each", f32, tf32);
  }
}

TEST_F(CudaAttention, SixteenBitTypesAreAsCloseAsUnfusedAttention) {
  for (const DType t : {bf16, f16})
    for (const AttentionKernels kernels : {AttentionKernels::best, AttentionKernels::tensor_cores}) {
      SCOPED_TRACE(name_of(kernels));
      expect_as_close_as_unfused({{1, 2, 1, 152, 172, 64, 64}, {.kernels = kernels}}, "full", t);
      expect_as_close_as_unfused({{1, 2, 2, 136, 136, 128, 128}, {.causal = true, .kernels = kernels}},
                                 "causal", t);
      expect_as_close_as_unfused({{1, 2, 1, 104, 200, 64, 64}, {.window_left = 40, .kernels = kernels}},
                                 "window", t);
      expect_as_close_as_unfused({{1, 1, 1, 64, 1000, 128, 128}, {.kernels = kernels}}, "long", t);
      expect_as_close_as_unfused({{1, 1, 1, 104, 96, 64, 64}, {.softcap = 5, .kernels = kernels}}, "softcap",
                                 t);
    }
}

// An f32 number is represented by f16 numbers and a power of two. Operands may have any magnitude. Unused
// keys may have any value.
TEST_F(CudaAttention, F32AcceptsNumbersOfAnyMagnitude) {
  const std::vector<std::int64_t> lengths{60, 33};
  const std::vector<std::pair<const char*, Extras>> all = {
      {"small and large", {.q = 1e-15, .k = 1e15, .v = 1e-12, .z_o = 1e12}},
      {"large values", {.v = 1e18, .z_o = 1e-18}},
      {"small scores", {.q = 1e-30, .k = 1e-5, .v = 1e-25, .z_o = 1e-5}},
      {"only the gradient of ξ", {.z_o = 0}},
      {"the gradient of ξ and small ones", {.v = 1e-6, .z_o = 1e-6}},
      {"values of zero", {.v = 0}},
      {"large keys beyond", {.lengths = lengths, .beyond = 1e30}},
      {"infinite keys beyond", {.lengths = lengths, .beyond = INFINITY}},
      {"no keys beyond", {.lengths = lengths, .beyond = NAN}}};
  const Sizes few_heads{2, 4, 2, 70, 90, 32, 24}, many{2, 96, 48, 6, 90, 32, 24};
  for (const auto& [name, more] : all)
    for (const auto& [n, tf32, dropout] : {std::tuple{few_heads, false, 0.2},
                                           {few_heads, true, 0.2},
                                           {few_heads, false, 0.},
                                           {few_heads, true, 0.},
                                           {many, false, 0.2},
                                           {many, true, 0.2}}) {
      SCOPED_TRACE(std::string(name) + (tf32 ? " TF32" : " f32") + (n.H == many.H ? ", many heads" : "") +
                   (dropout > 0 ? ", dropout" : ""));
      const Problem p{n, {.dropout = dropout}, more};
      const DType rounded = tf32 ? bf16 : f32;  // precision of TF32, range of f32
      const auto expected = p.run(rounded, f64, {}),
                 got = p.run(rounded, f32, {.device = Device::cuda(), .tf32 = tf32, .verify = true});
      for (std::size_t i = 0; i < expected.values.size(); ++i) {
        const Vector w = doubles(expected.values[i]), g = doubles(got.values[i]);
        double size = 0, apart = 0;
        for (std::size_t e = 0; e < w.size(); ++e) {
          if (g[e] == w[e]) continue;
          size = std::max(size, std::abs(w[e]));
          const double d = std::abs(g[e] - w[e]);
          if (!(d <= apart)) apart = std::isnan(d) ? INFINITY : d;
        }
        EXPECT_LE(apart, (tf32 ? 2e-3 : 2e-6) * size) << expected.names[i];
      }
    }
}

#ifndef TG_RACE_RUNS  // each run takes seconds on the emulator
#define TG_RACE_RUNS 1000
#endif
constexpr int race_runs = TG_RACE_RUNS;

TEST_F(CudaAttention, RepeatedRunsMatchBitwise) {
  for (const DType t : {f32, bf16})
    for (const bool causal : {false, true}) {
      const Problem p{{2, 8, 2, 700, 900, 64, 64}, {.causal = causal, .dropout = 0.1}, {.sink = true}};
      p.run(t, t, {.device = Device::cuda()}, race_runs);
      const Problem wide{{1, 8, 4, 500, 500, 128, 128}, {.causal = causal}};
      wide.run(t, t, {.device = Device::cuda()}, race_runs);
      const Problem walking{{1, 16, 16, 300, 2048, 128, 128}, {.causal = causal}};
      walking.run(bf16, bf16, {.device = Device::cuda()}, race_runs);
      const Problem wider{{1, 4, 2, 300, 300, 192, 128}, {.causal = causal}};
      wider.run(bf16, bf16, {.device = Device::cuda()}, race_runs);
      const Problem few{{1, 8, 2, 3, 3000, 128, 128}, {.causal = causal}, {.sink = true}};
      few.run(bf16, bf16, {.device = Device::cuda()}, race_runs);
    }
}

TEST_F(CudaAttention, DeterministicRunsAreVerified) {
  const Problem p{{1, 4, 2, 300, 500, 128, 128}, {.nondeterministic = true}};
  EXPECT_NO_THROW(p.run(bf16, bf16, {.device = Device::cuda(), .verify = true}, 3));
}

// If `nondeterministic` is set, runs may differ only in the lowest bits of z_q.
TEST_F(CudaAttention, KeyGradientsMatchBitwiseNondeterministically) {
  for (const bool causal : {false, true}) {
    const Problem p{{1, 4, 2, 300, 500, 64, 64}, {.causal = causal, .nondeterministic = true}};
    const auto first = p.run(bf16, bf16, {.device = Device::cuda()});
    for (int t = 0; t < 3; ++t) {
      const auto again = p.run(bf16, bf16, {.device = Device::cuda()});
      for (std::size_t i : {0, 1, 3, 4})
        EXPECT_TRUE(again.values[i].same_bits(first.values[i])) << first.names[i];
      expect_close(again, first, bf16);
    }
  }
}

}  // namespace
}  // namespace tg

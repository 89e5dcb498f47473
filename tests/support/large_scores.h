// Tests attention calls with scores of large magnitude. The scores are exact in f32. Compares results and
// gradients with standard_attn in f64, with error bounds.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <tilegrad/tilegrad.h>

namespace tg::large_scores {

using Numbers = std::vector<double>;

// Returns random integers from −most to most.
inline Numbers integers(std::int64_t n, std::int64_t most, std::uint64_t seed) {
  Numbers x(static_cast<std::size_t>(n));
  for (double& e : x) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const auto span = static_cast<std::uint64_t>(2 * most + 1);
    e = static_cast<double>(static_cast<std::int64_t>((seed >> 33) % span) - most);
  }
  return x;
}

// Elements of q are integers times `of_q`; elements of k are integers.
struct Case {
  std::string name;
  std::int64_t B = 1, H = 1, Hk = 1, L = 5, T = 7, d = 16, dv = 8;
  double of_q = 1;
  std::int64_t long_rows = 0;  // every n-th query is multiplied by 2^18; 0: no query
  std::function<double(std::int64_t i, std::int64_t j)> bias = nullptr;
  double sink = NAN;  // NaN: no sink
  AttentionOptions options = {};
  bool of_many_bits = false;  // needs more bits than 16-bit types have

  bool suits(DType dtype) const {
    if (of_many_bits && size_of(dtype) < 4) return false;
    return dtype != f16 || (of_q <= 8192 && long_rows == 0 && !bias && std::isnan(sink));
  }
};

// Returns o, z_q, z_k, z_v, z_bias and z_sink.
using Results = std::map<std::string, Numbers>;

using Attend =
    std::function<AttentionResult(const Tensor&, const Tensor&, const Tensor&, const AttentionOptions&)>;

inline Results run(const Case& c, DType dtype, const Attend& attend, const CompileOptions& compiling) {
  Graph g;
  const auto constant = [&](const Shape& shape, const Numbers& x) {
    return g.constant(Array::of(shape, x).to(dtype));
  };
  Numbers q = integers(c.B * c.H * c.L * c.d, 2, 1);
  for (std::size_t e = 0; e < q.size(); ++e) {
    q[e] *= c.of_q;
    if (c.long_rows > 0 && static_cast<std::int64_t>(e) / c.d % c.long_rows == 0) q[e] *= 1 << 18;
  }
  Numbers v = integers(c.B * c.Hk * c.T * c.dv, 8, 3), z = integers(c.B * c.H * c.L * c.dv, 8, 4);
  for (Numbers* x : {&v, &z})
    for (double& e : *x) e /= 8;
  std::vector<Tensor> wrt{constant({c.B, c.H, c.L, c.d}, q),
                          constant({c.B, c.Hk, c.T, c.d}, integers(c.B * c.Hk * c.T * c.d, 2, 2)),
                          constant({c.B, c.Hk, c.T, c.dv}, v)};
  std::vector<std::string> names{"o", "z_q", "z_k", "z_v"};
  AttentionOptions options = c.options;
  if (c.bias) {
    Numbers bias;
    for (std::int64_t i = 0; i < c.L; ++i)
      for (std::int64_t j = 0; j < c.T; ++j) bias.push_back(c.bias(i, j));
    wrt.push_back(options.bias = constant({c.L, c.T}, bias)), names.emplace_back("z_bias");
  }
  if (!std::isnan(c.sink)) {
    wrt.push_back(options.sink = constant({c.H}, Numbers(static_cast<std::size_t>(c.H), c.sink)));
    names.emplace_back("z_sink");
  }
  std::vector<Tensor> all{attend(wrt[0], wrt[1], wrt[2], options).o};
  for (const Tensor& x : gradients(all[0], wrt, constant(all[0].shape(), z))) all.push_back(x);
  const std::vector<Array> arrays = eval(all, {}, compiling);
  Results results;
  for (std::size_t n = 0; n < names.size(); ++n) results[names[n]] = arrays[n].to(f64).values<double>();
  return results;
}

inline AttentionResult fused(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  return flash_attn(q, k, v, o);
}
inline AttentionResult unfused(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  return standard_attn(q, k, v, o);
}

inline double largest(const Numbers& x) {
  double most = 0;
  for (double e : x) most = std::max(most, std::abs(e));
  return most;
}

// Returns the relative rounding error of P. In rows below most_plain_lse, exponents of 2 are below 2^11 in
// f32 and f64. ξ, its product with log2 e and the exponent each have an error of half an ulp. The sum of
// these errors is 3·2^−14 or 3·2^−43. In 16-bit types, exponents are below 2^14, and GEMMs round P and z_A to
// 2^−9 (f16: 2^−12).
inline double rounding_of_p(DType dtype) {
  return dtype == f64 ? std::ldexp(1, -41) : dtype == f32 ? std::ldexp(1, -12) : std::ldexp(1, -7);
}

// v| and |z_O| are ≤ 1, so |z_P| and |u| are below dv. Errors of z_A are therefore 2·dv times the errors of
// P. Rows of P add up to 1.
inline void expect_close(const Case& c, DType dtype, const Results& got, const Results& expected) {
  const double p = rounding_of_p(dtype), z_a = 2 * static_cast<double>(c.dv) * p,
               scale = std::abs(c.options.scale.value_or(1 / std::sqrt(static_cast<double>(c.d)))),
               rows = static_cast<double>(c.L * c.H / c.Hk),
               longest = 2 * std::max(c.of_q, 1.) * (c.long_rows > 0 ? 1 << 18 : 1);
  const std::map<std::string, double> bounds{{"o", p},
                                             {"z_q", z_a * 2 * scale},
                                             {"z_k", z_a * rows * longest * scale},
                                             {"z_v", p * rows},
                                             {"z_bias", z_a * static_cast<double>(c.B * c.H)},
                                             {"z_sink", z_a * static_cast<double>(c.B * c.L)}};
  for (const auto& [name, values] : got) {
    double most = 0;
    for (std::size_t e = 0; e < values.size(); ++e) {
      const double apart = std::abs(values[e] - expected.at(name)[e]);
      most = std::isfinite(apart) ? std::max(most, apart) : INFINITY;
    }
    EXPECT_LE(most, bounds.at(name)) << name << " of " << c.name << " in " << name_of(dtype);
  }
}

// With TF32, f32 is rounded like f16.
inline void expect_right(const Case& c, DType dtype, const CompileOptions& compiling = {.threads = 1}) {
  expect_close(c, compiling.tf32 ? f16 : dtype, run(c, dtype, fused, compiling),
               run(c, f64, unfused, {.threads = 1}));
}

// In these cases, a bias or q·k makes the scores of some or all rows large. Each option is tested.
inline std::vector<Case> cases() {
  const double lowest = -0x1.fep127, less_low = -0x1.8p127;  // `lowest` is the lowest number in bf16
  std::vector<Case> all;
  // If such a bias is added, the sum in f32 does not depend on q·k.
  for (const double b : {-1e9, 1e9, -1e30, lowest})
    all.push_back(
        {.name = "bias of all keys " + std::to_string(b), .of_q = 0, .bias = [b](auto, auto) { return b; }});
  all.push_back({.name = "bias of some rows", .of_q = 0, .bias = [](std::int64_t i, std::int64_t j) {
                   return i % 3 == 1 ? -1e9 : 0.5 * static_cast<double>(j % 3);
                 }});
  all.push_back({.name = "lowest bias of f32",
                 .of_q = 0,
                 .bias = [](auto, auto) { return -static_cast<double>(std::numeric_limits<float>::max()); },
                 .of_many_bits = true});
  all.push_back(
      {.name = "biases near each other",
       .bias = [](std::int64_t i,
                  std::int64_t j) { return static_cast<double>((i % 2 == 0 ? -65536 : 0) + 256 * (j % 3)); },
       .options = {.scale = 0.25}});
  all.push_back({.name = "biases within a few nats",
                 .bias =
                     [](std::int64_t i, std::int64_t j) {
                       return (i % 2 == 0 ? -1048576 : 1048576) + 0.5 * static_cast<double>(j % 3);
                     },
                 .options = {.scale = 0.25},
                 .of_many_bits = true});
  all.push_back({.name = "masked keys", .bias = [](auto, std::int64_t j) { return j % 2 == 0 ? -1e9 : 0.; }});
  all.push_back({.name = "lowest and less low",
                 .bias = [=](auto, std::int64_t j) { return j == 1 ? less_low : lowest; }});
  for (const int e : {9, 12, 20, 33, 50})
    all.push_back({.name = "q times 2^" + std::to_string(e), .of_q = std::ldexp(1, e)});
  all.push_back({.name = "some long queries", .long_rows = 3});
  all.push_back({.name = "negative scale", .of_q = 1 << 20, .options = {.scale = -0.25}});
  all.push_back({.name = "causal", .of_q = 1 << 20, .options = {.causal = true}});
  all.push_back({.name = "window", .of_q = 1 << 20, .options = {.window_left = 2, .window_right = 2}});
  // Scores are 0 or so large that tanh is ±1. Both are exact in f32.
  all.push_back({.name = "softcap", .of_q = std::ldexp(1, 30), .options = {.softcap = 65536}});
  all.push_back({.name = "sink", .of_q = 1 << 20, .sink = 1048576});
  all.push_back({.name = "sink among keys far below",
                 .bias = [](auto, auto) { return -1048576.; },
                 .sink = -1048576,
                 .options = {.scale = 0.25}});
  return all;
}

}  // namespace tg::large_scores

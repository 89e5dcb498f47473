// The op `sample` draws tokens on a device. Compares them with nn::sample_token, row by row.
#pragma once

#include <algorithm>
#include <limits>
#include <random>

#include <tilegrad/core/base/rng.h>
#include <tilegrad/nn/generation/sampling.h>
#include "tests/support/op_testing.h"

namespace tg::testing {

// A row of logits and its sampling settings.
struct SampledRow {
  std::vector<float> logits;
  nn::Sampling sampling;
  std::uint64_t seed = 0, k = 0;

  // Returns token k of Generator::extend() with this seed, or 0 for a row of NaN. No node of a graph uses the
  // same random stream.
  std::int32_t expected() const {
    if (std::ranges::all_of(logits, [](float x) { return x != x; })) return -1;
    const PhiloxBlock words = philox({}, node_key(seed, k, 0xffffff01u));
    return nn::sample_token(logits, sampling, uniform(words[0], words[1]));
  }
};

// Returns rows of n logits with all kinds of settings. Temperatures are zero, tiny or large. top_k and top_p
// may be set. Some rows contain many equal logits. Others contain −∞, ∞ and NaN.
inline std::vector<SampledRow> random_rows(std::mt19937_64& random, std::int64_t rows, std::int64_t n) {
  const auto below = [&](std::uint64_t most) { return random() % most; };
  const auto unit = [&] { return std::uniform_real_distribution<>(0, 1)(random); };
  constexpr float inf = std::numeric_limits<float>::infinity();
  std::vector<SampledRow> all(static_cast<std::size_t>(rows));
  for (SampledRow& row : all) {
    const std::uint64_t kind = below(4);
    const float width = std::exp2(static_cast<float>(below(8)) - 3);
    std::normal_distribution<float> normal(0, width);
    for (std::int64_t i = 0; i < n; ++i) {
      float x = kind == 1 ? static_cast<float>(below(4)) : normal(random);
      if (kind == 2 && below(4) == 0) x = below(2) ? -inf : std::nanf("");
      if (kind == 3 && i == 0) x = below(2) ? inf : -0.f;
      row.logits.push_back(x);
    }
    if (below(4) == 0) row.logits[below(static_cast<std::uint64_t>(n))] = 0;
    row.sampling.temperature = below(6) == 0 ? 0 : std::exp2(6 * unit() - 3);
    if (below(8) == 0) row.sampling.temperature = below(2) ? 1e-30 : 1e30;
    if (below(2)) row.sampling.top_k = static_cast<std::int64_t>(below(2 * static_cast<std::uint64_t>(n)));
    if (below(2))
      row.sampling.top_p = below(8) == 0 ? static_cast<double>(below(2)) : std::min(1.0, 1.1 * unit());
    row.seed = random(), row.k = below(1000);
  }
  return all;
}

// Samples the tokens of the rows in one batch. The dtype of the logits must represent the values of the rows
// exactly.
inline std::vector<std::int32_t> drawn_together(const std::vector<SampledRow>& rows, bool cut,
                                                const CompileOptions& options, DType dtype = f32) {
  const auto B = static_cast<std::int64_t>(rows.size()), V = std::ssize(rows[0].logits);
  std::vector<float> logits;
  std::vector<double> temperature, top_p;
  std::vector<std::int64_t> keys, top_k;
  for (const SampledRow& row : rows) {
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    temperature.push_back(row.sampling.temperature), top_p.push_back(row.sampling.top_p);
    top_k.push_back(row.sampling.top_k);
    keys.insert(keys.end(), {static_cast<std::int64_t>(row.seed), static_cast<std::int64_t>(row.k)});
  }
  Graph g;
  const Tensor x = g.input("logits", {B, V}, dtype), t = g.input("temperature", {B}, f64),
               key = g.input("keys", {B, 2}, i64), k = g.input("top_k", {B}, i64),
               p = g.input("top_p", {B}, f64);
  std::vector<Feed> feeds{{x, Array::of({B, V}, logits).to(dtype)},
                          {t, Array::of({B}, temperature)},
                          {key, Array::of({B, 2}, keys)}};
  if (cut) feeds.insert(feeds.end(), {{k, Array::of({B}, top_k)}, {p, Array::of({B}, top_p)}});
  const Tensor y = cut ? sample(x, t, key, k, p) : sample(x, t, key);
  return eval(std::vector<Tensor>{y}, feeds, options)[0].values<std::int32_t>();
}

inline void expect_sampled(const std::vector<SampledRow>& rows, bool cut, const CompileOptions& options,
                           DType dtype = f32) {
  const std::vector<std::int32_t> got = drawn_together(rows, cut, options, dtype);
  for (std::size_t r = 0; r < rows.size(); ++r)
    ASSERT_EQ(got[r], rows[r].expected())
        << "row " << r << ": temperature " << rows[r].sampling.temperature << ", top_k "
        << rows[r].sampling.top_k << ", top_p " << rows[r].sampling.top_p;
}

// Tests rows of many lengths with all settings, with and without top_k and top_p.
inline void expect_rows_of_every_kind(const CompileOptions& options, std::int64_t rows,
                                      std::initializer_list<std::int64_t> lengths) {
  std::mt19937_64 random(7);
  for (const std::int64_t n : lengths)
    for (const bool cut : {true, false}) {
      std::vector<SampledRow> all = random_rows(random, rows, n);
      if (!cut)
        for (SampledRow& row : all) row.sampling.top_k = 0, row.sampling.top_p = 1;
      expect_sampled(all, cut, options);
      if (::testing::Test::HasFatalFailure()) return;
    }
}

}  // namespace tg::testing

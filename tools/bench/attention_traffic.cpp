#include "tools/bench/attention_traffic.h"

#include <algorithm>

#include "ops/attention_call.h"

namespace tg::bench {

namespace {

constexpr double stat = 4;  // bytes of a row statistic (ξ, u), and of a number that z_Q is summed in

// Elements of the operands.
struct Sizes {
  double q, k, v, o, rows, scores, heads, key_heads;
  explicit Sizes(const AttentionCell& c)
      : q(product({c.B, c.H, c.L, c.d})),
        k(product({c.B, c.Hk, c.T, c.d})),
        v(product({c.B, c.Hk, c.T, c.dv})),
        o(product({c.B, c.H, c.L, c.dv})),
        rows(product({c.B, c.H, c.L})),
        scores(product({c.B, c.H, c.L, c.T})),
        heads(product({c.B, c.H})),
        key_heads(product({c.B, c.Hk})) {}
  static double product(std::initializer_list<std::int64_t> sizes) {
    double n = 1;
    for (std::int64_t s : sizes) n *= static_cast<double>(s);
    return n;
  }
};

// Sums over all tiles of queries: how many keys are seen by some query of the tile.
double keys_over_tiles(const AttentionCell& c, std::int64_t queries) {
  double n = 0;
  for (std::int64_t i0 = 0; i0 < c.L; i0 += queries) {
    std::int64_t from = c.T, to = 0;
    for (std::int64_t i = i0; i < std::min(i0 + queries, c.L); ++i)
      if (const KeyRange seen = keys_seen(c, i); seen.from < seen.to)
        from = std::min<std::int64_t>(from, seen.from), to = std::max<std::int64_t>(to, seen.to);
    n += static_cast<double>(std::max<std::int64_t>(to - from, 0));
  }
  return n;
}

// Sums over all tiles of keys: how many queries see some key of the tile.
double queries_over_tiles(const AttentionCell& c, std::int64_t keys) {
  double n = 0;
  for (std::int64_t i = 0; i < c.L; ++i)
    if (const KeyRange seen = keys_seen(c, i); seen.from < seen.to)
      n += static_cast<double>((seen.to - 1) / keys - seen.from / keys + 1);
  return n;
}

}  // namespace

Bytes materialised(const AttentionCell& c, bool backward, std::int64_t size) {
  const Sizes n(c);
  const auto bytes = static_cast<double>(size);
  // S = Q·Kᵀ; P = softmax(S); O = P·V.
  if (!backward) return {bytes * (n.q + n.k + 2 * n.scores + n.v), bytes * (2 * n.scores + n.o)};
  // z_V = Pᵀ·z_O; z_P = z_O·Vᵀ; z_S from P and z_P; z_Q = z_S·K; z_K = z_Sᵀ·Q.
  return {bytes * (5 * n.scores + 2 * n.o + n.v + n.k + n.q), bytes * (2 * n.scores + n.v + n.q + n.k)};
}

Bytes fused(const AttentionCell& c, bool backward, std::int64_t size, const Tile& tile) {
  const Sizes n(c);
  const auto bytes = static_cast<double>(size), both = static_cast<double>(c.d + c.dv);
  if (!backward)
    return {bytes * (n.q + n.heads * keys_over_tiles(c, tile.queries) * both), bytes * n.o + stat * n.rows};
  const double rows = n.heads * queries_over_tiles(c, tile.keys), sums = stat * static_cast<double>(c.d);
  // Before: u from O and z_O, beside ξ, and z_Q's sums cleared. After: they are rounded.
  return {bytes * 2 * n.o + stat * n.rows + bytes * (n.k + n.v) + rows * (bytes * both + 2 * stat + sums) +
              stat * n.q,
          2 * stat * n.rows + stat * n.q + rows * sums + bytes * (n.k + n.v + n.q)};
}

Bytes least(const AttentionCell& c, bool backward, std::int64_t size) {
  const Sizes n(c);
  const auto bytes = static_cast<double>(size);
  const double in = n.q + n.k + n.v;
  if (!backward) return {bytes * in, bytes * n.o + stat * n.rows};
  return {bytes * (in + 2 * n.o) + stat * n.rows, bytes * in};
}

}  // namespace tg::bench

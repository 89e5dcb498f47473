// Philox4x32-10 (Salmon et al., 2011): random bits as a pure function of a 128-bit counter and a 64-bit key.
// The numbers are therefore the same on every backend, for every order of threads and in every recomputation.
// A random node has the key node_key(seed, step, node) and its own counters. One block has four words.
#pragma once

#include <array>
#include <cstdint>

namespace tg {

// Four 32-bit words: a counter or a block of random bits.
using PhiloxBlock = std::array<std::uint32_t, 4>;

// Multipliers of a round.
inline constexpr std::uint32_t philox_multiplier[2] = {0xD2511F53u, 0xCD9E8D57u};
// Increments of the key words per round.
inline constexpr std::uint32_t philox_increment[2] = {0x9E3779B9u, 0xBB67AE85u};
// Number of rounds.
inline constexpr int philox_rounds = 10;

// Returns the random block of a counter under a key.
constexpr PhiloxBlock philox(PhiloxBlock counter, std::uint64_t key) {
  // Scalars, because device code cannot read the arrays.
  constexpr std::uint32_t m0 = philox_multiplier[0], m1 = philox_multiplier[1];
  constexpr std::uint32_t i0 = philox_increment[0], i1 = philox_increment[1];
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < philox_rounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{m0} * counter[0];
    const std::uint64_t p1 = std::uint64_t{m1} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += i0;
    k1 += i1;
  }
  return counter;
}

// The key of a random node at a step under a seed: two words of one block, so that keys of neighboring steps
// and nodes are unrelated.
constexpr std::uint64_t node_key(std::uint64_t seed, std::uint64_t step, std::uint32_t node) {
  const PhiloxBlock b =
      philox({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), node, 0}, seed);
  return b[0] | std::uint64_t{b[1]} << 32;
}

// Uniform in [0, 1) with 24 random bits, for f32; never 1.
constexpr float uniform(std::uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}
// Uniform in [0, 1) with 53 random bits from two words, for f64; never 1.
constexpr double uniform(std::uint32_t high, std::uint32_t low) {
  return static_cast<double>((std::uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

// The bound of dropout: an element is kept if its word is at least the bound. The error of the drop
// probability is at most 2^-32.
constexpr std::uint32_t dropout_bound(double p) {
  const double bound = p * 0x1p32;
  return bound >= 4294967295.0 ? 0xffffffffu : static_cast<std::uint32_t>(bound);
}

// The bound of bernoulli: a word below the bound gives true. The error of the probability is at most 2^-32.
// It is 0 if p is 0 or 1.
constexpr std::uint64_t bernoulli_bound(double p) {
  return static_cast<std::uint64_t>(p * 0x1p32);
}

// The counter of a block for elementwise random ops (dropout, uniform, normal, …). Element i of the tensor,
// counted row-major, uses word i % 4 of block i / 4. Ops that need 64 bits per element use words 2·(i % 2)
// and 2·(i % 2) + 1 of block i / 2.
constexpr PhiloxBlock element_counter(std::uint64_t block) {
  return {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0};
}

// The counter for dropout inside attention: score (b, h, i, j) of query head h uses word j % 4. Four keys
// share one block, so code with a vector of queries computes four keys at a time.
constexpr PhiloxBlock attention_counter(std::uint32_t batch_head /* b·H + h */, std::uint32_t query,
                                        std::uint32_t key) {
  return {query, key / 4, batch_head, 0};  // word key % 4
}

}  // namespace tg

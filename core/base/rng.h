// Philox4x32-10 (Salmon et al., 2011): random bits as a pure function of a 128-bit counter and a 64-bit key,
// so that every backend, thread order and recomputation sees the same numbers. A random node has the key
// node_key(seed, step, node) and numbers its own counters; one block gives four words.
#pragma once

#include <array>
#include <cstdint>

namespace tg {

using PhiloxBlock = std::array<std::uint32_t, 4>;

inline constexpr std::uint32_t philox_multiplier[2] = {0xD2511F53u, 0xCD9E8D57u};
inline constexpr std::uint32_t philox_increment[2] = {0x9E3779B9u, 0xBB67AE85u};
inline constexpr int philox_rounds = 10;

constexpr PhiloxBlock philox(PhiloxBlock counter, std::uint64_t key) {
  // As numbers: device code cannot read the arrays.
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

// The key of random node `node` at step `step` under `seed`: two words of one block, so that keys of
// neighbouring steps and nodes are unrelated.
constexpr std::uint64_t node_key(std::uint64_t seed, std::uint64_t step, std::uint32_t node) {
  const PhiloxBlock b =
      philox({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), node, 0}, seed);
  return b[0] | std::uint64_t{b[1]} << 32;
}

// Uniform in [0, 1) with 24 bits (f32) or 53 bits (f64, two words): never 1.
constexpr float uniform(std::uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}
constexpr double uniform(std::uint32_t high, std::uint32_t low) {
  return static_cast<double>((std::uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

// Dropout keeps an element when its word is at or above this bound: P(drop) = p to within 2^-32.
constexpr std::uint32_t dropout_bound(double p) {
  const double bound = p * 0x1p32;
  return bound >= 4294967295.0 ? 0xffffffffu : static_cast<std::uint32_t>(bound);
}

// A word below this bound is true: P(true) = p to within 2^-32, and exactly 0 and 1 at these.
constexpr std::uint64_t bernoulli_bound(double p) {
  return static_cast<std::uint64_t>(p * 0x1p32);
}

// Element-wise random ops (dropout, uniform, normal, …): element i of the tensor, counted row-major, draws
// from block i / 4, and there word i % 4; ops that need 64 bits draw words 2·(i % 2) and the next of block i
// / 2.
constexpr PhiloxBlock element_counter(std::uint64_t block) {
  return {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0};
}

// Dropout inside attention: the word of score (b, h, i, j), h a query head of H. Four keys share one block,
// so a vector over queries computes four rows of keys at a time.
constexpr PhiloxBlock attention_counter(std::uint32_t batch_head /* b·H + h */, std::uint32_t query,
                                        std::uint32_t key) {
  return {query, key / 4, batch_head, 0};  // word key % 4
}

}  // namespace tg

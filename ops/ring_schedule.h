// Which calls of flash_attn make up attention over a sequence that is divided among ranks. It is a table of
// numbers, and the same on all ranks: what differs between them is only how many of a call's keys there are.
#pragma once

#include <cstdint>
#include <vector>

namespace tg::detail {

// Which keys t a query i of the whole sequence sees: i − left ≤ t ≤ i + right; -1: no bound.
struct RingMask {
  std::int64_t left = -1, right = -1;
};

// A call on rows of the rank's queries and of the keys that have come to it, as many of each, or without a
// mask. `left` and `right` count from a query's row to a key's row, both from 0.
struct RingCall {
  std::int64_t query = 0, queries = 0;  // the first row, and how many
  std::int64_t key = 0, keys = 0;
  std::int64_t left = -1, right = -1;
  std::vector<std::int64_t> visible = {};  // by rank: how many of the keys there are. Empty: all of them

  bool operator==(const RingCall&) const = default;
};

// Calls of all queries with the keys of the rank that is `shift` before this one, in a circle.
struct RingStep {
  int shift = 0;
  std::vector<RingCall> calls;
};

// Rank r has pieces r and 2N − 1 − r of 2N equal ones, of `piece` tokens each (zigzag): under a causal mask
// that is the same work for each rank in each step. Steps in which no rank has anything to do are left out.
// The first call of each query is of keys among which is its own.
std::vector<RingStep> ring_schedule(int ranks, std::int64_t piece, const RingMask& mask);

}  // namespace tg::detail

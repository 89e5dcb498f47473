// The schedule of ring attention: the flash_attn calls that compute attention over a sequence split across
// ranks. The schedule is a table that is the same on all ranks. Ranks differ only in the number of visible
// keys per call.
#pragma once

#include <cstdint>
#include <vector>

namespace tg::detail {

// Query i of the complete sequence attends to keys t with i − left ≤ t ≤ i + right. −1 means no limit.
struct RingMask {
  std::int64_t left = -1, right = -1;
};

// A call on some rows of the rank's queries and of the received keys. With a mask, the call has the same
// number of query rows and key rows. `left` and `right` limit the distance from a query's row to a key's row.
// Both rows are counted from 0 within the call.
struct RingCall {
  std::int64_t query = 0, queries = 0;  // first row and number of rows
  std::int64_t key = 0, keys = 0;
  std::int64_t left = -1, right = -1;
  std::vector<std::int64_t> visible = {};  // per rank: number of visible keys; empty: all of them

  bool operator==(const RingCall&) const = default;
};

// The calls of all queries with the keys of the rank that is `shift` before this one in the ring.
struct RingStep {
  int shift = 0;
  std::vector<RingCall> calls;
};

// Rank r has pieces r and 2N − 1 − r of 2N equal pieces with `piece` tokens each (zigzag). Under a causal
// mask, each rank then has the same amount of work in each step. Steps without work on any rank are omitted.
// The first call of each query includes the query's own key.
std::vector<RingStep> ring_schedule(int ranks, std::int64_t piece, const RingMask& mask);

}  // namespace tg::detail

#include "ops/ring_schedule.h"

#include <algorithm>
#include <array>
#include <optional>

namespace tg::detail {

namespace {

// The indices of the two pieces of a rank.
std::array<int, 2> pieces_of(int rank, int ranks) {
  return {rank, 2 * ranks - 1 - rank};
}

// The call of a query piece with a key piece that begins `distance` tokens earlier. At both ends, queries
// without visible keys and keys without queries are omitted. The window limits are then not negative, as
// flash_attn requires. Returns nothing if no query sees a key.
std::optional<RingCall> piece_call(std::int64_t piece, std::int64_t distance, const RingMask& mask) {
  RingCall c{.queries = piece, .keys = piece};
  // distance − left ≤ key row − query row ≤ distance + right, and both rows are below `piece`.
  std::int64_t low = mask.left < 0 ? 1 - piece : std::max(1 - piece, distance - mask.left);
  std::int64_t high = mask.right < 0 ? piece - 1 : std::min(piece - 1, distance + mask.right);
  if (low > piece - 1 || high < 1 - piece) return std::nullopt;
  if (low > 0) {
    c.key = low, c.keys = c.queries = piece - low;
    high -= low, low = 0;
  } else if (high < 0) {
    c.query = -high, c.keys = c.queries = piece + high;
    low -= high, high = 0;
  }
  if (low > 1 - c.keys) c.left = -low;
  if (high < c.keys - 1) c.right = high;
  return c;
}

// The calls of each query piece i with each key piece j. If a call differs between ranks, RingCall::visible
// contains the difference.
std::vector<RingCall> calls_by_piece(int ranks, int shift, std::int64_t piece, const RingMask& mask) {
  std::vector<RingCall> calls;
  // The calls with a query's own piece of keys are first.
  for (const auto& [i, j] : {std::array{0, 0}, std::array{1, 1}, std::array{0, 1}, std::array{1, 0}}) {
    std::vector<RingCall> of_pair;
    for (int rank = 0; rank < ranks; ++rank) {
      const int from = (rank + ranks - shift) % ranks;
      const std::int64_t apart = pieces_of(rank, ranks)[static_cast<std::size_t>(i)] -
                                 pieces_of(from, ranks)[static_cast<std::size_t>(j)];
      std::optional<RingCall> call = piece_call(piece, apart * piece, mask);
      if (!call) continue;
      call->query += i * piece, call->key += j * piece;
      const auto same = std::ranges::find_if(of_pair, [&](const RingCall& other) {
        return other.query == call->query && other.queries == call->queries && other.key == call->key &&
               other.left == call->left && other.right == call->right;
      });
      RingCall& there = same == of_pair.end() ? of_pair.emplace_back(*call) : *same;
      there.visible.resize(static_cast<std::size_t>(ranks));
      there.visible[static_cast<std::size_t>(rank)] = there.keys;
    }
    calls.insert(calls.end(), of_pair.begin(), of_pair.end());
  }
  return calls;
}

bool is_full(const RingCall& c) {
  return c.left < 0 && c.right < 0;
}

// Merges two calls without a mask that have the same queries and consecutive halves of the keys. Every rank
// that sees the second half also sees the first half.
bool join_keys(RingCall& a, const RingCall& b) {
  if (!is_full(a) || !is_full(b) || a.query != b.query || a.queries != b.queries || b.key != a.key + a.keys)
    return false;
  for (std::size_t r = 0; r < a.visible.size(); ++r)
    if (b.visible[r] > 0 && a.visible[r] < a.keys) return false;
  for (std::size_t r = 0; r < a.visible.size(); ++r) a.visible[r] += b.visible[r];
  a.keys += b.keys;
  return true;
}

// Merges two calls that have the same keys and consecutive halves of the queries.
bool join_queries(RingCall& a, const RingCall& b) {
  if (!is_full(a) || !is_full(b) || a.key != b.key || a.keys != b.keys || b.query != a.query + a.queries ||
      a.visible != b.visible)
    return false;
  a.queries += b.queries;
  return true;
}

void join_all(std::vector<RingCall>& calls, bool (*join)(RingCall&, const RingCall&)) {
  for (std::size_t a = 0; a < calls.size(); ++a)
    for (std::size_t b = 0; b < calls.size(); ++b)
      if (a != b && join(calls[a], calls[b])) {
        calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(b));
        a -= b < a ? 1 : 0;
        b = static_cast<std::size_t>(-1);  // restart the inner loop
      }
}

}  // namespace

std::vector<RingStep> ring_schedule(int ranks, std::int64_t piece, const RingMask& mask) {
  std::vector<RingStep> steps;
  for (int shift = 0; shift < ranks; ++shift) {
    std::vector<RingCall> calls;
    if (shift == 0 && mask.left < 0 && mask.right == 0) {
      // Under a causal mask, the two pieces in order behave as one sequence, because all of the first piece
      // precedes the second piece.
      calls.push_back({.queries = 2 * piece, .keys = 2 * piece, .right = 0});
    } else {
      calls = calls_by_piece(ranks, shift, piece, mask);
      join_all(calls, join_keys);
      join_all(calls, join_queries);
    }
    for (RingCall& c : calls)
      if (std::ranges::all_of(c.visible, [&](std::int64_t n) { return n == c.keys; })) c.visible.clear();
    if (!calls.empty()) steps.push_back({shift, std::move(calls)});
  }
  return steps;
}

}  // namespace tg::detail

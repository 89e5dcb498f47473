#include "io/text/merge_table.h"

#include <algorithm>
#include <bit>
#include <functional>

#include <tilegrad/core/base/error.h>

namespace tg::text {
namespace {

// Up to this length, a search over all pairs is faster than a heap.
constexpr std::size_t short_word = 32;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(std::size_t merges)
    : slots_(std::bit_ceil(2 * merges + 2)), shift_(64 - std::countr_zero(slots_.size())) {}

std::size_t MergeTable::slot_of(std::uint64_t pair) const {
  std::size_t i = pair * 0x9e3779b97f4a7c15u >> shift_;
  while (slots_[i].pair != pair && slots_[i].pair != Slot::empty) i = (i + 1) & (slots_.size() - 1);
  return i;
}

const MergeTable::Slot& MergeTable::look(std::int32_t left, std::int32_t right) const {
  return slots_[slot_of(pair_key(left, right))];
}

bool MergeTable::add(std::int32_t left, std::int32_t right, std::uint32_t rank, std::int32_t token) {
  Slot& slot = slots_[slot_of(pair_key(left, right))];
  if (slot.pair != Slot::empty) return false;
  slot = {pair_key(left, right), rank, token};
  return true;
}

std::size_t MergeTable::apply(std::span<std::int32_t> tokens) const {
  return tokens.size() <= short_word ? apply_to_short(tokens) : apply_to_long(tokens);
}

std::size_t MergeTable::apply_to_short(std::span<std::int32_t> tokens) const {
  std::size_t n = tokens.size();
  if (n < 2) return n;
  std::uint32_t rank[short_word];  // rank of the pair that begins at i, and the token that it makes
  std::int32_t made[short_word];
  const auto look_at = [&](std::size_t i) {
    rank[i] = never, made[i] = -1;
    if (i + 1 == n) return;
    const Slot& slot = look(tokens[i], tokens[i + 1]);
    rank[i] = slot.rank, made[i] = slot.token;
  };
  for (std::size_t i = 0; i < n; ++i) look_at(i);
  while (n > 1) {
    const std::size_t best = static_cast<std::size_t>(std::min_element(rank, rank + n - 1) - rank);
    if (rank[best] == never) break;
    tokens[best] = made[best];
    --n;
    for (std::size_t i = best + 1; i < n; ++i)
      tokens[i] = tokens[i + 1], rank[i] = rank[i + 1], made[i] = made[i + 1];
    look_at(best);
    if (best > 0) look_at(best - 1);
  }
  return n;
}

// Uses a linked list of the tokens and a heap of pairs, sorted by rank and position. A pair whose tokens have
// changed stays in the heap. When such a pair is popped, it differs from the current pair at its position and
// is ignored.
std::size_t MergeTable::apply_to_long(std::span<std::int32_t> tokens) const {
  if (tokens.size() >= never)
    throw Error("[bpe] a word of " + std::to_string(tokens.size()) + " tokens, expected below 4294967295");
  const auto n = static_cast<std::uint32_t>(tokens.size());
  struct Link {
    std::uint32_t before, after;  // `never` at the ends
    std::uint32_t rank;           // rank of the pair that begins here; `never`: no pair
    std::int32_t made;
  };
  std::vector<Link> links(n);
  std::vector<std::uint64_t> heap;  // rank · 2³² + position
  const auto look_at = [&](std::uint32_t i) {
    Link& link = links[i];
    link.rank = never;
    if (link.after == never) return false;
    const Slot& slot = look(tokens[i], tokens[link.after]);
    link.rank = slot.rank, link.made = slot.token;
    return slot.rank != never;
  };
  const auto entry = [&](std::uint32_t i) { return std::uint64_t{links[i].rank} << 32 | i; };
  for (std::uint32_t i = 0; i < n; ++i)
    links[i] = {i == 0 ? never : i - 1, i + 1 == n ? never : i + 1, never, -1};
  for (std::uint32_t i = 0; i < n; ++i)
    if (look_at(i)) heap.push_back(entry(i));
  const std::greater<> lowest_first;
  std::make_heap(heap.begin(), heap.end(), lowest_first);
  const auto push = [&](std::uint32_t i) {
    if (!look_at(i)) return;
    heap.push_back(entry(i));
    std::push_heap(heap.begin(), heap.end(), lowest_first);
  };
  while (!heap.empty()) {
    const std::uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), lowest_first);
    heap.pop_back();
    const auto i = static_cast<std::uint32_t>(top);
    if (links[i].rank == never || entry(i) != top) continue;
    const std::uint32_t joined = links[i].after, after = links[joined].after;
    tokens[i] = links[i].made;
    tokens[joined] = -1;
    links[joined].rank = never;
    links[i].after = after;
    if (after != never) links[after].before = i;
    push(i);
    if (links[i].before != never) push(links[i].before);
  }
  return static_cast<std::size_t>(std::remove(tokens.begin(), tokens.end(), -1) - tokens.begin());
}

}  // namespace tg::text

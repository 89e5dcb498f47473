// Byte-pair encoding of one word [Sennrich, BPE]: the pairs of tokens that are joined, and their order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tg::text {

class MergeTable {
 public:
  // Creates a table for up to `merges` merges.
  explicit MergeTable(std::size_t merges);

  // Adds a merge. The pair with the lowest rank in a word is joined first. Returns false if the pair exists;
  // it then keeps its rank.
  bool add(std::int32_t left, std::int32_t right, std::uint32_t rank, std::int32_t token);

  // Joins pairs until no pair of the word is in the table. The pair with the lowest rank is joined first;
  // among equal pairs, the leftmost one. Replaces the word's n tokens with the result and returns its size.
  // Needs O(n log n) time and O(n) memory.
  std::size_t apply(std::span<std::int32_t> tokens) const;

 private:
  static constexpr std::uint32_t never = ~std::uint32_t{0};
  struct Slot {  // hash table with open addressing, at most half full
    std::uint64_t pair = empty;
    std::uint32_t rank = never;
    std::int32_t token = -1;
    static constexpr std::uint64_t empty = ~std::uint64_t{0};
  };
  std::size_t slot_of(std::uint64_t pair) const;
  const Slot& look(std::int32_t left, std::int32_t right) const;
  std::size_t apply_to_short(std::span<std::int32_t> tokens) const;
  std::size_t apply_to_long(std::span<std::int32_t> tokens) const;

  std::vector<Slot> slots_;
  int shift_;  // 64 − log₂(number of slots)
};

}  // namespace tg::text

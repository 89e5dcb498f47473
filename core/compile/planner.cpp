#include "core/compile/memory_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <queue>
#include <set>

#include "core/base/alignment.h"

namespace tg {

namespace {

// The unused ranges of the arena below its end, indexed by offset and by size.
class FreeList {
 public:
  // Allocates the smallest free range that is large enough, and returns the offset. If there is none, the
  // arena grows. It grows by less than `bytes` if the range at its end is free.
  std::size_t allocate(std::size_t bytes) {
    if (const auto fit = by_size_.lower_bound({bytes, 0}); fit != by_size_.end()) {
      const auto [size, offset] = *fit;
      erase(offset, size);
      if (size > bytes) insert(offset + bytes, size - bytes);
      return offset;
    }
    std::size_t offset = end_;
    if (!by_offset_.empty()) {
      const auto [start, size] = *by_offset_.rbegin();
      if (start + size == end_) {
        offset = start;
        erase(start, size);
      }
    }
    end_ = add_bytes(offset, bytes, "the intermediate results");
    return offset;
  }

  void release(std::size_t offset, std::size_t bytes) {
    auto after = by_offset_.lower_bound(offset);
    if (after != by_offset_.end() && offset + bytes == after->first) {
      bytes += after->second;
      erase(after->first, after->second);
    }
    auto before = by_offset_.lower_bound(offset);
    if (before != by_offset_.begin() && std::prev(before)->first + std::prev(before)->second == offset) {
      const auto [start, size] = *std::prev(before);
      erase(start, size);
      offset = start;
      bytes += size;
    }
    insert(offset, bytes);
  }

  std::size_t end() const { return end_; }

 private:
  void insert(std::size_t offset, std::size_t size) {
    by_offset_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }
  void erase(std::size_t offset, std::size_t size) {
    by_offset_.erase(offset);
    by_size_.erase({size, offset});
  }
  std::map<std::size_t, std::size_t> by_offset_;
  std::set<std::pair<std::size_t, std::size_t>> by_size_;
  std::size_t end_ = 0;
};

}  // namespace

Placement plan_memory(std::span<const Lifetime> buffers, bool reuse) {
  using End = std::pair<int, std::size_t>;  // last step, buffer
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  Placement p;
  p.offset.resize(buffers.size());
  FreeList free;
  std::size_t alive = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const std::size_t bytes = aligned_bytes(buffers[i].bytes);
    while (!ends.empty() && ends.top().first < buffers[i].first) {
      const std::size_t dead = ends.top().second, size = aligned_bytes(buffers[dead].bytes);
      if (reuse && size > 0) free.release(p.offset[dead], size);
      alive -= size;
      ends.pop();
    }
    if (bytes > 0) p.offset[i] = free.allocate(bytes);
    alive = add_bytes(alive, bytes, "the intermediate results");
    p.alive = std::max(p.alive, alive);
    ends.push({buffers[i].last, i});
  }
  p.peak = free.end();
  return p;
}

bool plan_is_sound(std::span<const Lifetime> buffers, const Placement& placement) {
  std::vector<std::size_t> starts(buffers.size()), ends(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) starts[i] = ends[i] = i;
  std::sort(starts.begin(), starts.end(),
            [&](auto a, auto b) { return buffers[a].first < buffers[b].first; });
  std::sort(ends.begin(), ends.end(), [&](auto a, auto b) { return buffers[a].last < buffers[b].last; });
  std::map<std::size_t, std::size_t> alive;  // offset → end, disjoint
  std::size_t e = 0;
  for (std::size_t s : starts) {
    for (; e < ends.size() && buffers[ends[e]].last < buffers[s].first; ++e)
      if (buffers[ends[e]].bytes > 0) alive.erase(placement.offset[ends[e]]);
    if (buffers[s].bytes == 0) continue;
    const std::size_t from = placement.offset[s], to = from + buffers[s].bytes;
    if (from % buffer_alignment != 0 || to > placement.peak) return false;
    const auto next = alive.lower_bound(from);
    if (next != alive.end() && next->first < to) return false;
    if (next != alive.begin() && std::prev(next)->second > from) return false;
    alive.emplace(from, to);
  }
  return true;
}

}  // namespace tg

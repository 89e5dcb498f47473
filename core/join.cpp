#include "core/join.h"

#include <optional>

namespace tg {

namespace {

// The layout of a value that fills its memory without gaps, moved so that what was place m of its memory is
// place m / block · pitch + m % block + start; nothing if an axis crosses from one block to the next.
std::optional<Layout> spread(Layout l, std::int64_t block, std::int64_t pitch, std::int64_t start) {
  for (int a = 0; a < l.rank(); ++a) {
    if (l.shape[a] == 1) continue;
    if (l.strides[a] % block == 0)
      l.strides[a] = l.strides[a] / block * pitch;
    else if (l.strides[a] * l.shape[a] > block)
      return std::nullopt;
  }
  l.offset = start;
  return l;
}

}  // namespace

std::unordered_map<ValueId, Inside> join_in_place(const Graph& graph, std::vector<LoweredStep>& steps,
                                                  std::span<const ValueId> wanted) {
  const auto value = [&](ValueId v) -> const Value& { return graph.values()[v]; };
  std::unordered_map<ValueId, int> readers;      // of each root
  std::unordered_map<ValueId, const Op*> maker;  // of each root that a step makes
  for (const LoweredStep& s : steps) {
    for (ValueId v : s.in) ++readers[value(v).root];
    for (ValueId v : s.out) maker[v] = s.op;
  }
  for (ValueId v : wanted) ++readers[value(v).root];

  std::unordered_map<ValueId, Inside> inside;
  std::erase_if(steps, [&](const LoweredStep& s) {
    if (!s.op->join_axis) return false;
    const Value& out = value(s.out[0]);
    const int axis = s.op->join_axis(s.attrs);
    const auto block_of = [&](const Shape& shape) {  // elements side by side
      std::int64_t n = 1;
      for (int a = axis; a < shape.size(); ++a) n *= shape[a];
      return n;
    };
    std::vector<std::pair<ValueId, Inside>> parts;
    std::int64_t start = 0;
    for (ValueId v : s.in) {
      const Value &part = value(v), &root = value(part.root);
      const auto made = maker.find(part.root);
      const bool whole = made != maker.end() && made->second->strided_results && readers[part.root] == 1 &&
                         part.layout.numel() > 0 && part.layout.is_contiguous() && part.layout.offset == 0 &&
                         part.layout.numel() == root.layout.numel() &&
                         root.layout.extent() == root.layout.numel();
      if (!whole) return false;
      const auto l = spread(root.layout, block_of(part.layout.shape), block_of(out.layout.shape), start);
      if (!l) return false;
      parts.emplace_back(part.root, Inside{s.out[0], *l});
      start += block_of(part.layout.shape);
    }
    inside.insert(parts.begin(), parts.end());
    return true;
  });
  return inside;
}

}  // namespace tg

#include "core/compile/lower.h"

#include <algorithm>
#include <optional>

namespace tg {

namespace {

// Returns the step's op. For a fused step with one instruction, returns that instruction's op.
const Op& only_op(const LoweredStep& s) {
  if (s.op != &fused_op) return *s.op;
  const auto& code = s.attrs.as<FusedAttrs>().code;
  return code.size() == 1 ? *code[0].op : *s.op;
}

// `seen` is a view of all elements of a value with layout `l`. Returns a new layout for the value, such that
// the view has the layout `to`. Returns nothing if no strides can express this layout. Also returns nothing
// if the contiguous axis of the value would not stay contiguous, because kernels would be slow.
std::optional<Layout> moved(Layout l, const Layout& seen, const Layout& to) {
  for (int a = 0; a < l.rank(); ++a) {
    // An axis of l is part of one axis in `seen`, or covers several axes there.
    std::int64_t place = l.strides[a], left = l.shape[a], done = 1, stride = 1;
    while (left > 1) {
      int s = 0;
      while (seen.shape[s] == 1 || place < seen.strides[s] || place >= seen.strides[s] * seen.shape[s]) ++s;
      if (place % seen.strides[s] != 0) return std::nullopt;
      const std::int64_t times = place / seen.strides[s], here = std::min(left, seen.shape[s] / times);
      if (done == 1) stride = times * to.strides[s];
      if (stride * done != times * to.strides[s]) return std::nullopt;
      if (here < left && (here * times != seen.shape[s] || left % here != 0)) return std::nullopt;
      left /= here, done *= here, place *= here;
    }
    if (l.shape[a] == 1) continue;
    if (l.strides[a] == 1 && stride != 1) return std::nullopt;
    l.strides[a] = stride;
  }
  l.offset = to.offset;
  return l;
}

}  // namespace

Joined join_in_place(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs) {
  const auto value = [&](ValueId v) -> const Value& { return graph.values()[v]; };
  const Uses uses(graph, steps, outputs);
  std::vector<const Op*> ops;  // per step, because erase_if moves the steps
  for (const LoweredStep& s : steps) ops.push_back(s.op);
  Joined joined;
  std::erase_if(steps, [&](const LoweredStep& s) {
    const Op& op = only_op(s);
    if (!op.join_axis || s.in.empty()) return false;
    const Value& out = value(s.out[0]);
    const int axis = op.join_axis(s.attrs);
    std::vector<std::pair<ValueId, Inside>> parts;
    Layout place = out.layout;  // layout of the next part
    for (ValueId v : s.in) {
      const Value &part = value(v), &root = value(part.root);
      const std::int64_t maker = uses.maker[part.root];
      const bool whole = maker >= 0 && ops[static_cast<std::size_t>(maker)]->strided_results &&
                         uses.readers[part.root] == 1 && part.layout.numel() > 0 &&
                         part.layout.numel() == root.layout.numel() && part.layout.is_dense() &&
                         part.layout.offset == 0 && root.layout.is_dense();
      if (!whole) return false;
      place.shape = part.layout.shape;
      const auto l = moved(root.layout, part.layout, place);
      if (!l) return false;
      parts.emplace_back(part.root, Inside{s.out[0], *l});
      place.offset += place.shape[axis] * place.strides[axis];
    }
    joined.insert(parts.begin(), parts.end());
    return true;
  });
  return joined;
}

}  // namespace tg

#include "core/compile/buffers.h"

#include <algorithm>

#include "core/base/alignment.h"

namespace tg {

namespace {

// Bytes in use at each of `steps` steps.
std::vector<std::size_t> alive_bytes(const Buffers& buffers, std::size_t steps) {
  std::vector<std::size_t> born(steps + 2), dead(steps + 2), alive(steps);
  for (const Buffer& b : buffers.list) {
    if (b.kind != Buffer::arena) continue;
    born[static_cast<std::size_t>(b.first)] += aligned_bytes(b.bytes);
    dead[static_cast<std::size_t>(b.last) + 1] += aligned_bytes(b.bytes);
  }
  std::size_t now = 0;
  for (std::size_t s = 0; s < steps; ++s) alive[s] = now = now + born[s] - dead[s];
  return alive;
}

}  // namespace

std::size_t Liveness::bytes_of(ValueId root) const {
  const int b = buffers.of[root];
  if (b < 0 || buffers.list[static_cast<std::size_t>(b)].kind != Buffer::arena) return 0;
  return aligned_bytes(buffers.list[static_cast<std::size_t>(b)].bytes);
}

Liveness liveness_of(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                     const Outputs& outputs, const std::vector<Assign>& assign,
                     const std::vector<bool>& directly) {
  const std::size_t values = graph.values().size();
  Liveness l;
  l.maker.assign(values, -1), l.uses.resize(values), l.kept.assign(values, false);
  for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
    for (ValueId v : steps[static_cast<std::size_t>(s)].out) l.maker[v] = s;
    for (ValueId v : steps[static_cast<std::size_t>(s)].in) {
      std::vector<int>& uses = l.uses[graph.values()[v].root];
      if (uses.empty() || uses.back() != s) uses.push_back(s);
    }
  }
  for (ValueId v : outputs.all()) l.kept[graph.values()[v].root] = true;
  l.buffers = buffers_of(graph, steps, joined, outputs, assign, directly);
  share_in_place(graph, steps, joined, l.buffers);
  l.alive = alive_bytes(l.buffers, steps.size());
  l.peak = static_cast<int>(std::max_element(l.alive.begin(), l.alive.end()) - l.alive.begin());
  return l;
}

}  // namespace tg

#include "backends/cuda/schedule/scheduler.h"

#include <algorithm>

namespace tg::cuda {

namespace {

// If a GEMM has at most this number of multiply-adds, a launch takes longer than the GEMM.
constexpr std::int64_t most_multiplied = 1 << 24;

bool is_small(const Graph& graph, const LoweredStep& s, const Joined& joined) {
  if (!s.op->product || joined.contains(s.out[0])) return false;
  const Value &y = graph.values()[s.out[0]], &x = graph.values()[s.in[0]];
  if ((y.dtype != bf16 && y.dtype != f16) || y.layout.rank() != 2) return false;
  if (y.layout.numel() * x.layout.shape[x.layout.rank() - 1] > most_multiplied) return false;
  return std::ranges::none_of(
      s.in, [&](ValueId v) { return graph.node_of(graph.values()[v].root).op == &parameter_op; });
}

}  // namespace

bool products_last(const Graph& graph, std::vector<LoweredStep>& steps, const Joined& joined) {
  const std::size_t n = steps.size();
  std::vector<std::size_t> reader(graph.values().size(), n);  // for each root, the first step that reads it
  for (std::size_t i = n; i-- > 0;)
    for (ValueId v : steps[i].in) reader[graph.values()[v].root] = i;
  const auto read_at = [&](std::size_t i) { return reader[steps[i].out[0]]; };

  // Iterates backward over the small GEMMs. A GEMM is moved if its result is read only after the last small
  // GEMM.
  std::vector<bool> moves(n, false);
  std::size_t last = n, place = n, count = 0;
  for (std::size_t i = n; i-- > 0;) {
    if (!is_small(graph, steps[i], joined)) continue;
    if (last == n) last = i;
    if (read_at(i) <= last) continue;
    moves[i] = true, ++count;
    place = std::min(place, read_at(i));
  }
  if (count < 2) return false;
  std::vector<LoweredStep> ordered;
  std::vector<std::size_t> from;
  for (std::size_t i = 0; i <= n; ++i) {
    if (i == place)
      for (std::size_t k = 0; k < n; ++k)
        if (moves[k]) from.push_back(k);
    if (i < n && !moves[i]) from.push_back(i);
  }
  std::size_t left = count;
  for (std::size_t i : from) {
    ordered.push_back(std::move(steps[i]));
    if (moves[i]) ordered.back().with_next = --left > 0;
  }
  steps = std::move(ordered);
  return true;
}

}  // namespace tg::cuda

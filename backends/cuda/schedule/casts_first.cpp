#include "backends/cuda/schedule/scheduler.h"

#include <algorithm>

#include <tilegrad/core/run/cost.h>

namespace tg::cuda {

namespace {

bool casts_parameter(const Graph& graph, const LoweredStep& s) {
  const Op* op = only_op_of(s);
  return op && op->converts && graph.nodes()[graph.values()[s.in[0]].node].op == &parameter_op;
}

}  // namespace

bool casts_first(const Graph& graph, std::vector<LoweredStep>& steps, std::size_t most) {
  const auto is_cast = [&](const LoweredStep& s) { return casts_parameter(graph, s); };
  double bytes = 0;
  for (const LoweredStep& s : steps)
    if (is_cast(s)) {
      const Value& v = graph.values()[s.out[0]];
      bytes += bytes_of(v.dtype, v.layout);
    }
  if (bytes > static_cast<double>(most)) return false;
  if (std::ranges::is_partitioned(steps, is_cast)) return false;
  std::ranges::stable_partition(steps, is_cast);
  return true;
}

}  // namespace tg::cuda

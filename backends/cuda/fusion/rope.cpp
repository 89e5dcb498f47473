#include "backends/cuda/fusion/rope.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/table.h"

namespace tg::cuda {

std::shared_ptr<const void> rope_table(const Call& c) {
  constexpr std::size_t most = std::size_t{4} << 20;
  const auto& a = c.attrs->as<RopeAttrs>();
  const DType compute = compute_type(c.in[0].dtype);
  if (c.in.size() > 1) return nullptr;
  const std::int64_t rows = c.in[0].layout.shape[c.in[0].layout.rank() - 2];
  const std::size_t bytes = static_cast<std::size_t>(rows) * 2 * a.frequencies.size() * size_of(compute);
  if (bytes == 0 || bytes > most) return nullptr;
  // Programs and their copies ask for few different ones. A table lives as long as a plan that has it.
  using Key = std::tuple<int, DType, std::int64_t, std::int64_t, std::vector<double>>;
  static std::mutex guard;
  static auto& tables = *new std::map<Key, std::weak_ptr<const void>>;
  const std::lock_guard lock(guard);
  std::erase_if(tables, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const void>& known = tables[{c.gpu.ordinal, compute, a.start, rows, a.frequencies}];
  if (std::shared_ptr<const void> table = known.lock()) return table;
  const std::shared_ptr<void> table = zeros_on_device(bytes);
  make_rope_table(table.get(), a, rows, compute, c.gpu);
  check(cudaStreamSynchronize(nullptr), "a table of cosines");
  known = table;
  return table;
}

}  // namespace tg::cuda

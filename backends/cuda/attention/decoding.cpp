#include "backends/cuda/attention/decoding.h"

#include <algorithm>
#include <bit>

#include "backends/cuda/attention/decoding_shape.h"

namespace tg::cuda::attention::decoding {

bool takes(const AttentionCall& x, const Gpu& gpu) {
  constexpr int few_keys = 64;  // of several queries of a head: they are a tile of another forward
  return (x.type == DType::bf16 || x.type == DType::f16) && x.Hk > 0 && x.T > 0 &&
         std::int64_t{x.H} / x.Hk * x.L <= most_rows && x.d <= 128 && x.dv <= 128 && x.B <= most_entries &&
         (x.L == 1 || x.T > few_keys) && !x.bias.data && x.dropout == 0 && !x.cu_q &&
         x.B * x.Hk * ranges_of(x) <= INT32_MAX && with_shape(x, gpu, [&](auto shape) {
           return shape.bytes(rows_of(x)) <= gpu.shared_per_block;
         });
}

// Where keys are few, there are 16 ranges at most, so that several blocks share them. Long ranges cost least:
// at the end of each its results are merged. No more than 64 are merged, by one block.
int keys_of_range(int T) {
  const auto nth_part = [&](int n) {
    return static_cast<int>(std::bit_ceil(static_cast<unsigned>((T - 1) / n + 1)));
  };
  return T < 4096 ? std::max(64, nth_part(16)) : std::max(std::min(1024, nth_part(8)), nth_part(64));
}

Workspace workspace(const AttentionCall& x, std::byte* base) {
  Workspace work;
  Arena memory{base};
  work.range = keys_of_range(x.T), work.parts = ranges_of(x);
  if (work.parts > 1) {
    const std::size_t rows = std::size_t(x.B) * x.H * x.L * work.parts;
    work.o = memory.take<float>(rows * x.dv), work.lse = memory.take<float>(rows);
  }
  work.bytes = memory.bytes;
  return work;
}

}  // namespace tg::cuda::attention::decoding

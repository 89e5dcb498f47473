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

// As few keys as several blocks need to share those of one entry, and as many as it takes to read them while
// the results of the range before are written: on an H200 some 3 µs, 100 KB. No more than 32 ranges where one
// block would have to merge them for long.
int keys_of_range(const AttentionCall& x) {
  const int least = x.d <= 64 && x.dv <= 64 ? 1024 : x.T <= 2048 ? 256 : x.T <= 4096 ? 512 : 1024;
  return std::max(least, static_cast<int>(std::bit_ceil(static_cast<unsigned>((x.T - 1) / 32 + 1))));
}

Workspace workspace(const AttentionCall& x, std::byte* base) {
  Workspace work;
  Arena memory{base};
  work.range = keys_of_range(x), work.parts = ranges_of(x);
  if (work.parts > 1) {
    const std::size_t rows = std::size_t(x.B) * x.H * x.L * work.parts;
    work.o = memory.take<float>(rows * x.dv), work.lse = memory.take<float>(rows);
  }
  work.bytes = memory.bytes;
  return work;
}

}  // namespace tg::cuda::attention::decoding

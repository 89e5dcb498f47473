#include "backends/cuda/runtime/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cuda/kernels/runtime.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/memory.h"
#include "core/base/alignment.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tg::cuda {

namespace {

// Copies to `to`, which is 64-byte aligned. On x86-64 it uses non-temporal stores, because the next reader of
// the bytes is the GPU. A plain store would first fetch the cache line. The bytes are visible after
// end_of_copies_for_gpu().
void copy_for_gpu(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  const std::byte* end = from + bytes / 64 * 64;
  for (; from != end; from += 64, to += 64)
    for (int i = 0; i < 4; ++i)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i,
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
  bytes %= 64;
#endif
  std::memcpy(to, from, bytes);
}
void end_of_copies_for_gpu() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace

void Staging::write(std::byte* to, const std::byte* from, std::size_t bytes, const void* region) {
  while (bytes > 0) {
    if (used_ == chunk_bytes) next_chunk();
    const std::size_t part = std::min(bytes, chunk_bytes - used_);
    std::byte* at = chunks_[chunk_].memory + used_;
    copy_for_gpu(at, from, part);
    if (bytes_ > 0 && region && region == region_ && to == to_ + aligned_bytes(bytes_)) {
      bytes_ = aligned_bytes(bytes_) + part;
    } else {
      check(flush(), "a copy to the GPU");
      to_ = to, from_ = at, bytes_ = part, region_ = region;
    }
    used_ += aligned_bytes(part);
    to += part, from += part, bytes -= part;
  }
}

cudaError_t Staging::flush() {
  if (bytes_ == 0) return cudaSuccess;
  end_of_copies_for_gpu();
  const std::size_t bytes = std::exchange(bytes_, 0);
  return copy_to_gpu(to_, from_, bytes, stream_);
}

void Staging::next_chunk() {
  check(flush(), "a copy to the GPU");
  if (Chunk& full = chunks_[chunk_]; full.copied) {
    check(cudaEventRecord(full.copied, stream_), "a copy to the GPU");
    full.filled = ++filled_;
  }
  const auto is_free = [](const Chunk& c) { return !c.copied || query(c.copied) == cudaSuccess; };
  auto next = std::find_if(chunks_.begin(), chunks_.end(), is_free);
  if (next == chunks_.end()) {
    next = std::min_element(chunks_.begin(), chunks_.end(),
                            [](const Chunk& a, const Chunk& b) { return a.filled < b.filled; });
    check(cudaEventSynchronize(next->copied), "a copy to the GPU");
  }
  if (!next->memory) next->memory = pinned_memory(chunk_bytes, "copies to the GPU");
  if (!next->copied) check(cudaEventCreateWithFlags(&next->copied, cudaEventDisableTiming), "an event");
  chunk_ = static_cast<std::size_t>(next - chunks_.begin());
  used_ = 0;
}

}  // namespace tg::cuda

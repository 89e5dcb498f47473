#include "backends/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cuda/check.h"

namespace tg::cuda {

namespace {
constexpr std::size_t rounded(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}
}  // namespace

void Staging::write(std::byte* to, const std::byte* from, std::size_t bytes, const void* region) {
  while (bytes > 0) {
    if (used_ == chunk_bytes) next_chunk();
    const std::size_t part = std::min(bytes, chunk_bytes - used_);
    std::byte* at = ring_[chunk_].memory + used_;
    std::memcpy(at, from, part);
    if (bytes_ > 0 && region && region == region_ && to == to_ + rounded(bytes_)) {
      bytes_ = rounded(bytes_) + part;
    } else {
      check(flush(), "a copy to the GPU");
      to_ = to, from_ = at, bytes_ = part, region_ = region;
    }
    used_ += rounded(part);
    to += part, from += part, bytes -= part;
  }
}

cudaError_t Staging::flush() {
  if (bytes_ == 0) return cudaSuccess;
  const std::size_t bytes = std::exchange(bytes_, 0);
  return cudaMemcpyAsync(to_, from_, bytes, cudaMemcpyHostToDevice, stream_);
}

void Staging::next_chunk() {
  check(flush(), "a copy to the GPU");
  if (ring_[chunk_].copied) check(cudaEventRecord(ring_[chunk_].copied, stream_), "a copy to the GPU");
  Chunk& next = ring_[(chunk_ + 1) % ring_.size()];
  if (next.copied) {
    check(cudaEventSynchronize(next.copied), "a copy to the GPU");
  } else {
    if (!next.memory) next.memory = pinned_memory(chunk_bytes, "copies to the GPU");
    check(cudaEventCreateWithFlags(&next.copied, cudaEventDisableTiming), "an event");
  }
  chunk_ = (chunk_ + 1) % ring_.size();
  used_ = 0;
}

}  // namespace tg::cuda

// Copies host bytes to the GPU through chunks of pinned memory. write() copies into a chunk immediately, so
// the caller may modify its bytes. The chunk is copied in the stream's order.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace tg::cuda {

class Staging {
 public:
  explicit Staging(cudaStream_t stream) : stream_(stream) {}

  // Waits only if all chunks are being copied. A region is memory of one allocation, and gaps between its
  // buffers may be overwritten. Consecutive writes to adjacent buffers of a region (at most 63 bytes apart)
  // become one copy. Null means that there is no region.
  void write(std::byte* to, const std::byte* from, std::size_t bytes, const void* region);
  // Enqueues everything written so far. Call it before anything else is enqueued.
  [[nodiscard]] cudaError_t flush();

 private:
  static constexpr std::size_t chunk_bytes = std::size_t{512} << 10;
  struct Chunk {
    std::byte* memory = nullptr;
    cudaEvent_t copied = nullptr;  // when it has passed, the chunk is free
    std::uint64_t filled = 0;      // a count that orders chunks by the time they were filled
  };
  // Selects the first free chunk, not the chunk that was filled longest ago. Small batches then use few
  // chunks, and the other chunks are not allocated.
  void next_chunk();

  cudaStream_t stream_;
  std::array<Chunk, 32> chunks_;  // allocated on demand; never freed, like the backend that owns them
  std::uint64_t filled_ = 0;
  std::size_t chunk_ = 0, used_ = chunk_bytes;
  // The bytes that are not yet enqueued, at the end of the used part of the chunk.
  std::byte *to_ = nullptr, *from_ = nullptr;
  std::size_t bytes_ = 0;
  const void* region_ = nullptr;
};

}  // namespace tg::cuda

// Staging: host bytes on their way to the GPU. They are taken into chunks of pinned memory at once, so that
// the caller's may change, and copied from there in the stream's order.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace tg::cuda {

class Staging {
 public:
  explicit Staging(cudaStream_t stream) : stream_(stream) {}

  // Waits only when all chunks are under way. Writes one after another to neighbouring stretches (with up
  // to 63 bytes between them) of the same region become one copy: a region is memory of one allocation, of
  // which these gaps may be overwritten; null stands for none.
  void write(std::byte* to, const std::byte* from, std::size_t bytes, const void* region);
  // Puts what was written into the stream: before anything else goes there.
  [[nodiscard]] cudaError_t flush();

 private:
  static constexpr std::size_t chunk_bytes = std::size_t{512} << 10;
  struct Chunk {
    std::byte* memory = nullptr;
    cudaEvent_t copied = nullptr;  // done: the chunk is free
    std::uint64_t turn = 0;        // when it was left
  };
  // The first free chunk, not the one left longest ago: small batches go through few chunks, and the others
  // are not even made.
  void next_chunk();

  cudaStream_t stream_;
  std::array<Chunk, 32> chunks_;  // made when they are needed; never freed, like the backend that owns them
  std::uint64_t turns_ = 0;
  std::size_t chunk_ = 0, used_ = chunk_bytes;
  // The stretch that is not yet in the stream, at the end of what is used of the chunk.
  std::byte *to_ = nullptr, *from_ = nullptr;
  std::size_t bytes_ = 0;
  const void* region_ = nullptr;
};

}  // namespace tg::cuda

// Staging: host bytes on their way to the GPU. They are taken into a ring of pinned memory at once, so that
// the caller's may change, and copied from there in the stream's order.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

namespace tg::cuda {

class Staging {
 public:
  explicit Staging(cudaStream_t stream) : stream_(stream) {}

  // Waits only when the whole ring is under way. Writes one after another to neighbouring stretches (with up
  // to 63 bytes between them) of the same region become one copy: a region is memory of one allocation, of
  // which these gaps may be overwritten; null stands for none.
  void write(std::byte* to, const std::byte* from, std::size_t bytes, const void* region);
  // Puts what was written into the stream: before anything else goes there.
  [[nodiscard]] cudaError_t flush();

 private:
  static constexpr std::size_t chunk_bytes = std::size_t{4} << 20;
  struct Chunk {
    std::byte* memory = nullptr;
    cudaEvent_t copied = nullptr;
  };
  void next_chunk();

  cudaStream_t stream_;
  std::array<Chunk, 4> ring_;  // made at the first write; never freed, like the backend that owns it
  std::size_t chunk_ = ring_.size() - 1, used_ = chunk_bytes;
  // The stretch that is not yet in the stream, at the end of what is used of the chunk.
  std::byte *to_ = nullptr, *from_ = nullptr;
  std::size_t bytes_ = 0;
  const void* region_ = nullptr;
};

}  // namespace tg::cuda

// Kernels on a list of tensors, in one launch. Each tensor is divided into chunks, and each block processes
// several chunks. Tables in device memory, created with the plan, contain the addresses of the tensors and
// the list of chunks.
#pragma once

#include "backends/cuda/kernels/any.cuh"
#include "backends/cuda/runtime/memory.h"

namespace tg::cuda {

inline constexpr int list_block = 256;   // threads
inline constexpr i64 list_chunk = 4096;  // elements
// The chunk size. If there are few elements, it is so small that every multiprocessor has a chunk. Each block
// then has only one chunk.
inline constexpr i64 short_chunk = 1024;
inline i64 chunk_of(i64 all, const Gpu& gpu) {
  return all <= list_chunk * gpu.processors ? short_chunk : list_chunk;
}

struct Chunk {
  int tensor, number;  // elements number·size … of the tensor
};

inline void add_chunks(std::vector<Chunk>& to, std::size_t tensor, i64 count, i64 size = list_chunk) {
  for (i64 n = 0; n * size < count; ++n) to.push_back({static_cast<int>(tensor), static_cast<int>(n)});
}

// Prefetches the table row of the block's first chunk before the previous kernel has finished, because no
// step writes tables.
template <class T>
__device__ __forceinline__ void ask_for_row(const T* tensors, const Chunk* chunks, int count) {
  if (static_cast<int>(blockIdx.x) >= count) return;
  const char* row = reinterpret_cast<const char*>(tensors + chunks[blockIdx.x].tensor);
  if (threadIdx.x * 128 < sizeof(T) + 127)
    ptx::prefetch_line(row + min(threadIdx.x * 128u, unsigned{sizeof(T) - 1}));
}

// An operand's elements, numbered row-major.
struct ListOperand {
  void* data;
  DType type;
  bool linear;  // contiguous
  Strides at;

  explicit ListOperand(const Arg& a)
      : data(a.data), type(a.dtype), linear(a.layout.is_contiguous()), at(a.layout) {}
  __device__ __forceinline__ i64 offset(i64 i) const {
    if (linear) return i;
    return i < (1ll << 31) ? at.offset(static_cast<unsigned>(i)) : at.offset(i);
  }
  bool takes_packs(std::size_t of) const {
    return linear && reinterpret_cast<std::uintptr_t>(data) % (of * size_of(type)) == 0;
  }
};

// The number of blocks for a number of chunks. The blocks fill the GPU, and each has several chunks.
inline unsigned list_grid(std::size_t chunks, const Gpu& gpu) {
  return static_cast<unsigned>(std::min<std::size_t>(chunks, 8ull * static_cast<unsigned>(gpu.processors)));
}

// Builds the tables. They list tensors of `count` elements, or memory ranges.
template <class T>
struct TensorList {
  std::vector<T> tensors;
  std::vector<Chunk> chunks;

  void add(const T& tensor, i64 count, i64 chunk = list_chunk) {
    add_chunks(chunks, tensors.size(), count, chunk);
    tensors.push_back(tensor);
  }
};

// The tables in device memory.
template <class T>
struct ListTables {
  std::shared_ptr<const T> tensors;
  std::shared_ptr<const Chunk> chunks;
  int count;  // number of chunks

  explicit ListTables(const TensorList<T>& list)
      : tensors(on_device(list.tensors)),
        chunks(on_device(list.chunks)),
        count(static_cast<int>(list.chunks.size())) {}
  // Launches kernel(tensors, chunks, count, args…) with at least `least` blocks.
  template <class... P>
  void launch(const Stream& s, unsigned least, void (*kernel)(const T*, const Chunk*, int, P...),
              const std::type_identity_t<P>&... args) const {
    const unsigned blocks = std::max(grid(s.gpu), least);
    if (blocks > 0)
      launch_early(s, {blocks, list_block}, kernel, tensors.get(), chunks.get(), count, args...);
  }
  unsigned grid(const Gpu& gpu) const { return list_grid(static_cast<std::size_t>(count), gpu); }
};

}  // namespace tg::cuda

// A memset as a kernel.
#pragma once

#include <algorithm>
#include <cstddef>

namespace tg::cuda {

// Fills rows of row_bytes, `pitch` bytes apart, with the low `element` (1, 2 or 4) bytes of a value.
struct SetMemory {
  unsigned char* to;
  unsigned value, element;
  std::size_t row_bytes, rows, pitch;

  static constexpr unsigned threads = 256;
  unsigned blocks() const {
    return static_cast<unsigned>(
        std::clamp<std::size_t>((row_bytes * rows / 16 + threads - 1) / threads, 1, 1024));
  }
};

// The kernel that takes one, for a node of a graph.
void* set_memory_kernel();

}  // namespace tg::cuda

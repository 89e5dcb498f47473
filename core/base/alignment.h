// The alignment of buffers in a program's memory.
#pragma once

#include <cstddef>

namespace tg {

inline constexpr std::size_t buffer_alignment = 64;  // bytes: a cache line, and a vector of AVX-512

// Bytes that a buffer takes up: `bytes` rounded up to a multiple of the alignment.
constexpr std::size_t aligned_bytes(std::size_t bytes) {
  return (bytes + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
}

}  // namespace tg

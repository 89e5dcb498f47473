// The alignment of buffers in a program's memory, sums of their bytes, and these as text.
#pragma once

#include <cstddef>
#include <string>

namespace tg {

inline constexpr std::size_t buffer_alignment = 64;  // bytes: a cache line, and a vector of AVX-512

// Bytes that a buffer takes up: `bytes` rounded up to a multiple of the alignment.
constexpr std::size_t aligned_bytes(std::size_t bytes) {
  return (bytes + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
}

// a + b; throws OutOfMemory, with `what` the bytes are for, above 2^60. A single buffer has at
// most 2^56 (max_elements in layout.h), so that no sum of a few such sums wraps either.
std::size_t add_bytes(std::size_t a, std::size_t b, const char* what);

// For messages, "12 MiB": rounded up; in KiB below 10 MiB.
std::string bytes_text(std::size_t bytes);

}  // namespace tg

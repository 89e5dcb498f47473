// Alignment of buffers in a program's memory, overflow-checked sums of byte counts, and byte counts as
// strings.
#pragma once

#include <cstddef>
#include <string>

#include <tilegrad/core/base/error.h>

namespace tg {

inline constexpr std::size_t buffer_alignment = 64;  // bytes: a cache line, and a vector of AVX-512

// Size of a buffer in memory: `bytes` rounded up to a multiple of the alignment.
constexpr std::size_t aligned_bytes(std::size_t bytes) {
  return (bytes + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
}

// Returns a + b. Throws OutOfMemory above 2^60; `what` is the purpose of the bytes. A single buffer has at
// most 2^56 bytes (max_elements in layout.h), so a sum of a few results cannot overflow.
inline std::size_t add_bytes(std::size_t a, std::size_t b, const char* what) {
  constexpr std::size_t most = std::size_t{1} << 60;
  if (a > most || b > most - a)
    throw OutOfMemory("[compile] " + std::string(what) + " would need " + std::to_string(a >> 30) + " + " +
                      std::to_string(b >> 30) + " GiB, more than any memory");
  return a + b;
}

// Formats a size for a message, such as "12 MiB". Rounds up. Below 10 MiB, the unit is KiB.
inline std::string bytes_text(std::size_t bytes) {
  const int shift = bytes < std::size_t{10} << 20 ? 10 : 20;
  return std::to_string((bytes + (std::size_t{1} << shift) - 1) >> shift) + (shift == 10 ? " KiB" : " MiB");
}

}  // namespace tg

// What block_norms shares with its kernels.
#pragma once

#include <cstdint>

namespace tg {

inline constexpr std::int64_t norm_block = 1024;  // elements of a tensor that have a norm together
inline constexpr std::int64_t norm_blocks(std::int64_t elements) {
  return (elements + norm_block - 1) / norm_block;
}

}  // namespace tg

// The block size of block_norms(), which its kernels share.
#pragma once

#include <cstdint>

namespace tg {

// Number of consecutive elements that share one norm in block_norms().
inline constexpr std::int64_t norm_block = 1024;
// Number of blocks, and therefore of norms, in a tensor with this number of elements.
inline constexpr std::int64_t norm_blocks(std::int64_t elements) {
  return (elements + norm_block - 1) / norm_block;
}

}  // namespace tg

// How many pages tokens take.
#pragma once

#include <cstdint>

namespace tg::nn::detail {

inline std::int64_t pages_for(std::int64_t tokens, std::int64_t page_size) {
  return tokens / page_size + (tokens % page_size != 0);
}

}  // namespace tg::nn::detail

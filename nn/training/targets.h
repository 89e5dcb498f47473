// Which targets of a batch count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <tilegrad/ops/ops.h>

namespace tg::train {

// Targets that are not ignored, over which the loss of a batch is the mean.
inline std::int64_t count_targets(std::span<const std::int32_t> targets) {
  return std::ranges::count_if(targets,
                               [](std::int32_t t) { return t != CrossEntropyOptions{}.ignore_index; });
}

}  // namespace tg::train

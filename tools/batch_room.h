// Whether a batch fits in memory.
#pragma once

#include <functional>
#include <string>

#include <tilegrad/core/run/backend.h>
#include <tilegrad/train/training.h>
#include "tools/train_report.h"

namespace tg {

// Throws OutOfMemory, with the largest --batch that fits, unless needed(batch) bytes are free. Parameters and
// optimizer are in memory already.
inline void check_batch(Device device, std::int64_t batch,
                        const std::function<std::size_t(std::int64_t)>& needed) {
  const std::size_t need = needed(batch), free = backend(device).available_bytes();
  if (need <= free) return;
  const std::int64_t largest =
      train::largest_batch(batch, free, [&](std::int64_t b) { return b == batch ? need : needed(b); });
  throw OutOfMemory("[memory] --batch " + std::to_string(batch) + " needs " +
                    size_text(static_cast<double>(need)) + " in addition to the parameters, " +
                    size_text(static_cast<double>(free)) + " are free: " +
                    (largest > 0 ? "the largest that fits is --batch " + std::to_string(largest)
                                 : std::string("not even --batch 1 fits")));
}

}  // namespace tg

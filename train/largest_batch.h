// The largest batch that fits in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace tg::train {

// The largest batch below `too_large` for which needed(batch), which grows with it, is at most `free`; 0 if
// there is none. Memory is nearly linear in the batch, so a few calls suffice.
std::int64_t largest_batch(std::int64_t too_large, std::size_t free,
                           const std::function<std::size_t(std::int64_t)>& needed);

}  // namespace tg::train

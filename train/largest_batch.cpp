#include <tilegrad/train/largest_batch.h>

#include <algorithm>

namespace tg::train {

std::int64_t largest_batch(std::int64_t too_large, std::size_t free,
                           const std::function<std::size_t(std::int64_t)>& needed) {
  if (too_large <= 1) return 0;
  std::int64_t fits = 1, over = too_large;
  auto low = static_cast<double>(needed(fits)), high = static_cast<double>(needed(over));
  const auto room = static_cast<double>(free);
  if (low > room) return 0;
  for (int i = 0; over - fits > 1; ++i) {
    // Where the line through both ends meets `free`; now and then the middle, should it be no line.
    const double part = i % 3 == 2 ? 0.5 : (room - low) / std::max(high - low, 1.0);
    const double step = part * static_cast<double>(over - fits);
    const std::int64_t b = std::clamp(fits + static_cast<std::int64_t>(step), fits + 1, over - 1);
    const auto bytes = static_cast<double>(needed(b));
    if (bytes <= room)
      fits = b, low = bytes;
    else
      over = b, high = bytes;
  }
  return fits;
}

}  // namespace tg::train

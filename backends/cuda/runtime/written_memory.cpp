#include "backends/cuda/runtime/written_memory.h"

#include <algorithm>

namespace tg::cuda {

MemoryRange range_of(const Arg& a) {
  return {a.data, a.data + a.layout.extent() * static_cast<std::int64_t>(size_of(a.dtype))};
}

bool meets(const Arg& a, std::span<const Arg> others) {
  return std::ranges::any_of(others, [&](const Arg& other) { return overlap(range_of(a), range_of(other)); });
}

bool crosses(const Arg& read, const Arg& written) {
  const bool same = read.data == written.data && read.layout.is_contiguous() &&
                    written.layout.is_contiguous() && read.layout.numel() == written.layout.numel();
  return !same && overlap(range_of(read), range_of(written));
}

WrittenMemory::WrittenMemory(std::span<const Step> steps) : steps_(steps) {
  std::vector<MemoryRange> all;
  for (const Step& s : steps)
    for (const Arg& out : s.out) all.push_back(range_of(out));
  std::sort(all.begin(), all.end(),
            [](const MemoryRange& a, const MemoryRange& b) { return a.begin < b.begin; });
  for (const MemoryRange& r : all)
    if (ranges_.empty() || ranges_.back().end < r.begin)
      ranges_.push_back(r);
    else
      ranges_.back().end = std::max(ranges_.back().end, r.end);
}

bool WrittenMemory::overlaps(const Arg& a) const {
  const MemoryRange range = range_of(a);
  const auto first_behind =
      std::upper_bound(ranges_.begin(), ranges_.end(), range.begin,
                       [](const std::byte* begin, const MemoryRange& r) { return begin < r.end; });
  return first_behind != ranges_.end() && overlap(*first_behind, range);
}

bool WrittenMemory::others_write(const Arg& a, const Step* step) const {
  for (const Step& s : steps_)
    for (const Arg& out : s.out)
      if (&s != step && overlap(range_of(out), range_of(a))) return true;
  return false;
}

}  // namespace tg::cuda

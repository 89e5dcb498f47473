// The memory that a program's steps write. All other memory is constant during a run. A kernel may therefore
// read it before the previous kernels have finished.
#pragma once

#include <span>
#include <vector>

#include <tilegrad/core/run/step.h>

namespace tg::cuda {

struct MemoryRange {
  const std::byte *begin, *end;
};
// Returns the range from the first to the last element of an operand.
MemoryRange range_of(const Arg& a);

inline bool overlap(const MemoryRange& a, const MemoryRange& b) {
  return a.begin < b.end && b.begin < a.end;
}

// Whether `a` shares memory with any of `others`.
bool meets(const Arg& a, std::span<const Arg> others);

// Whether an element may be overwritten before it is read. Each thread reads element i of one operand and
// then writes element i of the other operand.
bool crosses(const Arg& read, const Arg& written);

class WrittenMemory {
 public:
  WrittenMemory() = default;
  explicit WrittenMemory(std::span<const Step> steps);  // steps whose operands have addresses

  bool overlaps(const Arg& a) const;
  // Whether any step except `step` writes a part of the range.
  bool others_write(const Arg& a, const Step* step) const;

 private:
  std::span<const Step> steps_;
  std::vector<MemoryRange> ranges_;  // sorted, with gaps between them
};

}  // namespace tg::cuda

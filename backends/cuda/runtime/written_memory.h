// The memory that a program's steps write: what else they read is the same from the beginning of a run to its
// end, so that a kernel may read it before the kernels before it have ended.
#pragma once

#include <span>
#include <vector>

#include <tilegrad/core/run/step.h>

namespace tg::cuda {

struct MemoryRange {
  const std::byte *begin, *end;
};
// From the first element of an operand to its last.
MemoryRange range_of(const Arg& a);

inline bool overlap(const MemoryRange& a, const MemoryRange& b) {
  return a.begin < b.end && b.begin < a.end;
}

// Whether one of `others` shares memory with `a`.
bool meets(const Arg& a, std::span<const Arg> others);

// Whether a number may be overwritten before it is read, where a thread reads number i of one operand and
// then writes number i of the other.
bool crosses(const Arg& read, const Arg& written);

class WrittenMemory {
 public:
  WrittenMemory() = default;
  explicit WrittenMemory(std::span<const Step> steps);  // with the addresses of their operands

  bool overlaps(const Arg& a) const;
  // Whether steps other than this one write some of it.
  bool others_write(const Arg& a, const Step* step) const;

 private:
  std::span<const Step> steps_;
  std::vector<MemoryRange> ranges_;  // in order, with space between them
};

}  // namespace tg::cuda

#include "tests/gpu_emulator/register_fence.h"

#include <cstring>
#include <vector>

#include "tests/gpu_emulator/block.h"

namespace tg::emulator {

namespace {

struct Snapshot {
  const unsigned char* from = nullptr;  // the snapshot extends to the top of the stack
  std::vector<unsigned char> bytes;

  unsigned char* of(const void* registers, std::size_t count) {
    const auto* p = static_cast<const unsigned char*>(registers);
    return p >= from && p + count <= from + bytes.size() ? bytes.data() + (p - from) : nullptr;
  }
};
std::vector<Snapshot> snapshots;

Snapshot& mine() {
  return snapshots[static_cast<std::size_t>(here.number)];
}

}  // namespace

void snapshot_registers() {
  const auto* from = static_cast<const unsigned char*>(__builtin_frame_address(0));
  mine().from = from;
  mine().bytes.assign(from, stack_top());
}
bool has_fence() {
  return mine().from != nullptr;
}
bool are_as_fenced(const void* registers, std::size_t bytes) {
  const unsigned char* then = mine().of(registers, bytes);
  return then && std::memcmp(then, registers, bytes) == 0;
}
void changed_by_product(const void* registers, std::size_t bytes) {
  if (unsigned char* then = mine().of(registers, bytes)) std::memcpy(then, registers, bytes);
}
void forget_snapshots(unsigned threads) {
  snapshots.resize(threads);
  for (Snapshot& s : snapshots) s.from = nullptr, s.bytes.clear();
}

}  // namespace tg::emulator

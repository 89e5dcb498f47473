// Bulk copies to shared memory: boxes of a tensor map (TMA), and consecutive bytes.
#pragma once

#include <cuda.h>

namespace tg::emulator {

struct BoxPlace {
  int x, row, head, batch;
};
void copy_box(std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier, BoxPlace from);
void copy_bytes(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier);

}  // namespace tg::emulator

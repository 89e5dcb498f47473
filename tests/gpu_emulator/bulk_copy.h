// Bulk copies to shared memory: boxes of a tensor map (TMA), and consecutive bytes.
#pragma once

#include <cuda.h>

namespace tg::emulator {

struct BoxPlace {
  int x, row, head, batch;
};
void copy_box(std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier, BoxPlace from);
// The same to the first blocks of the cluster, at the same place of each.
void copy_box_to_each(unsigned blocks, std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier,
                      BoxPlace from);
void copy_bytes(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier);
// From this block's shared memory to another's of the cluster.
void copy_shared(std::uint32_t to, std::uint32_t from, int bytes, std::uint32_t barrier);

}  // namespace tg::emulator

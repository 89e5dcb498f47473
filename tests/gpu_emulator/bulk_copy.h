// Bulk copies: boxes of a tensor map (TMA) to shared memory and back, and consecutive bytes.
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
// Back to the tensor: when the thread that starts it waits, as late as it may happen.
void store_box(const CUtensorMap& map, std::uint32_t from, BoxPlace to);
void commit_stores();
void wait_for_stores();
void forget_stores();        // a block or cluster begins
void insist_on_no_stores();  // it ends
void copy_bytes(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier);
// From this block's shared memory to another's of the cluster.
void copy_shared(std::uint32_t to, std::uint32_t from, int bytes, std::uint32_t barrier);

}  // namespace tg::emulator

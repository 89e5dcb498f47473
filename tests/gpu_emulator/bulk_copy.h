// Emulates bulk copies between global memory and shared memory. A copy contains consecutive bytes, or a box
// of a tensor map (TMA).
#pragma once

#include <cuda.h>

namespace tg::emulator {

struct BoxPlace {
  int x, row, head, batch;
};
void copy_box(std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier, BoxPlace from);
// Copies to the first `blocks` blocks of the cluster, at the same offset in each.
void copy_box_to_each(unsigned blocks, std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier,
                      BoxPlace from);
// Copies back to the tensor. The data is written as late as possible, when the issuing thread waits for the
// copy.
void store_box(const CUtensorMap& map, std::uint32_t from, BoxPlace to);
void commit_stores();
void wait_for_stores();
void forget_stores();        // called at the start of a block or cluster
void insist_on_no_stores();  // called at the end of a block or cluster
void copy_bytes(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier);
// Copies from this block's shared memory to another block of the cluster.
void copy_shared(std::uint32_t to, std::uint32_t from, int bytes, std::uint32_t barrier);

}  // namespace tg::emulator

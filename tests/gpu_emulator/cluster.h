// What the blocks of a cluster do together, and what keeps a block's shared memory until others have left it.
#pragma once

#include "tests/gpu_emulator/clocks.h"

namespace tg::emulator {

// The barrier of all threads of the cluster, in two steps, each by whole warps.
void cluster_arrive();
void cluster_wait();

// The block's shared memory is used by what is over for those who know `time` at that place of their clocks:
// a thread of the block must know it before the block ends.
void keep_until(unsigned rank, unsigned place, Time time);

// Throws unless the emulator can run that many blocks of so many threads together.
void insist_on_cluster(unsigned blocks_of_grid, unsigned threads, unsigned blocks);
void begin_cluster(unsigned threads, unsigned blocks);
void end_cluster_thread(unsigned thread);
void end_cluster_block(unsigned rank);  // after its last thread

}  // namespace tg::emulator

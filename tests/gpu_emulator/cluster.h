// Common operations of a cluster's blocks. Also checks that a block's shared memory stays valid until other
// blocks no longer use it.
#pragma once

#include "tests/gpu_emulator/clocks.h"

namespace tg::emulator {

// The barrier of all threads of the cluster, in two steps, each by whole warps.
void cluster_arrive();
void cluster_wait();

// An asynchronous operation uses the block's shared memory. It is finished for threads whose clock has `time`
// at entry `place`. A thread of the block must know this before the block ends.
void keep_until(unsigned rank, unsigned place, Time time);

// Throws unless the emulator can run this number of blocks and threads together.
void insist_on_cluster(unsigned blocks_of_grid, unsigned threads, unsigned blocks);
void begin_cluster(unsigned threads, unsigned blocks);
void end_cluster_thread(unsigned thread);
void end_cluster_block(unsigned rank);  // after its last thread

}  // namespace tg::emulator

// Emulates operations of all blocks in a cluster. Also checks that a block does not end while other blocks
// use its shared memory.
#pragma once

#include "tests/gpu_emulator/clocks.h"

namespace tg::emulator {

// The barrier of all threads of the cluster has two steps. Complete warps perform each step.
void cluster_arrive();
void cluster_wait();

// Records that an asynchronous operation uses the block's shared memory. For a thread, the operation is
// finished if entry `place` of the thread's clock is at least `time`. A thread of the block must know this
// before the block ends.
void keep_until(unsigned rank, unsigned place, Time time);

// Throws if this number of blocks and threads exceeds the emulator's limit for concurrent execution.
void insist_on_cluster(unsigned blocks_of_grid, unsigned threads, unsigned blocks);
void begin_cluster(unsigned threads, unsigned blocks);
void end_cluster_thread(unsigned thread);
void end_cluster_block(unsigned rank);  // called after the last thread of the block has ended

}  // namespace tg::emulator

// The state of Hopper's instructions, for a block or for all blocks of a cluster, from start to end.
#pragma once

#include <cstddef>

namespace tg::emulator {

void begin_hopper_blocks(unsigned threads, unsigned blocks, std::size_t shared_bytes);  // bytes per block
void end_hopper_thread(unsigned thread);  // checks that none of the thread's operations is pending
void end_hopper_blocks();

}  // namespace tg::emulator

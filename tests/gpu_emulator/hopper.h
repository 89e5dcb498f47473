// The state of Hopper's instructions for a block or for the blocks of a cluster, from the start to the end.
#pragma once

#include <cstddef>

namespace tg::emulator {

void begin_hopper_blocks(unsigned threads, unsigned blocks, std::size_t shared_bytes);  // bytes per block
void end_hopper_thread(unsigned thread);  // checks that none of the thread's operations is pending
void end_hopper_blocks();

}  // namespace tg::emulator

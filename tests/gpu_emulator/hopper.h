// State of Hopper's instructions for a block, or for the blocks of a cluster, from their start to their end.
#pragma once

#include <cstddef>

namespace tg::emulator {

void begin_hopper_blocks(unsigned threads, unsigned blocks, std::size_t shared_bytes);  // per block
void end_hopper_thread(unsigned thread);  // checks that no operation that it has started is pending
void end_hopper_blocks();

}  // namespace tg::emulator

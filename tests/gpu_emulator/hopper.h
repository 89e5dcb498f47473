// What Hopper's instructions keep for a block, or the blocks of a cluster, from the beginning to the end.
#pragma once

#include <cstddef>

namespace tg::emulator {

void begin_hopper_blocks(unsigned threads, unsigned blocks, std::size_t shared_bytes);  // threads of each
void end_hopper_thread(unsigned thread);  // nothing that it has begun may be left
void end_hopper_blocks();

}  // namespace tg::emulator

// Emulates setmaxnreg. Warps use it to transfer registers to other warps. A launch starts with the maximum
// number of registers. A warp that needs more registers waits until other warps have released some.
#pragma once

#include <cstddef>

namespace tg::emulator {

void take_registers(int each);
void give_registers(int each);
// Starts a launch in clusters of `blocks` blocks. The number of blocks on a multiprocessor is limited by its
// shared memory.
void forget_registers(unsigned threads, unsigned blocks, std::size_t shared_bytes);
void insist_on_equal_registers();  // compares the warps of a warpgroup

}  // namespace tg::emulator

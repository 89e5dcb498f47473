// Emulates setmaxnreg, with which warps transfer registers to one another. A launch starts with as many
// registers as fit. A warp that needs more registers waits until other warps have released them.
#pragma once

#include <cstddef>

namespace tg::emulator {

void take_registers(int each);
void give_registers(int each);
// Starts a launch of clusters of `blocks` blocks. A multiprocessor runs as many blocks as fit its shared
// memory.
void forget_registers(unsigned threads, unsigned blocks, std::size_t shared_bytes);
void insist_on_equal_registers();  // compares the warps of a warpgroup

}  // namespace tg::emulator

// Registers that warps transfer to one another (setmaxnreg). A launch has the number of registers that fits.
// A warp that needs more waits until others have released them.
#pragma once

#include <cstddef>

namespace tg::emulator {

void take_registers(int each);
void give_registers(int each);
// Starts a launch of clusters of `blocks` blocks. A multiprocessor runs as many blocks as fit its shared
// memory.
void forget_registers(unsigned threads, unsigned blocks, std::size_t shared_bytes);
void insist_on_equal_registers();  // in the warps of a warpgroup

}  // namespace tg::emulator

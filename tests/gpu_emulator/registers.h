// The registers that warps hand to one another (setmaxnreg): a launch has as many as fit, and a warp that
// takes more waits until others have given them.
#pragma once

#include <cstddef>

namespace tg::emulator {

void take_registers(int each);
void give_registers(int each);
// A launch of clusters of so many blocks. As many blocks share a multiprocessor as its memory has room for.
void forget_registers(unsigned threads, unsigned blocks, std::size_t shared_bytes);
void insist_on_equal_registers();  // in the warps of a warpgroup

}  // namespace tg::emulator

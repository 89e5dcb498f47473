// The registers that warps hand to one another (setmaxnreg): a launch has as many as fit, and a warp that
// takes more waits until others have given them.
#pragma once

namespace tg::emulator {

void take_registers(int each);
void give_registers(int each);
void forget_registers(unsigned threads, unsigned blocks);
void insist_on_equal_registers();  // in the warps of a warpgroup

}  // namespace tg::emulator

// Numbers in global memory by which blocks wait for others. Blocks run one after another: one that waits for
// a later block would wait for ever.
#pragma once

namespace tg::emulator {

int load_acquire(const int* p);
void add_release(int* p, int n);
void forget_spins();

}  // namespace tg::emulator

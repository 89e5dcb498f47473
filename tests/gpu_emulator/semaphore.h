// Emulates numbers in global memory that blocks wait for. Blocks run one after another. So a block that waits
// for a later block would wait forever.
#pragma once

namespace tg::emulator {

int load_acquire(const int* p);
void add_release(int* p, int n);
void forget_spins();

}  // namespace tg::emulator

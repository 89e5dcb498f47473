// What the registers of a thread hold at wgmma.fence. A kernel's registers are variables on the thread's
// stack.
#pragma once

#include <cstddef>

namespace tg::emulator {

void snapshot_registers();  // of the thread that runs
// Whether they are as at the last snapshot.
bool are_as_fenced(const void* registers, std::size_t bytes);
bool has_fence();
// A product, and no ordinary instruction, has changed them.
void changed_by_product(const void* registers, std::size_t bytes);
void forget_snapshots(unsigned threads);

}  // namespace tg::emulator

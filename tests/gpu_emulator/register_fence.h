// The contents of a thread's registers at wgmma.fence. A kernel's registers are variables on the thread's
// stack.
#pragma once

#include <cstddef>

namespace tg::emulator {

void snapshot_registers();  // of the running thread
// Whether the registers are unchanged since the last snapshot.
bool are_as_fenced(const void* registers, std::size_t bytes);
bool has_fence();
// wgmma, not an ordinary instruction, has changed the registers.
void changed_by_product(const void* registers, std::size_t bytes);
void forget_snapshots(unsigned threads);

}  // namespace tg::emulator

// Compares a thread's registers with the same registers at the last wgmma.fence. A kernel's registers are
// variables on the thread's stack.
#pragma once

#include <cstddef>

namespace tg::emulator {

void snapshot_registers();  // copies the running thread's registers
// Returns whether the registers are unchanged since the last snapshot.
bool are_as_fenced(const void* registers, std::size_t bytes);
bool has_fence();
// Records that wgmma has changed the registers. This change is allowed.
void changed_by_product(const void* registers, std::size_t bytes);
void forget_snapshots(unsigned threads);

}  // namespace tg::emulator

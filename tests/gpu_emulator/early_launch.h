// Kernels that may begin before the kernel before them has ended (programmatic launch). Here it has always
// ended; it is a mistake if a thread of such a kernel never waits for it.
#pragma once

namespace tg::emulator {

void begin_early();  // by a thread of such a kernel, first and last
void end_early();
void wait_for_kernel_before();

}  // namespace tg::emulator

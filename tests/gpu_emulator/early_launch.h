// Emulates kernels that may begin before the previous kernel has ended (programmatic dependent launch). In
// the emulator, the previous kernel has always ended. Still, every thread of such a kernel must wait for the
// previous kernel. If a wait is missing, this is an error.
#pragma once

namespace tg::emulator {

void begin_early();  // called at the start and end of each thread of such a kernel
void end_early();
void wait_for_kernel_before();

}  // namespace tg::emulator

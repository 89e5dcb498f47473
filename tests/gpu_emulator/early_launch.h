// Kernels that may begin before the previous kernel has ended (programmatic dependent launch). In the
// emulator the previous kernel has always ended. It is an error if a thread of such a kernel never waits for
// it.
#pragma once

namespace tg::emulator {

void begin_early();  // called by a thread of such a kernel at its start and at its end
void end_early();
void wait_for_kernel_before();

}  // namespace tg::emulator

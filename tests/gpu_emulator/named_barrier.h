// Emulates named barriers (bar.sync, bar.arrive) for complete warps.
#pragma once

namespace tg::emulator {

void bar_sync(int barrier, int threads);
void bar_arrive(int barrier, int threads);
void forget_named_barriers();

}  // namespace tg::emulator

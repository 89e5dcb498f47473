// What Hopper's instructions keep for a block, from its beginning to its end.
#pragma once

namespace tg::emulator {

void begin_hopper_block(unsigned threads);
void end_hopper_thread(unsigned thread);  // nothing that it has begun may be left
void end_hopper_block();

}  // namespace tg::emulator

// Who touched shared memory: finds two threads of a block at one place, one of them writing, with no barrier
// between them; and static shared memory that is read before it is written. Kernels are compiled with
// -fsanitize=thread, which calls a function at each access; those functions are here, in the place of the
// thread sanitizer's own library.
#pragma once

#include <string>

namespace tg::emulator {

void forget_accesses();               // a block begins: nothing has been written
void order_block();                   // __syncthreads
void order_warp(unsigned warp);       // __syncwarp
void note_write(void* p, int bytes);  // by what is not compiled so
std::string first_race();             // of the block, empty if there was none

}  // namespace tg::emulator

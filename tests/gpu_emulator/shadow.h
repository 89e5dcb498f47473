// Every access of a kernel to memory. Finds two threads of a block at one place of shared memory, one of them
// writing, with no barrier between them; static shared memory that is read before it is written; and
// misaligned accesses. Kernels are compiled with -fsanitize=thread, which calls a function at each access;
// those functions are here, in the place of the thread sanitizer's own library.
#pragma once

namespace tg::emulator {

void forget_accesses();               // a block begins: nothing has been written
void order_block();                   // __syncthreads
void order_warp(unsigned warp);       // __syncwarp
void note_write(void* p, int bytes);  // by code that is compiled without these calls

}  // namespace tg::emulator

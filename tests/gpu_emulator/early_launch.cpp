#include "tests/gpu_emulator/early_launch.h"

#include <bitset>

#include "tests/gpu_emulator/block.h"

namespace tg::emulator {

namespace {

thread_local std::bitset<1024> waited;  // of the threads of the block that runs

std::size_t thread() {
  return static_cast<std::size_t>(here.number);
}

}  // namespace

void begin_early() {
  waited[thread()] = false;
}
void end_early() {
  if (!waited[thread()])
    give_up("a kernel that may begin early ends without having waited for the kernel before it");
}
void wait_for_kernel_before() {
  waited[thread()] = true;
}

}  // namespace tg::emulator

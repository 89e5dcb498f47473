#include "tests/gpu_emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace tg::emulator {

void* make_stack() {
  constexpr std::size_t guard = 4096;
  void* low = mmap(nullptr, stack_bytes + guard, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (low == MAP_FAILED) throw std::bad_alloc();
  mprotect(low, guard, PROT_NONE);
  return static_cast<std::byte*>(low) + guard + stack_bytes;
}

#if defined(__x86_64__)

// Saves the registers that the System V ABI requires to be preserved, on the old stack.
extern "C" void tg_emulator_switch(void** from, void* to);
asm(R"(
.text
.globl tg_emulator_switch
.type tg_emulator_switch, @function
tg_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tg_emulator_switch, .-tg_emulator_switch
)");

void switch_context(Context& from, const Context& to) {
  tg_emulator_switch(&from.stack_pointer, to.stack_pointer);
}

Context context_at(void* stack, void (*entry)()) {
  auto* top = static_cast<std::uintptr_t*>(stack);
  top[-2] = reinterpret_cast<std::uintptr_t>(entry);  // returned to, with the stack as a call leaves it
  top[-1] = 0;
  for (int r = 3; r <= 8; ++r) top[-r] = 0;
  return {top - 8};
}

#else  // slower: a system call for each switch

void switch_context(Context& from, const Context& to) {
  ucontext_t here;
  from.stack_pointer = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to.stack_pointer));
}

Context context_at(void* stack, void (*entry)()) {
  auto* made =
      reinterpret_cast<ucontext_t*>(static_cast<std::byte*>(stack) - sizeof(ucontext_t) / 64 * 64 - 64);
  getcontext(made);
  made->uc_stack.ss_sp = static_cast<std::byte*>(stack) - stack_bytes;
  made->uc_stack.ss_size = stack_bytes - 8192;
  made->uc_link = nullptr;
  makecontext(made, entry, 0);
  return {made};
}

#endif

}  // namespace tg::emulator

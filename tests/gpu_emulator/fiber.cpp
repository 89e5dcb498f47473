#include "tests/gpu_emulator/fiber.h"

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace tg::emulator {

namespace {

// All stacks are next to each other in a reserved range of addresses.
constexpr std::size_t guard = 4096, all_bytes = std::size_t{1} << 34;
std::byte* region() {
  static std::byte* const at = static_cast<std::byte*>(
      mmap(nullptr, all_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  return at;
}
std::atomic<std::size_t> used = 0;

}  // namespace

void* make_stack() {
  const std::size_t at = used.fetch_add(stack_bytes + guard);
  if (region() == MAP_FAILED || at + stack_bytes + guard > all_bytes) throw std::bad_alloc();
  std::byte* const low = region() + at + guard;
  if (mprotect(low, stack_bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  return low + stack_bytes;
}
bool is_on_a_stack(const void* p) {
  return static_cast<std::size_t>(static_cast<const std::byte*>(p) - region()) < all_bytes;
}

#if defined(__x86_64__)

// Saves registers on the old stack. In the System V ABI, a function must preserve these registers.
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
  top[-2] = reinterpret_cast<std::uintptr_t>(entry);  // the return address, as after a call
  top[-1] = 0;
  for (int r = 3; r <= 8; ++r) top[-r] = 0;
  return {top - 8};
}

#else  // slower, because each switch is a system call

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

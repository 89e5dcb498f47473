// A fiber has its own stack. Several fibers run alternately on one thread of the operating system. The
// emulated GPU's threads are fibers.
#pragma once

#include <cstddef>

namespace tg::emulator {

// The point at which a suspended fiber continues.
struct Context {
  void* stack_pointer = nullptr;
};

// Stores the current fiber in `from` and continues at `to`. Returns when a fiber switches back to `from`.
void switch_context(Context& from, const Context& to);

// Makes a context that calls entry() on a stack of `stack_bytes`. A guard page is below the stack. entry()
// must never return. Stacks are never freed, but the caller may reuse them.
inline constexpr std::size_t stack_bytes = std::size_t{256} << 10;
void* make_stack();  // returns the upper end of the stack
bool is_on_a_stack(const void* p);
Context context_at(void* stack, void (*entry)());

}  // namespace tg::emulator

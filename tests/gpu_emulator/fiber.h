// Fibers: several stacks that run alternately on one thread of the operating system. A GPU's threads run on
// them.
#pragma once

#include <cstddef>

namespace tg::emulator {

// The point at which a suspended fiber continues.
struct Context {
  void* stack_pointer = nullptr;
};

// Suspends the current fiber in `from` and continues at `to`. Returns when something switches back to `from`.
void switch_context(Context& from, const Context& to);

// A context that calls entry(), which must never return, on a stack of `stack_bytes` with a guard page below
// it. Stacks live as long as the process, and their owner reuses them.
inline constexpr std::size_t stack_bytes = std::size_t{256} << 10;
void* make_stack();  // returns its upper end
bool is_on_a_stack(const void* p);
Context context_at(void* stack, void (*entry)());

}  // namespace tg::emulator

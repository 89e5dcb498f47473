// Stacks that take turns on one thread of the operating system: what a GPU's threads run on.
#pragma once

#include <cstddef>

namespace tg::emulator {

// Where a fiber that is not running goes on.
struct Context {
  void* stack_pointer = nullptr;
};

// Stops here, kept in `from`, and goes on at `to`. Returns when something switches back to `from`.
void switch_context(Context& from, const Context& to);

// A context that calls entry(), which must never return, on a stack of `stack_bytes` with a guard page below.
// Stacks stay for the life of the process and are used again by their owner.
inline constexpr std::size_t stack_bytes = std::size_t{256} << 10;
void* make_stack();  // its upper end
Context context_at(void* stack, void (*entry)());

}  // namespace tg::emulator

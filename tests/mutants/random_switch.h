// The switch of random mutants: tests/mutants/random_run.py puts questions of it into a copy of the sources.
#pragma once

namespace tg {

inline constexpr int max_mutants = 1 << 16;
// 0: off and not counted. Otherwise ask_mutant() decides.
extern unsigned char mutant_states[max_mutants];
// Whether the mutant is on. Notes that it was reached, if somebody counts that.
[[gnu::cold]] bool ask_mutant(int number);
[[gnu::cold]] bool ask_device_mutant(int number);

// Inlined everywhere: kernels are compiled once for each instruction set and share no function. A function
// that the compiler evaluates is right.
[[gnu::always_inline]] static constexpr inline bool mutant(int number) {
  if (__builtin_is_constant_evaluated()) return false;
#ifdef __CUDACC__  // the emulator answers each access to memory of a kernel, and does not know this array
  return ask_device_mutant(number);
#else
  return __builtin_expect(mutant_states[number], 0) && ask_mutant(number);
#endif
}

// For the tests' listener: begins a new count, and what was reached since; null if nothing is counted.
void count_mutants();
const unsigned char* counted_mutants();

}  // namespace tg

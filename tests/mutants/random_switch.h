// Defines the switch of random mutants. tests/mutants/random_run.py inserts calls of these functions into a
// copy of the sources.
#pragma once

namespace tg {

inline constexpr int max_mutants = 1 << 16;
// State of each mutant. 0 means off and not counted; otherwise ask_mutant() decides.
extern unsigned char mutant_states[max_mutants];
// Returns whether the mutant is on. If mutants are counted, also records that this mutant was reached.
[[gnu::cold]] bool ask_mutant(int number);
[[gnu::cold]] bool ask_device_mutant(int number);

// The function is inlined everywhere, because kernels are compiled once for each instruction set and share no
// functions. In functions that the compiler evaluates, all mutants are off.
[[gnu::always_inline]] static constexpr inline bool mutant(int number) {
  if (__builtin_is_constant_evaluated()) return false;
#ifdef __CUDACC__  // the emulator handles each memory access of a kernel, and does not know this array
  return ask_device_mutant(number);
#else
  return __builtin_expect(mutant_states[number], 0) && ask_mutant(number);
#endif
}

// The tests' listener calls these. count_mutants() starts a new count. counted_mutants() returns the mutants
// that were reached since the start of the count, or null if nothing is counted.
void count_mutants();
const unsigned char* counted_mutants();

}  // namespace tg

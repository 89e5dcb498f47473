// Defines the switch of mutants. `tests/mutants/plant.py` inserts calls of this function into a copy of the
// sources.
#pragma once

namespace tg {

struct ChosenMutant {
  ChosenMutant();
  int number;
};
extern const ChosenMutant chosen_mutant;

// Returns whether TG_MUTANT switches the mutant with this number on. The function is inlined everywhere,
// because kernels are compiled once for each instruction set and share no functions.
[[gnu::always_inline]] static inline bool mutant(int number) {
  return chosen_mutant.number == number;
}

}  // namespace tg

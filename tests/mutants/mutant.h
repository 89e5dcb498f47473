// The switch of the mutants: `tests/mutants/plant.py` inserts calls of it into a copy of the sources.
#pragma once

namespace tg {

struct ChosenMutant {
  ChosenMutant();
  int number;
};
extern const ChosenMutant chosen_mutant;

// Whether the mutant with this number is switched on by TG_MUTANT. Inlined everywhere, because kernels are
// compiled once for each instruction set and share no functions.
[[gnu::always_inline]] static inline bool mutant(int number) {
  return chosen_mutant.number == number;
}

}  // namespace tg

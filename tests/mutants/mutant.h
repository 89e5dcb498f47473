// The switch of the planted faults: tests/mutants/plant.py puts questions of it into a copy of the sources.
#pragma once

namespace tg {

struct ChosenMutant {
  ChosenMutant();
  int number;
};
extern const ChosenMutant chosen_mutant;

// Whether the fault of this number is switched on, by TG_MUTANT. Inlined everywhere: kernels are compiled
// once for each instruction set and share no function.
[[gnu::always_inline]] static inline bool mutant(int number) {
  return chosen_mutant.number == number;
}

}  // namespace tg

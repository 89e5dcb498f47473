#include "mutant.h"

#include <cstdlib>

namespace tg {

ChosenMutant::ChosenMutant() : number(std::getenv("TG_MUTANT") ? std::atoi(std::getenv("TG_MUTANT")) : 0) {}

// Initialized before any other static object, because other objects may use mutated code.
__attribute__((init_priority(101))) extern const ChosenMutant chosen_mutant{};

}  // namespace tg

#include "mutant.h"

#include <cstdlib>

namespace tg {

ChosenMutant::ChosenMutant() : number(std::getenv("TG_MUTANT") ? std::atoi(std::getenv("TG_MUTANT")) : 0) {}

// Before any other static object, which might use what is planted.
__attribute__((init_priority(101))) extern const ChosenMutant chosen_mutant{};

}  // namespace tg

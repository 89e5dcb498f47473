// What is thrown where a program cannot keep its memory_budget.
#pragma once

#include <string>

#include <tilegrad/core/base/error.h>

namespace tg {

struct BudgetTooSmall : OutOfMemory {
  BudgetTooSmall(const std::string& text, std::size_t bytes) : OutOfMemory(text), least(bytes) {}
  std::size_t least;  // budget that would do
};

}  // namespace tg

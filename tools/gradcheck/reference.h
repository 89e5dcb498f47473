// The reference of ops, docs/ops.md, made from their definitions alone.
#pragma once

#include <string>

namespace tg::gradcheck {

// Markdown: every op, those of plugins too, by the file that defines it: operands, what it computes, dtypes,
// attributes, gradient, decomposition, and how its samples call it.
std::string reference();

}  // namespace tg::gradcheck

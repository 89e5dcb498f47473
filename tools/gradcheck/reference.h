// The reference of ops, docs/ops.md, generated from their definitions.
#pragma once

#include <string>

namespace tg::gradcheck {

// Markdown: every op, including those of plugins, by the file that defines it: operands, function, dtypes,
// attributes, gradient, decomposition, and the calls of its samples.
std::string reference();

}  // namespace tg::gradcheck

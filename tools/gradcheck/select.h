// The cases that gradcheck checks, selected by name, the table of all, and the reference of ops.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/autograd/gradcheck/gradcheck.h>

namespace tg {

// Small cases of every layer: a layer that is not listed here is not checked.
std::vector<gradcheck::Case> layer_cases();

}  // namespace tg

namespace tg::gradcheck {

// Every op, layer and registered case.
std::vector<Case> all_cases();
// Those whose op or layer ("softmax") or own name ("softmax/rows") is among the names; all when there are
// none.
std::vector<Case> select(const std::vector<Case>& cases, const std::vector<std::string>& names);
// A message for each of the names that selects nothing, with the name that may have been meant.
std::vector<std::string> unknown(const std::vector<Case>& cases, const std::vector<std::string>& names);
// Ops that have a gradient and no sample to check it with.
std::vector<std::string> untested(const std::vector<std::string>& names);
// "yes", "first order", "by decomposition", or "no" with the reason.
std::string gradient_text(const Op& op);
// Prints one row per op or layer of the cases.
void print_list(const std::vector<Case>& cases);
// The reference of ops, docs/ops.md, generated from their definitions. Markdown: every op, including those of
// plugins, by the file that defines it: operands, function, dtypes, attributes, gradient, decomposition, and
// the calls of its samples.
std::string reference();
// Loads a shared library; its static initialisers and its tilegrad_plugin(), if it has one, register ops and
// cases. Throws Error with the loader's reason.
void load_plugin(const std::string& path);

}  // namespace tg::gradcheck

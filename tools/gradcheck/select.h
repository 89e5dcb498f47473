// Selects gradcheck's cases by name, prints their table, and generates the reference of ops.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/autograd/gradcheck/gradcheck.h>

namespace tg {

// Small cases of every layer. Layers that are not listed here are not checked.
std::vector<gradcheck::Case> layer_cases();

}  // namespace tg

namespace tg::gradcheck {

// The cases of every op and layer, and registered cases.
std::vector<Case> all_cases();
// The cases selected by `names`: a name is an op, a layer ("softmax") or a case ("softmax/rows"). If `names`
// is empty, returns all cases.
std::vector<Case> select(const std::vector<Case>& cases, const std::vector<std::string>& names);
// Returns an error message for each name that selects nothing, with a similar name as a suggestion.
std::vector<std::string> unknown(const std::vector<Case>& cases, const std::vector<std::string>& names);
// Returns the ops that have a gradient but no sample.
std::vector<std::string> untested(const std::vector<std::string>& names);
// "yes", "first order", "by decomposition", or "no" with the reason.
std::string gradient_text(const Op& op);
// Prints one row per op or layer of the cases.
void print_list(const std::vector<Case>& cases);
// Generates the reference of ops (docs/ops.md) as Markdown. It lists every op, including ops of plugins,
// in the order of the files that define them. Each op has its operands, function, dtypes, attributes,
// gradient, decomposition and file.
std::string reference();
// Generates the list of samples (docs/notes/op-samples.md) as Markdown: the shapes and attributes of each
// call, grouped by the file that defines the op.
std::string sample_list();
// Loads a shared library. Its static initializers register ops and cases, as does tilegrad_plugin() if the
// library defines it. Throws Error with the loader's message.
void load_plugin(const std::string& path);

}  // namespace tg::gradcheck

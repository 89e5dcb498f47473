#include "tools/gradcheck/select.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <tilegrad/ops/ops.h>
#include "backends/cpu/kernel.h"
#include "core/os/system.h"
#include "tools/args.h"

namespace tg::gradcheck {

namespace {

bool is_named(const Case& c, const std::string& name) {
  return c.owner == name || c.text() == name;
}

bool runs_on_cpu(const Op& op) {
  if (op.view || op.host || cpu::find_kernel(op.name)) return true;
  const auto& blocks = *cpu::kernel_set().blocks;
  return std::any_of(blocks.begin(), blocks.end(), [&](const cpu::BlockEntry& e) { return e.op == op.name; });
}

// An op without a vjp is differentiated through its decomposition, unless it declares that it has no
// gradient.
bool has_gradient(const Op& op) {
  return op.vjp || (op.decompose && op.not_differentiable.empty());
}

}  // namespace

std::string gradient_text(const Op& op) {
  if (op.vjp) return op.first_order_only ? "first order" : "yes";
  return has_gradient(op) ? "by decomposition" : "no: " + op.not_differentiable;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = op_cases();
  for (Case& c : layer_cases()) cases.push_back(std::move(c));
  for (Case& c : registered_cases()) cases.push_back(std::move(c));
  return cases;
}

std::vector<Case> select(const std::vector<Case>& cases, const std::vector<std::string>& names) {
  if (names.empty()) return cases;
  std::vector<Case> chosen;
  for (const Case& c : cases)
    if (std::any_of(names.begin(), names.end(), [&](const std::string& n) { return is_named(c, n); }))
      chosen.push_back(c);
  return chosen;
}

std::vector<std::string> unknown(const std::vector<Case>& cases, const std::vector<std::string>& names) {
  std::vector<std::string> lost;
  for (const std::string& name : names) {
    if (std::any_of(cases.begin(), cases.end(), [&](const Case& c) { return is_named(c, name); })) continue;
    if (const Op* op = find_op(name); op && has_gradient(*op)) continue;  // untested() reports the op
    const auto nearest = std::min_element(cases.begin(), cases.end(), [&](const Case& a, const Case& b) {
      return edit_distance(a.owner, name) < edit_distance(b.owner, name);
    });
    const bool near = nearest != cases.end() && edit_distance(nearest->owner, name) <= 1 + name.size() / 3;
    lost.push_back("no op or layer is named '" + name + "'" +
                   (near ? ", did you mean " + nearest->owner + "?" : "; --list shows them"));
  }
  return lost;
}

std::vector<std::string> untested(const std::vector<std::string>& names) {
  std::vector<std::string> ops;
  for (const Op* op : all_ops()) {
    const bool selected = names.empty() || std::find(names.begin(), names.end(), op->name) != names.end();
    if (selected && has_gradient(*op) && (!op->samples || op->samples().empty())) ops.push_back(op->name);
  }
  return ops;
}

void print_list(const std::vector<Case>& cases) {
  std::printf("%-20s %7s  %-7s  %-13s  %s\n", "name", "samples", "backend", "decomposition", "gradient");
  std::vector<std::string> seen;
  for (const Case& c : cases) {
    if (std::find(seen.begin(), seen.end(), c.owner) != seen.end()) continue;
    seen.push_back(c.owner);
    const auto samples =
        std::count_if(cases.begin(), cases.end(), [&](const Case& o) { return o.owner == c.owner; });
    std::printf("%-20s %7d  %-7s  %-13s  %s\n", c.owner.c_str(), static_cast<int>(samples),
                c.op == nullptr || runs_on_cpu(*c.op) ? "cpu" : "none", c.op && c.op->decompose ? "yes" : "",
                c.op ? gradient_text(*c.op).c_str() : "yes");
  }
  std::printf("\nEvery floating input is checked in f64 f32 bf16 f16 and in the views");
  for (View v : all_views) std::printf(" %s", name_of(v).c_str());
  std::printf(".\n");
}

void load_plugin(const std::string& path) {
  // dlopen searches the system's library folders for a name without a slash.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  // Loading a named pipe would block until it has a writer.
  std::error_code error;
  if (const auto kind = std::filesystem::status(file, error).type();
      kind != std::filesystem::file_type::regular && kind != std::filesystem::file_type::not_found)
    throw Error("[plugin] cannot load " + path + ": it is not a regular file");
  std::string why;
  void* library = os::load_library(file, os::Symbols::global, &why);
  if (!library) throw Error("[plugin] " + why);
  if (void* start = os::find_symbol(library, "tilegrad_plugin")) reinterpret_cast<void (*)()>(start)();
}

}  // namespace tg::gradcheck

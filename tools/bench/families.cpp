// The families of kernels that a training step consists of.
#include "tools/bench/measured_step.h"

#include <algorithm>

#include "core/compile/reduced_chains.h"
#include "tools/train_report.h"

namespace tg::bench {

namespace {

constexpr std::string_view gradient_path = "optimizer.grad.";

// The path of the layer, also of a step of its gradient: "transformer.h.0.attn" of
// "optimizer.grad.transformer.h.0.attn/flash_attn_backward".
std::string_view layer_of(const Step& s) {
  std::string_view path(s.name);
  path = path.substr(0, path.rfind('/'));
  return path.starts_with(gradient_path) ? path.substr(gradient_path.size()) : path;
}

// The head's products belong to the whole model, to the embedding that it shares, or to lm_head.
bool is_of_head(const Step& s) {
  return layer_of(s).find('.') == std::string_view::npos || part_of(s.name) == "embeddings";
}

// By the file of ops/ that defines an op.
constexpr std::pair<std::string_view, Family> families[] = {{"matmul.cpp", Family::products},
                                                            {"flash_attn.cpp", Family::attention},
                                                            {"norm.cpp", Family::norms},
                                                            {"cross_entropy.cpp", Family::head},
                                                            {"matmul_in_units.cpp", Family::head},
                                                            {"linear_cross_entropy.cpp", Family::head},
                                                            {"copy.cpp", Family::casts},
                                                            {"concat.cpp", Family::casts},
                                                            {"index.cpp", Family::embedding},
                                                            {"gather.cpp", Family::embedding},
                                                            {"index_assign.cpp", Family::embedding},
                                                            {"rope.cpp", Family::embedding}};

Family family_of(const Op& op) {
  std::string_view file = op.where.file_name();
  file = file.substr(file.find_last_of('/') + 1);
  for (const auto& [name, family] : families)
    if (name == file) return family;
  return Family::rest;
}

}  // namespace

const char* name_of(Family family) {
  constexpr const char* names[family_count] = {"matrix products",   "attention",    "norms",
                                               "head and loss",     "other chains", "casts and copies",
                                               "embedding, rotary", "optimizer",    "rest"};
  return names[static_cast<std::size_t>(family)];
}

Family family_of(const Step& s) {
  if (s.name.starts_with("optimizer/")) return Family::optimizer;
  if (const FusedAttrs* chain = chain_of(*s.op, s.attrs)) {
    const auto moves = [](const auto& i) { return family_of(*i.op) == Family::casts; };
    return s.op == &fused_op && std::ranges::all_of(chain->code, moves) ? Family::casts : Family::chains;
  }
  const Family family = family_of(*s.op);
  return family == Family::products && is_of_head(s) ? Family::head : family;
}

std::vector<FamilyTime> by_family(std::span<const Step> steps, std::span<const double> seconds) {
  std::vector<FamilyTime> sums(family_count);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    FamilyTime& sum = sums[static_cast<std::size_t>(family_of(steps[i]))];
    sum.seconds += seconds[i], ++sum.steps;
  }
  return sums;
}

}  // namespace tg::bench

#include "tools/bench/families.h"

#include <algorithm>

#include "core/compile/reduced_chains.h"
#include "tools/model_parts.h"

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

bool moves_only(const Step& s) {
  const auto moves = [](std::string_view op) { return op == "cast" || op == "copy" || op == "contiguous"; };
  if (s.op != &fused_op) return moves(s.op->name) || s.op->name == "concat";
  const auto& code = s.attrs.as<FusedAttrs>().code;
  return std::all_of(code.begin(), code.end(), [&](const auto& i) { return moves(i.op->name); });
}

}  // namespace

const char* name_of(Family family) {
  constexpr const char* names[family_count] = {"matrix products",   "attention",    "norms",
                                               "head and loss",     "other chains", "casts and copies",
                                               "embedding, rotary", "optimizer",    "rest"};
  return names[static_cast<std::size_t>(family)];
}

Family family_of(const Step& s) {
  const std::string_view op(s.op->name);
  const auto has = [&](std::string_view part) { return op.find(part) != std::string_view::npos; };
  if (s.name.starts_with("optimizer/")) return Family::optimizer;
  if (has("cross_entropy") || op == "matmul_in_units") return Family::head;
  if (op == "matmul") return is_of_head(s) ? Family::head : Family::products;
  if (has("flash_attn")) return Family::attention;
  if (has("_norm")) return Family::norms;
  if (op == "embedding" || op == "rope" || has("index") || has("gather")) return Family::embedding;
  if (moves_only(s)) return Family::casts;
  return chain_of(*s.op, s.attrs) ? Family::chains : Family::rest;
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

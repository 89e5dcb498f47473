// The parts of a model that tools tell apart, by the paths of their parameters and nodes.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace tg {

struct ModelPart {
  std::string_view name;
  std::string_view marks[4];  // one of these is in the path
};
inline constexpr ModelPart model_parts[] = {
    {"embeddings", {".wte.", ".wpe.", ".embed_tokens.", "lm_head."}},
    {"attention", {".attn.", ".self_attn."}},
    {"mlp", {".mlp."}},
    {"norms", {".ln_", ".input_layernorm.", ".post_attention_layernorm.", "model.norm."}}};

// The part of a parameter ("transformer.wte.weight") or a step ("transformer.h.0.attn/flash_attn"): a name
// of model_parts, "" for what belongs to none of them.
inline std::string_view part_of(std::string path) {
  std::replace(path.begin(), path.end(), '/', '.');
  for (const ModelPart& part : model_parts)
    for (const std::string_view mark : part.marks)
      if (!mark.empty() && path.find(mark) != std::string::npos) return part.name;
  return {};
}

}  // namespace tg

#include "io/models/gguf_rules.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "core/base/messages.h"

namespace tg::io {

namespace {

using Head = GgufArchitecture::Head;

// Source: load_arch_tensors() and load_arch_hparams() in src/models of llama.cpp.
constexpr GgufArchitecture architecture_table[] = {
    {.name = "gpt2", .output_bias = true, .mlp_bias = true, .any_head_width = false, .gelu = true},
    {.name = "llama", .output_bias = true, .mlp_bias = true, .divisors = true},
    {.name = "qwen2", .any_head_width = false},
    {.name = "qwen3"},
    {.name = "smollm3", .unrotated_period = 4},
    {.name = "olmo2", .head = Head::own, .any_head_width = false},
    {.name = "phi3", .any_head_width = false, .partial_rotary = true, .longrope = true},
    {.name = "gemma2",
     .head = Head::tied,
     .gelu = true,
     .attention_softcap = true,
     .logit_softcap = true,
     .windows = true,
     .layers_by_width = 46},
    {.name = "gemma3", .gelu = true, .logit_softcap = true, .windows = true, .layers_by_width = 62},
    {.name = "deepseek2", .qkv_bias = false},
};

}  // namespace

const GgufArchitecture* gguf_architecture_named(const std::string& name) {
  const auto found = std::find_if(std::begin(architecture_table), std::end(architecture_table),
                                  [&](const GgufArchitecture& a) { return name == a.name; });
  return found == std::end(architecture_table) ? nullptr : found;
}

std::string gguf_architecture_names() {
  const std::span all(architecture_table);
  return list_text(all.first(all.size() - 1), ", ", &GgufArchitecture::name) + " or " + all.back().name;
}

}  // namespace tg::io

// LoRA: low-rank adapters on the Linear layers of a model (Hu et al., 2021). The model's own parameters are
// frozen.
//
//    tg::nn::add_lora(model, {.rank = 8, .alpha = 16, .targets = {"q_proj", "v_proj"}});
//    tg::optim::AdamW optimizer(model.parameters());  // trains the adapters
//    ...
//    tg::nn::merge_lora(model);                       // adds the adapters to the weights and removes them
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <tilegrad/nn/layers/params.h>

namespace tg::nn {

class Model;

// Options of add_lora().
struct LoraOptions {
  std::int64_t rank = 8;         // of the product B·A
  double alpha = 16;             // the product is scaled by alpha/rank
  bool rank_stabilized = false;  // scale by alpha/√rank instead (rsLoRA: Kalajdzievski, 2023)
  double dropout = 0;            // probability for the layer's input, in training; not for the head
  // Layers that get an adapter: full module names or their last parts ("q_proj", "mlp.down_proj"). Empty: all
  // Linear layers except the head.
  std::vector<std::string> targets = {};
  // Ranks of individual modules, by name as in `targets`; others have `rank`.
  std::map<std::string, std::int64_t> ranks = {};
  // Alphas of individual modules, by name as in `targets`; others have `alpha`.
  std::map<std::string, double> alphas = {};
  std::uint64_t seed = 0;  // of A's initial values
  // Adapter_config.json of the PEFT folder it was loaded from (io/models/peft.h).
  std::string origin = {};
  DType dtype = f32;  // of A and B, whatever the dtype of the weights
};

// The adapter of a module. A module is one Linear layer, or several that other libraries treat as one (phi3's
// qkv_proj). They share A, and each has its rows of B.
struct LoraModule {
  std::string name;                        // such as "model.layers.0.self_attn.q_proj"
  std::int64_t in = 0, out = 0, rank = 0;  // numbers of inputs and outputs, and rank
  double alpha = 0, scale = 0;             // alpha, and the resulting factor of B·A
  Parameter a, b;  // "<name>.lora_A.weight" [rank, in], "<name>.lora_B.weight" [out, rank]
  // A Linear layer of the module.
  struct Part {
    LinearSlot linear;       // the layer
    std::int64_t first_row;  // row of B for the layer's first output
  };
  std::vector<Part> parts;  // the module's layers
};

// The module that a Linear belongs to.
struct ModuleRows {
  std::string module;          // name of the module
  std::int64_t first_row = 0;  // index of the layer's first output in the module's outputs
  std::int64_t rows = 0;       // number of the module's outputs
};
// Returns the module of a Linear.
using ModuleOf = std::function<ModuleRows(const LinearSlot&)>;

// The adapter of a model, as created by add_lora().
struct Lora {
  LoraOptions options;              // as given
  std::vector<LoraModule> modules;  // in the order of the model's layers
  std::vector<Parameter> frozen;    // parameters that add_lora() froze
  // Returns A and B of each module.
  std::vector<Parameter> parameters() const;
};

// Returns the modules that the options select among Linear layers. They have no parameters yet. Without
// `module_of`, each layer is a module. Throws ShapeError for layers that do not fit into their module. Throws
// Error that names the option and its value for:
// - a rank below 1, an alpha that is not finite, a dropout outside [0, 1);
// - a target or a key of `ranks` or `alphas` that matches no module;
// - two keys that match one module.
std::vector<LoraModule> lora_modules(const std::vector<LinearSlot>& linears, const LoraOptions& options,
                                     const ModuleOf& module_of = {});

// Adds adapters to the selected layers and freezes the model's parameters. The adapters have no effect at
// first, because A is uniform in ±1/√in and B is zero. Their parameters are the last of model.parameters().
// Programs compiled afterwards use them; copies of the model share them. Throws as lora_modules() does, and
// Error for a model that already has an adapter.
void add_lora(Model& model, const LoraOptions& options, const ModuleOf& module_of = {});

// Adds scale·B·A to each weight W and removes the adapters. The sum is computed in f32 and rounded once to
// W's dtype. Throws Error for a model without an adapter.
void merge_lora(Model& model);
// Removes the adapters and unfreezes the parameters that add_lora() froze.
void remove_lora(Model& model);

// Returns weight + scale·b·a for weight [out, in], b [out, rank] and a [rank, in]. The sum is computed in
// f32, or in f64 for an f64 weight, and rounded once to the weight's dtype.
Array merged_weight(const Array& weight, const Array& b, const Array& a, double scale, DType dtype);

}  // namespace tg::nn

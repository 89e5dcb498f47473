// LoRA: low-rank adapters on the Linear layers of a model, whose own parameters are frozen (Hu et al., 2021).
//
//   tg::nn::add_lora(model, {.rank = 8, .alpha = 16, .targets = {"q_proj", "v_proj"}});
//   tg::optim::AdamW optimizer(model.parameters());  // trains the adapters
//   ...
//   tg::nn::merge_lora(model);                       // into the weights, as if nothing had been added
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <tilegrad/nn/layers/params.h>

namespace tg::nn {

class Model;

struct LoraOptions {
  std::int64_t rank = 8;         // of the product B·A
  double alpha = 16;             // the product's scale is alpha/rank
  bool rank_stabilized = false;  // alpha/√rank instead (rsLoRA: Kalajdzievski, 2023)
  double dropout = 0;            // of the layer's input, in training; the head has none
  // Which layers get an adapter: by whole names of modules, or their last parts ("q_proj", "mlp.down_proj").
  // None: all Linear layers but the head.
  std::vector<std::string> targets = {};
  // Other ranks and alphas of modules, which are chosen as by targets.
  std::map<std::string, std::int64_t> ranks = {};
  std::map<std::string, double> alphas = {};
  std::uint64_t seed = 0;   // of A
  std::string origin = {};  // adapter_config.json of the PEFT folder that it came from (io/models/peft.h)
  DType dtype = f32;        // of A and B, whatever that of the weights is
};

// A module's adapter. A module is a Linear layer or, where others call several of ours one (phi3's qkv_proj),
// these together: they share A, and each has its rows of B.
struct LoraModule {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  std::int64_t in = 0, out = 0, rank = 0;
  double alpha = 0, scale = 0;
  Parameter a, b;  // "<name>.lora_A.weight" [rank, in], "<name>.lora_B.weight" [out, rank]
  struct Part {
    LinearPlace linear;
    std::int64_t first_row;  // of B
  };
  std::vector<Part> parts;
};

// The module that a Linear belongs to.
struct ModuleRows {
  std::string module;
  std::int64_t first_row = 0;  // where the layer's outputs begin among the module's
  std::int64_t rows = 0;       // the module's outputs
};
using ModuleOf = std::function<ModuleRows(const LinearPlace&)>;

// What add_lora() made of a model.
struct Lora {
  LoraOptions options;
  std::vector<LoraModule> modules;            // in the order of the model's layers
  std::vector<Parameter> frozen;              // by add_lora()
  std::vector<Parameter> parameters() const;  // A and B of each module
};

// The modules that such options choose among Linear layers, without their parameters. Throws Error naming the
// option and its value: a rank below 1, an alpha that is not finite, a dropout outside [0, 1), a target or a
// key of `ranks` or `alphas` that no module has, two keys of one module; ShapeError for layers that do not
// fit in their module.
std::vector<LoraModule> lora_modules(const std::vector<LinearPlace>& linears, const LoraOptions& options,
                                     const ModuleOf& module_of = {});

// Gives the chosen layers adapters that change nothing at first, since A is uniform in ±1/√in and B is zero,
// and freezes the model's parameters. model.parameters() has the adapters' at its end. Programs that are made
// afterwards have them; copies of the model share them. Throws as lora_modules(), and Error for a model that
// has an adapter.
void add_lora(Model& model, const LoraOptions& options, const ModuleOf& module_of = {});

// W += scale·B·A in f32, rounded once to W's dtype, and the adapters are gone. Throws Error for a model
// without.
void merge_lora(Model& model);
// The adapters are gone; the parameters that add_lora() froze are not frozen any more.
void remove_lora(Model& model);

// weight [out, in] + scale·b·a, for b [out, rank] and a [rank, in], computed in f32 (f64 for a weight in f64)
// and rounded once to the dtype.
Array merged_weight(const Array& weight, const Array& b, const Array& a, double scale, DType dtype);

}  // namespace tg::nn

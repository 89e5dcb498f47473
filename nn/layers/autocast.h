// Mixed precision: layers compute in a half type on weights that stay in f32 (docs/training.md).
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tilegrad/core/graph/graph.h>

namespace tg::nn {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"  // GCC warns that the enumerators bf16 and f16 shadow the dtypes
enum class Precision {
  full,  // everything in the weights' own dtype, which is f32 unless Params says otherwise
  tf32,  // the same; on CUDA, f32 products round their operands to 10 bits of fraction
  bf16,  // products and activations in bf16
  f16,   // products and activations in f16; needs AdamW::Options::loss_scale
};
#pragma GCC diagnostic pop
// "f32" (full), "tf32", "bf16", "f16". Throws Error for other names.
Precision precision_named(std::string_view name);
std::optional<DType> half_type(Precision precision);  // bf16 or f16; none for the others

// Copies of weights in a half type that last from step to step. An optimizer writes them together with the
// weights (Optimizer::update), so that a step casts no weights (docs/training.md).
class LowPrecisionCopies {
 public:
  explicit LowPrecisionCopies(DType dtype);  // bf16 or f16; throws DTypeError for another

  // cast(p, dtype), its gradient too, read from a copy that is allocated when p is first asked for. Before
  // each run of the graph's programs, a copy is made again if its weight has been changed by anything but the
  // run that wrote the copy too. Throws DTypeError unless p is f32 or f64.
  Tensor tensor(const Parameter& p, Graph& graph, std::source_location where);

  // The copy of each of these, for Optimizer::update; an empty Parameter where there is none.
  std::vector<Parameter> of(const std::vector<Parameter>& parameters) const;
  std::size_t bytes() const;  // of all copies

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// While alive, layers called on this thread for this graph compute in the precision's half type, if it has
// one: each weight is cast once, however often it is used, and inputs are cast where they are wider. Norms
// keep their gains as they are, because their kernels accept gains of any dtype. Like torch.autocast.
class Autocast {
 public:
  // A head that is held in a half type gives f32 logits, and with half_logits in the precision's half type,
  // as one in f32 does: in training, where logits and their gradients are the largest tensors.
  // With copies, weights that are wider than the half type are read from these instead of cast.
  Autocast(Graph& graph, Precision precision, bool half_logits = false, LowPrecisionCopies* copies = nullptr);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  // For layers: x, which is multiplied by a weight (Weight::tensor), in the dtype to compute in. Outside any
  // Autocast it is x itself.
  static Tensor input(TensorArg x);
  // For heads: whether the logits of x are in the half type in any case.
  static bool has_half_logits(TensorArg x);

 private:
  friend class Weight;
  static Tensor weight(const Parameter& p, Graph& graph, std::source_location where);
  static Autocast* of(const Graph& graph);

  Graph& graph_;
  std::optional<DType> dtype_;
  bool half_logits_;
  LowPrecisionCopies* copies_;
  std::unordered_map<const void*, Tensor> weights_;  // cast, by the key of their parameter
  Autocast* outer_;
};

}  // namespace tg::nn

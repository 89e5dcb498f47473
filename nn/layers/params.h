// Params: a model's parameters in order of creation, with paths like PyTorch's
// ("transformer.h.0.attn.c_attn.weight"). Initial values depend only on the seed and the path. They are the
// same on every backend and do not depend on the rest of the model. Weight and LowRank: handles to parameters
// for layers and adapters.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include <tilegrad/core/base/range.h>
#include <tilegrad/core/graph/graph.h>

namespace tg::nn {

// A parameter of a layer. Layers access its tensor only through this class, so that Autocast always applies.
class Weight {
 public:
  Weight() = default;  // absent, as for a layer without a bias
  // Refers to the parameter.
  explicit Weight(Parameter parameter) : parameter_(std::move(parameter)), is_absent_(false) {}

  // Whether there is no parameter.
  bool is_absent() const { return is_absent_; }
  // Returns the weight's value in the graph of x. The value has the 16-bit dtype of the graph's Autocast if
  // there is one, otherwise the parameter's dtype. If the weight is absent, returns an undefined tensor. Ops
  // treat it as an omitted operand. Throws Error for a weight of Params::counting().
  Tensor tensor(const TensorArg& x) const { return tensor(x.tensor().graph(), x.where()); }
  // As above, for a given graph and source line.
  Tensor tensor(Graph& graph, std::source_location where = std::source_location::current()) const;
  // As tensor(), but in the parameter's own dtype: for gains of norms, whose kernels accept any dtype.
  Tensor stored(const TensorArg& x) const;

  // The parameter, for reading, writing and optimizers.
  const Parameter& parameter() const { return parameter_; }

 private:
  void check_value() const;
  Parameter parameter_;
  bool is_absent_ = true;
};

enum class Mode;

// A low-rank adapter of a Linear (Hu et al., "LoRA", 2021). It adds scale·B(A·dropout(x)) to the result
// without computing B·A. Use add_lora() (nn/models/lora.h) to create a model's adapters.
struct LowRank {
  Weight a, b;                 // A [rank, in] and B [n, rank]
  std::int64_t first_row = 0;  // the row of B for the layer's first output
  double scale = 1;            // factor of the product
  double dropout = 0;          // probability for x, in training

  // Returns the layer's rows of B, [out, rank], in the graph of x.
  Tensor rows_of_b(TensorArg x, std::int64_t out) const;
  // Returns y [..., out] plus the adapter's result for x [..., in], in y's dtype.
  Tensor added_to(const Tensor& y, TensorArg x, Mode mode) const;
};

// A Linear of a model, with a slot for its adapter. Copies of the layer share the slot.
struct LinearSlot {
  std::string path = {};                                 // such as "model.layers.0.self_attn.q_proj"
  Weight weight = {};                                    // [out, in]
  std::int64_t in = 0, out = 0;                          // numbers of inputs and outputs
  bool is_head = false;                                  // computes the logits
  std::shared_ptr<std::optional<LowRank>> adapter = {};  // the slot; never null
};

// Distribution of initial values (core/base/random.h): mean + std·N(0, 1), or uniform in mean ± bound.
struct Init {
  double mean = 0, std = 0, bound = 0;  // see above; bound 0: normal distribution
  bool by_fan_in = false;               // the bound is 1/√n for weight and bias of a layer with n inputs
  // All elements are 0.
  static Init zeros() { return {}; }
  // All elements are 1.
  static Init ones() { return {.mean = 1}; }
  // N(0, std²).
  static Init normal(double std) { return {.std = std}; }
  // Uniform in ±bound.
  static Init uniform(double bound) { return {.bound = bound}; }
  // GPT-2's weights, N(0, 0.02²).
  static Init gpt2() { return normal(0.02); }
  // As torch.nn.Linear: uniform in ±1/√n for n inputs, including the bias.
  static Init pytorch() { return {.by_fan_in = true}; }

  // Returns the distribution for the weight of a layer with this number of inputs.
  Init of_weight(std::int64_t inputs) const;
  // Returns the distribution for the bias of such a layer: zeros unless by_fan_in.
  Init of_bias(std::int64_t inputs) const;
};

// The parameters of a model.
class Params {
 public:
  // New parameters have the given dtype and device. `seed` determines their initial values.
  explicit Params(std::uint64_t seed = 0, DType dtype = f32, Device device = Device::cpu())
      : seed_(seed), dtype_(dtype), device_(device) {}
  Params(const Params&) = delete;  // Paths refer to it
  Params& operator=(const Params&) = delete;
  // Called with a parameter's path and shape; may throw.
  using Each = std::function<void(const std::string& path, const Shape& shape)>;
  // Creates an object that counts parameters. It does not create them or allocate memory. count() and bytes()
  // cover all layers that were created on the object; all() stays empty. If `each` is given, it is called for
  // each parameter before the parameter is counted.
  static Params counting(DType dtype = f32, Each each = {}) {
    return {Kind::counting, dtype, Device::cpu(), std::move(each)};
  }
  // Creates an object whose parameters have no initial values, for weights that are read from a file. The
  // caller must write each parameter; until then, its values are undefined.
  static Params unset(DType dtype = f32, Device device = Device::cpu()) {
    return {Kind::unset, dtype, device};
  }

  // Adds a parameter. Throws Error if the path exists or `init` is out of range, and ShapeError for a size
  // that is not positive.
  Parameter create(const std::string& path, const Shape& shape, Init init,
                   const std::source_location& where = std::source_location::current());

  // All parameters, in order of creation.
  const std::vector<Parameter>& all() const { return all_; }
  // The Linear layers created on this object.
  const std::vector<LinearSlot>& linears() const { return linears_; }
  // Returns the parameter with this path, or null.
  const Parameter* find(const std::string& path) const;
  // The number of elements in all parameters.
  std::int64_t count() const { return count_; }
  // The memory of all parameters in bytes.
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * size_of(dtype_); }
  // The dtype of the parameters.
  DType dtype() const { return dtype_; }
  // The device of the parameters.
  Device device() const { return device_; }

 private:
  friend class Path;
  enum class Kind { initialized, unset, counting };
  Params(Kind kind, DType dtype, Device device, Each each = {})
      : kind_(kind), dtype_(dtype), device_(device), each_(std::move(each)) {}

  Kind kind_ = Kind::initialized;
  std::uint64_t seed_ = 0;
  DType dtype_;
  Device device_;
  Each each_;
  std::int64_t count_ = 0;
  std::vector<Parameter> all_;
  std::vector<LinearSlot> linears_;
  std::unordered_map<std::string, std::size_t> place_;
};

// A position in the tree of parameters, on which a layer is created: Linear(root / "h" / "0" / "c_fc", …).
class Path {
 public:
  // The root of the tree. Errors of the layers below name the source line `where`.
  Path(Params& params, const std::source_location& where = std::source_location::current())
      : params_(&params), where_(where) {}

  // Returns the child with this name.
  Path operator/(const std::string& name) const;
  // Returns the child with this index, as an element of a list.
  Path operator/(int index) const { return *this / std::to_string(index); }
  // Adds a parameter at child `name`. Throws as Params::create() does.
  Weight create(const std::string& name, const Shape& shape, Init init) const;
  // Returns the parameters below this path, in order of creation.
  std::vector<Parameter> parameters() const;
  // Returns the Linear layers at or below this path, in order of creation.
  std::vector<LinearSlot> linears() const;
  // Adds a Linear at this path to linears() and returns the slot for its adapter.
  std::shared_ptr<const std::optional<LowRank>> add_linear(const Weight& weight, std::int64_t in,
                                                           std::int64_t out, bool is_head) const;
  // Stores a setting that changes the layer's results and cannot be derived from its weights. It is saved
  // with `weight` (Parameter::settings) as "<path>.<name>".
  void setting(const Weight& weight, const std::string& name,
               const std::variant<bool, std::int64_t, double, std::vector<double>>& value) const;

  // The parameters of the tree.
  Params& params() const { return *params_; }
  // The full path: "transformer.h.0".
  const std::string& text() const { return text_; }
  // The name of the layer's nodes: the last element of the path. If that element is an index, the name also
  // contains the list's name: "h.0".
  const std::string& name() const { return name_; }
  // Returns an error message about the layer at this path: "[transformer.h.0.attn/attention] what
  // (model.cpp:7)".
  std::string refusal(const std::string& op, const std::string& what) const;
  // Throws E with such a message if an option of this layer is out of its range.
  template <class E = Error>
  void check(const std::string& op, std::initializer_list<OptionCheck> options) const {
    if (const std::string mistake = range_mistake(options); !mistake.empty()) throw E(refusal(op, mistake));
  }

 private:
  Params* params_;
  std::source_location where_;
  std::string text_, name_;
};

}  // namespace tg::nn

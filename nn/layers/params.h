// Params: the parameters of a model, in order of creation, under paths like PyTorch's
// ("transformer.h.0.attn.c_attn.weight"). Initial values depend only on (seed, path): they are the same on
// every backend, and do not depend on the rest of the model. Weight and LowRank: what layers and their
// adapters keep of them.
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

// A layer's parameter. Layers reach its tensor only through this class, so that none forgets Autocast.
class Weight {
 public:
  Weight() = default;  // none, for layers without a bias: absent
  explicit Weight(Parameter parameter) : parameter_(std::move(parameter)), is_absent_(false) {}

  bool is_absent() const { return is_absent_; }
  // Its value in the graph of x, in the dtype to compute in: the half type of the graph's Autocast, else the
  // parameter's own. When absent, an undefined tensor, which ops treat as an operand that is left out. Throws
  // Error for a weight of Params::counting().
  Tensor tensor(const TensorArg& x) const { return tensor(x.tensor().graph(), x.where()); }
  Tensor tensor(Graph& graph, std::source_location where = std::source_location::current()) const;
  // The same in the parameter's own dtype: for gains of norms, whose kernels accept any dtype.
  Tensor stored(const TensorArg& x) const;

  const Parameter& parameter() const { return parameter_; }  // for reading, writing and optimizers

 private:
  void check_value() const;
  Parameter parameter_;
  bool is_absent_ = true;
};

enum class Mode;

// A low-rank adapter of a Linear (Hu et al., "LoRA", 2021), which adds scale·B(A·dropout(x)) to its result.
// The product B·A is not computed. Those of a model are made by add_lora() (nn/models/lora.h).
struct LowRank {
  Weight a, b;                 // [rank, in] and [n, rank]
  std::int64_t first_row = 0;  // of B, whose rows from there on give the layer's outputs
  double scale = 1;
  double dropout = 0;  // of x, in training

  Tensor rows_of_b(TensorArg x, std::int64_t out) const;  // [out, rank], the layer's, in the graph of x
  // y [..., out] + what it adds for x [..., in]; in y's dtype.
  Tensor added_to(const Tensor& y, TensorArg x, Mode mode) const;
};

// A Linear of a model, with its place for an adapter, which copies of the layer share.
struct LinearPlace {
  std::string path = {};  // "model.layers.0.self_attn.q_proj"
  Weight weight = {};     // [out, in]
  std::int64_t in = 0, out = 0;
  bool is_head = false;                                  // gives the logits
  std::shared_ptr<std::optional<LowRank>> adapter = {};  // never null
};

// Initial values by core/base/random.h: mean + std·N(0, 1), or uniform in mean ± bound.
struct Init {
  double mean = 0, std = 0, bound = 0;
  bool by_fan_in = false;  // the bound is 1/√n in a layer of n inputs, of its bias too
  static Init zeros() { return {}; }
  static Init ones() { return {.mean = 1}; }
  static Init normal(double std) { return {.std = std}; }
  static Init uniform(double bound) { return {.bound = bound}; }
  static Init gpt2() { return normal(0.02); }
  static Init pytorch() { return {.by_fan_in = true}; }  // torch.nn.Linear's

  Init of_weight(std::int64_t inputs) const;
  Init of_bias(std::int64_t inputs) const;  // zeros, unless it is by_fan_in
};

class Params {
 public:
  explicit Params(std::uint64_t seed = 0, DType dtype = f32, Device device = Device::cpu())
      : seed_(seed), dtype_(dtype), device_(device) {}
  Params(const Params&) = delete;  // Paths point to it
  Params& operator=(const Params&) = delete;
  // Counts parameters without creating them or allocating memory: count() and bytes() are those of the layers
  // made on it; all() stays empty. `each`, if given, is called for each of them first, and may throw.
  using Each = std::function<void(const std::string& path, const Shape& shape)>;
  static Params counting(DType dtype = f32, Each each = {}) {
    return {Kind::counting, dtype, Device::cpu(), std::move(each)};
  }
  // Parameters without initial values, for weights that are read from a file: the content of their memory is
  // undefined until the caller has written each of them.
  static Params unset(DType dtype = f32, Device device = Device::cpu()) {
    return {Kind::unset, dtype, device};
  }

  // Throws Error if a parameter with that path exists, ShapeError for a size that is not positive.
  Parameter create(const std::string& path, const Shape& shape, Init init,
                   const std::source_location& where = std::source_location::current());

  const std::vector<Parameter>& all() const { return all_; }
  const std::vector<LinearPlace>& linears() const { return linears_; }  // layers made on it
  const Parameter* find(const std::string& path) const;                 // null if there is none
  std::int64_t count() const { return count_; }                         // numbers in all parameters
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * size_of(dtype_); }
  DType dtype() const { return dtype_; }
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
  std::vector<LinearPlace> linears_;
  std::unordered_map<std::string, std::size_t> place_;
};

// A node of the tree of parameters, on which a layer is created: Linear(root / "h" / "0" / "c_fc", …).
class Path {
 public:
  // The root. Errors of the layers below name the line where it was made.
  Path(Params& params, const std::source_location& where = std::source_location::current())
      : params_(&params), where_(where) {}

  Path operator/(const std::string& name) const;
  Path operator/(int index) const { return *this / std::to_string(index); }
  Weight create(const std::string& name, const Shape& shape, Init init) const;
  std::vector<Parameter> parameters() const;  // all below this path, in order of creation
  std::vector<LinearPlace> linears() const;   // the same of Linear layers
  // Adds a Linear at this path to linears(), and gives the place where its adapter will be.
  std::shared_ptr<const std::optional<LowRank>> add_linear(const Weight& weight, std::int64_t in,
                                                           std::int64_t out, bool is_head) const;
  // A setting of the layer at this path on which results depend, and which its weights do not show: it
  // travels with `weight` (Parameter::settings), as "<path>.<name>".
  void setting(const Weight& weight, const std::string& name,
               const std::variant<bool, std::int64_t, double, std::vector<double>>& value) const;

  Params& params() const { return *params_; }
  const std::string& text() const { return text_; }  // "transformer.h.0"
  // The last element, under which a layer's nodes appear; for an index, with the list's name: "h.0".
  const std::string& name() const { return name_; }
  // An error's message about the layer at this path: "[transformer.h.0.attn/attention] what (model.cpp:7)".
  std::string refusal(const std::string& op, const std::string& what) const;
  // Throws so for an option of this layer that is out of its range.
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

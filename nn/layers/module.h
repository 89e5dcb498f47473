// Module is the base class of layers. Layer is a value that holds any Module. Blocks and models consist of
// Layers. Calling either records graph nodes under the layer's name.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <tilegrad/core/graph/graph.h>
#include <tilegrad/nn/layers/params.h>

namespace tg::nn {

class CacheCall;

// Whether a call is for training. Dropout and similar differences apply only in training.
enum class Mode {
  evaluate,  // dropout does nothing
  train      // dropout drops elements
};

// The arguments of a layer's call, in addition to x.
struct CallArgs {
  Mode mode = Mode::evaluate;  // training or evaluation
  // if set, the tokens follow the cached tokens, and attention appends to the cache
  CacheCall* cache = nullptr;
  Tensor residual = {};  // if defined, added to the layer's result; has the same shape
  // A model stores only each block's input for the backward pass and recomputes the block.
  bool recompute = false;
};

// The operands of a layer that computes only a matmul x·w: x [..., in] and w [in, out]. Both have the dtype
// of the result.
struct Product {
  Tensor x;  // the input
  Tensor w;  // the transposed weight
};

// The base class of layers: a derived class defines record(). A call opens a Scope with the layer's name. It
// also adds the residual unless record() does so.
class Module {
 public:
  virtual ~Module() = default;

  // Appends the layer's nodes to the graph of x and returns the result.
  Tensor operator()(TensorArg x, const CallArgs& call = {}) const;
  // Returns the operands if the layer computes only a matmul, so that later computations can be fused with
  // it, otherwise nothing.
  std::optional<Product> as_matmul(TensorArg x) const;

  // The name of the layer's nodes: "attn", "h.0".
  const std::string& name() const { return name_; }
  // The path of the layer's parameters: "transformer.h.0.attn".
  const std::string& path() const { return path_; }

 protected:
  // For a layer with parameters: uses the path's name.
  explicit Module(const Path& at) : name_(at.name()), path_(at.text()) {}
  // For a layer without parameters: `name` is also its path.
  explicit Module(std::string name) : name_(name), path_(std::move(name)) {}
  Module(const Module&) = default;
  Module& operator=(const Module&) = default;

 private:
  // Appends the layer's nodes and returns its result. `call.residual` is undefined unless adds_residual().
  virtual Tensor record(TensorArg x, const CallArgs& call) const = 0;
  // Whether record() adds call.residual, which Linear does in its matmul's epilogue.
  virtual bool adds_residual() const { return false; }
  // Returns the operands for as_matmul(); the default returns nothing.
  virtual std::optional<Product> operands(TensorArg) const { return {}; }

  std::string name_, path_;
};

// Holds any Module, or a function with a name, as a value. Copies share the layer. A default-constructed
// Layer is empty; it represents an omitted part.
class Layer {
 public:
  // An empty layer.
  Layer() = default;
  // Holds a copy of the module.
  template <std::derived_from<Module> M>
  Layer(M module) : module_(std::make_shared<const M>(std::move(module))) {}
  // Holds a function f: (TensorArg x) or (TensorArg x, const CallArgs&) → Tensor. Its nodes appear under
  // `name`. Throws Error for an empty std::function or a null pointer.
  template <class F>
  requires std::invocable<const F&, TensorArg, const CallArgs&> || std::invocable<const F&, TensorArg> Layer(
      std::string name, F f)
      : Layer(of_function(std::move(name), two_arguments(std::move(f)))) {}

  // Whether there is no layer.
  bool is_empty() const { return !module_; }
  // Calls the layer. Throws Error if it is empty.
  Tensor operator()(TensorArg x, const CallArgs& call = {}) const;
  // Does the same as Module::as_matmul(). Throws Error if the layer is empty.
  std::optional<Product> as_matmul(TensorArg x) const;

 private:
  using Function = std::function<Tensor(TensorArg, const CallArgs&)>;
  static Layer of_function(std::string name, Function f);
  template <class F>
  static Function two_arguments(F f) {
    if constexpr (std::is_pointer_v<F> || requires { f.operator bool(); })  // as for std::function
      if (!static_cast<bool>(f)) return {};
    if constexpr (std::invocable<const F&, TensorArg, const CallArgs&>)
      return f;
    else
      return [f = std::move(f)](TensorArg x, const CallArgs&) { return f(x); };
  }

  std::shared_ptr<const Module> module_;
};

}  // namespace tg::nn

// Module, the base of every layer, and Layer, a value that holds any Module; blocks and models consist of
// Layers. Both record graph nodes under the layer's name when called.
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

// Dropout, and anything else that differs between the two, is on only in training.
enum class Mode { evaluate, train };

// The arguments of a layer's call, apart from x.
struct CallArgs {
  Mode mode = Mode::evaluate;
  CacheCall* cache = nullptr;  // the tokens follow those in a cache, if any: attention appends and reads all
  Tensor residual = {};        // added to the layer's result, whose shape it has, unless undefined
  bool recompute = false;  // a model keeps only each block's input for the backward pass, which runs it again
};

// The operands of a layer that is a product and nothing else, x·w: x [..., in] and w [in, out] in one dtype,
// which the result has too.
struct Product {
  Tensor x, w;
};

// A layer is a Module with a record() of its own. Calling it opens the Scope with the layer's name, and adds
// the residual unless record() does that.
class Module {
 public:
  virtual ~Module() = default;

  Tensor operator()(TensorArg x, const CallArgs& call = {}) const;
  // What it multiplies, if that is all it does: what comes after can be computed with the product.
  std::optional<Product> as_product(TensorArg x) const;

  const std::string& name() const { return name_; }  // of its nodes: "attn", "h.0"
  const std::string& path() const { return path_; }  // of its parameters: "transformer.h.0.attn"

 protected:
  explicit Module(const Path& at) : name_(at.name()), path_(at.text()) {}
  explicit Module(std::string name) : name_(name), path_(std::move(name)) {}
  Module(const Module&) = default;
  Module& operator=(const Module&) = default;

 private:
  // Appends the layer's nodes and returns its result. `call.residual` is undefined unless adds_residual().
  virtual Tensor record(TensorArg x, const CallArgs& call) const = 0;
  // Whether record() adds call.residual, which Linear does in its matmul's pass.
  virtual bool adds_residual() const { return false; }
  virtual std::optional<Product> operands(TensorArg) const { return {}; }  // for as_product()

  std::string name_, path_;
};

// Any Module by value, or a function with a name. Copies share the layer. A default-constructed Layer is
// empty: it stands for a part that is left out.
class Layer {
 public:
  Layer() = default;
  template <std::derived_from<Module> M>
  Layer(M module) : module_(std::make_shared<const M>(std::move(module))) {}
  // f: (TensorArg x) or (TensorArg x, const CallArgs&) → Tensor. Its nodes appear under the name. Throws
  // Error for an empty std::function or a null pointer.
  template <class F>
  requires std::invocable<const F&, TensorArg, const CallArgs&> || std::invocable<const F&, TensorArg> Layer(
      std::string name, F f)
      : Layer(of_function(std::move(name), two_arguments(std::move(f)))) {}

  bool is_empty() const { return !module_; }
  Tensor operator()(TensorArg x,
                    const CallArgs& call = {}) const;    // this and the next throw Error when empty
  std::optional<Product> as_product(TensorArg x) const;  // see Module

 private:
  using Function = std::function<Tensor(TensorArg, const CallArgs&)>;
  static Layer of_function(std::string name, Function f);
  template <class F>
  static Function two_arguments(F f) {
    if constexpr (std::is_pointer_v<F> || requires { f.operator bool(); })  // as std::function has it
      if (!static_cast<bool>(f)) return {};
    if constexpr (std::invocable<const F&, TensorArg, const CallArgs&>)
      return f;
    else
      return [f = std::move(f)](TensorArg x, const CallArgs&) { return f(x); };
  }

  std::shared_ptr<const Module> module_;
};

}  // namespace tg::nn

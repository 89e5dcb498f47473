#include <tilegrad/nn/layers/layers.h>

#include <limits>
#include <string>

#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/layers/context_parallel.h>
#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

// Whether the matmul of a language model head has a wider dtype than its weight.
bool widens(const Weight& weight, TensorArg x) {
  const DType dtype = weight.parameter().dtype();
  return compute_type(dtype) != dtype && !Autocast::has_low_precision_logits(x);
}

// Returns the operands of x·Wᵀ. Returns nothing if the dtypes of x, W and the result are not all equal.
std::optional<Product> product_with(const Weight& weight, TensorArg x) {
  if (widens(weight, x)) return {};
  const Product p{Autocast::input(x), transpose(weight.tensor(x), 0, 1)};
  if (p.x.dtype() != p.w.dtype()) return {};
  return p;
}

class TiedHead : public Module {
 public:
  explicit TiedHead(const Embedding& table) : Module(table), weight_(table.weight()) {}

 private:
  Tensor record(TensorArg x, const CallArgs&) const override {
    const Tensor in = Autocast::input(x), w = transpose(weight_.tensor(x), 0, 1);
    return widens(weight_, x) ? matmul_wide(in, w) : linear(in, w);
  }
  std::optional<Product> operands(TensorArg x) const override { return product_with(weight_, x); }
  Weight weight_;
};

Tensor activated(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::silu:
      return silu(x);
    case Activation::gelu:
      break;
  }
  return gelu(x);
}

// Writes only an activation that is not the default, because older files do not contain this setting.
void keep_activation(const Path& at, const Linear& layer, Activation activation, Activation usual) {
  if (activation != usual) at.setting(layer.weight(), "activation", static_cast<std::int64_t>(activation));
}

}  // namespace

std::int64_t detail::product(std::int64_t a, std::int64_t b) {
  std::int64_t n = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &n) || n > std::numeric_limits<std::int32_t>::max())
    throw ShapeError("[layer] sizes " + std::to_string(a) + " and " + std::to_string(b) +
                     ": expected a product below 2^31");
  return n;
}

Tensor dropped(TensorArg x, double p, Mode mode) {
  return dropout(x, p, mode == Mode::train);  // also checks p, even in evaluation
}

Linear::Linear(const Path& at, std::int64_t in, std::int64_t out, Options options)
    : Module(at),
      weight_(at.create("weight", {out, in}, options.init.of_weight(in))),
      wide_(options.wide),
      adapter_(at.add_linear(weight_, in, out, options.wide)) {
  if (options.bias) bias_ = at.create("bias", {out}, options.init.of_bias(in));
}

Tensor Linear::record(TensorArg x, const CallArgs& call) const {
  const Tensor y = product(x, call);
  return *adapter_ ? (*adapter_)->added_to(y, x, call.mode) : y;
}

Tensor Linear::product(TensorArg x, const CallArgs& call) const {
  const Tensor in = Autocast::input(x);
  const Tensor w = transpose(weight_.tensor(x), 0, 1), b = bias_.tensor(x);
  if (wide_ && widens(weight_, x)) {
    Tensor y = matmul_wide(in, w);
    if (b.defined()) y = y + b;
    return call.residual.defined() ? y + call.residual : y;
  }
  if (!call.residual.defined()) return linear(in, w, b);
  const Tensor onto = Autocast::input(call.residual);
  const Tensor added = b.defined() ? onto + b : onto;
  const Tensor rows = linear(reshape(in, {-1, w.size(0)}), w, reshape(added, {-1, w.size(1)}));
  return reshape(rows, onto.shape());
}

std::optional<Product> Linear::operands(TensorArg x) const {
  if (*adapter_ || !bias_.is_absent()) return {};
  return product_with(weight_, x);
}

Embedding::Embedding(const Path& at, std::int64_t count, std::int64_t width, Init init)
    : Module(at), weight_(at.create("weight", {count, width}, init)) {}

Tensor Embedding::record(TensorArg ids, const CallArgs&) const {
  return embedding(weight_.tensor(ids), ids);
}

Layer Embedding::head() const {
  return TiedHead(*this);
}

PositionEmbedding::PositionEmbedding(const Path& at, std::int64_t context, std::int64_t width, Init init)
    : Module(at), weight_(at.create("weight", {context, width}, init)) {}

Tensor PositionEmbedding::record(TensorArg tokens, const CallArgs& call) const {
  const Tensor table = weight_.tensor(tokens);
  if (call.cache) return embedding(table, call.cache->positions());
  const std::int64_t length = tokens.tensor().size(-1);
  if (const Tensor own = ContextParallel::positions(tokens.tensor().graph(), length); own.defined())
    return embedding(table, own);
  return length == table.size(0) ? table : slice(table, 0, 0, length);
}

LayerNorm::LayerNorm(const Path& at, std::int64_t width, bool bias, double eps)
    : Module(at), weight_(at.create("weight", {width}, Init::ones())), eps_(eps) {
  at.check("layer_norm", {{"eps", eps, Range::at_least(0)}});
  if (bias) bias_ = at.create("bias", {width}, Init::zeros());
  at.setting(weight_, "eps", eps);
}

Tensor LayerNorm::record(TensorArg x, const CallArgs&) const {
  return layer_norm(x, weight_.stored(x), bias_.stored(x), eps_);
}

RmsNorm::RmsNorm(const Path& at, std::int64_t width, double eps, bool plus_one)
    : Module(at),
      weight_(at.create("weight", {width}, plus_one ? Init::zeros() : Init::ones())),
      eps_(eps),
      plus_one_(plus_one) {
  at.check("rms_norm", {{"eps", eps, Range::at_least(0)}});
  at.setting(weight_, "eps", eps);
  if (plus_one) at.setting(weight_, "plus_one", plus_one);
}

Tensor RmsNorm::record(TensorArg x, const CallArgs&) const {
  const Tensor gain = weight_.stored(x);
  return rms_norm(x, plus_one_ ? cast(gain, compute_type(gain.dtype())) + 1 : gain, eps_);
}

Tensor LowRank::rows_of_b(TensorArg x, std::int64_t out) const {
  const Tensor all = b.tensor(x);
  return all.size(0) == out ? all : slice(all, 0, first_row, first_row + out);
}

Tensor LowRank::added_to(const Tensor& y, TensorArg x, Mode mode) const {
  const Scope scope("lora", x.where());
  check_options("lora", {{"scale", scale, Range::finite()}});
  const Tensor w_a = transpose(a.tensor(x), 0, 1), w_b = transpose(rows_of_b(x, y.size(-1)), 0, 1);
  const Tensor in = dropped(Autocast::input(x), dropout, mode);
  // Scales the smaller tensor. If an adapter has a wider dtype than x, it computes in its own dtype.
  const Tensor low = matmul(reshape(in, {-1, in.size(-1)}), w_a) * scale;
  const Tensor base = reshape(y, {-1, y.size(-1)});
  if (low.dtype() != base.dtype()) return y + cast(reshape(matmul(low, w_b), y.shape()), y.dtype());
  return reshape(linear(low, w_b, base), y.shape());
}

Activation activation_named(std::string_view name) {
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "silu") return Activation::silu;
  throw Error("[activation] got '" + std::string(name) + "', expected gelu, gelu_tanh or silu");
}

Mlp::Mlp(const Path& at, std::int64_t width, Options o)
    : Mlp(at, width, o, o.inner == 0 ? detail::product(4, width) : o.inner) {}

Mlp::Mlp(const Path& at, std::int64_t width, const Options& o, std::int64_t inner)
    : Module(at),
      c_fc_(at / "c_fc", width, inner, {.bias = o.bias, .init = o.init}),
      c_proj_(at / "c_proj", inner, width, {.bias = o.bias, .init = o.output_init}),
      activation_(o.activation) {
  keep_activation(at, c_fc_, activation_, Activation::gelu);
}

Tensor Mlp::record(TensorArg x, const CallArgs& call) const {
  return c_proj_(activated(c_fc_(x, {.mode = call.mode}), activation_),
                 {.mode = call.mode, .residual = call.residual});
}

GatedMlp::GatedMlp(const Path& at, std::int64_t width, std::int64_t inner, Options o)
    : Module(at),
      gate_proj_(at / "gate_proj", width, inner, {.bias = o.bias, .init = o.init}),
      up_proj_(at / "up_proj", width, inner, {.bias = o.bias, .init = o.init}),
      down_proj_(at / "down_proj", inner, width, {.bias = o.bias, .init = o.output_init}),
      activation_(o.activation) {
  keep_activation(at, gate_proj_, activation_, Activation::silu);
}

Tensor GatedMlp::record(TensorArg x, const CallArgs& call) const {
  const CallArgs same{.mode = call.mode};
  const Tensor gate = gate_proj_(x, same), up = up_proj_(x, same);
  const Tensor inner = activation_ == Activation::silu ? swiglu(gate, up) : activated(gate, activation_) * up;
  return down_proj_(inner, {.mode = call.mode, .residual = call.residual});
}

}  // namespace tg::nn

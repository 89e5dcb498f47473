#include <tilegrad/nn/layers/layers.h>

#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

Tensor weight_of(const Parameter& p, const TensorArg& beside) {
  return Autocast::weight(p, beside.tensor().graph(), beside.where());
}

// Norms take gains and biases of any dtype.
Tensor gain_of(const Parameter& p, const TensorArg& beside) {
  return beside.tensor().graph().param(p, beside.where());
}

}  // namespace

Tensor dropped(TensorArg x, double p, Mode mode) {
  return mode == Mode::train && p > 0 ? dropout(x, p) : x.tensor();
}

Linear::Linear(const Path& at, std::int64_t in, std::int64_t out, Options options)
    : name_(at.name()),
      weight_(at.create("weight", {out, in}, options.init.of_weight(in))),
      has_bias_(options.bias) {
  if (has_bias_) bias_ = at.create("bias", {out}, options.init.of_bias(in));
}

Tensor Linear::operator()(TensorArg x, TensorArg residual) const {
  const Scope scope(name_, x.where());
  const Tensor in = Autocast::input(x);
  const Tensor w = transpose(weight_of(weight_, x), 0, 1);
  const Tensor b = has_bias_ ? weight_of(bias_, x) : Tensor();
  if (residual.is_absent()) return linear(in, w, b);
  const Tensor onto = Autocast::input(residual);
  const Tensor added = has_bias_ ? onto + b : onto;
  const Tensor rows = linear(reshape(in, {-1, w.size(0)}), w, reshape(added, {-1, w.size(1)}));
  return reshape(rows, onto.shape());
}

Embedding::Embedding(const Path& at, std::int64_t count, std::int64_t width, Init init)
    : name_(at.name()), weight_(at.create("weight", {count, width}, init)) {}

Tensor Embedding::operator()(TensorArg ids) const {
  const Scope scope(name_, ids.where());
  return embedding(weight_of(weight_, ids), ids);
}

Tensor Embedding::attend(TensorArg x) const {
  const Scope scope(name_, x.where());
  return linear(Autocast::input(x), transpose(weight_of(weight_, x), 0, 1));
}

Tensor Embedding::first(Graph& graph, std::int64_t rows) const {
  const Scope scope(name_);
  const Tensor table = Autocast::weight(weight_, graph, std::source_location::current());
  return rows == table.size(0) ? table : slice(table, 0, 0, rows);
}

LayerNorm::LayerNorm(const Path& at, std::int64_t width, bool bias, double eps)
    : name_(at.name()), weight_(at.create("weight", {width}, Init::ones())), has_bias_(bias), eps_(eps) {
  if (has_bias_) bias_ = at.create("bias", {width}, Init::zeros());
}

Tensor LayerNorm::operator()(TensorArg x) const {
  const Scope scope(name_, x.where());
  return layer_norm(x, gain_of(weight_, x), has_bias_ ? gain_of(bias_, x) : Tensor(), eps_);
}

RmsNorm::RmsNorm(const Path& at, std::int64_t width, double eps)
    : name_(at.name()), weight_(at.create("weight", {width}, Init::ones())), eps_(eps) {}

Tensor RmsNorm::operator()(TensorArg x) const {
  const Scope scope(name_, x.where());
  return rms_norm(x, gain_of(weight_, x), eps_);
}

}  // namespace tg::nn

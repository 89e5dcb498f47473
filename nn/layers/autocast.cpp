#include <tilegrad/nn/layers/autocast.h>

#include <string>

#include <tilegrad/nn/layers/half_copies.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

thread_local Autocast* innermost = nullptr;

}  // namespace

Precision precision_named(std::string_view name) {
  if (name == "f32") return Precision::full;
  if (name == "tf32") return Precision::tf32;
  if (name == "bf16") return Precision::bf16;
  if (name == "f16") return Precision::f16;
  throw Error("[precision] got '" + std::string(name) + "', expected f32, tf32, bf16 or f16");
}

std::optional<DType> half_type(Precision p) {
  if (p == Precision::bf16) return bf16;
  if (p == Precision::f16) return f16;
  return {};
}

Autocast::Autocast(Graph& graph, Precision precision, bool half_logits, HalfCopies* copies)
    : graph_(graph),
      dtype_(half_type(precision)),
      half_logits_(half_logits),
      copies_(copies),
      outer_(innermost) {
  innermost = this;
}

Autocast::~Autocast() {
  innermost = outer_;
}

Autocast* Autocast::of(const Graph& graph) {
  Autocast* a = innermost;
  while (a && a->graph_ != graph) a = a->outer_;
  return a && a->dtype_ ? a : nullptr;
}

Tensor Autocast::weight(const Parameter& p, Graph& graph, std::source_location where) {
  const Tensor w = graph.param(p, where);
  Autocast* const a = of(graph);
  if (!a) return w;
  Tensor& half = a->weights_[p.key()];
  if (!half.defined()) {
    const SegmentScope outside(-1);  // like a parameter: not computed again with the segment that came first
    const bool is_wider = p.dtype() == f32 || p.dtype() == f64;
    half = a->copies_ && is_wider ? a->copies_->tensor(p, graph, where) : cast({w, where}, *a->dtype_);
  }
  return half;
}

Tensor Autocast::input(TensorArg x) {
  const Autocast* const a = of(x.tensor().graph());
  return a ? cast(x, *a->dtype_) : x.tensor();
}

bool Autocast::has_half_logits(TensorArg x) {
  const Autocast* const a = of(x.tensor().graph());
  return a && a->half_logits_;
}

}  // namespace tg::nn

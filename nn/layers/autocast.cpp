#include <tilegrad/nn/layers/autocast.h>

#include <string>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/ops/ops.h>
#include "core/base/alignment.h"

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

std::optional<DType> low_precision_dtype(Precision p) {
  if (p == Precision::bf16) return bf16;
  if (p == Precision::f16) return f16;
  return {};
}

struct LowPrecisionCopies::State {
  struct Copy {
    Parameter of, copy;
    // last_change() of `of` and `copy` when the copy was last written
    std::uint64_t of_change = 0, copy_change = 0;
    bool is_stale() const {
      const std::uint64_t now = of.last_change(), own = copy.last_change();
      return now != own && (now != of_change || own != copy_change);
    }
  };
  DType dtype;
  std::vector<Copy> all;
  std::unordered_map<const void*, std::size_t> place;  // index in `all`, by the parameter's key
  std::optional<Program> casts;                        // writes the copies at indices in_casts
  std::vector<std::size_t> in_casts;

  // Refreshes only stale copies. Other copies must not be refreshed. This rank may have new values only for
  // its shard of the weight, but the copy is complete (optim::WeightReading).
  void refresh() {
    std::vector<std::size_t> stale;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].is_stale()) stale.push_back(i);
    if (stale.empty()) return;
    if (!casts || in_casts != stale) {
      Graph graph;
      std::vector<Assign> assign;
      for (const std::size_t i : stale) assign.push_back({all[i].copy, cast(graph.param(all[i].of), dtype)});
      casts.emplace(compile(graph, {}, {.assign = assign})), in_casts = stale;
    }
    casts->run();
    for (const std::size_t i : stale)
      all[i].of_change = all[i].of.last_change(), all[i].copy_change = all[i].copy.last_change();
  }
};

LowPrecisionCopies::LowPrecisionCopies(DType dtype) : state_(std::make_shared<State>()) {
  if (dtype != bf16 && dtype != f16)
    throw DTypeError("[LowPrecisionCopies] got " + std::string(name_of(dtype)) + ", expected bf16 or f16");
  state_->dtype = dtype;
}

Tensor LowPrecisionCopies::tensor(const Parameter& p, Graph& graph, std::source_location where) {
  State& s = *state_;
  if (p.dtype() != f32 && p.dtype() != f64)
    throw DTypeError("[LowPrecisionCopies] " + p.name() + " is " + std::string(name_of(p.dtype())) +
                     ", expected f32 or f64");
  if (!s.place.contains(p.key())) {
    s.all.push_back({p, {p.name() + "." + std::string(name_of(s.dtype)), p.shape(), s.dtype, p.device()}});
    s.place[p.key()] = s.all.size() - 1;
  }
  const Tensor weight = graph.param(p, where), half = graph.param(s.all[s.place[p.key()]].copy, where);
  const NodeId node = graph.value(half.id()).node;
  if (graph.custom_gradient_ending_at(node)) return half;
  graph.add_custom_gradient(
      {node, node, {weight.id()}, {half.id()}, [](const auto& in, const auto&, const auto& z) {
         return std::vector{cast(z[0], in[0].dtype())};
       }});
  graph.before_runs(&s, [state = state_] { state->refresh(); });
  return half;
}

std::vector<Parameter> LowPrecisionCopies::of(const std::vector<Parameter>& parameters) const {
  std::vector<Parameter> copies(parameters.size());
  for (std::size_t i = 0; i < copies.size(); ++i)
    if (const auto at = state_->place.find(parameters[i].key()); at != state_->place.end())
      copies[i] = state_->all[at->second].copy;
  return copies;
}

std::size_t LowPrecisionCopies::bytes() const {
  std::size_t sum = 0;
  for (const State::Copy& c : state_->all) sum += aligned_bytes(c.copy.bytes());
  return sum;
}

Autocast::Autocast(Graph& graph, Precision precision, bool low_precision_logits, LowPrecisionCopies* copies)
    : graph_(graph),
      dtype_(low_precision_dtype(precision)),
      low_precision_logits_(low_precision_logits),
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
    // Like a parameter, the copy is not recomputed with the segment that used it first.
    const SegmentScope outside(-1);
    const bool is_wider = p.dtype() == f32 || p.dtype() == f64;
    half = a->copies_ && is_wider ? a->copies_->tensor(p, graph, where) : cast({w, where}, *a->dtype_);
  }
  return half;
}

Tensor Autocast::input(TensorArg x) {
  const Autocast* const a = of(x.tensor().graph());
  return a ? cast(x, *a->dtype_) : x.tensor();
}

bool Autocast::has_low_precision_logits(TensorArg x) {
  const Autocast* const a = of(x.tensor().graph());
  return a && a->low_precision_logits_;
}

}  // namespace tg::nn

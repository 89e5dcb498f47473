#include <tilegrad/nn/layers/half_copies.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/ops/ops.h>
#include "core/base/alignment.h"

namespace tg::nn {

struct HalfCopies::State {
  struct Copy {
    Parameter of, copy;
    std::uint64_t of_change = 0, copy_change = 0;  // of both, when the copy was last made

    bool is_stale() const {
      const std::uint64_t now = of.last_change(), own = copy.last_change();
      return now != own && (now != of_change || own != copy_change);
    }
  };
  DType dtype;
  std::vector<Copy> all;
  std::unordered_map<const void*, std::size_t> place;  // in `all`, by the parameter's key
  std::optional<Program> casts;                        // all of them
  std::size_t in_casts = 0;

  void refresh() {
    if (std::ranges::none_of(all, &Copy::is_stale)) return;
    if (!casts || in_casts != all.size()) {
      Graph graph;
      std::vector<Assign> assign;
      for (const Copy& c : all) assign.push_back({c.copy, cast(graph.param(c.of), dtype)});
      casts.emplace(compile(graph, {}, {.assign = assign})), in_casts = all.size();
    }
    casts->run();
    for (Copy& c : all) c.of_change = c.of.last_change(), c.copy_change = c.copy.last_change();
  }
};

HalfCopies::HalfCopies(DType dtype) : state_(std::make_shared<State>()) {
  if (dtype != bf16 && dtype != f16)
    throw DTypeError("[HalfCopies] got " + std::string(name_of(dtype)) + ", expected bf16 or f16");
  state_->dtype = dtype;
}

Tensor HalfCopies::tensor(const Parameter& p, Graph& graph, std::source_location where) {
  State& s = *state_;
  if (p.dtype() != f32 && p.dtype() != f64)
    throw DTypeError("[HalfCopies] " + p.name() + " is " + std::string(name_of(p.dtype())) +
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

std::vector<Parameter> HalfCopies::of(const std::vector<Parameter>& parameters) const {
  std::vector<Parameter> copies(parameters.size());
  for (std::size_t i = 0; i < copies.size(); ++i)
    if (const auto at = state_->place.find(parameters[i].key()); at != state_->place.end())
      copies[i] = state_->all[at->second].copy;
  return copies;
}

std::size_t HalfCopies::bytes() const {
  std::size_t sum = 0;
  for (const State::Copy& c : state_->all) sum += aligned_bytes(c.copy.bytes());
  return sum;
}

}  // namespace tg::nn

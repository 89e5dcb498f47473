#include "core/compile/assignments.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "core/compile/buffers.h"

namespace tg {

namespace {

// The parameter, if the value is a parameter or a view of one; otherwise null.
const Parameter* parameter_of(const Graph& graph, ValueId v) {
  const Node& maker = graph.node_of(graph.values()[v].root);
  return maker.op == &parameter_op ? &maker.attrs.as<ParameterAttrs>().parameter : nullptr;
}

void check(const Graph& graph, const Assign& a) {
  if (!a.target.key()) throw Error("[compile] an assignment has an empty Parameter as its target");
  if (!graph.has(a.value))
    throw Error("[compile] the value for " + a.target.name() + " is not a tensor of this graph");
  if (a.value.shape() != a.target.shape())
    throw ShapeError("[compile] " + a.target.name() + " has shape " + a.target.shape().text() +
                     ", its new value " + a.value.shape().text());
  if (a.value.dtype() != a.target.dtype())
    throw DTypeError("[compile] " + a.target.name() + " is " + std::string(name_of(a.target.dtype())) +
                     ", its new value " + std::string(name_of(a.value.dtype())));
}

std::string described(const Graph& graph, const Tensor& t) {
  const Node& node = graph.node_of(t.id());
  return graph.label_of(node) + " " + at_line(node.where);
}

// The last step that reads a parameter, and the index of that input.
struct LastRead {
  int step = -1;
  std::vector<std::size_t> inputs;
};

}  // namespace

std::vector<ValueId> Outputs::all() const {
  std::vector<ValueId> values = fetched;
  values.insert(values.end(), assigned.begin(), assigned.end());
  return values;
}

Outputs outputs_of(Graph& graph, const std::vector<Tensor>& fetch, const std::vector<Assign>& assign) {
  const auto before_assignment = [&](const Tensor& t) {
    const ValueId v = graph.current(t.id());
    const Parameter* p = parameter_of(graph, v);
    const auto is_assigned = [&](const Assign& a) { return p && a.target.key() == p->key(); };
    if (std::none_of(assign.begin(), assign.end(), is_assigned)) return v;
    return graph.record(copy_op, std::span(&t, 1), {}, graph.node_of(v).where)[0].id();
  };
  Outputs outputs;
  for (const Tensor& t : fetch) {
    if (!graph.has(t))
      throw Error("[compile] tensor " + std::to_string(outputs.fetched.size()) + " to be fetched is " +
                  (t.defined() ? "not of this graph" : "undefined"));
    outputs.fetched.push_back(before_assignment(t));
  }
  std::unordered_map<const void*, const Assign*> assigned;
  for (const Assign& a : assign) {
    check(graph, a);
    const auto [earlier, fresh] = assigned.try_emplace(a.target.key(), &a);
    if (!fresh)
      throw Error("[compile] " + a.target.name() + " is assigned twice: " +
                  described(graph, earlier->second->value) + " and " + described(graph, a.value));
    outputs.assigned.push_back(before_assignment(a.value));
  }
  return outputs;
}

void require_updates(const Graph& graph, const Outputs& outputs, const std::vector<Assign>& assign) {
  if (graph.updates().empty()) return;
  const std::vector<bool> needed = needed_nodes(graph, outputs.all());
  std::set<std::pair<const void*, ValueId>> assigned;
  for (const Assign& a : assign) assigned.emplace(a.target.key(), graph.current(a.value.id()));
  for (const Graph::Update& u : graph.updates()) {
    if (!needed[graph.values()[u.value].node] || assigned.contains({u.target.key(), u.value})) continue;
    const Node& node = graph.node_of(u.value);
    throw Error("[compile] " + graph.label_of(node) + " is the new value of " + u.target.name() +
                ", which is not among the assignments " + at_line(node.where));
  }
}

void check_parts(std::span<const Parameter> used, const std::vector<Assign>& assign) {
  std::set<const void*> assigned;
  for (const Assign& a : assign) assigned.insert(a.target.key());
  std::vector<const Parameter*> by_place;
  for (const Parameter& p : used)
    if (p.bytes() > 0) by_place.push_back(&p);
  std::ranges::sort(by_place, {}, [](const Parameter* p) { return p->memory(); });
  const Parameter* before = nullptr;  // of the parameters so far, the one that ends last
  for (const Parameter* p : by_place) {
    if (before && p->memory() < before->memory() + before->bytes() &&
        (assigned.contains(before->key()) || assigned.contains(p->key())))
      throw Error("[compile] the program assigns " + p->name() + " and uses both the whole and a part of it");
    if (!before || p->memory() + p->bytes() > before->memory() + before->bytes()) before = p;
  }
}

std::vector<bool> written_directly(const Graph& graph, std::span<const LoweredStep> steps,
                                   const Outputs& outputs, const std::vector<Assign>& assign) {
  std::unordered_map<ValueId, int> producer;
  std::unordered_map<const void*, LastRead> last_read;  // key: Parameter::key
  for (int s = 0; s < static_cast<int>(steps.size()) && !assign.empty(); ++s) {
    for (ValueId v : steps[s].out) producer[v] = s;
    for (std::size_t i = 0; i < steps[s].in.size(); ++i) {
      const Parameter* p = parameter_of(graph, steps[s].in[i]);
      if (!p) continue;
      LastRead& r = last_read[p->key()];
      if (r.step != s) r = {s, {}};
      r.inputs.push_back(i);
    }
  }
  std::unordered_map<ValueId, int> output_count;  // key: root
  for (ValueId v : outputs.all()) ++output_count[graph.values()[v].root];

  std::vector<bool> directly;
  for (std::size_t i = 0; i < assign.size(); ++i) {
    const ValueId v = outputs.assigned[i];
    const Value& value = graph.values()[v];
    const auto made = producer.find(v);
    const bool whole = made != producer.end() && value.layout.is_contiguous() && value.layout.offset == 0 &&
                       output_count[v] == 1;
    const auto read = last_read.find(assign[i].target.key());
    const auto in_place = [&](std::size_t input) {
      return can_overwrite(graph, steps[read->second.step], v, input);
    };
    directly.push_back(whole &&
                       (read == last_read.end() || read->second.step < made->second ||
                        (read->second.step == made->second &&
                         std::all_of(read->second.inputs.begin(), read->second.inputs.end(), in_place))));
  }
  return directly;
}

void append_copies(const Graph& graph, std::vector<LoweredStep>& steps, const Outputs& outputs,
                   const std::vector<Assign>& assign, const std::vector<bool>& directly) {
  for (std::size_t i = 0; i < assign.size(); ++i) {
    if (directly[i]) continue;
    const ValueId v = outputs.assigned[i];
    steps.push_back({&copy_op, {}, {v}, {}, graph.values()[v].node, assign[i].target});
  }
}

}  // namespace tg

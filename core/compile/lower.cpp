#include "core/compile/lower.h"

#include <cmath>

#include <tilegrad/core/base/host_view.h>

namespace tg {

const Op& fused_op = *define_op(
    {.name = "fused",
     .infer = [](std::span<const Operand>, const Attrs&) -> std::vector<OutSpec> {
       throw Error("made by the compiler, not recorded");
     },
     .not_differentiable = "it is made by the compiler",
     .roundings = [](std::span<const Operand>, std::span<const Operand>,
                     const Attrs& a) { return static_cast<double>(a.as<FusedAttrs>().code.size()); },
     .pointwise = true});

void FusedAttrs::append(const FusedAttrs& other, std::span<const Source> inputs) {
  const auto shift = static_cast<std::int32_t>(code.size());
  const auto first_constant = static_cast<std::int32_t>(constants.size());
  for (Instruction c : other.code) {
    for (Source& o : c.operands()) {
      if (o.kind == Source::input)
        o = inputs[static_cast<std::size_t>(o.index)];
      else
        o.index += o.kind == Source::constant ? first_constant : shift;
    }
    code.push_back(c);
  }
  constants.insert(constants.end(), other.constants.begin(), other.constants.end());
}

std::string FusedAttrs::text() const {
  std::string s;
  for (std::size_t i = 0; i < code.size(); ++i) {
    s += (i ? " → " : "") + code[i].op->name + "(";
    for (std::size_t k = 0; k < code[i].count; ++k) {
      const Source& o = code[i].slots[k];
      s += k ? ", " : "";
      s += o.kind == Source::constant ? detail::attr_text(constants[o.index])
                                      : (o.kind == Source::input ? "in" : "%") + std::to_string(o.index);
    }
    s += ")";
    if (code[i].op->converts) s += ":" + std::string(name_of(code[i].dtype));
  }
  for (std::size_t i = 0; i < results.size(); ++i)
    s += (i ? ", %" : "; results %") + std::to_string(results[i]);
  return s;
}

namespace {

class Lowering {
 public:
  Lowering(const Graph& graph, std::span<const ValueId> outputs, bool fuse) : graph_(graph), fuse_(fuse) {
    mark(outputs);
    for (NodeId n = 0; n < graph_.nodes().size(); ++n)
      if (needed_[n]) add(n);
  }

  std::vector<LoweredStep> result() {
    std::vector<LoweredStep> out;
    out.reserve(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      LoweredStep& s = steps_[i];
      if (!s.op || (s.op == &full_op && only_folded(s.out[0]))) continue;
      if (groups_[i]) {
        s.in = std::move(groups_[i]->inputs);
        s.attrs = std::move(groups_[i]->fused);
      }
      out.push_back(std::move(s));
    }
    return out;
  }

 private:
  // Finds the nodes that the outputs depend on, and counts the reads of each buffer.
  void mark(std::span<const ValueId> outputs) {
    needed_ = needed_nodes(graph_, outputs);
    uses_.assign(graph_.values().size(), 0);
    kept_.assign(graph_.values().size(), false);
    producer_.assign(graph_.values().size(), -1);
    folded_.assign(graph_.values().size(), 0);
    for (ValueId v : outputs) kept_[graph_.values()[v].root] = true;
    for (NodeId n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      if (!needed_[n] || node.op->view) continue;
      for (ValueId v : node.in) ++uses_[graph_.values()[v].root];
    }
  }

  void add(NodeId n) {
    const Node& node = graph_.nodes()[n];
    if (node.op->view || node.op->leaf) return;
    LoweredStep step{node.op, {}, {}, {}, n};
    step.out.reserve(node.outs);
    for (ValueId v = node.first_out; v < node.first_out + node.outs; ++v) {
      step.out.push_back(v);
      producer_[v] = static_cast<std::int64_t>(steps_.size());
    }
    if (node.op->pointwise) {
      step.op = &fused_op;  // the inputs and attributes follow when the group is complete
      groups_.push_back(group(node));
    } else {
      step.in = node.in;
      step.attrs = node.attrs;
      groups_.emplace_back();
    }
    steps_.push_back(std::move(step));
  }

  // The widest compute type of the node's floating operands, or i64 without floating operands. A cast from
  // integers to bf16 stays in i64 and is rounded once, because f32 cannot represent all integers.
  DType compute_of(const Node& node) const {
    DType widest = i64;
    if (graph_.values()[node.first_out].dtype == bf16 && node.op->converts &&
        is_int(graph_.values()[node.in[0]].dtype))
      return i64;
    const auto look = [&](ValueId v) {
      const DType t = graph_.values()[v].dtype;
      if (t == f64 || (is_float(t) && widest != f64)) widest = compute_type(t);
    };
    for (ValueId v : node.in) look(v);
    look(node.first_out);
    return widest;
  }

  // A fused step under construction: the code, the inputs, and the number of reads of each input.
  struct Group {
    FusedAttrs fused;
    std::vector<ValueId> inputs;
    std::vector<int> reads;

    std::int32_t input(ValueId v, int times) {
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] != v) continue;
        reads[i] += times;
        return static_cast<std::int32_t>(i);
      }
      inputs.push_back(v);
      reads.push_back(times);
      return static_cast<std::int32_t>(inputs.size() - 1);
    }
  };

  // Creates a group for a pointwise node. If nothing else reads an input, the group absorbs the input's
  // group.
  std::unique_ptr<Group> group(const Node& node) {
    if (node.in.size() > 3)
      throw Error("[" + node.op->name + "] a pointwise op with more than three operands");
    auto g = std::make_unique<Group>();
    g->fused.compute = compute_of(node);
    FusedAttrs::Instruction instruction{node.op, graph_.values()[node.first_out].dtype};
    for (ValueId v : node.in) instruction.slots[instruction.count++] = operand(v, *g);
    g->fused.code.push_back(instruction);
    for (std::size_t i = 0; fuse_ && i < g->inputs.size();) {
      if (can_absorb(i, *g)) {
        absorb(i, g);
        i = 0;
      } else {
        ++i;
      }
    }
    return g;
  }

  FusedAttrs::Source operand(ValueId v, Group& g) {
    const ValueId root = graph_.values()[v].root;
    const Node& maker = graph_.node_of(root);
    if (maker.op != &full_op || kept_[root]) return {FusedAttrs::Source::input, g.input(v, 1)};
    ++folded_[root];
    g.fused.constants.push_back(folded(maker.attrs.as<FullAttrs>(), g.fused.compute));
    return {FusedAttrs::Source::constant, static_cast<std::int32_t>(g.fused.constants.size() - 1)};
  }

  // A fused step reads a constant instead of a tensor that is filled with one number. Returns that constant.
  // In f64, the constant is the number that the tensor would store. For a 16-bit type, the constant keeps the
  // digits of f32, unless these would create a rounding tie.
  static double folded(const FullAttrs& f, DType compute) {
    if (!is_float(f.dtype)) return f.value;
    if (compute == f64) return stored_number(f.dtype, f.value);
    const double narrow = stored_number(f32, f.value);
    if (compute_type(f.dtype) == f.dtype || std::isnan(narrow)) return narrow;
    const bool rounds_alike = stored_number(f.dtype, narrow) == stored_number(f.dtype, f.value);
    return rounds_alike ? narrow : static_cast<double>(odd_float(f.value));
  }

  bool can_absorb(std::size_t i, const Group& g) const {
    const ValueId v = g.inputs[i];
    if (producer_[v] < 0 || kept_[v] || uses_[v] != g.reads[i]) return false;
    const std::unique_ptr<Group>& made = groups_[producer_[v]];
    if (!made) return false;
    const Group& p = *made;
    if (p.fused.compute != g.fused.compute || !stays_fused(graph_.values()[v].dtype, g.fused.compute))
      return false;
    return p.fused.code.size() + g.fused.code.size() <= FusedAttrs::max_fused &&
           p.inputs.size() + g.inputs.size() <= FusedAttrs::max_inputs;
  }

  // Inserts the code that computes input i before the group's own code.
  void absorb(std::size_t i, std::unique_ptr<Group>& g) {
    const std::int64_t maker = producer_[g->inputs[i]];
    std::unique_ptr<Group> p = std::move(groups_[maker]);
    steps_[maker].op = nullptr;
    using Source = FusedAttrs::Source;
    const Source made{Source::result, static_cast<std::int32_t>(p->fused.code.size()) - 1};
    Source sources[FusedAttrs::max_inputs] = {};
    for (std::size_t k = 0; k < g->inputs.size(); ++k)
      sources[k] = k == i ? made : Source{Source::input, p->input(g->inputs[k], g->reads[k])};
    p->fused.append(g->fused, {sources, g->inputs.size()});
    g = std::move(p);
  }

  bool only_folded(ValueId v) const { return !kept_[v] && folded_[v] >= uses_[v]; }

  const Graph& graph_;
  const bool fuse_;
  std::vector<bool> needed_, kept_;
  std::vector<int> uses_, folded_;
  std::vector<std::int64_t> producer_;  // step of each value; −1: none
  std::vector<LoweredStep> steps_;
  std::vector<std::unique_ptr<Group>> groups_;  // per step; null if it is not pointwise or was absorbed
};

}  // namespace

bool stays_fused(DType t, DType compute) {
  return compute == i64 ? t == i64 || t == boolean : !is_int(t);
}

std::vector<bool> needed_nodes(const Graph& graph, std::span<const ValueId> outputs) {
  std::vector<bool> needed(graph.nodes().size(), false);
  for (ValueId v : outputs) needed[graph.values()[v].node] = true;
  for (NodeId n = static_cast<NodeId>(graph.nodes().size()); n-- > 0;)
    if (needed[n])
      for (ValueId v : graph.nodes()[n].in) needed[graph.values()[v].node] = true;
  return needed;
}

Uses::Uses(const Graph& graph, std::span<const LoweredStep> steps, std::span<const ValueId> outputs)
    : maker(graph.values().size(), -1), readers(graph.values().size(), 0) {
  const auto read = [&](ValueId v) { ++readers[graph.values()[v].root]; };
  for (std::size_t s = 0; s < steps.size(); ++s) {
    std::ranges::for_each(steps[s].in, read);
    for (ValueId v : steps[s].out) maker[v] = static_cast<std::int64_t>(s);
  }
  std::ranges::for_each(outputs, read);
}

std::vector<LoweredStep> lower(const Graph& graph, std::span<const ValueId> outputs, bool fuse) {
  return Lowering(graph, outputs, fuse).result();
}

}  // namespace tg

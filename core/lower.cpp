#include "core/lower.h"

namespace tg {

const Op fused_op{.name = "fused",
                  .infer = [](std::span<const Operand>, const Attrs&) -> std::vector<OutSpec> {
                    throw Error("made by the compiler, not recorded");
                  },
                  .not_differentiable = "it is made by the compiler",
                  .pointwise = true};

std::string FusedAttrs::text() const {
  std::string s;
  for (std::size_t i = 0; i < code.size(); ++i) {
    s += (i ? " → " : "") + code[i].op->name + "(";
    for (std::size_t k = 0; k < code[i].operands.size(); ++k) {
      const Operand& o = code[i].operands[k];
      s += k ? ", " : "";
      s += o.kind == Operand::constant ? detail::attr_text(constants[o.index])
                                       : (o.kind == Operand::input ? "in" : "%") + std::to_string(o.index);
    }
    s += ")";
    if (code[i].op->name == "cast") s += ":" + std::string(name_of(code[i].dtype));
  }
  return s;
}

namespace {

constexpr int max_instructions = 24, max_inputs = 12;

class Lowering {
 public:
  Lowering(const Graph& graph, std::span<const ValueId> wanted, bool fuse) : graph_(graph), fuse_(fuse) {
    mark(wanted);
    for (NodeId n = 0; n < graph_.nodes().size(); ++n)
      if (needed_[n]) add(n);
  }

  std::vector<LoweredStep> take() {
    std::vector<LoweredStep> out;
    for (LoweredStep& s : steps_)
      if (s.op && !(s.op == &full_op && only_folded(s.out[0]))) out.push_back(std::move(s));
    return out;
  }

 private:
  // Which nodes the wanted values need, and how often each buffer is read.
  void mark(std::span<const ValueId> wanted) {
    needed_.assign(graph_.nodes().size(), false);
    uses_.assign(graph_.values().size(), 0);
    kept_.assign(graph_.values().size(), false);
    producer_.assign(graph_.values().size(), -1);
    folded_.assign(graph_.values().size(), 0);
    for (ValueId v : wanted) {
      needed_[graph_.values()[v].node] = true;
      kept_[graph_.values()[v].root] = true;
    }
    for (NodeId n = static_cast<NodeId>(graph_.nodes().size()); n-- > 0;) {
      if (!needed_[n]) continue;
      const Node& node = graph_.nodes()[n];
      for (ValueId v : node.in) {
        needed_[graph_.values()[v].node] = true;
        if (!node.op->view) ++uses_[graph_.values()[v].root];
      }
    }
  }

  void add(NodeId n) {
    const Node& node = graph_.nodes()[n];
    if (node.op->view || node.op->leaf) return;
    LoweredStep step{node.op, node.attrs, node.in, {}, n};
    for (ValueId v = node.first_out; v < node.first_out + node.outs; ++v) {
      step.out.push_back(v);
      producer_[v] = static_cast<std::int64_t>(steps_.size());
    }
    if (node.op->pointwise) fuse_into(step);
    steps_.push_back(std::move(step));
  }

  // The widest compute type among the step's floating operands.
  DType compute_of(const Node& node) const {
    DType widest = i64;
    const auto look = [&](ValueId v) {
      const DType t = graph_.values()[v].dtype;
      if (t == f64 || (is_float(t) && widest != f64)) widest = compute_type(t);
    };
    for (ValueId v : node.in) look(v);
    look(node.first_out);
    return widest;
  }

  // Turns a pointwise step into a fused one, then takes in the producers of its inputs that nobody else
  // reads.
  void fuse_into(LoweredStep& step) {
    const Node& node = graph_.nodes()[step.node];
    Group g{{compute_of(node), {}, {}}, {}, {}};
    FusedAttrs::Instruction instruction{node.op, graph_.values()[node.first_out].dtype, {}};
    for (ValueId v : node.in) instruction.operands.push_back(operand(v, g));
    g.fused.code.push_back(std::move(instruction));
    for (bool changed = fuse_; changed;) {
      changed = false;
      for (std::size_t i = 0; i < g.inputs.size() && !changed; ++i) {
        if (!can_absorb(i, g)) continue;
        absorb(i, g);
        changed = true;
      }
    }
    step.op = &fused_op;
    step.in = g.inputs;
    step.attrs = g.fused;
    groups_.emplace(producer_[step.out[0]], std::move(g));
  }

  // A fused step in the making: its code, its inputs and how often the code's nodes read each of them.
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

  FusedAttrs::Operand operand(ValueId v, Group& g) {
    const ValueId root = graph_.values()[v].root;
    const Node& maker = graph_.node_of(root);
    if (maker.op != &full_op || kept_[root]) return {FusedAttrs::Operand::input, g.input(v, 1)};
    ++folded_[root];
    g.fused.constants.push_back(maker.attrs.as<FullAttrs>().value);
    return {FusedAttrs::Operand::constant, static_cast<std::int32_t>(g.fused.constants.size() - 1)};
  }

  bool can_absorb(std::size_t i, const Group& g) const {
    const ValueId v = g.inputs[i];
    if (producer_[v] < 0 || kept_[v] || uses_[v] != g.reads[i]) return false;
    const auto it = groups_.find(producer_[v]);
    if (it == groups_.end()) return false;
    const Group& p = it->second;
    // A value of a narrow integer type must stay what storing it makes of it.
    const DType t = graph_.values()[v].dtype;
    if (p.fused.compute != g.fused.compute || (is_int(t) && (t != i64 || g.fused.compute != i64)))
      return false;
    return p.fused.code.size() + g.fused.code.size() <= max_instructions &&
           p.inputs.size() + g.inputs.size() <= max_inputs;
  }

  // Puts the code that makes input i in front of the group's own.
  void absorb(std::size_t i, Group& g) {
    const std::int64_t maker = producer_[g.inputs[i]];
    const Group p = std::move(groups_.at(maker));
    groups_.erase(maker);
    steps_[maker].op = nullptr;
    Group merged{{g.fused.compute, {}, {}}, {}, {}};
    const auto append = [&](const Group& from, std::int32_t shift, std::int32_t made) {
      const auto first_constant = static_cast<std::int32_t>(merged.fused.constants.size());
      merged.fused.constants.insert(merged.fused.constants.end(), from.fused.constants.begin(),
                                    from.fused.constants.end());
      std::vector<std::int32_t> place(from.inputs.size());
      for (std::int32_t k = 0; k < static_cast<std::int32_t>(from.inputs.size()); ++k)
        if (k != made) place[k] = merged.input(from.inputs[k], from.reads[k]);
      for (FusedAttrs::Instruction c : from.fused.code) {
        for (FusedAttrs::Operand& o : c.operands) {
          if (o.kind == FusedAttrs::Operand::constant)
            o.index += first_constant;
          else if (o.kind == FusedAttrs::Operand::result)
            o.index += shift;
          else if (o.index == made)
            o = {FusedAttrs::Operand::result, shift - 1};
          else
            o.index = place[o.index];
        }
        merged.fused.code.push_back(std::move(c));
      }
    };
    append(p, 0, -1);
    append(g, static_cast<std::int32_t>(p.fused.code.size()), static_cast<std::int32_t>(i));
    g = std::move(merged);
  }

  bool only_folded(ValueId v) const { return !kept_[v] && folded_[v] >= uses_[v]; }

  const Graph& graph_;
  const bool fuse_;
  std::vector<bool> needed_, kept_;
  std::vector<int> uses_, folded_;
  std::vector<std::int64_t> producer_;              // step of each value, -1 for none
  std::unordered_map<std::int64_t, Group> groups_;  // by step
  std::vector<LoweredStep> steps_;
};

}  // namespace

std::vector<LoweredStep> lower(const Graph& graph, std::span<const ValueId> wanted, bool fuse) {
  return Lowering(graph, wanted, fuse).take();
}

}  // namespace tg

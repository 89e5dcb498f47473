#include "core/compile/recompute.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>

#include <tilegrad/core/run/cost.h>
#include "core/compile/liveness.h"
#include "core/compile/memory_plan.h"
#include "core/compile/neighbours.h"

namespace tg {

namespace {

// Ops, beside fused chains, that take about as long as a copy of their operands. They depend on nothing else:
// dropout draws by seed, step and the number in its attributes, which a copy of the node keeps.
constexpr std::string_view cheap_ops[] = {"layer_norm", "rms_norm",   "rope", "embedding", "dropout",
                                          "concat",     "contiguous", "full", "arange"};

// What a step costs beside the bytes that it moves: those that a GPU copies while a kernel begins.
constexpr double bytes_of_a_launch = 4 << 20;

// How far back an operand that is not there any more is computed again as well.
constexpr int most_depth = 4;

// Copies of values that steps compute again.
class Copies {
 public:
  explicit Copies(Graph& graph) : graph_(graph) {}

  // The step once more, with results of its own.
  LoweredStep again(const LoweredStep& step) {
    LoweredStep copy = step;
    for (ValueId& v : copy.in) v = now(v);
    for (ValueId v : step.out)
      if (!copies_.contains(v)) record(graph_.node_of(v), false);
    for (ValueId& v : copy.out) v = copies_.at(v);
    const auto last = std::find_if(step.out.begin(), step.out.end(),
                                   [&](ValueId v) { return graph_.values()[v].node == step.node; });
    if (last != step.out.end()) copy.node = graph_.values()[copies_.at(*last)].node;
    return copy;
  }

  // What stands for v, which may be a view; v itself if nothing was computed again.
  ValueId now(ValueId v) {
    const auto found = copies_.find(v);
    if (found != copies_.end()) return found->second;
    if (!copies_.contains(graph_.values()[v].root)) return v;
    record(graph_.node_of(v), true);
    return copies_.at(v);
  }

  const std::unordered_map<ValueId, ValueId>& all() const { return copies_; }

 private:
  // A view is one of the copy. Other nodes keep their operands: steps have others, which hold the same.
  void record(const Node& original, bool is_view) {
    const Node node = original;  // a copy: recording moves the list
    std::vector<Tensor> in;
    for (ValueId v : node.in) in.push_back(graph_.tensor(is_view ? now(v) : v));
    const Scope scope("again." + graph_.name_of(node), node.where);
    const SegmentScope outside(-1);
    const DerivativeScope derivative(node.is_derivative);
    const std::vector<Tensor> out = graph_.record(*node.op, in, node.attrs, node.where);
    for (std::uint32_t i = 0; i < node.outs; ++i) copies_[node.first_out + i] = out[i].id();
  }

  Graph& graph_;
  std::unordered_map<ValueId, ValueId> copies_;
};

class Recomputing {
 public:
  Recomputing(Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known)
      : graph_(graph), steps_(steps), known_(known), added_by_(steps.size(), -1) {
    analyse();
  }

  Recomputed run(std::size_t limit) {
    Recomputed result{.before = planned()};
    for (std::size_t arena = result.before; arena > limit;) {
      const std::optional<Choice> choice = best(arena - limit);
      if (!choice) break;
      const State before = state();
      const auto pressure_before = pressure();
      apply(*choice);
      if (pressure() < pressure_before) {
        refused_.clear();
      } else {  // it only shifts the peak: without an end to that there would be none to this loop
        refused_.insert(before.steps[choice->makers.back()].out[0]);
        restore(before);
      }
      arena = pressure().first > limit ? pressure().first : planned();
    }
    result.arena = planned();
    if (result.arena <= limit) result.arena = undo_needless(limit, result.arena);
    for (std::size_t s = 0; s < steps_.size(); ++s)
      if (added_by_[s] >= 0) ++result.steps, result.bytes += moved(s);
    return result;
  }

 private:
  // One or more steps that are done again, in their order, before step `at`; or one that moves there.
  struct Choice {
    std::vector<std::size_t> makers;
    std::size_t at = 0;
    bool moves = false;
    std::size_t frees = 0, holds = 0;  // bytes at the peak: of results, and of operands that live longer
    double price = 0;                  // bytes moved, and launches
  };
  // A choice that was applied: the steps that have its number in added_by_, and what they stand for.
  struct Applied {
    std::unordered_map<ValueId, ValueId> originals;  // of each copy
    double price;
  };

  struct State {
    std::vector<LoweredStep> steps;
    std::vector<int> added_by;
    std::vector<Applied> applied;
  };
  State state() const { return {steps_, added_by_, applied_}; }
  void restore(const State& s) {
    steps_ = s.steps, added_by_ = s.added_by, applied_ = s.applied;
    analyse();
  }

  const Value& value(ValueId v) const { return graph_.values()[v]; }

  // The most bytes alive at one step, and at how many steps.
  std::pair<std::size_t, std::ptrdiff_t> pressure() const {
    if (now_.alive.empty()) return {0, 0};
    const std::size_t most = now_.alive[static_cast<std::size_t>(now_.peak)];
    return {most, std::ranges::count(now_.alive, most)};
  }

  void analyse() {
    now_ = liveness_of(graph_, steps_, known_.joined, known_.outputs, known_.assign, known_.directly);
    written_.clear();
    for (std::size_t i = 0; i < known_.assign.size(); ++i)
      if (known_.directly[i])
        written_[known_.assign[i].target.key()] = now_.maker[value(known_.outputs.assigned[i]).root];
    for (std::size_t s = 0; s < steps_.size(); ++s)
      if (const std::optional<Parameter>& target = steps_[s].target)
        written_[target->key()] = static_cast<int>(s);
  }

  std::size_t planned() const { return plan_buffers(graph_, now_.buffers, 0, true).report.arena; }

  // Bytes that a step reads and writes.
  double moved(std::size_t s) const {
    double bytes = 0;
    for (ValueId v : steps_[s].in) bytes += bytes_of(value(v).dtype, value(v).layout);
    for (ValueId v : steps_[s].out) bytes += bytes_of(value(v).dtype, value(v).layout);
    return bytes;
  }

  bool is_cheap(std::size_t s) const {
    const LoweredStep& l = steps_[s];
    if (l.target || l.out.empty()) return false;
    if (l.op == &fused_op) {
      const auto& code = l.attrs.as<FusedAttrs>().code;
      if (std::any_of(code.begin(), code.end(), [](const auto& i) { return i.op->host != nullptr; }))
        return false;
      const DType t = value(l.out[0]).dtype;
      if (known_.has_epilogues && (t == bf16 || t == f16) && s > 0 && is_epilogue(steps_[s - 1], l))
        return false;
    } else if (std::ranges::find(cheap_ops, std::string_view(l.op->name)) == std::end(cheap_ops)) {
      return false;
    }
    return std::none_of(l.out.begin(), l.out.end(),
                        [&](ValueId v) { return known_.joined.contains(v) || now_.kept[v]; });
  }

  bool stay_together(std::size_t first, std::size_t second) const {
    return belong_together(graph_, steps_[first], steps_[second]);
  }

  // The choice that frees the most of the missing bytes for what it costs.
  std::optional<Choice> best(std::size_t missing) const {
    const auto worth = [&](const Choice& c) {
      return static_cast<double>(std::min(c.frees - c.holds, missing));
    };
    const auto is_better = [&](const Choice& a, const Choice& b) {
      const double left = worth(a) * b.price, right = worth(b) * a.price;
      return left != right ? left > right : worth(a) > worth(b);
    };
    std::optional<Choice> best;
    for (std::size_t s = 0; s < static_cast<std::size_t>(now_.peak); ++s) {
      std::optional<Choice> c = choice_for(s);
      if (c && c->frees > c->holds && (!best || is_better(*c, *best))) best = std::move(c);
    }
    return best;
  }

  // Step s again after the peak, for what it computes before it and is used after it.
  std::optional<Choice> choice_for(std::size_t s) const {
    Choice c;
    int first = static_cast<int>(steps_.size());
    bool is_used_early = false;
    for (ValueId v : steps_[s].out) {
      const std::vector<int>& uses = now_.uses[v];
      const auto late = std::upper_bound(uses.begin(), uses.end(), now_.peak);
      if (late != uses.begin()) is_used_early = true;
      if (late == uses.end() || (late != uses.begin() && *std::prev(late) == now_.peak)) continue;
      c.frees += now_.bytes_of(v);
      first = std::min(first, *late);
    }
    if (c.frees == 0 || !is_cheap(s) || refused_.contains(steps_[s].out[0])) return std::nullopt;
    c.at = static_cast<std::size_t>(first);
    while (c.at > static_cast<std::size_t>(now_.peak) + 1 && stay_together(c.at - 1, c.at)) --c.at;
    // What is not used before the peak at all is not computed twice: it moves, and alone.
    c.moves = !is_used_early;
    if (stay_together(c.at - 1, c.at) || !gather(s, c, c.moves ? most_depth : 0)) return std::nullopt;
    if (c.moves) c.price = 0;
    return c;
  }

  // Adds step s to the choice, after those that compute operands that are not there any more. Returns false
  // if an operand is overwritten before.
  bool gather(std::size_t s, Choice& c, int depth) const {
    for (ValueId v : steps_[s].in) {
      const ValueId root = value(v).root;
      const Node& maker = graph_.node_of(root);
      if (maker.op == &parameter_op) {
        const auto write = written_.find(maker.attrs.as<ParameterAttrs>().parameter.key());
        if (write != written_.end() && write->second < static_cast<int>(c.at)) return false;
      }
      if (maker.op->leaf || now_.kept[root] || now_.uses[root].back() >= now_.peak) continue;
      if (now_.maker[root] >= 0 &&
          std::ranges::find(c.makers, static_cast<std::size_t>(now_.maker[root])) != c.makers.end())
        continue;
      const std::size_t bytes = now_.bytes_of(root);
      if (bytes > c.frees / 16 && now_.maker[root] >= 0 && depth < most_depth) {
        const auto before = static_cast<std::size_t>(now_.maker[root]);
        Choice longer = c;
        if (is_cheap(before) && gather(before, longer, depth + 1)) {
          c = std::move(longer);
          continue;
        }
      }
      c.holds += bytes;
    }
    c.makers.push_back(s);
    c.price += moved(s) + bytes_of_a_launch;
    return true;
  }

  void apply(const Choice& c) {
    const auto at = static_cast<std::ptrdiff_t>(c.at);
    if (c.moves) {
      const auto from = static_cast<std::ptrdiff_t>(c.makers[0]);
      std::rotate(steps_.begin() + from, steps_.begin() + from + 1, steps_.begin() + at);
      std::rotate(added_by_.begin() + from, added_by_.begin() + from + 1, added_by_.begin() + at);
      return analyse();
    }
    Copies copies(graph_);
    std::vector<LoweredStep> again;
    for (std::size_t s : c.makers) again.push_back(copies.again(steps_[s]));
    for (std::size_t s = c.at; s < steps_.size(); ++s)
      for (ValueId& v : steps_[s].in) v = copies.now(v);
    Applied applied{{}, c.price};
    for (const auto& [original, copy] : copies.all()) applied.originals[copy] = original;
    steps_.insert(steps_.begin() + at, std::make_move_iterator(again.begin()),
                  std::make_move_iterator(again.end()));
    added_by_.insert(added_by_.begin() + at, c.makers.size(), static_cast<int>(applied_.size()));
    applied_.push_back(std::move(applied));
    analyse();
  }

  // Undoes the choices, most expensive first, without which the arena still fits. Returns its bytes.
  std::size_t undo_needless(std::size_t limit, std::size_t arena) {
    std::vector<int> order(applied_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::ranges::stable_sort(order, [&](int a, int b) {
      return applied_[static_cast<std::size_t>(a)].price > applied_[static_cast<std::size_t>(b)].price;
    });
    for (const int choice : order) {
      const State before = state();
      undo(choice);
      const std::size_t without = planned();
      if (without <= limit) {
        arena = without;
        continue;
      }
      restore(before);
    }
    return arena;
  }

  void undo(int choice) {
    const std::unordered_map<ValueId, ValueId> originals =
        std::move(applied_[static_cast<std::size_t>(choice)].originals);
    const auto put_back = [&](ValueId& v) {
      if (const auto found = originals.find(v); found != originals.end()) v = found->second;
    };
    std::vector<LoweredStep> steps;
    std::vector<int> added_by;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (added_by_[s] == choice) continue;
      steps.push_back(std::move(steps_[s]));
      added_by.push_back(added_by_[s]);
      for (ValueId& v : steps.back().in) put_back(v);
    }
    for (Applied& other : applied_)  // copies of its copies
      for (auto& [copy, original] : other.originals) put_back(original);
    steps_ = std::move(steps), added_by_ = std::move(added_by);
    analyse();
  }

  Graph& graph_;
  std::vector<LoweredStep>& steps_;
  const Scheduled& known_;
  std::vector<int> added_by_;  // by step: the choice that added it, -1 for none
  std::vector<Applied> applied_;
  std::set<ValueId> refused_;  // first results of steps, whose choices did not help as things are
  Liveness now_;
  std::unordered_map<const void*, int> written_;  // by Parameter::key: the step that changes it
};

}  // namespace

Recomputed recompute_within(std::size_t arena, Graph& graph, std::vector<LoweredStep>& steps,
                            const Scheduled& known) {
  return Recomputing(graph, steps, known).run(arena);
}

}  // namespace tg

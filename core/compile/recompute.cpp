#include "core/compile/budget.h"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include <tilegrad/core/run/cost.h>
#include "core/compile/buffers.h"
#include "core/compile/fused_reductions.h"
#include "core/compile/memory_plan.h"
#include "core/compile/scheduler.h"

namespace tg {

namespace {

// Fixed cost of a step, as the number of bytes that a GPU copies in the time of one kernel launch.
constexpr double bytes_of_a_launch = 4 << 20;

// If an operand is no longer in memory, it is also recomputed, and so are its operands, up to this depth.
constexpr int most_depth = 4;

// Creates and finds the copies of values that steps recompute.
class Copies {
 public:
  explicit Copies(Graph& graph) : graph_(graph) {}

  // Starts with `copy` as the replacement for v, which is a root.
  void begin_with(ValueId v, ValueId copy) { copies_[v] = copy; }

  // Returns a copy of the step with new results.
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

  // Returns the replacement for v, which may be a view. Returns v if its root was not recomputed.
  ValueId now(ValueId v) {
    const auto found = copies_.find(v);
    if (found != copies_.end()) return found->second;
    if (!copies_.contains(graph_.values()[v].root)) return v;
    record(graph_.node_of(v), true);
    return copies_.at(v);
  }

  const std::unordered_map<ValueId, ValueId>& all() const { return copies_; }

 private:
  // Records a copy of a node. The copy of a view is a view of the copied value. The copy of any other node
  // has the original operands in the graph. Only its step reads copies of the operands, and these have the
  // same values.
  void record(const Node& original, bool is_view) {
    const Node node = original;  // a copy, because recording moves the list
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
    epilogues_ = epilogues();
  }

  Recomputed run(std::size_t limit) {
    Recomputed result{.before = planned()};
    const State as_it_was = state();
    result.arena = reduced(limit);
    if (result.arena > limit) {  // start again: some GEMMs have better ratios than cheap steps
      restore(as_it_was);
      with_products_ = true;
      result.arena = reduced(limit);
    }
    if (result.arena <= limit) result.arena = undo_needless(limit, result.arena);
    for (std::size_t s = 0; s < steps_.size(); ++s)
      if (added_by_[s] >= 0) add(s, result.again);
    return result;
  }

 private:
  // One or more steps (`makers`) that are recomputed, in this order, before step `at`. Alternatively, one
  // step that moves there.
  struct Choice {
    std::vector<std::size_t> makers;
    std::size_t at = 0;
    bool moves = false;
    // `there` contains operands that another choice recomputes, with their copies. If steps of that choice
    // run after `at`, they must move before the makers. `earlier` contains these steps.
    std::vector<std::pair<ValueId, ValueId>> there;
    std::set<std::size_t> earlier;
    std::size_t frees = 0, holds = 0;  // bytes at the peak: freed results, and operands that live longer
    double price = 0;                  // cost of the makers in bytes (price_of in cost.h), with launches
  };
  // A choice that was applied. added_by_ contains the number of the choice for each of its steps. `originals`
  // are the values that these steps replace.
  struct Applied {
    std::unordered_map<ValueId, ValueId> originals;  // key: copy
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

  // The maximum of live bytes at one step, and the number of steps with that maximum.
  std::pair<std::size_t, std::ptrdiff_t> pressure() const {
    const std::size_t most = now_.alive[static_cast<std::size_t>(now_.peak)];
    return {most, std::ranges::count(now_.alive, most)};
  }

  // Applies choices until the arena fits or no choice is left, and returns its size in bytes.
  std::size_t reduced(std::size_t limit) {
    refused_.clear();
    std::size_t arena = planned();
    while (arena > limit) {
      const std::optional<Choice> choice = best(arena - limit);
      if (!choice) break;
      const State before = state();
      const auto pressure_before = pressure();
      apply(*choice);
      if (pressure() < pressure_before && epilogues() == epilogues_) {
        refused_.clear();
      } else {  // it only moves the peak; the loop might not end otherwise
        refused_.insert(before.steps[choice->makers.back()].out[0]);
        restore(before);
      }
      arena = pressure().first > limit ? pressure().first : planned();
    }
    return planned();
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
    originals_.clear(), copies_.clear(), choice_of_.clear();
    for (const Applied& a : applied_)
      for (const auto& [copy, original] : a.originals) originals_[copy] = original;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (added_by_[s] < 0) continue;
      for (ValueId v : steps_[s].out) {
        copies_.emplace(originals_.at(v), v);
        choice_of_[v] = static_cast<std::size_t>(added_by_[s]);
      }
    }
  }

  std::size_t planned() const { return plan_buffers(graph_, now_.buffers, 0, true).report.arena; }

  // Bytes that a step reads and writes, and its FLOPs.
  Cost work(std::size_t s) const {
    const LoweredStep& l = steps_[s];
    std::vector<Operand> in, out;
    for (ValueId v : l.in) in.push_back({value(v).dtype, value(v).layout});
    for (ValueId v : l.out) out.push_back({value(v).dtype, value(v).layout});
    Cost c{.flops = l.op->cost ? l.op->cost(in, out, l.attrs).flops : 0};
    for (const auto* operands : {&in, &out})
      for (const Operand& o : *operands) c.bytes += bytes_of(o.dtype, o.layout);
    return c;
  }

  double price(std::size_t s) const {
    return price_of(work(s), value(steps_[s].out[0]).dtype) + bytes_of_a_launch;
  }

  void add(std::size_t s, MemoryReport::Recomputed& again) const {
    const Cost c = work(s);
    ++again.steps;
    if (steps_[s].op->recompute == Recompute::costly) ++again.products, again.flops += c.flops;
    again.moved += c.bytes, again.price += price(s);
  }

  // Whether step s is a GEMM that the backend may compute together with the next step, an epilogue. Separate
  // steps would round differently.
  bool has_epilogue(std::size_t s) const {
    return known_.scheduler.has_epilogues() && s + 1 < steps_.size() &&
           is_rounding_epilogue(graph_, steps_[s], steps_[s + 1]) && stay_together(s, s + 1);
  }

  // The first and the last of the steps that must be recomputed together with step s.
  std::pair<std::size_t, std::size_t> unit_of(std::size_t s) const {
    if (s > 0 && has_epilogue(s - 1)) return {s - 1, s};
    return {s, s + has_epilogue(s)};
  }

  // The steps that may be epilogues. Each is identified by the first value that it replaces. The flag is true
  // if the step is an epilogue now.
  std::set<std::pair<ValueId, bool>> epilogues() const {
    std::set<std::pair<ValueId, bool>> all;
    if (!known_.scheduler.has_epilogues()) return all;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (!may_be_epilogue(steps_[s])) continue;
      ValueId v = steps_[s].out[0];
      for (auto found = originals_.find(v); found != originals_.end(); found = originals_.find(v))
        v = found->second;
      all.emplace(v, s > 0 && has_epilogue(s - 1));
    }
    return all;
  }

  bool is_repeatable(std::size_t s) const {
    const LoweredStep& l = steps_[s];
    if (l.target || l.out.empty()) return false;
    if (const FusedAttrs* chain = fused_text_of(*l.op, l.attrs)) {
      if (std::ranges::any_of(chain->code, [](const auto& i) { return i.op->host != nullptr; })) return false;
    } else if (l.op->recompute == Recompute::never ||
               (l.op->recompute == Recompute::costly && !with_products_)) {
      return false;
    }
    return std::none_of(l.out.begin(), l.out.end(),
                        [&](ValueId v) { return known_.joined.contains(v) || now_.kept[v]; });
  }

  bool stay_together(std::size_t first, std::size_t second) const {
    return tg::stay_together(graph_, steps_[first], steps_[second]);
  }

  // Returns the choice with the best ratio of freed bytes to price. At most `missing` freed bytes count.
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

  // Returns the choice that recomputes step s after the peak. The results of s are computed before the peak
  // and used after it.
  std::optional<Choice> choice_for(std::size_t s) const {
    Choice c;
    const auto [from, to] = unit_of(s);
    if (s != from) return std::nullopt;
    auto first = static_cast<int>(steps_.size());
    bool is_used_early = from != to;
    for (std::size_t made_by = from; made_by <= to; ++made_by) {
      for (ValueId v : steps_[made_by].out) {
        const std::vector<int>& uses = now_.uses[v];
        const auto late = std::upper_bound(uses.begin(), uses.end(), now_.peak);
        if (late != uses.begin()) is_used_early = true;
        if (late == uses.end() || (late != uses.begin() && *std::prev(late) == now_.peak)) continue;
        c.frees += now_.bytes_of(v);
        first = std::min(first, *late);
      }
    }
    if (c.frees == 0 || !is_repeatable(from) || refused_.contains(steps_[to].out[0])) return std::nullopt;
    c.at = static_cast<std::size_t>(first);
    while (c.at > static_cast<std::size_t>(now_.peak) + 1 && stay_together(c.at - 1, c.at)) --c.at;
    // If a value has no use before the peak, it is not computed twice. Only its step moves.
    c.moves = !is_used_early;
    if (stay_together(c.at - 1, c.at) || !gather(s, c, c.moves ? most_depth : 0)) return std::nullopt;
    if (c.moves) c.price = 0;
    return c;
  }

  // Adds step s to the choice, with the steps that must be recomputed together with it. First adds the steps
  // that recompute missing operands. Returns false if an operand will have been overwritten.
  bool gather(std::size_t s, Choice& c, int depth) const {
    const auto [from, to] = unit_of(s);
    if (to > from && !(is_repeatable(from) && is_repeatable(to))) return false;
    for (s = from; s <= to; ++s) {
      for (ValueId v : steps_[s].in)
        if (!gather_operand(v, c, depth)) return false;
      c.makers.push_back(s);
      c.price += price(s);
    }
    return true;
  }

  bool gather_operand(ValueId v, Choice& c, int depth) const {
    const ValueId root = value(v).root;
    const Node& node = graph_.node_of(root);
    if (node.op == &parameter_op) {
      const auto write = written_.find(node.attrs.as<ParameterAttrs>().parameter.key());
      if (write != written_.end() && write->second < static_cast<int>(c.at)) return false;
    }
    if (node.op->leaf || now_.kept[root] || now_.uses[root].back() >= now_.peak) return true;
    const int maker = now_.maker[root];
    if (maker >= 0 && std::ranges::find(c.makers, static_cast<std::size_t>(maker)) != c.makers.end())
      return true;
    if (const auto copy = copies_.find(root); copy != copies_.end() && !c.moves) {
      std::set<std::size_t> earlier = c.earlier;
      if (is_there(static_cast<std::size_t>(now_.maker[copy->second]), c.at, earlier)) {
        c.there.emplace_back(root, copy->second);
        c.earlier = std::move(earlier);
        return true;
      }
    }
    const std::size_t bytes = now_.bytes_of(root);
    if (bytes > c.frees / 16 && maker >= 0 && depth < most_depth) {
      Choice longer = c;
      if (is_repeatable(static_cast<std::size_t>(maker)) &&
          gather(static_cast<std::size_t>(maker), longer, depth + 1)) {
        c = std::move(longer);
        return true;
      }
    }
    c.holds += bytes;
    return true;
  }

  // Step s runs after the peak. Returns whether it runs before step `at`, or can move there together with the
  // steps in `earlier`. If it can move, adds it to `earlier`.
  bool is_there(std::size_t s, std::size_t at, std::set<std::size_t>& earlier) const {
    if (static_cast<int>(s) <= now_.peak) return false;
    if (s < at || earlier.contains(s)) return true;
    if (added_by_[s] < 0 || stay_together(s - 1, s) || (s + 1 < steps_.size() && stay_together(s, s + 1)))
      return false;
    for (ValueId v : steps_[s].in) {
      const int maker = now_.maker[value(v).root];
      if (maker >= static_cast<int>(at) && !is_there(static_cast<std::size_t>(maker), at, earlier))
        return false;
    }
    earlier.insert(s);
    return true;
  }

  void move(std::size_t from, std::size_t before) {
    const auto rotate = [&](auto& list) {
      const auto a = list.begin() + static_cast<std::ptrdiff_t>(from),
                 b = list.begin() + static_cast<std::ptrdiff_t>(before);
      from < before ? std::rotate(a, a + 1, b) : std::rotate(b, a, a + 1);
    };
    rotate(steps_), rotate(added_by_);
  }

  void apply(const Choice& c) {
    if (c.moves) {
      move(c.makers[0], c.at);
      return analyse();
    }
    std::size_t at = c.at;
    for (const std::size_t s : c.earlier) move(s, at++);
    Copies copies(graph_);
    for (const auto& [v, copy] : c.there) copies.begin_with(v, copy);
    std::vector<LoweredStep> again;
    for (std::size_t s : c.makers) again.push_back(copies.again(steps_[s]));
    for (std::size_t s = at; s < steps_.size(); ++s)
      for (ValueId& v : steps_[s].in) v = copies.now(v);
    Applied applied{{}, c.price};
    for (const auto& [original, copy] : copies.all()) {
      // If another choice recomputes the viewed value, the view belongs to that choice.
      const auto owner = choice_of_.find(value(copy).root);
      (owner == choice_of_.end() ? applied : applied_[owner->second]).originals[copy] = original;
    }
    const auto place = static_cast<std::ptrdiff_t>(at);
    steps_.insert(steps_.begin() + place, std::make_move_iterator(again.begin()),
                  std::make_move_iterator(again.end()));
    added_by_.insert(added_by_.begin() + place, c.makers.size(), static_cast<int>(applied_.size()));
    applied_.push_back(std::move(applied));
    analyse();
  }

  // Undoes choices, most expensive first, as long as the arena still fits. Returns its size in bytes.
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
      if (without <= limit && epilogues() == epilogues_) {
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
    for (Applied& other : applied_)  // other choices may use its copies
      for (auto& [copy, original] : other.originals) put_back(original);
    steps_ = std::move(steps), added_by_ = std::move(added_by);
    analyse();
  }

  Graph& graph_;
  std::vector<LoweredStep>& steps_;
  const Scheduled& known_;
  std::vector<int> added_by_;  // per step: the choice that added it; −1: none
  std::vector<Applied> applied_;
  std::set<ValueId> refused_;  // first results of steps that did not help as choices
  bool with_products_ = false;
  std::set<std::pair<ValueId, bool>> epilogues_;  // at the start
  Liveness now_;
  std::unordered_map<ValueId, ValueId> originals_;      // for all copies and their views
  std::unordered_map<ValueId, ValueId> copies_;         // the first copy of a recomputed value
  std::unordered_map<ValueId, std::size_t> choice_of_;  // per copy: the choice that computes it
  std::unordered_map<const void*, int> written_;  // key: Parameter::key; value: the step that changes it
};

}  // namespace

Recomputed recompute_within(std::size_t arena, Graph& graph, std::vector<LoweredStep>& steps,
                            const Scheduled& known) {
  return Recomputing(graph, steps, known).run(arena);
}

}  // namespace tg

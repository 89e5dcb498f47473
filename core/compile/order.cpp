#include "core/compile/budget.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>

#include "core/base/alignment.h"
#include "core/compile/memory_plan.h"
#include "core/compile/scheduler.h"

namespace tg {

namespace {

using Unit = std::size_t;

// Divides the steps into units. A unit is one step, or several neighbors that must stay together. Initially,
// units run in the order of their numbers.
class Ordering {
 public:
  Ordering(const Graph& graph, std::span<const LoweredStep> steps, const Scheduled& known)
      : graph_(graph),
        steps_(steps),
        known_(known),
        buffers_(buffers_of(graph, steps, known.joined, known.outputs, known.assign, known.directly)),
        held_(buffers_.list.size()) {
    find_units();
    find_uses();
    find_dependencies();
  }

  // The step indices in the new order.
  std::vector<std::size_t> run() {
    const std::size_t limit = peak_as_recorded();
    for (Unit next = 0; next < first_.size() - 1; ++next) {
      if (done_[next]) continue;
      execute(next);
      for (std::vector<Unit> group = freeing_group(limit); !group.empty(); group = freeing_group(limit))
        for (const Unit u : group) execute(u);
    }
    std::vector<std::size_t> order;
    for (const Unit u : executed_)
      for (std::size_t s = first_[u]; s < first_[u + 1]; ++s) order.push_back(s);
    return order;
  }

 private:
  static constexpr std::size_t most_units = 32;  // per group

  // The units that use a buffer, each once and in order.
  struct Held {
    std::size_t bytes = 0;  // in the arena; freed after the last use
    std::vector<Unit> writers, readers;
    std::size_t left = 0;  // number of uses that have not run yet
    bool is_alive = false;
  };

  void find_units() {
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (s == 0 || !stay_together(graph_, steps_[s - 1], steps_[s])) first_.push_back(s);
      unit_of_.push_back(first_.size() - 1);
    }
    first_.push_back(steps_.size());
    const std::size_t units = first_.size() - 1;
    uses_.resize(units), before_.resize(units), done_.assign(units, false);
  }

  std::size_t buffer_of(ValueId v) const {
    return static_cast<std::size_t>(buffers_.of[graph_.values()[v].root]);
  }

  void find_uses() {
    const auto add = [](std::vector<Unit>& list, Unit u) {
      if (list.empty() || list.back() != u) list.push_back(u);
    };
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      const Unit u = unit_of_[s];
      for (ValueId v : steps_[s].out) add(held_[buffer_of(v)].writers, u), uses_[u].push_back(buffer_of(v));
      for (ValueId v : steps_[s].in) add(held_[buffer_of(v)].readers, u), uses_[u].push_back(buffer_of(v));
    }
    for (std::vector<std::size_t>& list : uses_) {
      std::ranges::sort(list);
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
    for (const std::vector<std::size_t>& list : uses_)
      for (const std::size_t b : list) ++held_[b].left;
    for (std::size_t b = 0; b < held_.size(); ++b)
      if (buffers_.list[b].kind == Buffer::arena) held_[b].bytes = aligned_bytes(buffers_.list[b].bytes);
    for (ValueId v : known_.outputs.all()) held_[buffer_of(v)].bytes = 0;  // live until the end in any order
  }

  // A value must be written before it is read. A parameter must not be written before its old value is read.
  void find_dependencies() {
    const auto depends = [&](Unit later, Unit earlier) {
      if (later != earlier) before_[later].push_back(earlier);
    };
    // readers of a parameter's old value, by its key
    std::unordered_map<const void*, std::vector<Unit>> readers;
    for (std::size_t b = 0; b < held_.size(); ++b) {
      for (const Unit r : held_[b].readers)
        for (const Unit w : held_[b].writers) depends(r, w);
      if (buffers_.list[b].kind != Buffer::parameter || !held_[b].writers.empty()) continue;
      std::vector<Unit>& all = readers[buffers_.list[b].owner.key()];
      all.insert(all.end(), held_[b].readers.begin(), held_[b].readers.end());
    }
    const auto changes = [&](Unit writer, const Parameter& p) {
      for (const Unit r : readers[p.key()]) depends(writer, r);
    };
    for (std::size_t b = 0; b < held_.size(); ++b)
      for (const Unit w : held_[b].writers)
        if (buffers_.list[b].kind == Buffer::parameter) changes(w, buffers_.list[b].owner);
    for (std::size_t s = 0; s < steps_.size(); ++s)
      if (const std::optional<Parameter>& target = steps_[s].target) changes(unit_of_[s], *target);
  }

  // The maximum of live bytes at a unit in the current order.
  std::size_t peak_as_recorded() const {
    std::vector<std::size_t> born(first_.size()), dead(first_.size());
    for (const Held& h : held_) {
      if (h.bytes == 0) continue;  // other buffers have a writer
      born[h.writers.front()] += h.bytes;
      dead[std::max(h.writers.back(), h.readers.empty() ? 0 : h.readers.back())] += h.bytes;
    }
    std::size_t alive = 0, most = 0;
    for (Unit u = 0; u + 1 < first_.size(); ++u) {
      alive += born[u];
      most = std::max(most, alive);
      alive -= dead[u];
    }
    return most;
  }

  void execute(Unit u) {
    done_[u] = true;
    executed_.push_back(u);
    for (const std::size_t b : uses_[u]) {
      Held& h = held_[b];
      if (!h.is_alive) h.is_alive = true, alive_ += h.bytes;
      if (--h.left == 0) h.is_alive = false, alive_ -= h.bytes;
    }
    // Two kinds of buffers may soon be free: buffers that this unit uses, and buffers that a later unit reads
    // together with the results of this unit.
    for (const std::size_t b : uses_[u]) {
      if (held_[b].left > most_units) continue;
      for (const Unit r : held_[b].readers)
        if (!done_[r]) candidates_.insert(uses_[r].begin(), uses_[r].end());
    }
  }

  // Returns units that free a candidate buffer and, in total, free more bytes than they allocate. Empty if
  // there are none.
  std::vector<Unit> freeing_group(std::size_t limit) {
    while (!candidates_.empty()) {
      const std::size_t b = *candidates_.begin();
      candidates_.erase(candidates_.begin());
      if (!held_[b].is_alive || held_[b].bytes == 0) continue;
      std::vector<Unit> group = readers_of(b);
      if (!group.empty() && is_worth(group, limit)) return group;
    }
    return {};
  }

  // Returns the units that must run before buffer b is free, in order. Empty if there are too many.
  std::vector<Unit> readers_of(std::size_t b) const {
    std::set<Unit> group;
    std::vector<Unit> next;
    const auto add = [&](Unit u) {
      if (!done_[u] && group.insert(u).second) next.push_back(u);
    };
    for (const Unit u : held_[b].readers) add(u);
    for (const Unit u : held_[b].writers) add(u);
    while (!next.empty()) {
      if (group.size() > most_units) return {};
      const Unit u = next.back();
      next.pop_back();
      for (const Unit earlier : before_[u]) add(earlier);
    }
    if (group.size() > most_units) return {};
    return {group.begin(), group.end()};
  }

  // Whether the live memory is smaller after the group than before it, and stays at or below `limit` while
  // the group runs.
  bool is_worth(const std::vector<Unit>& group, std::size_t limit) const {
    std::unordered_map<std::size_t, std::size_t> used;  // uses of each buffer in the group so far
    std::size_t alive = alive_;
    for (const Unit u : group) {
      std::size_t freed = 0;
      for (const std::size_t b : uses_[u]) {
        const std::size_t uses = ++used[b];
        if (uses == 1 && !held_[b].is_alive) alive += held_[b].bytes;
        if (uses == held_[b].left) freed += held_[b].bytes;
      }
      if (alive > limit) return false;
      alive -= freed;
    }
    return alive < alive_;
  }

  const Graph& graph_;
  const std::span<const LoweredStep> steps_;
  const Scheduled& known_;
  const Buffers buffers_;
  std::vector<Held> held_;                    // per buffer
  std::vector<std::size_t> first_, unit_of_;  // the first step of each unit, with the end appended; per step
  std::vector<std::vector<std::size_t>> uses_;  // per unit: its buffers
  std::vector<std::vector<Unit>> before_;       // per unit: the units that it depends on
  std::vector<bool> done_;
  std::vector<Unit> executed_;
  std::size_t alive_ = 0;  // live bytes
  std::set<std::size_t> candidates_;
};

// Whether an epilogue directly follows its GEMM in the new order but not in the current order.
bool makes_an_epilogue(const Graph& graph, std::span<const LoweredStep> steps,
                       const std::vector<std::size_t>& order) {
  for (std::size_t i = 1; i < order.size(); ++i) {
    const LoweredStep &step = steps[order[i - 1]], &next = steps[order[i]];
    if (order[i] != order[i - 1] + 1 && is_epilogue(step, next) && reads_result(graph, step, next))
      return true;
  }
  return false;
}

}  // namespace

bool order_for_memory(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known) {
  const std::vector<std::size_t> order = Ordering(graph, steps, known).run();
  if (known.scheduler.has_epilogues() && makes_an_epilogue(graph, steps, order)) return false;
  std::vector<LoweredStep> ordered;
  for (const std::size_t s : order) ordered.push_back(steps[s]);
  const auto arena = [&](std::span<const LoweredStep> list) {
    return placed(graph, list, known, 0, true).plan.report.arena;
  };
  if (arena(ordered) >= arena(steps)) return false;
  steps = std::move(ordered);
  return true;
}

}  // namespace tg

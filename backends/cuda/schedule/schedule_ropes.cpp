#include "backends/cuda/schedule/scheduler.h"

#include <algorithm>

#include <tilegrad/ops/flash_attn.h>
#include "core/compile/scheduler.h"
#include "ops/rope.h"

namespace tg::cuda {

namespace {

class Moving {
 public:
  Moving(const Graph& graph, std::vector<LoweredStep>& steps)
      : graph_(graph),
        steps_(steps),
        maker_(graph.values().size(), steps.size()),
        first_reader_(graph.values().size(), steps.size()),
        moves_(steps.size(), false),
        before_(steps.size()),
        behind_(steps.size()) {
    for (std::size_t s = steps.size(); s-- > 0;) {
      for (ValueId v : steps[s].in) first_reader_[root(v)] = s;
      for (ValueId v : steps[s].out) maker_[v] = s;
    }
  }

  void run() {
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (attention_of(*steps_[s].op, steps_[s].attrs) &&
          !(s > 0 && belong_together(graph_, steps_[s - 1], steps_[s])))
        for (const std::size_t operand : {0, 1}) take_before(s, root(steps_[s].in[operand]));
      if (is_rope(s)) take_behind(maker_of(root(steps_[s].in[0])), s);
    }
    reorder();
  }

 private:
  ValueId root(ValueId v) const { return graph_.values()[v].root; }
  bool is_rope(std::size_t s) const { return rope_of(*steps_[s].op, steps_[s].attrs) != nullptr; }
  std::size_t maker_of(ValueId v) const { return maker_[v]; }  // steps_.size() for a leaf

  void take_before(std::size_t attention, ValueId operand) {
    const std::size_t rope = maker_of(operand);
    if (rope == steps_.size() || !is_rope(rope) || moves_[rope]) return;
    if (first_reader_[operand] == attention) moves_[rope] = true, before_[attention].push_back(rope);
  }

  // All operands of the RoPE step, including positions, must be available after the attention step.
  void take_behind(std::size_t attention, std::size_t rope) {
    if (attention == steps_.size() || !attention_backward_of(*steps_[attention].op, steps_[attention].attrs))
      return;
    const auto is_there = [&](ValueId v) {
      const std::size_t maker = maker_of(root(v));
      return maker == steps_.size() || maker <= attention;
    };
    if (std::ranges::all_of(steps_[rope].in, is_there))
      moves_[rope] = true, behind_[attention].push_back(rope);
  }

  void reorder() {
    std::vector<LoweredStep> ordered;
    const auto append = [&](std::size_t s) { ordered.push_back(std::move(steps_[s])); };
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (moves_[s]) continue;
      for (const std::size_t rope : before_[s]) append(rope);
      append(s);
      for (const std::size_t rope : behind_[s]) append(rope);
    }
    steps_ = std::move(ordered);
  }

  const Graph& graph_;
  std::vector<LoweredStep>& steps_;
  std::vector<std::size_t> maker_, first_reader_;          // for each root; steps_.size(): none
  std::vector<bool> moves_;                                // by step
  std::vector<std::vector<std::size_t>> before_, behind_;  // for each attention step, its RoPE steps
};

}  // namespace

void schedule_ropes(const Graph& graph, std::vector<LoweredStep>& steps) {
  Moving(graph, steps).run();
}

}  // namespace tg::cuda

#include "core/compile/fused_reductions.h"

#include <algorithm>

#include "core/compile/scheduler.h"

namespace tg {

const Op& fused_reduction_op =
    *define_op({.name = "fused_reduction",
                .infer = [](std::span<const Operand>, const Attrs&) -> std::vector<OutSpec> {
                  throw Error("made by the compiler, not recorded");
                },
                .not_differentiable = "it is made by the compiler",
                .roundings =
                    [](std::span<const Operand>, std::span<const Operand> out, const Attrs& attrs) {
                      const auto& a = attrs.as<FusedReduction>();
                      const Operand numbers[] = {{a.dtype, a.read}};
                      return static_cast<double>(a.chain.code.size()) +
                             (a.op->roundings ? a.op->roundings(numbers, out.last(1), a.reduce) : 1);
                    }});

int FusedReduction::stored() const {
  const auto last = chain.results.end() - 1, found = std::find(chain.results.begin(), last, *last);
  return found == last ? -1 : static_cast<int>(found - chain.results.begin());
}

std::string FusedReduction::text() const {
  FusedAttrs code = chain;
  code.results.clear();
  std::string s = code.text() + " → " + op->name + "(%" + std::to_string(chain.results.back()) +
                  ") over axes " + reduce.axes.text();
  for (std::size_t i = 0; i + 1 < chain.results.size(); ++i)
    s += (i ? ", %" : "; stores %") + std::to_string(chain.results[i]);
  return s;
}

const FusedAttrs* fused_text_of(const Op& op, const Attrs& attrs) {
  if (&op == &fused_op) return &attrs.as<FusedAttrs>();
  return &op == &fused_reduction_op ? &attrs.as<FusedReduction>().chain : nullptr;
}

std::string fused_text(const Op& op, const Attrs& attrs) {
  if (&op == &fused_op) return attrs.as<FusedAttrs>().text();
  return &op == &fused_reduction_op ? attrs.as<FusedReduction>().text() : std::string();
}

namespace {

class Reducing {
 public:
  Reducing(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs,
           const StepScheduler& scheduler)
      : graph_(graph), steps_(steps), scheduler_(scheduler), uses_(graph, steps, outputs) {}

  // A reduction reads only the result of the fused step, so it can always move to the position of that step.
  void run() {
    for (LoweredStep& s : steps_) {
      if (!s.op || !s.op->fuses_elementwise) continue;
      const std::int64_t maker = uses_.maker[value(s.in[0]).root];
      if (maker >= 0 && fits(static_cast<std::size_t>(maker), s))
        join(steps_[static_cast<std::size_t>(maker)], s);
    }
    std::erase_if(steps_, [](const LoweredStep& s) { return !s.op; });
  }

 private:
  const Value& value(ValueId v) const { return graph_.values()[v]; }

  bool fits(std::size_t at, const LoweredStep& reduction) const {
    const LoweredStep& chain = steps_[at];
    const LoweredStep* before = step_before(steps_, at);
    if (chain.op != &fused_op || (before && is_epilogue(*before, chain))) return false;
    const Value &read = value(reduction.in[0]), &made = value(read.root);
    if (!stays_fused(made.dtype, chain.attrs.as<FusedAttrs>().compute)) return false;
    const std::int64_t n = made.layout.numel();
    const bool is_all = n > 0 && made.layout.is_dense() && read.layout.is_dense() &&
                        read.layout.offset == 0 && read.layout.numel() == n;
    if (!is_all || !is_of_rows(read.layout, reduction.attrs.as<ReduceAttrs>().axes)) return false;
    const std::int64_t rows = value(reduction.out[0]).layout.numel(), length = n / rows;
    if (!scheduler_.joins_reduction(graph_, before, chain, rows, length)) return false;
    return std::ranges::none_of(chain.in,
                                [&](ValueId v) { return lies_across(value(v).layout, made.layout); });
  }

  // Whether the memory is dense and `axes` are its innermost axes.
  static bool is_of_rows(const Layout& l, const Axes& axes) {
    std::int64_t length = 1;
    for (std::int64_t a : axes) length *= l.shape[static_cast<int>(a)];
    return std::ranges::all_of(axes, [&](std::int64_t a) {
      const int axis = static_cast<int>(a);
      return l.shape[axis] == 1 || l.strides[axis] * l.shape[axis] <= length;
    });
  }

  // Whether an input and the result are contiguous along different axes. Elementwise kernels read such an
  // input in square tiles, and a tile does not contain complete rows.
  static bool lies_across(const Layout& in, const Layout& made) {
    bool along = true, across = false;
    for (int axis = 0; axis < made.rank(); ++axis) {
      if (made.shape[axis] == 1) continue;
      if (made.strides[axis] == 1)
        along = in.strides[axis] == 0 || in.strides[axis] == 1;
      else
        across = across || in.strides[axis] == 1;
    }
    return !along && across;
  }

  void join(LoweredStep& chain, LoweredStep& reduction) {
    const Value &read = value(reduction.in[0]), &made = value(read.root);
    FusedAttrs code = chain.attrs.as<FusedAttrs>();
    std::vector<std::int32_t> results;
    for (std::size_t i = 0; i < chain.out.size(); ++i) results.push_back(code.result(i));
    const auto at = static_cast<std::size_t>(std::ranges::find(chain.out, read.root) - chain.out.begin());
    if (--uses_.readers[read.root] > 0) {
      results.push_back(results[at]);
    } else {
      std::rotate(results.begin() + static_cast<std::ptrdiff_t>(at),
                  results.begin() + static_cast<std::ptrdiff_t>(at) + 1, results.end());
      chain.out.erase(chain.out.begin() + static_cast<std::ptrdiff_t>(at));
    }
    code.results = std::move(results);
    chain.out.push_back(reduction.out[0]);
    chain.attrs = FusedReduction{std::move(code), made.dtype,   made.layout,
                                 read.layout,     reduction.op, reduction.attrs.as<ReduceAttrs>()};
    chain.op = &fused_reduction_op;
    chain.node = reduction.node;
    reduction.op = nullptr;
  }

  const Graph& graph_;
  std::vector<LoweredStep>& steps_;
  const StepScheduler& scheduler_;
  Uses uses_;
};

}  // namespace

void reduce_fused(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs,
                  const StepScheduler& scheduler) {
  Reducing(graph, steps, outputs, scheduler).run();
}

}  // namespace tg

#include "core/compile/passes.h"

#include <algorithm>

namespace tg {

namespace {

class Adding {
 public:
  Adding(const Graph& graph, std::vector<LoweredStep>& steps, Joined& joined, const Outputs& outputs)
      : graph_(graph),
        steps_(steps),
        joined_(joined),
        outputs_(outputs),
        uses_(graph, steps, outputs.all()) {}

  void run() {
    for (LoweredStep& s : steps_)
      if (is_sum(s) && add_in_products(s)) s.op = nullptr;
    std::erase_if(steps_, [](const LoweredStep& s) { return !s.op; });
  }

 private:
  const Value& value(ValueId v) const { return graph_.values()[v]; }
  ValueId root_of(ValueId v) const { return value(v).root; }

  // Whether the step only adds its inputs, each once. A sum inside a larger fused step needs no separate pass
  // over memory. It would not be useful to move such a sum into a GEMM, because the GEMM would read the same
  // number of bytes as the fused step.
  static bool is_sum(const LoweredStep& s) {
    if (s.op != &fused_op || s.out.size() != 1) return false;
    const auto& chain = s.attrs.as<FusedAttrs>();
    std::vector<int> uses(s.in.size(), 0);
    for (const FusedAttrs::Instruction& i : chain.code) {
      if (i.op->adds != 1) return false;
      for (const FusedAttrs::Source& from : i.operands()) {
        if (from.kind == FusedAttrs::Source::constant) return false;
        if (from.kind == FusedAttrs::Source::input) ++uses[static_cast<std::size_t>(from.index)];
      }
    }
    return std::ranges::all_of(uses, [](int n) { return n == 1; });
  }

  bool add_in_products(const LoweredStep& sum) {
    const ValueId result = sum.out[0];
    std::vector<ValueId> terms;
    for (ValueId v : sum.in) {
      if (!lies_as(v, result)) return false;
      terms.push_back(root_of(v));
    }
    std::ranges::stable_sort(terms, {}, [&](ValueId v) { return uses_.maker[v]; });
    const Layout& of_product = value(terms.back()).layout;
    const bool is_alike = of_product == value(result).layout;
    const auto is_assigned = std::ranges::find(outputs_.assigned, result) != outputs_.assigned.end();
    if (!is_alike && is_assigned) return false;  // a fused step writes it directly into the parameter
    for (std::size_t i = 0; i < terms.size(); ++i)
      if (!(value(terms[i]).layout == of_product) || (i > 0 && !can_add(terms[i]))) return false;

    for (std::size_t i = 1; i < terms.size(); ++i) made(terms[i]).in.push_back(terms[i - 1]);
    uses_.maker[result] = uses_.maker[terms.back()];
    if (is_alike)
      made(result).out[0] = result;
    else
      joined_.emplace(terms.back(), Inside{result, of_product});
    return true;
  }

  // Whether v contains all elements of its root, and they have the same order in memory as in the result.
  bool lies_as(ValueId v, ValueId result) const {
    const Value &term = value(v), &root = value(term.root), &sum = value(result);
    return term.layout == sum.layout && sum.layout.is_dense() && root.layout.is_dense() &&
           root.layout.numel() == sum.layout.numel() && root.dtype == sum.dtype &&
           !joined_.contains(term.root);
  }

  // Whether the step that computes v can add an operand to v, and only the sum reads v.
  bool can_add(ValueId v) const {
    if (uses_.maker[v] < 0 || uses_.readers[v] != 1) return false;
    const LoweredStep& s = steps_[static_cast<std::size_t>(uses_.maker[v])];
    return s.op->addend == static_cast<int>(s.in.size());
  }

  LoweredStep& made(ValueId v) { return steps_[static_cast<std::size_t>(uses_.maker[v])]; }

  const Graph& graph_;
  std::vector<LoweredStep>& steps_;
  Joined& joined_;
  const Outputs& outputs_;
  Uses uses_;
};

}  // namespace

void add_in_products(const Graph& graph, std::vector<LoweredStep>& steps, Joined& joined,
                     const Outputs& outputs) {
  Adding(graph, steps, joined, outputs).run();
}

}  // namespace tg

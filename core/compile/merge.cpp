#include "core/compile/passes.h"

#include <algorithm>

#include "core/compile/scheduler.h"

namespace tg {

namespace {

// Maximum number of inputs plus outputs of a merged step. With more operands, a GPU has too few registers for
// enough loads in flight, and a second pass is cheaper.
constexpr std::size_t max_operands = 10;
static_assert(max_operands <= FusedAttrs::max_inputs);
// Maximum distance between merged steps. A limit lets long programs compile in linear time.
constexpr std::size_t window = 32;

class Merging {
 public:
  Merging(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs)
      : graph_(graph), steps_(steps), uses_(graph, steps, outputs) {}

  void run() {
    for (std::size_t b = 0; b < steps_.size(); ++b)
      while (is_fused(b) && merge_one_into(b)) {
      }
    std::erase_if(steps_, [](const LoweredStep& s) { return !s.op; });
    for (LoweredStep& s : steps_)
      if (s.op == &fused_op && s.out.size() > 1) round_stored(s);
  }

 private:
  const Value& value(ValueId v) const { return graph_.values()[v]; }
  bool is_fused(std::size_t s) const { return steps_[s].op == &fused_op; }

  // Merges an earlier step into step b, if one is suitable. Only pointwise steps may be between the two, so
  // that buffers do not live much longer than before. None of these steps may read the earlier step's
  // results.
  bool merge_one_into(std::size_t b) {
    for (std::size_t a = b; a-- > 0 && b - a <= window;) {
      if (!steps_[a].op) continue;
      if (!is_fused(a)) return false;
      if (is_behind_its_product(a) || !fits(steps_[a], steps_[b]) || read_between(a, b)) continue;
      merge(steps_[a], steps_[b]);
      return true;
    }
    return false;
  }

  bool is_behind_its_product(std::size_t s) const {
    const LoweredStep* before = step_before(steps_, s);
    return before && is_epilogue(*before, steps_[s]);
  }

  bool read_between(std::size_t a, std::size_t b) const {
    for (std::size_t s = a + 1; s < b; ++s)
      for (ValueId v : steps_[s].in)
        if (steps_[s].op && is_output(steps_[a], value(v).root)) return true;
    return false;
  }

  static bool is_output(const LoweredStep& s, ValueId root) {
    return std::find(s.out.begin(), s.out.end(), root) != s.out.end();
  }

  // Whether two values have the same elements in the same order. They do if they are the same value, or equal
  // views of one value.
  bool same(ValueId v, ValueId w) const {
    return v == w || (value(v).root == value(w).root && value(v).dtype == value(w).dtype &&
                      value(v).layout == value(w).layout);
  }
  std::size_t index_in(const std::vector<ValueId>& list, ValueId v) const {
    const auto found = std::find_if(list.begin(), list.end(), [&](ValueId w) { return same(v, w); });
    return static_cast<std::size_t>(found - list.begin());
  }

  // Whether v is not broadcast. A broadcast row or number is read from the cache, so sharing the read saves
  // nothing.
  bool is_whole(ValueId v) const {
    const Layout& l = value(v).layout;
    for (int axis = 0; axis < l.rank(); ++axis)
      if (l.strides[axis] == 0 && l.shape[axis] > 1) return false;
    return true;
  }

  // Number of times that b reads a's output.
  std::ptrdiff_t reads(const LoweredStep& b, ValueId output) const {
    return std::count_if(b.in.begin(), b.in.end(), [&](ValueId v) { return same(v, output); });
  }

  bool fits(const LoweredStep& a, const LoweredStep& b) const {
    const auto &first = a.attrs.as<FusedAttrs>(), &second = b.attrs.as<FusedAttrs>();
    // All results must have one layout, because the step visits them in one order.
    if (first.compute != second.compute || !(value(a.out[0]).layout == value(b.out[0]).layout)) return false;
    bool shares = false;
    std::size_t inputs = a.in.size();
    for (ValueId v : b.in) {
      if (is_output(a, value(v).root)) {
        // A view that moves elements cannot be merged. A value that storing would change cannot be merged
        // either.
        if (!same(v, value(v).root) || !stays_fused(value(v).dtype, first.compute)) return false;
        shares = true;
      } else if (index_in(a.in, v) < a.in.size()) {
        shares = shares || is_whole(v);
      } else {
        ++inputs;
      }
    }
    if (value(b.out[0]).layout.numel() == 1 && makes_wait(a, b)) return false;
    std::size_t outputs = b.out.size();
    for (ValueId v : a.out) outputs += uses_.readers[v] > reads(b, v);
    return shares && inputs + outputs <= max_operands && outputs <= FusedAttrs::max_outputs &&
           first.code.size() + second.code.size() <= FusedAttrs::max_fused;
  }

  // Whether merging would delay the readers of one step's result until the operands of the other step exist.
  // For tensors, the saved pass over memory is worth the delay. For a single number, such as the weight of a
  // row in a mean, merging saves no pass, and the delayed steps may keep much memory alive
  // (core/compile/order.cpp).
  bool makes_wait(const LoweredStep& a, const LoweredStep& b) const {
    const auto is_made = [&](ValueId v) { return is_output(a, value(v).root); };
    const auto is_of_b_alone = [&](ValueId v) { return !is_made(v) && index_in(a.in, v) == a.in.size(); };
    const auto is_of_a_alone = [&](ValueId v) { return index_in(b.in, v) == b.in.size(); };
    const auto has_others = [&](ValueId v) { return uses_.readers[v] > reads(b, v); };
    return (std::ranges::any_of(a.out, has_others) && std::ranges::any_of(b.in, is_of_b_alone)) ||
           (std::ranges::none_of(b.in, is_made) && std::ranges::any_of(a.in, is_of_a_alone));
  }

  // Inserts a's code before b's code.
  void merge(LoweredStep& a, LoweredStep& b) {
    using Source = FusedAttrs::Source;
    FusedAttrs code = a.attrs.as<FusedAttrs>();
    const auto& second = b.attrs.as<FusedAttrs>();
    const auto shift = static_cast<std::int32_t>(code.code.size());
    std::vector<ValueId> in = a.in;
    std::vector<Source> sources;  // per input of b
    for (ValueId v : b.in) {
      const std::size_t made = index_in(a.out, v), read = index_in(in, v);
      if (made < a.out.size()) {
        sources.push_back({Source::result, code.result(made)});
      } else {
        sources.push_back({Source::input, static_cast<std::int32_t>(read)});
        if (read == in.size()) {
          in.push_back(v);
          continue;
        }
      }
      --uses_.readers[value(v).root];
    }
    std::vector<ValueId> out;
    std::vector<std::int32_t> results;
    for (std::size_t i = 0; i < a.out.size(); ++i) {
      if (uses_.readers[a.out[i]] == 0) continue;
      out.push_back(a.out[i]);
      results.push_back(code.result(i));
    }
    for (std::size_t i = 0; i < b.out.size(); ++i) {
      out.push_back(b.out[i]);
      results.push_back(second.result(i) + shift);
    }
    code.append(second, sources);
    code.results = results.size() > 1 ? std::move(results) : std::vector<std::int32_t>();
    b.in = std::move(in), b.out = std::move(out), b.attrs = std::move(code);
    a.op = nullptr;
  }

  // If a 16-bit value is stored, also rounds it for readers inside the step. All readers then see the same
  // number, and merging does not change results. If a value is not stored, it is not rounded, as in any fused
  // step.
  void round_stored(LoweredStep& s) const {
    using Source = FusedAttrs::Source;
    const auto& old = s.attrs.as<FusedAttrs>();
    std::vector<bool> rounds(old.code.size(), false);
    for (std::size_t i = 0; i < s.out.size(); ++i) {
      const DType t = value(s.out[i]).dtype;
      const auto r = static_cast<std::size_t>(old.results[i]);
      rounds[r] = (t == bf16 || t == f16) && !old.code[r].op->converts && is_read(old, old.results[i]);
    }
    FusedAttrs code{old.compute, {}, old.constants};
    std::vector<std::int32_t> moved;  // per old instruction: index of the new one
    for (std::size_t c = 0; c < old.code.size(); ++c) {
      FusedAttrs::Instruction i = old.code[c];
      for (Source& o : i.operands())
        if (o.kind == Source::result) o.index = moved[static_cast<std::size_t>(o.index)];
      code.code.push_back(i);
      moved.push_back(static_cast<std::int32_t>(code.code.size()) - 1);
      if (!rounds[c]) continue;
      code.code.push_back({&cast_op, i.dtype, 1, {{Source::result, moved.back()}}});
      ++moved.back();
    }
    for (const std::int32_t r : old.results) code.results.push_back(moved[static_cast<std::size_t>(r)]);
    s.attrs = std::move(code);
  }

  static bool is_read(const FusedAttrs& f, std::int32_t instruction) {
    for (const FusedAttrs::Instruction& c : f.code)
      for (const FusedAttrs::Source& o : c.operands())
        if (o.kind == FusedAttrs::Source::result && o.index == instruction) return true;
    return false;
  }

  const Graph& graph_;
  std::vector<LoweredStep>& steps_;
  Uses uses_;
};

}  // namespace

void merge_fused(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs) {
  Merging(graph, steps, outputs).run();
}

}  // namespace tg

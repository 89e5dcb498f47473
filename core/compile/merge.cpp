#include "core/compile/merge.h"

#include <algorithm>

namespace tg {

namespace {

// A merged step's operands: above this a GPU has too few registers to keep enough of each on its way, and a
// second pass costs less.
constexpr std::size_t max_operands = 10;
// How far back a step looks for others, so that long rows of steps take linear time.
constexpr std::size_t window = 32;

class Merging {
 public:
  Merging(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> wanted)
      : graph_(graph), steps_(steps), readers_(graph.values().size(), 0) {
    for (const LoweredStep& s : steps_)
      for (ValueId v : s.in) ++readers_[value(v).root];
    for (ValueId v : wanted) ++readers_[value(v).root];
  }

  void run() {
    for (std::size_t b = 0; b < steps_.size(); ++b)
      while (is_fused(b) && take_one(b)) {
      }
    std::erase_if(steps_, [](const LoweredStep& s) { return !s.op; });
    for (LoweredStep& s : steps_)
      if (s.op == &fused_op && s.out.size() > 1) round_stored(s);
  }

 private:
  const Value& value(ValueId v) const { return graph_.values()[v]; }
  bool is_fused(std::size_t s) const { return steps_[s].op == &fused_op; }

  // Takes an earlier step into step b, if there is one that fits. Only pointwise steps may lie between the
  // two, so that buffers live hardly longer than before, and none that reads what moves behind it.
  bool take_one(std::size_t b) {
    for (std::size_t a = b; a-- > 0 && b - a <= window;) {
      if (!steps_[a].op) continue;
      if (!is_fused(a)) return false;
      if (is_epilogue(a) || !fits(steps_[a], steps_[b]) || read_between(a, b)) continue;
      take(steps_[a], steps_[b]);
      return true;
    }
    return false;
  }

  // A product may do a gelu_tanh behind it by itself, if that is all of the step (backends/cuda/epilogue.h).
  bool is_epilogue(std::size_t s) const {
    const auto& code = steps_[s].attrs.as<FusedAttrs>().code;
    if (code.size() != 1 || code[0].op->name != "gelu_tanh") return false;
    while (s > 0 && !steps_[s - 1].op) --s;
    return s > 0 && steps_[s - 1].op->name == "matmul";
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

  // The same elements in the same order: one value, or views that are alike.
  bool same(ValueId v, ValueId w) const {
    return v == w || (value(v).root == value(w).root && value(v).dtype == value(w).dtype &&
                      value(v).layout == value(w).layout);
  }
  std::size_t place_in(const std::vector<ValueId>& list, ValueId v) const {
    const auto found = std::find_if(list.begin(), list.end(), [&](ValueId w) { return same(v, w); });
    return static_cast<std::size_t>(found - list.begin());
  }

  // A row or a number that both broadcast is read from the cache by either.
  bool is_whole(ValueId v) const {
    const Layout& l = value(v).layout;
    for (int axis = 0; axis < l.rank(); ++axis)
      if (l.strides[axis] == 0 && l.shape[axis] > 1) return false;
    return true;
  }

  // How often b reads a's output.
  std::ptrdiff_t reads(const LoweredStep& b, ValueId output) const {
    return std::count_if(b.in.begin(), b.in.end(), [&](ValueId v) { return same(v, output); });
  }

  bool fits(const LoweredStep& a, const LoweredStep& b) const {
    const auto &first = a.attrs.as<FusedAttrs>(), &second = b.attrs.as<FusedAttrs>();
    // One order of memory, so that one way through it suits all results.
    if (first.compute != second.compute || !(value(a.out[0]).layout == value(b.out[0]).layout)) return false;
    bool shares = false;
    std::size_t inputs = a.in.size();
    for (ValueId v : b.in) {
      if (is_output(a, value(v).root)) {
        // Neither elements that lie elsewhere, nor those that storing changes.
        if (!same(v, value(v).root) || !stays_in_chain(value(v).dtype, first.compute)) return false;
        shares = true;
      } else if (place_in(a.in, v) < a.in.size()) {
        shares = shares || is_whole(v);
      } else {
        ++inputs;
      }
    }
    std::size_t outputs = b.out.size();
    for (ValueId v : a.out) outputs += readers_[v] > reads(b, v);
    return shares && inputs + outputs <= max_operands && inputs <= FusedAttrs::max_inputs &&
           outputs <= FusedAttrs::max_outputs &&
           first.code.size() + second.code.size() <= FusedAttrs::max_chain;
  }

  // Puts a's code in front of b's.
  void take(LoweredStep& a, LoweredStep& b) {
    using Operand = FusedAttrs::Operand;
    FusedAttrs code = a.attrs.as<FusedAttrs>();
    const auto& second = b.attrs.as<FusedAttrs>();
    const auto shift = static_cast<std::int32_t>(code.code.size());
    std::vector<ValueId> in = a.in;
    std::vector<Operand> place;  // of b's inputs
    for (ValueId v : b.in) {
      const std::size_t made = place_in(a.out, v), read = place_in(in, v);
      if (made < a.out.size()) {
        place.push_back({Operand::result, code.result(made)});
      } else {
        place.push_back({Operand::input, static_cast<std::int32_t>(read)});
        if (read == in.size()) {
          in.push_back(v);
          continue;
        }
      }
      --readers_[value(v).root];
    }
    std::vector<ValueId> out;
    std::vector<std::int32_t> results;
    for (std::size_t i = 0; i < a.out.size(); ++i) {
      if (readers_[a.out[i]] == 0) continue;
      out.push_back(a.out[i]);
      results.push_back(code.result(i));
    }
    for (std::size_t i = 0; i < b.out.size(); ++i) {
      out.push_back(b.out[i]);
      results.push_back(second.result(i) + shift);
    }
    code.append(second, place);
    code.results = results.size() > 1 ? std::move(results) : std::vector<std::int32_t>();
    b.in = std::move(in), b.out = std::move(out), b.attrs = std::move(code);
    a.op = nullptr;
  }

  // A value of a half type that is stored is rounded for its readers in the step too: whoever reads it gets
  // the same number, in this step or in another, and whether steps were merged does not show. What is not
  // stored keeps its bits, as in any chain.
  void round_stored(LoweredStep& s) const {
    using Operand = FusedAttrs::Operand;
    const auto& old = s.attrs.as<FusedAttrs>();
    std::vector<bool> rounds(old.code.size(), false);
    for (std::size_t i = 0; i < s.out.size(); ++i) {
      const DType t = value(s.out[i]).dtype;
      const auto r = static_cast<std::size_t>(old.results[i]);
      rounds[r] = (t == bf16 || t == f16) && old.code[r].op != &cast_op && is_read(old, old.results[i]);
    }
    FusedAttrs code{old.compute, {}, old.constants};
    std::vector<std::int32_t> place;  // of the old instructions' values
    for (std::size_t c = 0; c < old.code.size(); ++c) {
      FusedAttrs::Instruction i = old.code[c];
      for (Operand& o : i.operands())
        if (o.kind == Operand::result) o.index = place[static_cast<std::size_t>(o.index)];
      code.code.push_back(i);
      place.push_back(static_cast<std::int32_t>(code.code.size()) - 1);
      if (!rounds[c]) continue;
      code.code.push_back({&cast_op, i.dtype, 1, {{Operand::result, place.back()}}});
      ++place.back();
    }
    for (const std::int32_t r : old.results) code.results.push_back(place[static_cast<std::size_t>(r)]);
    s.attrs = std::move(code);
  }

  static bool is_read(const FusedAttrs& f, std::int32_t instruction) {
    for (const FusedAttrs::Instruction& c : f.code)
      for (const FusedAttrs::Operand& o : c.operands())
        if (o.kind == FusedAttrs::Operand::result && o.index == instruction) return true;
    return false;
  }

  const Graph& graph_;
  std::vector<LoweredStep>& steps_;
  std::vector<int> readers_;  // of each root: inputs of steps, and wanted values
};

}  // namespace

void merge_fused(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> wanted) {
  Merging(graph, steps, wanted).run();
}

}  // namespace tg

#include "backends/cpu/expression.h"

#include <algorithm>
#include <vector>

#include "backends/cpu/pointwise.h"

namespace tg::cpu {

namespace {

using Expression = AttentionExpression;
using Value = Expression::Value;

class Planner {
 public:
  using Class = ExpressionPlan::Class;
  Planner(const Expression& e, const KernelSet& set) : e_(e), set_(set) {}

  std::shared_ptr<const ExpressionPlan> plan(bool backward, std::int64_t needed) {
    const auto sums = [&](std::size_t c) {
      return backward && (needed >> e_.captures[c].tensor & 1) && e_.slopes[c].kind != Value::none;
    };
    std::vector<Value> results{e_.mask, e_.score};
    if (backward) results.push_back(e_.score_slope);
    for (std::size_t c = 0; c < e_.captures.size(); ++c)
      if (sums(c)) results.push_back(e_.slopes[c]);
    need(results);
    place_constants(results);
    classify();
    for (int c = 0; c < ExpressionPlan::classes; ++c) {
      p_.first[c] = steps_;
      place(static_cast<Class>(c));
    }
    p_.first[ExpressionPlan::classes] = steps_;
    p_.mask = pair_slot(e_.mask), p_.result = pair_slot(e_.score);
    const bool always_1 = e_.score_slope == Value{Value::constant, 0, 1};
    if (backward && e_.score.kind != Value::none && !always_1) p_.slope = pair_slot(e_.score_slope);
    for (std::size_t c = 0; c < e_.captures.size(); ++c) {
      ExpressionPlan::Capture& to = p_.capture[c];
      to.rank = static_cast<int>(e_.captures[c].index.size());
      to.of = capture_class_[c];
      to.sums = sums(c);
      for (int a = 0; a < to.rank && needed_capture_[c]; ++a) {
        const Value& index = e_.captures[c].index[static_cast<std::size_t>(a)];
        to.index[a] = slot_in(to.of, index);
        to.index_of[a] = to.of == ExpressionPlan::pair ? to.of : class_of(index);
      }
      if (!to.sums) continue;
      if (e_.slopes[c].kind == Value::constant)
        to.constant = e_.slopes[c].number;
      else
        to.slope = pair_slot(e_.slopes[c]);
    }
    return std::make_shared<const ExpressionPlan>(p_);
  }

 private:
  // Marks the code that the results depend on.
  void need(const std::vector<Value>& results) {
    needed_code_.assign(e_.code.size(), false), needed_capture_.assign(e_.captures.size(), false);
    std::vector<Value> todo = results;
    while (!todo.empty()) {
      const Value v = todo.back();
      todo.pop_back();
      const auto k = static_cast<std::size_t>(v.index);
      if (v.kind == Value::result && !needed_code_[k]) {
        needed_code_[k] = true;
        todo.insert(todo.end(), e_.code[k].in.begin(), e_.code[k].in.end());
      } else if (v.kind == Value::capture && !needed_capture_[k]) {
        needed_capture_[k] = true;
        todo.insert(todo.end(), e_.captures[k].index.begin(), e_.captures[k].index.end());
      }
    }
  }

  void place_constants(const std::vector<Value>& results) {
    const auto add = [&](const Value& v) {
      if (v.kind == Value::constant && number_of(v) == p_.constants) {
        p_.constant[p_.constants++] = v.number;
        ++p_.slots;
      }
    };
    for (const Value& v : results) add(v);
    for (const Expression::Instruction& i : e_.code)
      for (const Value& v : i.in) add(v);
    for (const Expression::Capture& c : e_.captures)
      for (const Value& v : c.index) add(v);
  }

  Class class_of(const Value& v) const {
    switch (v.kind) {
      case Value::score:
        return ExpressionPlan::pair;
      case Value::i:
        return ExpressionPlan::query;
      case Value::t:
        return ExpressionPlan::key;
      case Value::capture:
        return capture_class_[static_cast<std::size_t>(v.index)];
      case Value::result:
        return code_class_[static_cast<std::size_t>(v.index)];
      default:
        return ExpressionPlan::head;
    }
  }
  Class joined(const std::vector<Value>& values) const {
    Class c = ExpressionPlan::head;
    for (const Value& v : values)
      if (const Class own = class_of(v); own != ExpressionPlan::head)
        c = c == ExpressionPlan::head || c == own ? own : ExpressionPlan::pair;
    return c;
  }
  void classify() {
    code_class_.assign(e_.code.size(), ExpressionPlan::pair);
    capture_class_.assign(e_.captures.size(), ExpressionPlan::pair);
    for (std::size_t k = 0; k <= e_.code.size(); ++k) {
      for (std::size_t c = 0; c < e_.captures.size(); ++c)
        if (static_cast<std::size_t>(e_.captures[c].before) == k)
          capture_class_[c] = joined(e_.captures[c].index);
      if (k == e_.code.size()) break;
      const Expression::Instruction& i = e_.code[k];
      const auto is = [&](std::size_t n, Value::Kind kind) { return i.in[n].kind == kind; };
      const bool difference =
          i.op->adds == -1 && ((is(0, Value::i) && is(1, Value::t)) || (is(0, Value::t) && is(1, Value::i)));
      code_class_[k] = difference ? ExpressionPlan::difference : joined(i.in);
    }
  }

  // Appends the steps of a class.
  void place(Class c) {
    for (std::size_t k = 0; k <= e_.code.size(); ++k) {
      for (std::size_t n = 0; n < e_.captures.size(); ++n)
        if (needed_capture_[n] && static_cast<std::size_t>(e_.captures[n].before) == k &&
            capture_class_[n] == c)
          p_.step[steps_++] = {nullptr, static_cast<int>(n), {-1, -1, -1}, captures_[n] = p_.slots++};
      if (k == e_.code.size() || !needed_code_[k] || code_class_[k] != c) continue;
      const Expression::Instruction& i = e_.code[k];
      ExpressionPlan::Step s{block_function(set_, *i.op, i.dtype, e_.compute), -1, {-1, -1, -1}, 0};
      for (std::size_t o = 0; o < i.in.size(); ++o) s.source[o] = slot_in(c, i.in[o]);
      s.slot = results_[k] = p_.slots++;
      p_.step[steps_++] = s;
    }
  }

  // The block of a value, as a step of class c reads it.
  int slot_in(Class c, const Value& v) { return c == ExpressionPlan::pair ? pair_slot(v) : slot(v); }
  int pair_slot(const Value& v) {
    const Class own = class_of(v);
    const int from = slot(v);
    if (from < 0 || v.kind == Value::t || (own != ExpressionPlan::key && own != ExpressionPlan::difference))
      return from;
    for (int k = 0; k < p_.spreads; ++k)
      if (p_.spread[k].from == from) return p_.spread[k].to;
    p_.spread[p_.spreads++] = {own, from, p_.slots};
    return p_.slots++;
  }

  // The number of a constant; the count of constants if it has none yet.
  int number_of(const Value& v) const {
    const double *first = p_.constant, *end = first + p_.constants;
    return static_cast<int>(std::find(first, end, v.number) - first);
  }
  int slot(const Value& v) const {
    switch (v.kind) {
      case Value::none:
        return -1;
      case Value::constant:
        return ExpressionPlan::arguments + number_of(v);
      case Value::capture:
        return captures_[v.index];
      case Value::result:
        return results_[v.index];
      default:
        return v.kind - Value::score;
    }
  }

  const Expression& e_;
  const KernelSet& set_;
  ExpressionPlan p_;
  int steps_ = 0;
  std::vector<bool> needed_code_, needed_capture_;
  std::vector<Class> code_class_, capture_class_;
  int results_[Expression::max_code] = {}, captures_[Expression::max_captures] = {};
};

}  // namespace

std::shared_ptr<const ExpressionPlan> plan_expression(const Step& step, const KernelSet& set) {
  if (const PagedAttentionAttrs* a = paged_attention_of(*step.op, step.attrs))
    return a->expression ? Planner(*a->expression, set).plan(false, 0) : nullptr;
  const AttentionAttrs* a = attention_of(*step.op, step.attrs);
  if (!a) a = attention_backward_of(*step.op, step.attrs);
  return a && a->expression ? Planner(*a->expression, set).plan(a->backward, a->needs_z_captured) : nullptr;
}

}  // namespace tg::cpu

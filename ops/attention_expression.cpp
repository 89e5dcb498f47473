// Records score and mask functions, and converts the recorded graph to straight-line code. The derivatives of
// the score use the gradients of the ops.
#include <tilegrad/ops/attention_expression.h>

#include <algorithm>
#include <cmath>

#include "ops/common.h"

namespace tg {

extern const Op &add_op, &sub_op, &mul_op, &div_op, &tanh_op, &less_op, &less_equal_op, &greater_op,
    &greater_equal_op, &logical_and_op;

using Expression = AttentionExpression;

AttentionExpression::Inputs AttentionExpression::depends(const Value& v) const {
  if (v.kind == Value::none || v.kind == Value::constant) return 0;
  if (v.kind == Value::capture) return captures[static_cast<std::size_t>(v.index)].depends;
  if (v.kind == Value::result) return code[static_cast<std::size_t>(v.index)].depends;
  return static_cast<Inputs>(1U << v.kind);
}

namespace detail {

class ExpressionRecorder : public std::enable_shared_from_this<ExpressionRecorder> {
 public:
  ExpressionRecorder(DType compute, const Where& where) : where_(where) {
    e_.compute = compute;
    for (const char* name : {"score", "b", "h", "i", "t"}) leaves_.push_back(graph_.input(name, {}, compute));
  }

  std::shared_ptr<const Expression> record(const ScoreFunction& score, const ScoreFunction& mask,
                                           Tensors& captured, PlainAttention& plain) {
    Tensor seen = called(mask, "mask"), a = called(score, "score");
    if (seen.defined() && seen.dtype() == boolean && !plain.top_left) seen = without_bounds(seen, plain);
    if (a.defined()) a = without_cap(a, plain);
    if (!seen.defined() && !a.defined()) return nullptr;
    captured.insert(captured.end(), captured_.begin(), captured_.end());
    if (seen.defined()) {
      if (seen.dtype() != boolean)
        refuse<DTypeError>("mask", "it returns " + seen.text() + ", expected bool", where_);
      build("mask", {seen});
      e_.mask = now(seen);
      if (e_.depends(e_.mask) & 1U << Expression::Value::score)
        refuse("mask", "it reads the score; let the score function return −∞ instead", where_);
      for (Expression::Capture& c : e_.captures) c.in_mask = true;
      e_.mask_text = text(e_.mask);
    }
    if (a.defined()) {
      if (a.dtype() != e_.compute)
        refuse<DTypeError>(
            "score", "it returns " + a.text() + ", expected " + std::string(name_of(e_.compute)), where_);
      build("score", {a});
      e_.score = now(a);
      e_.score_text = text(e_.score);
    }
    e_.captured = static_cast<int>(captured_.size());
    e_.slopes.resize(e_.captures.size());
    if (a.defined()) differentiate(a);
    return std::make_shared<const Expression>(std::move(e_));
  }

  Tensor at(const Tensor& x, std::initializer_list<TensorArg> index, const Where& where) {
    if (!part_)
      throw Error(in_context("[flash_attn] at() was called after the function had returned", where));
    if (!x.defined() || graph_.has(x)) refuse(part_, "at() needs a tensor of the model", where);
    if (static_cast<std::int64_t>(index.size()) != x.rank())
      refuse<ShapeError>(part_, "at() got " + std::to_string(index.size()) + " indices for " + x.text(),
                         where);
    Leaf leaf;
    for (const TensorArg& n : index) {
      if (n.is_number()) {
        leaf.index.push_back(full(graph_, {}, n.number(), e_.compute));
      } else if (n.is_absent() || !graph_.has(n.tensor()) || n.tensor().rank() != 0) {
        refuse(part_, "an index of at() must be a number or a scalar of the expression", where);
      } else {
        leaf.index.push_back(n.tensor());
      }
    }
    const auto known = std::find(captured_.begin(), captured_.end(), x);
    leaf.tensor = static_cast<int>(known - captured_.begin());
    if (known == captured_.end()) captured_.push_back(x);
    if (leaf.tensor >= Expression::max_captured)
      refuse(part_, "more than " + std::to_string(Expression::max_captured) + " captured tensors", where);
    leaf.value = graph_.input("capture", {}, x.dtype() == boolean ? boolean : e_.compute, where);
    captures_.push_back(leaf);
    return leaf.value;
  }

 private:
  using Value = Expression::Value;
  // A call of at().
  struct Leaf {
    Tensor value;
    int tensor = 0;
    Tensors index;
  };

  template <class E = Error>
  [[noreturn]] static void refuse(const std::string& part, const std::string& what, const Where& where) {
    throw E(in_context("[flash_attn] " + part + ": " + what, where));
  }

  Tensor called(const ScoreFunction& f, const char* part) {
    if (!f) return {};
    part_ = part;
    ScoreAt x;
    x.score = leaves_[0], x.b = leaves_[1], x.h = leaves_[2], x.i = leaves_[3], x.t = leaves_[4];
    x.recorder_ = shared_from_this();  // the function may keep a copy of x
    Tensor y;
    try {
      y = f(x);
    } catch (const Error& e) {
      part_ = nullptr;
      if (std::string_view(e.what()).find("different graphs") == std::string_view::npos) throw;
      refuse(part, "it uses a tensor of the model; write x.at(tensor, {index, …})", where_);
    }
    part_ = nullptr;
    if (!y.defined() || !graph_.has(y) || y.rank() != 0)
      refuse(part, "it must return a scalar of the expression", where_);
    return y;
  }

  // by_i·i + by_t·t + number, if the value has such a form
  struct Linear {
    double by_i = 0, by_t = 0, number = 0;
    bool exists = false;
  };
  // The linear form of each value.
  std::vector<Linear> linear_forms() const {
    std::vector<Linear> forms(graph_.values().size());
    forms[leaves_[3].id()] = {1, 0, 0, true}, forms[leaves_[4].id()] = {0, 1, 0, true};
    for (const Node& node : graph_.nodes()) {
      Linear& out = forms[node.first_out];
      if (node.op == &full_op) out = {0, 0, node.attrs.as<FullAttrs>().value, true};
      const double by = node.op == &add_op ? 1 : node.op == &sub_op ? -1 : 0;
      if (by == 0) continue;
      const Linear &x = forms[node.in[0]], &y = forms[node.in[1]];
      out = {x.by_i + by * y.by_i, x.by_t + by * y.by_t, x.number + by * y.number, x.exists && y.exists};
    }
    return forms;
  }

  // Removes the conditions t − i ≤ n and i − t ≤ n from a conjunction, and adds them to the options. Returns
  // an undefined tensor if nothing remains.
  Tensor without_bounds(const Tensor& seen, PlainAttention& plain) {
    const std::vector<Linear> forms = linear_forms();
    std::vector<bool> visited(forms.size());
    Tensors factors{seen}, kept;
    for (std::size_t k = 0; k < factors.size(); ++k) {
      const Tensor factor = factors[k];
      if (visited[factor.id()]) continue;
      visited[factor.id()] = true;
      const Node& node = graph_.node_of(factor.id());
      if (node.op == &logical_and_op)
        for (const ValueId v : node.in) factors.push_back(graph_.tensor(v));
      else if (!take_bound(node, forms, plain))
        kept.push_back(factor);
    }
    Tensor rest;
    for (const Tensor& factor : kept) rest = rest.defined() ? logical_and(rest, factor) : factor;
    return rest.defined() ? cast(rest, boolean) : rest;
  }

  // Adds a comparison to the options if it bounds t − i or i − t by a number.
  bool take_bound(const Node& node, const std::vector<Linear>& forms, PlainAttention& plain) const {
    const bool less = node.op == &less_op || node.op == &less_equal_op,
               greater = node.op == &greater_op || node.op == &greater_equal_op,
               strict = node.op == &less_op || node.op == &greater_op;
    if (!less && !greater) return false;
    const Linear &a = forms[node.in[0]], &b = forms[node.in[1]];
    if (!a.exists || !b.exists) return false;
    // by_t·t + by_i·i ≤ limit
    const double sign = less ? 1 : -1, by_t = sign * (a.by_t - b.by_t), by_i = sign * (a.by_i - b.by_i);
    double limit = sign * (b.number - a.number);
    limit = strict ? std::ceil(limit) - 1 : std::floor(limit);
    if (std::abs(by_t) != 1 || by_i != -by_t || !(limit >= 0 && limit < 0x1p31)) return false;
    const auto keys = static_cast<std::int64_t>(limit);
    std::int64_t& window = by_t > 0 ? plain.window_right : plain.window_left;
    if (by_t > 0 && keys == 0)
      plain.causal = true;
    else
      window = window < 0 ? keys : std::min(window, keys);
    return true;
  }

  // Returns an undefined tensor if the score does not change, or only by a soft cap, which becomes an option.
  Tensor without_cap(const Tensor& a, PlainAttention& plain) const {
    const auto inputs_of = [&](const Tensor& x, const Op& op) {
      const Node& node = graph_.node_of(x.id());
      return node.op == &op ? Tensors{graph_.tensor(node.in[0]), graph_.tensor(node.in[1])} : Tensors();
    };
    const auto number = [&](const Tensor& x) {
      const Node& node = graph_.node_of(x.id());
      return node.op == &full_op ? node.attrs.as<FullAttrs>().value : 0;
    };
    if (a == leaves_[0]) return {};
    Tensors product = inputs_of(a, mul_op);
    if (plain.softcap != 0 || product.empty()) return a;
    if (number(product[1]) > 0) std::swap(product[0], product[1]);
    const Node& node = graph_.node_of(product[1].id());
    const double cap = number(product[0]);
    if (!(cap > 0) || node.op != &tanh_op) return a;
    const Tensors quotient = inputs_of(graph_.tensor(node.in[0]), div_op);
    if (quotient.empty() || !(quotient[0] == leaves_[0]) || number(quotient[1]) != cap) return a;
    plain.softcap = cap;
    return {};
  }

  Value now(const Tensor& x) const { return values_[x.id()]; }

  // Appends the code that computes these tensors.
  void build(const char* part, const Tensors& outputs) {
    const std::deque<Node>& nodes = graph_.nodes();
    values_.resize(graph_.values().size());
    std::vector<bool> needed(nodes.size());
    const auto need = [&](ValueId v) { needed[graph_.values()[v].node] = true; };
    for (const Tensor& x : outputs) need(x.id());
    for (std::size_t n = nodes.size(); n-- > 0;) {
      if (!needed[n]) continue;
      for (const ValueId v : nodes[n].in) need(v);
      if (const Leaf* leaf = leaf_of(nodes[n].first_out))
        for (const Tensor& x : leaf->index) need(x.id());
    }
    for (std::size_t n = 0; n < nodes.size(); ++n)
      if (Value& v = values_[nodes[n].first_out]; needed[n] && v.kind == Value::none)
        v = compiled(part, nodes[n]);
  }

  const Leaf* leaf_of(ValueId v) const {
    for (const Leaf& leaf : captures_)
      if (leaf.value.id() == v) return &leaf;
    return nullptr;
  }

  Value compiled(const char* part, const Node& node) {
    const ValueId out = node.first_out;
    for (std::size_t k = 0; k < leaves_.size(); ++k)
      if (leaves_[k].id() == out) return {static_cast<Value::Kind>(Value::score + k)};
    if (const Leaf* leaf = leaf_of(out)) return captured(part, *leaf, node.where);
    if (node.op == &full_op) return {Value::constant, 0, node.attrs.as<FullAttrs>().value};
    if (node.op->view && node.outs == 1) return values_[node.in[0]];
    if (!node.op->pointwise)
      refuse(part,
             node.op->name + " is not a pointwise op; an expression computes one pair of a query and a key",
             node.where);
    const DType dtype = graph_.values()[out].dtype;
    if (dtype != e_.compute && dtype != boolean)
      refuse<DTypeError>(part,
                         node.op->name + " returns " + std::string(name_of(dtype)) + ", expected " +
                             std::string(name_of(e_.compute)) + " or bool",
                         node.where);
    Expression::Instruction i{node.op, node.attrs, {}, dtype};
    for (const ValueId v : node.in) {
      i.in.push_back(values_[v]);
      i.depends |= e_.depends(values_[v]);
    }
    const auto is = [&](std::size_t k, double number) {
      return i.in[k] == Value{Value::constant, 0, number};
    };
    if (i.op == &mul_op && (is(0, 1) || is(1, 1))) return i.in[is(0, 1) ? 1 : 0];
    for (std::size_t k = 0; k < e_.code.size(); ++k)
      if (e_.code[k].op == i.op && e_.code[k].in == i.in && e_.code[k].attrs.text() == i.attrs.text())
        return {Value::result, static_cast<std::int32_t>(k)};
    if (e_.code.size() == static_cast<std::size_t>(Expression::max_code))
      refuse(part, "more than " + std::to_string(Expression::max_code) + " ops, with the derivatives",
             node.where);
    e_.code.push_back(i);
    return {Value::result, static_cast<std::int32_t>(e_.code.size() - 1)};
  }

  Value captured(const char* part, const Leaf& leaf, const Where& where) {
    Expression::Capture c{leaf.tensor, {}, leaf.value.dtype(), false, 0, static_cast<int>(e_.code.size())};
    for (const Tensor& x : leaf.index) {
      c.index.push_back(now(x));
      c.depends |= e_.depends(now(x));
    }
    for (std::size_t k = 0; k < e_.captures.size(); ++k)
      if (e_.captures[k].tensor == c.tensor && e_.captures[k].index == c.index)
        return {Value::capture, static_cast<std::int32_t>(k)};
    if (e_.captures.size() == static_cast<std::size_t>(Expression::max_captures))
      refuse(part, "more than " + std::to_string(Expression::max_captures) + " uses of captured tensors",
             where);
    e_.captures.push_back(c);
    return {Value::capture, static_cast<std::int32_t>(e_.captures.size() - 1)};
  }

  // Records ∂A/∂score and the derivatives with respect to the captures, by the chain rule from the last node
  // to the first, and appends their code.
  void differentiate(const Tensor& a) {
    const std::size_t last = graph_.values()[a.id()].node;
    std::vector<Tensor> z(graph_.values().size());
    z[a.id()] = full(graph_, {}, 1, e_.compute);
    for (std::size_t n = last + 1; n-- > 0;) {
      const Node node = graph_.nodes()[n];
      if (node.in.empty() || !z[node.first_out].defined()) continue;
      Tensors in;
      std::vector<bool> needed;
      for (const ValueId v : node.in) {
        in.push_back(graph_.tensor(v));
        needed.push_back(is_float(in.back().dtype()));
      }
      if (!node.op->vjp) continue;  // the operands are booleans
      const Tensor out = graph_.tensor(node.first_out), z_out = z[node.first_out];
      const Tensors z_in =
          node.op->vjp(Backprop{{&in[0], in.size()}, {&out, 1}, {&z_out, 1}, node.attrs, needed});
      for (std::size_t k = 0; k < in.size(); ++k) {
        Tensor& sum = z[node.in[k]];
        if (needed[k] && z_in[k].defined()) sum = sum.defined() ? sum + z_in[k] : z_in[k];
      }
    }
    const auto compiled_slope = [&](const Tensor& x) {
      if (!x.defined()) return Value{Value::constant, 0, 0};
      build("score", {x});
      return now(x);
    };
    e_.score_slope = compiled_slope(z[leaves_[0].id()]);
    Tensors sums(e_.captures.size());  // calls of at() with the same indices are one capture
    for (const Leaf& leaf : captures_) {
      const Tensor& x = z[leaf.value.id()];
      if (!x.defined() || !is_float(leaf.value.dtype())) continue;
      Tensor& sum = sums[static_cast<std::size_t>(now(leaf.value).index)];
      sum = sum.defined() ? sum + x : x;
    }
    for (std::size_t k = 0; k < sums.size(); ++k)
      if (sums[k].defined()) e_.slopes[k] = compiled_slope(sums[k]);
  }

  // "%0 = sub(t, i); add(score, mul(c0[h], %0))": a result that is read several times has a number.
  std::string text(const Value& result) const {
    std::vector<int> uses(e_.code.size());
    const auto count = [&](const std::vector<Value>& values) {
      for (const Value& v : values)
        if (v.kind == Value::result) ++uses[static_cast<std::size_t>(v.index)];
    };
    std::vector<bool> needed(e_.code.size());
    std::vector<bool> read(e_.captures.size());
    const auto need = [&](const auto& self, const Value& v) -> void {
      if (v.kind == Value::result && !needed[static_cast<std::size_t>(v.index)]) {
        needed[static_cast<std::size_t>(v.index)] = true;
        count(e_.code[static_cast<std::size_t>(v.index)].in);
        for (const Value& x : e_.code[static_cast<std::size_t>(v.index)].in) self(self, x);
      }
      if (v.kind == Value::capture && !read[static_cast<std::size_t>(v.index)]) {
        read[static_cast<std::size_t>(v.index)] = true;
        count(e_.captures[static_cast<std::size_t>(v.index)].index);
        for (const Value& x : e_.captures[static_cast<std::size_t>(v.index)].index) self(self, x);
      }
    };
    need(need, result);
    std::string all;
    std::vector<int> number(e_.code.size(), -1);
    int numbers = 0;
    const auto term = [&](const auto& self, const Value& v) -> std::string {
      static constexpr const char* arguments[] = {"", "score", "b", "h", "i", "t"};
      if (v.kind == Value::constant) return attr_text(v.number);
      const auto list = [&](const std::vector<Value>& values) {
        std::string s;
        for (const Value& x : values) s += (s.empty() ? "" : ", ") + self(self, x);
        return s;
      };
      const auto index = static_cast<std::size_t>(v.index);
      if (v.kind == Value::capture)
        return "c" + std::to_string(e_.captures[index].tensor) + "[" + list(e_.captures[index].index) + "]";
      if (v.kind != Value::result) return arguments[v.kind];
      if (number[index] >= 0) return "%" + std::to_string(number[index]);
      const Expression::Instruction& i = e_.code[index];
      const std::string attrs = i.attrs.text();
      return i.op->name + "(" + list(i.in) + (attrs.empty() ? "" : ", " + attrs) + ")";
    };
    for (std::size_t k = 0; k < e_.code.size(); ++k) {
      if (!needed[k] || uses[k] < 2) continue;
      const std::string s = term(term, {Value::result, static_cast<std::int32_t>(k)});
      number[k] = numbers++;
      all += "%" + std::to_string(number[k]) + " = " + s + "; ";
    }
    return all + term(term, result);
  }

  Graph graph_;
  Tensors leaves_;  // score, b, h, i, t
  std::vector<Leaf> captures_;
  Tensors captured_;
  const Where where_;           // of the call of flash_attn
  const char* part_ = nullptr;  // the function that is being called
  std::vector<Value> values_;   // by value of the graph
  Expression e_;
};

std::shared_ptr<const AttentionExpression> record_expression(const ScoreFunction& score,
                                                             const ScoreFunction& mask, DType compute,
                                                             std::vector<Tensor>& captured,
                                                             PlainAttention& plain, const Where& where) {
  return std::make_shared<ExpressionRecorder>(compute, where)->record(score, mask, captured, plain);
}

void check_captured(const AttentionExpression& expression, DType dtype, const Operand* captured) {
  if (expression.compute != compute_type(dtype))
    throw DTypeError("the expression computes in " + std::string(name_of(expression.compute)));
  for (const AttentionExpression::Capture& c : expression.captures) {
    const Layout& l = captured[c.tensor].layout;
    if (static_cast<std::size_t>(l.rank()) != c.index.size())
      throw ShapeError("captured tensor " + std::to_string(c.tensor) + " has " + std::to_string(l.rank()) +
                       " axes, and its uses have " + std::to_string(c.index.size()) + " indices");
    std::int64_t last = 0;
    for (int a = 0; a < l.rank(); ++a) last += (l.shape[a] - 1) * l.strides[a];
    if (l.numel() > INT32_MAX || last > INT32_MAX)
      throw ShapeError("captured tensor " + std::to_string(c.tensor) + " spans more than 2^31 elements");
  }
}

}  // namespace detail

Tensor ScoreAt::at(const Tensor& captured, std::initializer_list<TensorArg> index, Where where) const {
  return recorder_->at(captured, index, where);
}

}  // namespace tg

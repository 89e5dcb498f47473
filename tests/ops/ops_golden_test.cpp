// Compares each op with ops_golden.txt (tests/support/golden.h). The file lists accepted and refused calls,
// errors, costs and the graphs of definitions. It also lists what the op guarantees to the compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include <tilegrad/ops/paged_attn.h>
#include <tilegrad/tilegrad.h>
#include "autograd/gradcheck/harness.h"
#include "core/graph/op_attrs.h"
#include "ops/adamw.h"
#include "ops/cross_entropy.h"
#include "ops/index.h"
#include "ops/matmul_in_units.h"
#include "ops/norm.h"
#include "ops/random.h"
#include "ops/rope.h"
#include "tests/support/golden.h"

namespace {

using namespace tg;
using tg::testing::Checksum;
using tg::testing::GraphChecksum;

std::string number(double x) {
  char s[32];
  std::snprintf(s, sizeof s, "%.10g", x);
  return s;
}

constexpr DType all_dtypes[] = {f64, f32, bf16, f16, i64, i32, u8, boolean};

// ---- calls of a shape rule ----

using Operands = std::vector<Operand>;

Operand with_shape(const Operand& x, const Shape& shape) {
  return {x.dtype, row_major(shape)};
}

// Returns the operands of a call. Also returns operands that differ from these in one respect.
std::vector<Operands> neighbours(const Operands& base) {
  std::vector<Operands> all{base, {}};
  const auto with = [&](std::size_t i, const Operand& x) {
    all.push_back(base);
    all.back()[i] = x;
  };
  for (std::size_t i = 0; i < base.size(); ++i) {
    const Operand& x = base[i];
    for (const DType t : all_dtypes)
      if (t != x.dtype) with(i, {t, x.layout});
    Shape more = x.shape(), before = x.shape(), none;
    more.push_back(1), before.insert(0, 1);
    with(i, with_shape(x, more)), with(i, with_shape(x, before)), with(i, with_shape(x, none));
    for (int a = 0; a < x.layout.rank(); ++a) {
      for (const std::int64_t size : {x.shape()[a] + 1, x.shape()[a] - 1, std::int64_t{0}, std::int64_t{1}}) {
        if (size < 0 || size == x.shape()[a]) continue;
        Shape s = x.shape();
        s[a] = size;
        with(i, with_shape(x, s));
      }
      Shape fewer = x.shape();
      fewer.erase(a);
      with(i, with_shape(x, fewer));
      Layout strided = x.layout;  // a gap after each element of the axis
      for (int b = 0; b <= a; ++b) strided.strides[b] *= 2;
      with(i, {x.dtype, strided});
      Layout same = x.layout;
      same.strides[a] = 0;
      with(i, {x.dtype, same});
    }
    Layout transposed = x.layout;
    std::int64_t stride = 1;
    for (int a = 0; a < x.layout.rank(); ++a) transposed.strides[a] = stride, stride *= x.shape()[a];
    with(i, {x.dtype, transposed});
    all.push_back(base);
    all.back().erase(all.back().begin() + static_cast<std::ptrdiff_t>(i));
    all.push_back(base);
    all.back().push_back(x);
  }
  for (const DType t : all_dtypes) {  // changes all operands that have the first operand's type
    all.push_back(base);
    for (Operand& x : all.back())
      if (x.dtype == base[0].dtype) x.dtype = t;
  }
  std::set<std::int64_t> sizes;  // sizes that several operands share
  for (const Operand& x : base) sizes.insert(x.shape().begin(), x.shape().end());
  for (const std::int64_t size : sizes) {
    all.push_back(base);
    for (Operand& x : all.back()) {
      Shape s = x.shape();
      for (int a = 0; a < s.size(); ++a) s[a] += s[a] == size;
      x = with_shape(x, s);
    }
  }
  return all;
}

// Returns a message with # for each number and [#] for each list of numbers.
std::string without_numbers(const std::string& message) {
  const std::string digits = "0123456789";
  std::string s;
  for (std::size_t i = 0; i < message.size(); ++i) {
    const bool opens = message[i] == '[';
    const std::size_t end =
        std::min(message.find_first_not_of(digits + (opens ? ", " : ""), i + 1), message.size());
    if (opens && end < message.size() && message[end] == ']')
      s += "[#]", i = end;
    else if (digits.find(message[i]) != std::string::npos)
      s += '#', i = end - 1;
    else
      s += message[i];
  }
  return s;
}

// Returns calls that differ from the given call in two respects. They show which check is first. One operand
// has a wrong type and a different shape. If `across` is true, some calls differ in two operands.
std::vector<Operands> second_neighbours(const Operands& base, bool across) {
  constexpr std::size_t some = 16;
  std::vector<Operands> all;
  const std::vector<Operands> ones = neighbours(base);
  for (std::size_t i = 0; i < ones.size(); ++i) {
    if (ones[i].size() == base.size())
      for (std::size_t k = 0; k < base.size(); ++k)
        if (ones[i][k].shape() != base[k].shape()) {
          all.push_back(ones[i]);
          all.back()[k].dtype = u8;
        }
    if (!across || ones[i].empty() || i % (1 + ones.size() / some) != 0) continue;
    const std::vector<Operands> twos = neighbours(ones[i]);
    for (std::size_t k = i % some; k < twos.size(); k += 1 + twos.size() / some) all.push_back(twos[k]);
  }
  return all;
}

// ---- attributes ----

// Changes a field in the nth way. Returns false if the field's value stays the same.
bool change(bool& x, int nth) {
  x = !x;
  return nth == 0;
}
template <class T>
requires std::is_arithmetic_v<T>
bool change(T& x, int nth) {
  const T before = x, values[] = {static_cast<T>(x + 1), static_cast<T>(x - 1), T{0}, static_cast<T>(-x)};
  x = values[nth];
  return x != before;
}
bool change(Dims& x, int nth) {
  x.push_back(1);
  return nth == 0;
}
bool change(std::vector<double>& x, int nth) {
  nth == 0 ? x.push_back(0.5) : x.pop_back();
  return nth < 2;
}
bool change(DType& x, int nth) {
  const DType before = x, values[] = {f64, bf16, i64, boolean};
  x = values[nth];
  return x != before;
}
template <class T>
bool change(T&, int) {
  return false;  // this string is assembled from other fields
}

// Returns attributes that differ in one field. Axes are excluded, because other functions check them.
template <class A>
std::vector<Attrs> changed_attrs(const A& attrs) {
  std::vector<Attrs> all;
  int fields = 0;
  attrs.fields([&](const auto&...) { ++fields; });
  for (int which = 0; which < fields; ++which)
    for (int nth = 0; nth < 4; ++nth) {
      A a = attrs;
      int field = 0;
      bool is_changed = false;
      a.fields([&](std::string_view name, const auto& value, const auto&...) {
        if (field++ == which && !name.starts_with("ax"))
          is_changed = change(const_cast<std::remove_cvref_t<decltype(value)>&>(value), nth);
      });
      if (is_changed) all.push_back(a);
    }
  return all;
}
template <class... A>
std::vector<Attrs> changed_attrs_of(const Attrs& attrs) {
  std::vector<Attrs> all;
  const auto add = [&]<class T>() {
    try {
      all = changed_attrs(attrs.as<T>());
    } catch (const Error&) {  // the attributes have a different type
    }
  };
  (add.template operator()<A>(), ...);
  return all;
}
std::vector<Attrs> neighbours(const Attrs& attrs) {
  return changed_attrs_of<AdamWAttrs, ArangeAttrs, AttentionAttrs, AxisAttrs, CrossEntropyAttrs, CumsumAttrs,
                          DropoutAttrs, FullAttrs, KeepMaskAttrs, LinearCrossEntropyAttrs, MatmulInUnitsAttrs,
                          NormAttrs, PagedAttentionAttrs, RandomAttrs, RankAttrs, ReduceAttrs, RopeAttrs,
                          SliceAssignAttrs, SliceAtAttrs, SoftmaxAttrs, TopKAttrs>(attrs);
}

struct Record {
  int taken = 0, calls = 0;
  Checksum results;
  std::map<std::string, int> refusals;

  void add(const Op& op, const Operands& in, const Attrs& attrs) {
    ++calls;
    try {
      const std::vector<OutSpec> out = op.infer(in, attrs);
      std::string text;
      Operands results_of_call;
      for (const OutSpec& o : out) {
        text += std::string(name_of(o.dtype)) + o.layout.shape.text() + o.layout.strides.text() +
                std::to_string(o.layout.offset) + " of " + std::to_string(o.view_of) + ";";
        results_of_call.push_back({o.dtype, o.layout});
      }
      if (op.cost) {
        const Cost c = op.cost(in, results_of_call, attrs);
        text += " " + number(c.flops) + " FLOPs, " + number(c.bytes) + " bytes";
      }
      if (op.roundings) text += " " + number(op.roundings(in, results_of_call, attrs)) + " roundings";
      results.add(text);
      ++taken;
    } catch (const Error& e) {
      ++refusals[without_numbers(e.what())];
      results.add("refused");
    }
  }
};

// ---- graphs ----

struct Recorded {
  Graph graph;
  std::vector<Tensor> in, wrt, out;
};

void record_sample(const Sample& s, DType dtype, Recorded& r) {
  for (std::size_t i = 0; i < s.inputs.size(); ++i) {
    const DType t = gradcheck::input_dtype(s.inputs[i], dtype);
    r.in.push_back(r.graph.input("x" + std::to_string(i), s.inputs[i].shape, t));
    if (is_float(t)) r.wrt.push_back(r.in.back());
  }
  r.out = s.call(r.in);
}

// Returns the numbers for a sample's inputs, and the sample's expected numbers.
std::string text_of(const Sample& s) {
  std::string text = s.name;
  const auto add = [&](const std::vector<double>& numbers) {
    for (const double x : numbers) text += " " + number(x);
    text += ";";
  };
  for (const SampleInput& i : s.inputs) {
    text += " " + i.shape.text() + std::to_string(i.fill.kind);
    add({i.fill.low, i.fill.high}), add(i.values);
  }
  if (s.expected)
    for (const auto* all : {&s.expected->outputs, &s.expected->gradients})
      for (const std::vector<double>& numbers : *all) add(numbers);
  return text;
}

// Returns an op's guarantees to the compiler. They are the op's kind, and the operands whose memory the
// results may reuse.
std::string promises_of(const Op& op) {
  std::string text;
  for (const auto& [out, in] : op.inplace)
    text += "result " + std::to_string(out) + " in operand " + std::to_string(in) + ", ";
  if (op.each.outs > 0)
    text += "lists of " + std::to_string(op.each.outs) + " and " + std::to_string(op.each.ins) + ", ";
  const std::pair<const char*, bool> kinds[] = {{"pointwise", op.pointwise},
                                                {"strided results", op.strided_results},
                                                {"joins", op.join_axis != nullptr},
                                                {"view", op.view},
                                                {"leaf", op.leaf},
                                                {"first order", op.first_order_only},
                                                {"gradient", op.vjp != nullptr}};
  for (const auto& [kind, is] : kinds)
    if (is) text += std::string(kind) + ", ";
  return text + (op.not_differentiable.empty() ? "" : "not differentiable: " + op.not_differentiable);
}

// These attributes do not belong to any op.
struct ForeignAttrs {
  int number = 0;
  void fields(auto&& field) const { field("number", number); }
};

void add_op(const Op& op, tg::testing::GoldenLines& lines) {
  lines[op.name + ": promises"] = promises_of(op);
  Record calls, doubly_changed, foreign, other_attributes;
  GraphChecksum plain, differentiated, decomposed, otherwise_decomposed;
  const std::vector<Sample> all = op.samples();
  for (const Sample& s : all)
    for (const DType dtype : {f32, bf16}) {
      Recorded r;
      record_sample(s, dtype, r);
      plain.add(r.graph);
      const Node* node = nullptr;
      for (const Node& n : r.graph.nodes())
        if (n.op == &op && !node) node = &n;
      if (node) {
        const Attrs attrs = node->attrs;
        const std::vector<ValueId> ids = node->in;
        std::vector<Tensor> in;
        Operands operands;
        for (const ValueId v : ids) {
          in.push_back(r.graph.tensor(v));
          operands.push_back({in.back().dtype(), in.back().layout()});
        }
        if (dtype == f32) {
          for (const Operands& call : neighbours(operands)) calls.add(op, call, attrs);
          for (const Operands& call : second_neighbours(operands, &s == all.data()))
            doubly_changed.add(op, call, attrs);
          foreign.add(op, operands, ForeignAttrs{}), foreign.add(op, {}, ForeignAttrs{});
          if (op.join_axis) calls.results.add("axis " + std::to_string(op.join_axis(attrs)));
        } else {
          calls.add(op, operands, attrs);
        }
        if (op.decompose) {
          op.decompose(in, attrs);
          decomposed.add(r.graph);
        }
        // If there are many samples, only every third is used.
        const bool varies = dtype == f32 && (all.size() <= 8 || (&s - all.data()) % 3 == 0);
        for (const Attrs& other : varies ? neighbours(attrs) : std::vector<Attrs>()) {
          other_attributes.add(op, operands, other);
          try {
            op.infer(operands, other);
            if (op.decompose) op.decompose(in, other);
          } catch (const Error& e) {
            ++other_attributes.refusals[without_numbers(e.what())];
          }
        }
        if (op.decompose && varies) otherwise_decomposed.add(r.graph);
      }
      // Differentiates with respect to all inputs. Also differentiates with respect to each single input, so
      // that the other gradients are not needed. If there are many samples, only every fourth is used.
      const bool each = dtype == f32 && (all.size() <= 8 || (&s - all.data()) % 4 == 0);
      for (std::size_t alone = each ? 0 : r.wrt.size(); alone <= r.wrt.size(); ++alone) {
        Recorded d;
        record_sample(s, dtype, d);
        std::vector<Tensor> wrt = d.wrt;
        if (alone < wrt.size()) wrt = {wrt[alone]};
        try {
          for (const Tensor& y : d.out)
            if (is_float(y.dtype()) && !wrt.empty()) gradients(sum(y), wrt);
        } catch (const GradientError&) {
        }
        differentiated.add(d.graph);
      }
    }
  lines[op.name + ": calls"] =
      std::to_string(calls.taken) + " of " + std::to_string(calls.calls) + " taken, " + calls.results.text();
  for (const auto& [message, count] : calls.refusals)
    lines[op.name + ": refuses: " + message] = std::to_string(count) + " calls";
  for (const auto& [what, record] : {std::pair("two changes", &doubly_changed),
                                     {"attributes of another op", &foreign},
                                     {"other attributes", &other_attributes}}) {
    Checksum refusals;
    for (const auto& [message, count] : record->refusals)
      refusals.add(message + ": " + std::to_string(count));
    lines[op.name + ": " + what] = std::to_string(record->taken) + " of " + std::to_string(record->calls) +
                                   " taken, " + record->results.text() + ", refusals " + refusals.text();
  }
  Checksum samples;
  for (const Sample& s : all) samples.add(text_of(s));
  lines[op.name + ": samples"] = plain.text() + "; their numbers " + samples.text();
  lines[op.name + ": samples and their gradients"] = differentiated.text();
  if (op.decompose) {
    lines[op.name + ": samples and their decompositions"] = decomposed.text();
    lines[op.name + ": decompositions by other attributes"] = otherwise_decomposed.text();
  }
}

TEST(OpsGolden, CallsCostsAndGraphsMatchTheGoldenFile) {
  tg::testing::GoldenLines now;
  for (const Op* op : all_ops())
    if (op->infer && op->samples) add_op(*op, now);
  EXPECT_GT(now.size(), 400u);
  tg::testing::expect_golden(GOLDEN_FILES "ops/ops_golden.txt", now);
}

}  // namespace

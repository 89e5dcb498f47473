// Tests recording into a graph. Covers names, lines, leaves, limits, replaced tensors, shared conditions and
// the results of shape rules. Also tests parameters and parts of parameters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <tilegrad/tilegrad.h>
#include "core/base/messages.h"
#include "core/run/ranks.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

std::string line_of(int line) {
  return "(graph_test.cpp:" + std::to_string(line) + ")";
}

TEST(Graph, NodesHaveThePathAndTheLineOfTheirScopes) {
  Graph g;
  const Tensor x = g.input("x", {2});
  EXPECT_EQ(g.label_of(g.node_of(x.id())), "input");
  const int line = __LINE__ + 1;
  const Tensor plain = exp(x);
  EXPECT_EQ(static_cast<int>(g.node_of(plain.id()).where.line()), line);
  Tensor inner, outer;
  const int scope_line = __LINE__ + 2;
  {
    const Scope layer("h");
    {
      const Scope unnamed("", std::source_location::current());
      const Scope part("attn");
      inner = exp(x);
    }
    outer = exp(x);
    EXPECT_EQ(in_context("[op] it fails", {}), "[h/op] it fails " + line_of(scope_line));
    EXPECT_EQ(in_context("it fails", {}), "it fails " + line_of(scope_line));
  }
  EXPECT_EQ(g.label_of(g.node_of(inner.id())), "h.attn/exp");
  EXPECT_EQ(g.name_of(g.node_of(outer.id())), "h");
  for (const Tensor& t : {inner, outer})
    EXPECT_EQ(static_cast<int>(g.node_of(t.id()).where.line()), scope_line);
  EXPECT_EQ(g.name_of(g.node_of(exp(x).id())), "");
  EXPECT_EQ(error_of([] { const Scope bad("a\nb"); }).substr(0, 7), "[scope]");
  EXPECT_EQ(error_of([&] { g.input("a\nb", {1}); }).substr(0, 7), "[input]");
}

TEST(Graph, NodesExceptLeavesHaveTheSegmentOfTheirScope) {
  Graph g;
  Parameter w("w", Array(Shape{2}, f32));
  const int first = g.new_segment(), second = g.new_segment();
  EXPECT_EQ(second, first + 1);
  Tensor y, z, x, p, c, r;
  {
    const SegmentScope outer(first);
    x = g.input("x", {2}), p = g.param(w), c = g.constant(Array(Shape{2}, f32)), r = g.rng();
    {
      const SegmentScope inner(second);
      const DerivativeScope derivative;
      y = exp(x);
      {
        const DerivativeScope no(false);
        EXPECT_FALSE(g.node_of(exp(x).id()).is_derivative);
      }
      EXPECT_TRUE(g.node_of(exp(x).id()).is_derivative);
    }
    z = exp(x);
  }
  EXPECT_EQ(g.node_of(y.id()).segment, second);
  EXPECT_EQ(g.node_of(z.id()).segment, first);
  EXPECT_TRUE(g.node_of(y.id()).is_derivative);
  EXPECT_FALSE(g.node_of(z.id()).is_derivative);
  for (const Tensor& leaf : {x, p, c, r}) EXPECT_EQ(g.node_of(leaf.id()).segment, -1);
  EXPECT_EQ(g.node_of(exp(x).id()).segment, -1);
  EXPECT_EQ(g.param(w), p);
  EXPECT_EQ(g.rng(), r);
  EXPECT_NE(g.param(Parameter("w", Array(Shape{2}, f32))), p);
  EXPECT_EQ(error_of([&] { g.param({}); }), "[param] an empty Parameter was used " + line_of(__LINE__));
}

TEST(Graph, KnowsTheLimitsOfItsInputs) {
  Graph g;
  const Tensor x = g.input("x", {2}), y = g.input("y", {2});
  EXPECT_EQ(g.limit_of(x.id()), nullptr);
  g.limit(y, Range::between(0, 1));
  g.limit(x, Range::between(2, 3));
  EXPECT_EQ(g.limit_of(x.id())->low, 2);
  EXPECT_EQ(g.limit_of(y.id())->high, 1);
  EXPECT_EQ(error_of([&] { g.limit(exp(x), {}); }), "[limit] the tensor is not an input of this graph");
  EXPECT_EQ(error_of([&] { g.limit({}, {}); }), "[limit] the tensor is not an input of this graph");
  const Tensor both = x + y;
  Program p = compile(g, {both});
  const std::vector<float> low{2, 2.5}, high{3, 3.5}, one{0, 1};
  p.run({{x, low}, {y, one}});
  EXPECT_NE(error_of([&] {
              p.feed({x, high});
            }).find("[feed] input x is out of range: got 3.5, expected a number from 2 to 3"),
            std::string::npos);
  p.run();
  EXPECT_EQ(p.fetch(both).at(0), 2) << "the value before";
}

// Nodes between the old tensor and the replacement may depend on the old tensor. Such nodes are recorded
// again, with their names and marks.
TEST(Graph, ReadersOfReplacedTensorsReadTheReplacements) {
  Graph g;
  Parameter w("w", Array(Shape{2}, f32));
  const Tensor x = g.input("x", {2}), other = g.input("other", {2}), old = x * 2;
  Tensor after, far;
  {
    const Scope scope("layer");
    const SegmentScope segment(4);
    const DerivativeScope derivative;
    after = old + 1;
    far = after * old;
  }
  const Tensor apart = other * 3;
  const Tensor replacement = old * 10;
  g.must_assign(w, far);
  const std::size_t before = g.nodes().size();
  g.replace(old, replacement);
  EXPECT_EQ(g.nodes().size(), before + 2);
  EXPECT_EQ(g.current(old.id()), replacement.id());
  EXPECT_EQ(g.current(apart.id()), apart.id());
  EXPECT_EQ(g.current(replacement.id()), replacement.id());
  for (const Tensor& t : {after, far}) {
    const Node& made = g.node_of(g.current(t.id()));
    EXPECT_NE(g.current(t.id()), t.id());
    EXPECT_EQ(g.name_of(made), "layer");
    EXPECT_EQ(made.segment, 4);
    EXPECT_TRUE(made.is_derivative);
    EXPECT_EQ(made.where.line(), g.node_of(t.id()).where.line());
  }
  EXPECT_EQ(g.updates()[0].value, g.current(far.id()));
  const std::vector<float> numbers{1, 2};
  const auto value = [&](const Tensor& t) { return eval(t, {{x, numbers}, {other, numbers}}).at(1); };
  EXPECT_EQ(eval(far, {{x, numbers}}, {.allow_unassigned = true}).at(1), (40 + 1) * 40);
  EXPECT_EQ(value(old + 0), 40);
  EXPECT_EQ(value(apart), 6);
  // After a second replacement, the first two tensors also refer to the newest tensor.
  const Tensor last = replacement + 5;
  g.replace(replacement, last);
  EXPECT_EQ(g.current(old.id()), last.id());
  EXPECT_EQ(value(old + 0), 45);
  EXPECT_EQ(g.updates()[0].value, g.current(far.id()));
  EXPECT_EQ(eval(far, {{x, numbers}}, {.allow_unassigned = true}).at(1), (45 + 1) * 45);
  for (const auto& [a, b] : std::vector<std::pair<Tensor, Tensor>>{
           {apart, x}, {apart, apart}, {apart, cast(apart, f64)}, {apart, (apart * 2).view({2, 1})}})
    EXPECT_NE(error_of([&] { g.replace(a, b); }).find("[replace] expected a later tensor of the same dtype"),
              std::string::npos);
  Graph another;
  EXPECT_EQ(error_of([&] { g.replace(another.input("x", {2}), apart); }),
            "[replace] a tensor is not of this graph");
  EXPECT_EQ(error_of([&] { g.replace(apart, {}); }), "[replace] a tensor is not of this graph");
  // The first node of the graph can be replaced, too.
  ASSERT_EQ(g.nodes()[0].first_out, x.id());
  g.replace(x, other * 7);
  EXPECT_EQ(value(apart), 6);
  EXPECT_EQ(eval(far, {{other, numbers}}, {.allow_unassigned = true}).at(1), (285 + 1) * 285);
}

TEST(Graph, ConditionsOfOneLossAreJoined) {
  Graph g;
  const Tensor loss = g.input("loss", {1}), vector = g.input("vector", {2}), a = g.input("a", {}),
               b = g.input("b", {}), c = g.input("c", {});
  int joins = 0;
  const auto both = [&](const Tensor& x, const Tensor& y) {
    ++joins;
    return x * y;
  };
  EXPECT_EQ(g.common_condition(loss, a, both), a);
  const Tensor uses = a + 1;
  const Tensor joint = g.common_condition(loss.view({}), b, both);  // a view of one number is the same loss
  EXPECT_EQ(joins, 1);
  EXPECT_EQ(g.current(a.id()), joint.id());
  const Tensor all = g.common_condition(loss, c, both);
  EXPECT_EQ(joins, 2);
  const std::vector<float> two{2}, three{3}, five{5};
  const std::vector<Feed> feeds{{a, two}, {b, three}, {c, five}};
  EXPECT_EQ(eval(all, feeds).at(0), 30);
  EXPECT_EQ(eval(uses, feeds).at(0), 31);
  // Each part of a vector is a separate loss.
  EXPECT_EQ(g.common_condition(slice(vector, 0, 0, 1), b, both), b);
  EXPECT_EQ(g.common_condition(slice(vector, 0, 1, 2), c, both), c);
  EXPECT_EQ(joins, 2);
  EXPECT_NE(error_of([&] { g.common_condition({}, a, both); }).find("not of this graph"), std::string::npos);
  EXPECT_NE(error_of([&] { g.common_condition(loss, {}, both); }).find("not of this graph"),
            std::string::npos);
  EXPECT_NE(error_of([&] { g.common_condition(loss, a, {}); }).find("not of this graph"), std::string::npos);
}

TEST(Graph, UpdatesAndHooksAreCheckedAndKept) {
  Graph g;
  Parameter w("w", Array(Shape{2}, f32));
  const Tensor x = g.input("x", {2}), y = x + 1;
  EXPECT_NE(error_of([&] { g.must_assign(w, {}); }).find("is not a tensor of this graph"), std::string::npos);
  EXPECT_EQ(error_of([&] { g.must_assign({}, y); }), "[must_assign] the Parameter to be assigned is empty");
  g.must_assign(w, y);
  EXPECT_NE(
      error_of([&] { compile(g, {y}); }).find("is the new value of w, which is not among the assignments"),
      std::string::npos);
  compile(g, {y}, {.assign = {{w, y}}});
  compile(g, {x * 2});  // this program does not compute the update
  EXPECT_EQ(error_of([&] { g.before_runs(&g, {}); }), "[before_runs] the function is empty");
  std::string calls;
  g.before_runs(&g, [&] {
    calls += "a";
    g.before_runs(&w, [&] { calls += "b"; });
  });
  g.before_runs(&g, [&] { calls += "c"; });
  eval(x * 2, {{x, std::vector<float>{1, 2}}});
  EXPECT_EQ(calls, "ab");
}

// This view has wrong attributes for its layout.
struct HiddenView {
  Layout layout;
  void fields(auto&&) const {}
};

TEST(Graph, HashesDependOnEachPartOfALayout) {
  const Op* const op =
      define_op({.name = "hidden_view_of_graph_test",
                 .infer =
                     [](std::span<const Operand> in, const Attrs& a) {
                       return std::vector<OutSpec>{{in[0].dtype, a.as<HiddenView>().layout, 0}};
                     },
                 .not_differentiable = "it is a test's",
                 .view = true});
  std::set<std::array<std::uint64_t, 2>> all;
  const Layout layouts[] = {{{2}, {1}, 0}, {{2}, {1}, 1}, {{2}, {2}, 0}, {{2}, {2}, 1}, {{1}, {1}, 0}};
  for (const Layout& layout : layouts) {
    Graph g;
    (void)-record(*op, {g.input("x", {4})}, HiddenView{layout});
    all.insert(g.hash());
  }
  EXPECT_EQ(all.size(), std::size(layouts));
}

TEST(Graph, HashesDependOnEachPartOfItsStructure) {
  std::vector<std::array<std::uint64_t, 2>> all;
  const auto add = [&](const std::function<void(Graph&)>& record) {
    Graph g;
    record(g);
    all.push_back(g.hash());
  };
  const auto both = [](Graph& g, const Tensor& a, const Tensor& b, int k) {
    switch (k) {
      case 0:
        return a + b;
      case 1:
        return a - b;
      case 2:
        return b + a;
      case 3:
        return a + a;
      case 4:
        return slice(a, 0, 0, 1) + b;
      case 5:
        return slice(a, 0, 1, 2) + b;  // only the offset differs
      case 6:
        return sum(a, {0}) + b;
      case 7:
        return sum(a, {1}) + b;
      case 8:
        return a + b + b;
      default:
        return transpose(a, 0, 1) + b;
    }
    (void)g;
  };
  for (int k = 0; k < 10; ++k) add([&](Graph& g) { both(g, g.input("a", {2, 2}), g.input("b", {2, 2}), k); });
  add([&](Graph& g) { both(g, g.input("a", {2, 2}, f64), g.input("b", {2, 2}, f64), 0); });
  add([&](Graph& g) { both(g, g.input("a", {1, 2}), g.input("b", {1, 2}), 0); });
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " " << j;
  add([&](Graph& g) {
    const Scope scope("elsewhere");
    both(g, g.input("other", {2, 2}), g.param(Parameter("p", Array(Shape{2, 2}, f32))), 0);
  });
  EXPECT_NE(all.back(), all[0]) << "a parameter is no input";
  add([&](Graph& g) {
    const Scope scope("elsewhere");
    both(g, g.input("other", {2, 2}), g.input("name", {2, 2}), 0);
  });
  EXPECT_EQ(all.back(), all[0]);
}

// A user's op has this shape rule.
TEST(Graph, InvalidShapeRuleResultsAreRefused) {
  Graph g;
  const Tensor x = slice(g.input("x", {4, 6}), 0, 1, 3);  // 24 elements, starting at element 6
  const auto message = [&](std::vector<OutSpec> outs, bool view, std::size_t operands = 1) {
    const Op op{
        .name = "mine", .infer = [=](std::span<const Operand>, const Attrs&) { return outs; }, .view = view};
    const std::vector<Tensor> in(operands, x);
    try {
      g.record(op, in, {}, std::source_location::current());
    } catch (const Error& e) {
      const std::string s = e.what();
      return s.substr(0, s.find("; got"));
    }
    return std::string("fine");
  };
  const Layout within{{2, 6}, {6, 1}, 12}, beyond{{2, 6}, {6, 1}, 13}, backwards{{2}, {-1}, 5},
      before{{2}, {1}, -1}, unequal{{2, 6}, {6}, 0};
  EXPECT_EQ(message({{f32, within}}, false), "fine");
  EXPECT_EQ(message({{f32, within, 0}}, true), "fine");
  EXPECT_EQ(message({{f32, {{1}, {99}, 23}, 0}}, true), "fine") << "a stride that nothing is reached by";
  EXPECT_EQ(message({{f32, {{0}, {99}, 99}, 0}}, true), "fine") << "no elements";
  EXPECT_EQ(message({{f32, within, 1}}, true, 2), "fine");
  const std::string own = "[mine] its shape rule returned ";
  EXPECT_EQ(message({}, false), own + "no outputs");
  EXPECT_EQ(message({}, true), "fine");
  EXPECT_EQ(message({{f32, unequal}}, false), own + "1 strides for shape [2, 6]");
  EXPECT_EQ(message({{f32, within, 0}}, false), own + "a view of input 0, but it is not a view op");
  EXPECT_EQ(message({{f32, within}}, true), own + "a view of input -1, which it does not have");
  EXPECT_EQ(message({{f32, within, 1}}, true), own + "a view of input 1, which it does not have");
  EXPECT_EQ(message({{f64, within, 0}}, true), own + "a view with a different dtype");
  EXPECT_EQ(message({{f32, beyond, 0}}, true), own + "strides [6, 1] for shape [2, 6], beyond its memory");
  for (const Layout& l : {backwards, before, Layout{{1}, {-1}, 0}, Layout{{2}, {std::int64_t{1} << 53}, 0},
                          Layout{{3}, {std::int64_t{1} << 62}, 0}})
    EXPECT_NE(message({{f32, l}}, false).find("beyond its memory"), std::string::npos) << l.strides.text();
  EXPECT_EQ(message({{f32, {{2}, {(std::int64_t{1} << 53) - 1}, 0}}}, false), "fine");
  EXPECT_NE(message({{f32, {{-1}, {1}, 0}}}, false).find("negative size"), std::string::npos);
  EXPECT_EQ(error_of([&] { g.record(Op{.name = "bare"}, {}, {}, {}); }),
            "[bare] the op has no shape rule (Op::infer) (:0)");
}

TEST(Graph, ErrorsOfOpsNameTheirOperands) {
  Graph g, other;
  const Tensor x = g.input("x", {2, 3}), y = g.input("y", {4}, i32);
  const int line = __LINE__ + 1;
  EXPECT_EQ(error_of([&] { sum(x, {5}); }),
            "[sum] axis 5 is out of range for 2 dimensions; got f32 [2, 3] " + line_of(line));
  const auto begins = [](const std::string& error, const std::string& begin) {
    return error.substr(0, begin.size()) == begin ? "" : error;
  };
  EXPECT_EQ(begins(error_of([&] {
                     x + other.input("z", {2, 3});
                   }),
                   "[add] the tensors belong to different graphs (graph_test.cpp:"),
            "");
  EXPECT_EQ(begins(error_of([&] { x + Tensor(); }), "[add] got an undefined tensor (graph_test.cpp:"), "");
  EXPECT_NE(
      error_of([&] { y + 0.5; }).find("[add] a i32 tensor with the number 0.5, which that type cannot hold"),
      std::string::npos);
  EXPECT_NE(error_of([&] { x + 1e300; }).find("a f32 tensor with the number 1e+300"), std::string::npos);
  EXPECT_NE(error_of([&] { g.input("b", {1}, boolean) + 2; }).find("a bool tensor with the number 2"),
            std::string::npos);
  EXPECT_EQ(begins(error_of([] {
                     record_all(add_op, {TensorArg(1), TensorArg(2)});
                   }),
                   "[add] needs at least one tensor among its arguments (graph_test.cpp:"),
            "");
  EXPECT_EQ(begins(error_of([] { tg::exp(2); }),
                   "[exp] needs at least one tensor among its arguments (graph_test.cpp:"),
            "");
  EXPECT_EQ(error_of([&] { (void)x.size(2); }), "[size] axis 2 is out of range for 2 dimensions");
  EXPECT_EQ(x.size(-1), 3);
  EXPECT_EQ(error_of([&] { g.value(99999); }).substr(0, 36), "[graph] value 99999 was used, of a g");
  EXPECT_EQ(error_of([] { Tensor().shape(); }), "[tensor] an undefined tensor was used");
  EXPECT_NE(error_of([] { (void)TensorArg(3).tensor(); }).find("a number where a tensor is expected"),
            std::string::npos);
  EXPECT_NE(error_of([] { (void)TensorArg().tensor(); }).find("an undefined tensor was used"),
            std::string::npos);
  EXPECT_NE(error_of([] { (void)TensorArg(3).optional(); }).find("a number where a tensor"),
            std::string::npos);
  EXPECT_FALSE(TensorArg().optional().defined());
  EXPECT_TRUE(TensorArg().is_absent());
  EXPECT_FALSE(TensorArg(0).is_absent());
  EXPECT_FALSE(TensorArg(x).is_absent() || TensorArg(x).is_number());
  EXPECT_TRUE(TensorArg(std::int64_t{1} << 53).is_exact());
  EXPECT_FALSE(TensorArg((std::int64_t{1} << 53) + 1).is_exact());
  EXPECT_TRUE(TensorArg(std::nan("")).is_exact());
  EXPECT_NE(error_of([&] { full(g, {2}, 300, u8); }).find("[full] u8 cannot hold 300"), std::string::npos);
}

TEST(Parameters, PartsShareTheirMemory) {
  Parameter p("p", Array::of<float>({2, 3}, {1, 2, 3, 4, 5, 6}));
  Parameter part = p.part(2, 3);
  EXPECT_EQ(part.shape(), (Shape{3}));
  EXPECT_EQ(part.read().values<float>(), (std::vector<float>{3, 4, 5}));
  EXPECT_EQ(p.part(0, 6).read().values<float>(), p.read().values<float>());
  EXPECT_EQ(p.part(6, 0).bytes(), 0u);
  EXPECT_NE(p.key(), part.key());
  const std::uint64_t before = p.last_change();
  part.write(Array::of<float>({3}, {7, 8, 9}));
  EXPECT_EQ(p.read().values<float>(), (std::vector<float>{1, 2, 7, 8, 9, 6}));
  EXPECT_GT(p.last_change(), before);
  EXPECT_EQ(p.last_change(), part.last_change());
  for (const auto& [first, count] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{-1, 2}, {0, 7}, {7, 0}, {6, 1}, {0, -1}})
    EXPECT_EQ(error_of([&] { p.part(first, count); }), "[parameter] p is [2, 3]: it has no " +
                                                           std::to_string(count) + " elements from " +
                                                           std::to_string(first) + " on");
  const float two[] = {-1, -2};
  p.write_bytes(16, std::as_bytes(std::span(two)));
  EXPECT_EQ(p.read().values<float>(), (std::vector<float>{1, 2, 7, 8, -1, -2}));
  p.write_bytes(24, {});
  EXPECT_EQ(error_of([&] { p.write_bytes(20, std::as_bytes(std::span(two))); }),
            "[parameter] p has 24 bytes, got 8 for offset 20");
  EXPECT_NE(error_of([&] { p.write_bytes(25, {}); }).find("got 0 for offset 25"), std::string::npos);
  EXPECT_EQ(error_of([&] {
              p.write(Array(Shape{3, 2}, f32));
            }),
            "[parameter] p has shape [2, 3], got [3, 2]");
  EXPECT_EQ(error_of([&] { p.write(Array(Shape{2, 3}, f64)); }), "[parameter] p is f32, got f64");
}

TEST(Parameters, KnowTheirStateAndItsChanges) {
  Parameter p("p", Shape{2}, f32, Device::cpu()), empty("e", Shape{0}, f32, Device::cpu());
  EXPECT_EQ(p.last_change(), 0u);
  EXPECT_NE(error_of([&] { p.read(); }).find("[parameter] p [2] has no value yet"), std::string::npos);
  Parameter one("one", Shape{}, u8, Device::cpu());  // one byte
  EXPECT_NE(error_of([&] { one.read(); }).find("has no value yet"), std::string::npos);
  EXPECT_EQ(empty.read().numel(), 0);
  const std::uint64_t a = Parameter::new_change(), b = Parameter::new_change();
  EXPECT_EQ(b, a + 1);
  p.note_change(b);
  EXPECT_EQ(p.last_change(), b);
  EXPECT_FALSE(p.is_frozen());
  p.freeze();
  EXPECT_TRUE(p.is_frozen());
  p.unfreeze();
  EXPECT_FALSE(p.is_frozen());
  p.add_setting("heads", "6");
  p.add_setting("heads", "8");
  EXPECT_EQ(p.settings(), (Parameter::Settings{{"heads", "8"}}));
  EXPECT_THROW(p.add_setting("a\n", "1"), Error);
  EXPECT_THROW(p.add_setting("a", "1\n"), Error);
  EXPECT_EQ(error_of([&] { p.add_setting("a\n", "1\n"); }),
            "[parameter] the name 'a\\n' has control characters: expected a name of one line");
  EXPECT_THROW(Parameter("a\nb", Array(Shape{1}, f32)), Error);
  EXPECT_THROW(Parameter("a\nb", Shape{1}, f32, Device::cpu()), Error);
  EXPECT_THROW(Parameter("p", Array(Shape{1}, f32), Device::cuda(99)), DeviceError);
  Parameter none;
  EXPECT_EQ(none.key(), nullptr);
  for (const auto& f : std::vector<std::function<void()>>{
           [&] { none.read(); }, [&] { none.freeze(); }, [&] { none.note_change(1); },
           [&] { none.add_setting("a", "b"); }, [&] { (void)none.name(); }, [&] { none.part(0, 0); }})
    EXPECT_EQ(error_of(f),
              "[parameter] an empty Parameter was used: it was default-constructed or moved from");
}

TEST(Ops, AreDefinedOnceByName) {
  const std::source_location here = std::source_location::current();
  const Op* const first = define_op({.name = "op_of_graph_test", .doc = "first", .where = here});
  const Op* const again = define_op({.name = "op_of_graph_test", .doc = "again", .where = here});
  EXPECT_EQ(first, again);
  EXPECT_EQ(first->doc, "first");
  EXPECT_EQ(error_of([] { define_op({.name = "op_of_graph_test"}); }),
            "[define_op] two ops of the library are called 'op_of_graph_test'");
  const Op list{.name = "list", .inplace = {{0, 0}, {1, 2}}, .each = {.outs = 2, .ins = 3}};
  std::set<std::pair<int, int>> pairs;
  for (int out = 0; out < 6; ++out)
    for (int in = 0; in < 10; ++in)
      if (list.may_share(out, in)) pairs.emplace(out, in);
  EXPECT_EQ(pairs, (std::set<std::pair<int, int>>{{0, 0}, {1, 2}, {2, 3}, {3, 5}, {4, 6}, {5, 8}}));
  const Op plain{.name = "plain", .inplace = {{0, 1}}};
  EXPECT_TRUE(plain.may_share(0, 1));
  EXPECT_FALSE(plain.may_share(0, 0) || plain.may_share(1, 1) || plain.may_share(1, 2));
}

TEST(Exceptions, KeepTheirTypeWithADifferentMessage) {
  const auto rethrown = [](const auto& e) {
    try {
      try {
        throw e;
      } catch (...) {
        rethrow_with([](const std::string& what) { return "around " + what; });
      }
    } catch (const std::exception& got) {
      EXPECT_NE(dynamic_cast<const Error*>(&got), nullptr);
      bool nested = false;
      try {
        std::rethrow_if_nested(got);
      } catch (...) {
        nested = true;
      }
      return std::string(typeid(got) == typeid(e) ? "same" : "error") + (nested ? " nested " : " ") +
             got.what();
    }
  };
  EXPECT_EQ(rethrown(ShapeError("a")), "same around a");
  EXPECT_EQ(rethrown(DTypeError("a")), "same around a");
  EXPECT_EQ(rethrown(DeviceError("a")), "same around a");
  EXPECT_EQ(rethrown(OutOfMemory("a")), "same around a");
  EXPECT_EQ(rethrown(FormatError("a")), "same around a");
  EXPECT_EQ(rethrown(GradientError("a")), "same around a");
  EXPECT_EQ(rethrown(Error("a")), "same around a");
  EXPECT_NE(rethrown(std::range_error("a")).find("nested around a"), std::string::npos);
  EXPECT_EQ(rethrown(7), "error nested around an exception that is not a std::exception");
}

TEST(Ranks, ASingleRankReadsItsOwnBytes) {
  OneRank rank;
  EXPECT_EQ(rank.rank(), 0);
  EXPECT_EQ(rank.size(), 1);
  const std::vector<int> own{3, 1, 4};
  EXPECT_EQ(gather(rank, std::span(own)), own);
  EXPECT_EQ(gather_one(rank, 7.5), std::vector<double>{7.5});
  EXPECT_TRUE(gather(rank, std::span<const int>()).empty());
  const std::vector<std::byte> most(Communicator::most_shared), more(Communicator::most_shared + 1);
  rank.share(most, [](const auto&) {});
  EXPECT_NE(error_of([&] { rank.share(more, [](const auto&) {}); }).find("expected at most"),
            std::string::npos);
}

}  // namespace

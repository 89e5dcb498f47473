// Checks that every registered op is complete. An op needs a shape rule, a kernel and samples. A fused op
// also needs a decomposition. Each op also needs a gradient or a reason for having none. The gradient may
// come from the decomposition. An incomplete op shows that the test detects missing components.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include <tilegrad/tilegrad.h>
#include "autograd/gradcheck/harness.h"
#include "autograd/replay.h"
#include "backends/cpu/kernel.h"
#include "core/compile/fused_reductions.h"
#include "core/compile/lower.h"

namespace {

using namespace tg;

bool has_kernel(const Op& op, const cpu::KernelSet& set) {
  if (op.view || op.leaf || op.host) return true;
  if (op.pointwise)
    return std::any_of(set.blocks->begin(), set.blocks->end(), [&](const cpu::BlockEntry& e) {
      return e.op == op.name && (e.f64 || e.i64) && (e.f32 || e.i64);
    });
  return std::any_of(set.kernels.begin(), set.kernels.end(),
                     [&](const cpu::KernelEntry& e) { return e.op == op.name; });
}

// Returns whether the op is fused. In a fused op, the gradient is a separate op, or only the decomposition
// has second derivatives.
bool owes_decomposition(const Op& op) {
  return op.name.ends_with("_backward") || find_op(op.name + "_backward") != nullptr ||
         (op.first_order_only && !op.host);
}

// Returns whether calling a sample records the op, and whether the sample has inputs and outputs for a
// derivative.
struct Recorded {
  bool op = false, floating_input = false, floating_output = false;
};
Recorded record_sample(const Op& op, const Sample& s, DType dtype) {
  Graph g;
  std::vector<Tensor> in;
  Recorded r;
  for (const SampleInput& i : s.inputs) {
    const DType t = gradcheck::input_dtype(i, dtype);
    in.push_back(g.input("x", i.shape, t));
    r.floating_input = r.floating_input || is_float(t);
  }
  for (const Tensor& t : s.call(in)) r.floating_output = r.floating_output || is_float(t.dtype());
  for (const Node& n : g.nodes()) r.op = r.op || n.op == &op;
  return r;
}

// Returns whether a string has the form "inputs → outputs: formula" on one line.
bool is_documented(const Op& op) {
  const std::size_t arrow = op.doc.find("→ "), colon = op.doc.find(": ");
  return arrow < colon && colon != std::string::npos && colon + 2 < op.doc.size() &&
         op.doc.find('\n') == std::string::npos;
}

// Returns one line for each missing component of an op.
std::vector<std::string> gaps(const Op& op) {
  std::vector<std::string> lacks;
  if (op.name.empty()) lacks.push_back("a name");
  if (!is_documented(op)) lacks.push_back("a line that documents it");
  if (!op.infer) lacks.push_back("a shape rule");
  const bool gradient = op.vjp || (op.decompose && op.not_differentiable.empty());
  if (!gradient && op.not_differentiable.empty())
    lacks.push_back("a gradient, or the reason why it has none");
  if (op.vjp && !op.not_differentiable.empty())
    lacks.push_back("a decision: a gradient, or a reason against");
  for (const cpu::KernelSet* set : cpu::runnable_sets())
    if (!has_kernel(op, *set)) lacks.push_back("a kernel for " + std::string(set->isa));
  if (owes_decomposition(op) && !op.decompose) lacks.push_back("the decomposition it owes");
  const std::vector<Sample> samples = op.samples ? op.samples() : std::vector<Sample>();
  if (samples.empty()) lacks.push_back("samples");
  bool differentiated = false;
  for (const Sample& s : samples) {
    bool recorded = false;
    for (DType t : {f64, f32}) {
      const Recorded r = record_sample(op, s, t);
      recorded = recorded || r.op;
      differentiated = differentiated || (r.op && r.floating_input && r.floating_output);
    }
    if (!recorded) lacks.push_back("itself in its sample '" + s.name + "'");
  }
  if (!samples.empty() && gradient && !differentiated) lacks.push_back("a sample with a gradient");
  return lacks;
}

std::string joined(const std::vector<std::string>& words) {
  std::string s;
  for (const std::string& w : words) s += (s.empty() ? "" : "; ") + w;
  return s;
}

TEST(Registry, EveryOpIsComplete) {
  ASSERT_GT(all_ops().size(), 40u);
  for (const Op* op : all_ops()) EXPECT_EQ(joined(gaps(*op)), "") << "op '" << op->name << "' lacks that";
}

TEST(Registry, NamesAreDistinct) {
  std::vector<std::string> names;
  for (const Op* op : all_ops()) names.push_back(op->name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(Registry, EveryKernelBelongsToAnOp) {
  for (const cpu::KernelSet* set : cpu::runnable_sets()) {
    for (const cpu::KernelEntry& e : set->kernels)
      EXPECT_TRUE(e.op == "fused" || find_op(e.op))
          << set->isa << " has a kernel for '" << e.op << "', which is no op";
    for (const cpu::BlockEntry& e : *set->blocks)
      EXPECT_TRUE(find_op(e.op) || e.op.starts_with("cast_"))  // a cast has a block function for each target
          << set->isa << " has a block function for '" << e.op << "', which is no op";
  }
}

// A complete op. Each test below removes one component.
Op whole(const std::string& name) {
  return {.name = name,
          .doc = "x → y: y = x + x",
          .infer =
              [](std::span<const Operand> in, const Attrs&) {
                return std::vector<OutSpec>{{in[0].dtype, row_major(in[0].shape())}};
              },
          .vjp = [](const Backprop& g) { return std::vector<Tensor>{g.z[0]}; },
          .samples =
              [] {
                return std::vector<Sample>{{"vector", {{{3}}}, [](std::span<const Tensor> x) {
                                              return std::vector<Tensor>{record(add_op, {x[0], x[0]})};
                                            }}};
              },
          .host = [](std::span<const HostView>, std::span<const HostView>, const Attrs&) {}};
}

TEST(Registry, DetectsMissingParts) {
  Op op = whole("incomplete");
  EXPECT_EQ(joined(gaps(op)), "itself in its sample 'vector'; a sample with a gradient");
  op = whole("incomplete");
  op.samples = {};
  EXPECT_EQ(joined(gaps(op)), "samples");
  op.vjp = {};
  EXPECT_EQ(joined(gaps(op)), "a gradient, or the reason why it has none; samples");
  op.infer = {};
  op.host = {};
  op.not_differentiable = "a test";
  const std::string lacks = joined(gaps(op));
  EXPECT_EQ(lacks.find("a shape rule; a kernel for baseline"), 0u) << lacks;
}

TEST(Registry, DetectsADocLineWithoutContent) {
  Op op = whole("undocumented");
  op.samples = {};
  for (const char* doc : {"", "y = x", "x → y", "x → y: ", "y = x: x → y", "x → y: two\nlines"}) {
    op.doc = doc;
    EXPECT_EQ(joined(gaps(op)), "a line that documents it; samples") << doc;
  }
}

TEST(Registry, DetectsAMissingDecomposition) {
  Op op = whole("something_backward");
  op.samples = {};
  EXPECT_EQ(joined(gaps(op)), "the decomposition it owes; samples");
  op = whole("something");
  op.samples = {};
  op.first_order_only = true;
  EXPECT_EQ(joined(gaps(op)), "samples");
  op.host = {};
  EXPECT_NE(joined(gaps(op)).find("the decomposition it owes"), std::string::npos);
}

TEST(Registry, ABrokenRegisteredOpIsFound) {
  EXPECT_THROW(register_op({.name = "without_a_shape_rule"}), Error);
  EXPECT_NE(joined(gaps(Op{.name = "without_a_shape_rule"})).find("a shape rule"), std::string::npos);
  const Op& broken =
      register_op({.name = "registered_but_broken",
                   .infer = [](std::span<const Operand>, const Attrs&) { return std::vector<OutSpec>(); }});
  const auto ops = all_ops();
  ASSERT_NE(std::find(ops.begin(), ops.end(), &broken), ops.end());
  const std::string lacks = joined(gaps(broken));
  for (const char* part : {"a gradient", "a kernel", "samples"})
    EXPECT_NE(lacks.find(part), std::string::npos) << part << " is not missed in: " << lacks;
}

TEST(Registry, ANameIsRegisteredOnce) {
  const auto refusal_of = [](Op op) {
    try {
      register_op(std::move(op));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("taken");
  };
  const Op& own = register_op(whole("an_op_of_a_user"));
  EXPECT_EQ(find_op("an_op_of_a_user"), &own);
  EXPECT_EQ(all_ops().back(), &own);
  EXPECT_EQ(find_op("an_op_of_a_use"), nullptr);
  EXPECT_EQ(find_op("add"), &add_op);
  // The names of the compiler's internal ops are also reserved.
  for (const std::string& name :
       {std::string("add"), std::string("an_op_of_a_user"), fused_op.name, fused_reduction_op.name})
    EXPECT_EQ(refusal_of(whole(name))
                  .find("[register_op] '" + name + "' is the name of another op: choose a new one"),
              0u)
        << name;
  EXPECT_EQ(refusal_of(whole("")).find("[register_op] '' is not a name for an op"), 0u);
  EXPECT_NE(refusal_of(whole("a\nname")), "taken");
  EXPECT_EQ(refusal_of({.name = "add"}).find("[register_op] 'add' has no shape rule (Op::infer)"), 0u);
  EXPECT_EQ(refusal_of(whole("another_op_of_a_user")), "taken");
}

// Tests inputs without elements. Each size in a sample becomes 0 in all inputs. Also, each axis of each input
// becomes 0 by itself. A call with such inputs must throw an Error or run. Its gradients must do the same.
std::vector<std::vector<SampleInput>> without_elements(const Sample& s) {
  std::set<std::int64_t> sizes;
  for (const SampleInput& i : s.inputs) sizes.insert(i.shape.begin(), i.shape.end());
  std::vector<std::vector<SampleInput>> all;
  for (std::int64_t size : sizes) {
    all.push_back(s.inputs);
    for (SampleInput& i : all.back())
      for (int a = 0; a < i.shape.size(); ++a)
        if (i.shape[a] == size) i.shape[a] = 0;
  }
  for (std::size_t i = 0; i < s.inputs.size(); ++i)
    for (int a = 0; a < s.inputs[i].shape.size(); ++a) {
      all.push_back(s.inputs);
      all.back()[i].shape[a] = 0;
    }
  return all;
}

// Returns false if the call is refused.
bool runs_on_zeros(const Sample& s, const std::vector<SampleInput>& inputs) {
  try {
    Graph g;
    std::vector<Tensor> in, wrt;
    std::vector<Feed> feeds;
    for (const SampleInput& i : inputs) {
      const DType t = gradcheck::input_dtype(i, f32);
      in.push_back(g.input("x", i.shape, t));
      feeds.emplace_back(in.back(), Array(i.shape, t));
      if (is_float(t)) wrt.push_back(in.back());
    }
    std::vector<Tensor> out = s.call(in);
    Tensor loss;
    for (const Tensor& t : out)
      if (is_float(t.dtype())) loss = loss.defined() ? loss + sum(cast(t, f32)) : sum(cast(t, f32));
    if (loss.defined() && !wrt.empty()) {
      try {
        for (const Tensor& z : gradients(loss, wrt)) out.push_back(z);
      } catch (const GradientError&) {
      }
    }
    for (int threads : {1, 2}) {
      Program p = compile(g, out, {.threads = threads});
      for (const Feed& f : feeds)
        if (p.reads(f.input())) p.feed(f);
      p.run();
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(Registry, OpsAcceptOrRefuseExtentsOfZero) {
  int ran = 0, refused = 0;
  for (const Op* op : all_ops())
    if (op->samples)
      for (const Sample& s : op->samples())
        for (const std::vector<SampleInput>& inputs : without_elements(s)) {
          std::string shapes;
          for (const SampleInput& i : inputs) shapes += " " + i.shape.text();
          SCOPED_TRACE(op->name + "/" + s.name + shapes);
          (runs_on_zeros(s, inputs) ? ran : refused)++;
        }
  EXPECT_GT(ran, 300);
  EXPECT_GT(refused, 100);
}

}  // namespace

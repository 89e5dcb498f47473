// Compiled programs of small graphs: the steps with their operands and the memory plan, compared line by line
// with compiled_programs.txt. After an intended change, write that file again:
//   TG_WRITE_EXPECTED=1 build/tests/compiled_programs_test
// and read the differences: each must be as the passes (core/compile/) promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include <tilegrad/ops/ranks.h>
#include <tilegrad/tilegrad.h>
#include "core/compile/addends.h"
#include "core/compile/bind.h"
#include "core/compile/merge.h"
#include "core/compile/order.h"
#include "core/compile/place_ropes.h"
#include "core/compile/placed.h"
#include "core/compile/recompute.h"
#include "core/compile/reduced_chains.h"
#include "core/compile/scatter_early.h"
#include "tests/support/compiled_cases.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::compiled_cases;
using tg::testing::CompiledCase;
using tg::testing::Recorded;

std::string layout_text(const Layout& l) {
  std::string s = l.shape.text();
  if (!(l == row_major(l.shape))) s += " strides " + l.strides.text() + " from " + std::to_string(l.offset);
  return s;
}

// The passes of compile(), in its order.
class Compiled {
 public:
  explicit Compiled(const CompiledCase& c) : case_(c) {
    c.record(r_);
    outputs_ = outputs_of(r_.g, r_.fetch, r_.assign);
    steps_ = lower(r_.g, outputs_.all(), c.fuse);
    joined_ = join_in_place(r_.g, steps_, outputs_.all());
    if (c.fuse && !c.rows_alone) add_in_products(r_.g, steps_, joined_, outputs_);
    if (c.fuse) merge_fused(r_.g, steps_, outputs_.all());
    if (c.fuse && !c.rows_alone) reduce_chains(r_.g, steps_, outputs_.all(), c.on_gpu);
    if (c.on_gpu) place_ropes(r_.g, steps_);
    if (c.ranks > 1) scatter_early(r_.g, steps_);
    directly_ = written_directly(r_.g, steps_, outputs_, r_.assign);
    append_copies(r_.g, steps_, outputs_, r_.assign, directly_);
    const Scheduled known{joined_, outputs_, r_.assign, directly_, c.on_gpu};
    const std::size_t status_bytes = c.on_gpu ? 128 : 0;
    placed_ = placed(r_.g, steps_, known, status_bytes, true);
    if (c.on_gpu && c.less == 0) put_products_last(r_.g, steps_, known, status_bytes, placed_);
    if (c.on_gpu) put_casts_first(r_.g, steps_, known, status_bytes, placed_);
    if (c.less == 0) return;
    const std::size_t limit = plan_.report.arena - c.less;
    ordered_ = order_for_memory(r_.g, steps_, known);
    recomputed_ = recompute_within(limit, r_.g, steps_, known);
    placed_ = placed(r_.g, steps_, known, status_bytes, true);
  }

  std::string text() const {
    const std::vector<Step> steps = steps_of(r_.g, steps_, joined_, outputs_.all());
    std::string s = "== " + case_.name + "\n";
    for (std::size_t i = 0; i < steps_.size(); ++i) s += step_text(i, steps[i]);
    for (const PlannedBuffer& b : planned_buffers(r_.g, buffers_, plan_)) {
      s += b.kind + " " + std::to_string(b.offset) + " + " + std::to_string(b.bytes);
      if (b.kind == "arena") s += " in steps " + std::to_string(b.first) + " to " + std::to_string(b.last);
      s += ": " + b.holds + "\n";
    }
    const MemoryReport& m = plan_.report;
    s += "arena " + std::to_string(m.arena) + ", alive " + std::to_string(m.alive) + ", inputs " +
         std::to_string(m.inputs) + ", results " + std::to_string(m.results) + " at " +
         std::to_string(plan_.results_offset) + ", constants " + std::to_string(m.constants) +
         ", parameters " + std::to_string(parameter_bytes()) + "\n";
    if (case_.less == 0) return s;
    const auto number = [](double x) { return std::to_string(static_cast<std::int64_t>(x)); };
    const MemoryReport::Recomputed& again = recomputed_.again;
    return s + (ordered_ ? "another order; " : "") + std::to_string(recomputed_.before) + " to " +
           std::to_string(recomputed_.arena) + " bytes, again " + std::to_string(again.steps) + " steps, " +
           std::to_string(again.products) + " products, moved " + number(again.moved) + ", flops " +
           number(again.flops) + ", price " + number(again.price) + "\n";
  }

  // compile() makes the same of the graph.
  void expect_of(const Program& program) const {
    const std::vector<Step> expected = steps_of(r_.g, steps_, joined_, outputs_.all());
    ASSERT_EQ(program.steps().size(), expected.size()) << program.text();
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(operands_text(program.steps()[i]), operands_text(expected[i])) << "step " << i;
    const std::vector<ArenaBuffer> buffers = arena_buffers(buffers_, plan_);
    ASSERT_EQ(program.buffers().size(), buffers.size());
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const ArenaBuffer &got = program.buffers()[i], &b = buffers[i];
      EXPECT_TRUE(got.offset == b.offset && got.bytes == b.bytes && got.first == b.first &&
                  got.last == b.last)
          << "buffer " << i;
    }
    const MemoryReport got = program.memory(), &m = plan_.report;
    EXPECT_EQ(got.arena, m.arena);
    EXPECT_EQ(got.alive, m.alive);
    EXPECT_EQ(got.inputs, m.inputs);
    EXPECT_EQ(got.results, m.results);
    EXPECT_EQ(got.constants, m.constants);
    EXPECT_EQ(got.parameters, parameter_bytes());
    EXPECT_EQ(got.recomputed.steps, recomputed_.again.steps);
    EXPECT_EQ(got.recomputed.products, recomputed_.again.products);
    EXPECT_EQ(got.recomputed.price, recomputed_.again.price);
  }

 private:
  std::size_t parameter_bytes() const {
    std::size_t bytes = 0;
    for (const Parameter& p : parameters_of(buffers_, steps_, Device::cpu()))
      bytes += (p.bytes() + 63) / 64 * 64;
    return bytes;
  }
  std::string name_of_value(ValueId v) const {
    const Node& maker = r_.g.node_of(v);
    if (maker.op == &input_op) return maker.attrs.as<InputAttrs>().name;
    if (maker.op == &parameter_op) return maker.attrs.as<ParameterAttrs>().parameter.name();
    return "%" + std::to_string(v);
  }
  // A value, or a view of one, with its type. A joined result also has its layout in the whole.
  std::string value_text(ValueId v, bool is_made) const {
    const Value& value = r_.g.values()[v];
    std::string s =
        name_of_value(value.root) + " " + std::string(name_of(value.dtype)) + layout_text(value.layout);
    if (const auto at = joined_.find(v); is_made && at != joined_.end())
      s += " in " + name_of_value(at->second.whole) + " as " + layout_text(at->second.layout);
    return s;
  }
  std::string step_text(std::size_t i, const Step& step) const {
    const LoweredStep& l = steps_[i];
    std::string s = std::to_string(i) + " " + step.name + (l.with_next ? " with next" : "") + ": ";
    for (std::size_t k = 0; k < l.out.size(); ++k)
      s += (k ? ", " : "") + value_text(l.out[k], true) + " (read " + std::to_string(step.reads[k]) + ")";
    if (l.target) s += "parameter " + l.target->name();
    s += " = " + l.op->name + "(";
    for (std::size_t k = 0; k < l.in.size(); ++k) s += (k ? ", " : "") + value_text(l.in[k], false);
    const std::string attrs = l.attrs.non_default_text();
    return s + ")" + (attrs.empty() ? "" : " " + attrs) + "\n";
  }
  static std::string operands_text(const Step& step) {
    std::string s = step.name + " " + step.op->name + " " + step.attrs.text();
    for (const std::vector<Arg>* args : {&step.in, &step.out}) {
      s += "; ";
      for (const Arg& a : *args) s += std::string(name_of(a.dtype)) + layout_text(a.layout) + " ";
    }
    for (const int n : step.reads) s += std::to_string(n) + " ";
    return s;
  }

  const CompiledCase& case_;
  mutable Recorded r_;
  Outputs outputs_;
  std::vector<LoweredStep> steps_;
  Joined joined_;
  std::vector<bool> directly_;
  Placed placed_;
  const Buffers& buffers_ = placed_.buffers;
  const MemoryPlan& plan_ = placed_.plan;
  bool ordered_ = false;
  Recomputed recomputed_;
};

TEST(CompiledPrograms, HaveNoPointwiseOpOfFourOperands) {
  const Op op{.name = "of_four",
              .infer =
                  [](std::span<const Operand> in, const Attrs&) {
                    return std::vector<OutSpec>{{in[0].dtype, in[0].layout}};
                  },
              .pointwise = true};
  Graph g;
  const Tensor x = g.input("x", {3}), three = g.record(op, std::vector{x, x, x}, {}, {})[0],
               four = g.record(op, std::vector{x, x, x, x}, {}, {})[0];
  EXPECT_EQ(lower(g, std::vector{three.id()}, true).size(), 1u);
  EXPECT_EQ(tg::testing::error_of([&] { lower(g, std::vector{four.id()}, true); }),
            "[of_four] a pointwise op with more than three operands");
}

// A step looks 32 steps back for one to merge with.
TEST(CompiledPrograms, MergeStepsThatAreNotFarApart) {
  for (const int between : {31, 32}) {
    Graph g;
    const Tensor x = g.input("x", {3});
    std::vector<Tensor> all{x * 2};
    for (std::int64_t n = 0; n < between; ++n) all.push_back(exp(g.input("y", {4 + n})));
    all.push_back(x * 3);
    EXPECT_EQ(compile(g, all, {.plan_only = true}).steps().size(), between == 31 ? 32u : 34u);
  }
}

const std::filesystem::path expected_file = GOLDEN_FILES "core/compiled_programs.txt";

// The file's text of each case.
std::map<std::string, std::string> expected_texts() {
  std::map<std::string, std::string> texts;
  std::ifstream file(expected_file);
  std::string line, name;
  while (std::getline(file, line)) {
    if (line.starts_with("== ")) name = line.substr(3);
    if (!line.starts_with("#")) texts[name] += line + "\n";
  }
  return texts;
}

TEST(CompiledPrograms, AreThoseOfTheFile) {
  if (std::getenv("TG_WRITE_EXPECTED")) {
    std::ofstream file(expected_file);
    file << "# Written by compiled_programs_test, which says how.\n";
    for (const CompiledCase& c : compiled_cases()) file << Compiled(c).text();
    return;
  }
  const std::map<std::string, std::string> expected = expected_texts();
  EXPECT_EQ(expected.size(), compiled_cases().size() + (expected.contains("") ? 1 : 0));
  for (const CompiledCase& c : compiled_cases()) {
    const auto found = expected.find(c.name);
    ASSERT_NE(found, expected.end()) << c.name;
    EXPECT_EQ(found->second, Compiled(c).text());
  }
}

TEST(CompiledPrograms, AreThoseOfCompile) {
  for (const CompiledCase& c : compiled_cases()) {
    if (c.on_gpu || c.ranks > 1) continue;
    SCOPED_TRACE(c.name);
    const Compiled expected(c);
    Recorded r;
    c.record(r);
    CompileOptions options{
        .assign = r.assign, .threads = 1, .rows_alone = c.rows_alone, .fuse = c.fuse, .plan_only = true};
    if (c.less > 0) {
      options.memory_budget = compile(r.g, r.fetch, options).memory().peak() - c.less;
    }
    expected.expect_of(compile(r.g, r.fetch, options));
  }
}

}  // namespace

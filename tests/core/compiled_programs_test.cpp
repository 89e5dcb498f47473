// Compares compiled programs of small graphs line by line with compiled_programs.txt: their steps, operands
// and memory plan. Checksums of random programs are in random_programs.txt. After an intended change, rewrite
// these files:
//   TG_WRITE_GOLDEN=1 build/tests/compiled_programs_test
// Then read the differences. Each must follow from the documented behavior of the passes (core/compile/).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include <tilegrad/ops/ranks.h>
#include <tilegrad/tilegrad.h>
#include "backends/cuda/schedule/scheduler.h"
#include "core/base/hash.h"
#include "core/compile/bind.h"
#include "core/compile/budget.h"
#include "core/compile/passes.h"
#include "core/run/ranks.h"
#include "tests/support/compiled_cases.h"
#include "tests/support/files.h"
#include "tests/support/random_programs.h"

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

const StepScheduler& scheduler_of(const CompiledCase& c) {
  static const StepScheduler cpu;
  static const cuda::CudaScheduler gpu;
  if (c.on_gpu) return gpu;
  return cpu;
}

// A case after all passes of compile(). Only bytes of the arena count toward the budget.
class Compiled {
 public:
  explicit Compiled(const CompiledCase& c) : case_(c) {
    c.record(r_);
    CompileOptions options{.assign = r_.assign, .batch_invariant = c.batch_invariant, .fuse = c.fuse};
    if (has_budget()) options.memory_budget = 1;
    if (c.ranks > 1) options.ranks = std::make_shared<OneRank>();
    const std::size_t status_bytes = c.on_gpu ? 128 : 0;
    passes_ = run_passes(r_.g, r_.fetch, options, c.reuse, scheduler_of(c), status_bytes);
    if (!has_budget()) return;
    const std::size_t arena = plan_.report.arena, less = c.less + arena * c.percent_less / 100;
    const Scheduled known = passes_.known(r_.assign);
    ordered_ = order_for_memory(r_.g, steps_, known);
    recomputed_ = recompute_within(arena - less, r_.g, steps_, known);
    passes_.placed = placed(r_.g, steps_, known, status_bytes, c.reuse);
  }

  std::size_t steps() const { return steps_.size(); }
  const MemoryReport& memory() const { return plan_.report; }
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
    if (!has_budget()) return s;
    const auto number = [](double x) { return std::to_string(static_cast<std::int64_t>(x)); };
    const MemoryReport::Recomputed& again = recomputed_.again;
    return s + (ordered_ ? "another order; " : "") + std::to_string(recomputed_.before) + " to " +
           std::to_string(recomputed_.arena) + " bytes, again " + std::to_string(again.steps) + " steps, " +
           std::to_string(again.products) + " products, moved " + number(again.moved) + ", flops " +
           number(again.flops) + ", price " + number(again.price) + "\n";
  }

  // compile() must give the same steps for this graph.
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
  bool has_budget() const { return case_.less > 0 || case_.percent_less > 0 || case_.has_budget; }
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
  // Returns the text of a value or a view, with the dtype. If the value is stored as a part of a larger
  // result, the text includes the value's layout in this result.
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
  Passes passes_;
  const Outputs& outputs_ = passes_.outputs;
  std::vector<LoweredStep>& steps_ = passes_.steps;
  const Joined& joined_ = passes_.joined;
  const Buffers& buffers_ = passes_.placed.buffers;
  const MemoryPlan& plan_ = passes_.placed.plan;
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

// To merge a step, the compiler searches the previous 32 steps.
TEST(CompiledPrograms, MergeStepsThatAreClose) {
  for (const int between : {31, 32}) {
    Graph g;
    const Tensor x = g.input("x", {3});
    std::vector<Tensor> all{x * 2};
    for (std::int64_t n = 0; n < between; ++n) all.push_back(exp(g.input("y", {4 + n})));
    all.push_back(x * 3);
    EXPECT_EQ(compile(g, all, {.plan_only = true}).steps().size(), between == 31 ? 32u : 34u);
  }
}

// Reads the recorded text of each case.
std::map<std::string, std::string> expected_texts(const std::filesystem::path& path) {
  std::map<std::string, std::string> texts;
  std::ifstream file(path);
  std::string line, name;
  while (std::getline(file, line)) {
    if (line.starts_with("== ")) name = line.substr(3);
    if (!line.starts_with("#")) texts[name] += line + "\n";
  }
  return texts;
}

void expect_texts(const std::string& name, const std::vector<CompiledCase>& cases,
                  const std::function<std::string(const CompiledCase&)>& text) {
  const std::filesystem::path path = std::filesystem::path(GOLDEN_FILES) / "core" / name;
  if (std::getenv("TG_WRITE_GOLDEN")) {
    std::ofstream file(path);
    file << "# Written by compiled_programs_test, which says how.\n";
    for (const CompiledCase& c : cases) file << text(c);
    return;
  }
  const std::map<std::string, std::string> expected = expected_texts(path);
  EXPECT_EQ(expected.size(), cases.size() + (expected.contains("") ? 1 : 0));
  for (const CompiledCase& c : cases) {
    const auto found = expected.find(c.name);
    ASSERT_NE(found, expected.end()) << c.name;
    EXPECT_EQ(found->second, text(c));
  }
}

TEST(CompiledPrograms, MatchTheGoldenFile) {
  expect_texts("compiled_programs.txt", compiled_cases(),
               [](const CompiledCase& c) { return Compiled(c).text(); });
}

// Compares programs of random ops with the file. The file contains the size of each program and a checksum of
// its text. If the test fails, it prints the text.
TEST(CompiledPrograms, RandomProgramsMatchTheGoldenFile) {
  expect_texts("random_programs.txt", tg::testing::random_program_cases(), [](const CompiledCase& c) {
    const Compiled compiled(c);
    const std::string text = compiled.text();
    const std::string_view pieces[] = {text};
    if (std::getenv("TG_PRINT_PROGRAMS")) std::fputs(text.c_str(), stdout);
    return "== " + c.name + "\n" + std::to_string(compiled.steps()) + " steps, arena " +
           std::to_string(compiled.memory().arena) + ", alive " + std::to_string(compiled.memory().alive) +
           ", text " + xxh3_128(pieces).substr(0, 16) + "\n";
  });
}

TEST(CompiledPrograms, MatchCompile) {
  for (const CompiledCase& c : compiled_cases()) {
    if (c.on_gpu || c.ranks > 1 || !c.reuse) continue;
    SCOPED_TRACE(c.name);
    const Compiled expected(c);
    Recorded r;
    c.record(r);
    CompileOptions options{.assign = r.assign,
                           .threads = 1,
                           .batch_invariant = c.batch_invariant,
                           .fuse = c.fuse,
                           .plan_only = true};
    if (c.less > 0) {
      options.memory_budget = compile(r.g, r.fetch, options).memory().peak() - c.less;
    }
    expected.expect_of(compile(r.g, r.fetch, options));
  }
}

}  // namespace

// Tests random graphs of all kinds of ops. The graphs read and assign parameters. With any compile options,
// results must be bitwise identical to running one op after another in separate memory.
#include <gtest/gtest.h>

#include <random>

#include <tilegrad/tilegrad.h>

namespace {

using namespace tg;

// Values are matrices of integers up to 9. So every sum is exact in any order.
class RandomGraph {
 public:
  explicit RandomGraph(unsigned seed, int nodes = 24) : random_(seed) {
    for (int i = 0; i < 2; ++i) {
      feeds_.emplace_back(g_.input("x" + std::to_string(i), {n, n}, f64), numbers());
      values_.push_back(feeds_.back().input());
      initial_.push_back(numbers());
      parameters_.emplace_back("p" + std::to_string(i), initial_.back());
      values_.push_back(g_.param(parameters_.back()));
    }
    for (int i = 0; i < nodes; ++i) values_.push_back(next());
    for (int i = 0; i < 4; ++i) fetched_.push_back(any());
    for (const Parameter& p : parameters_) assign_.push_back({p, any()});
  }

  MemoryReport memory(CompileOptions options) {
    options.assign = assign_;
    return compile(g_, fetched_, options).memory();
  }

  // Returns the fetched tensors and the new parameters of two runs.
  std::vector<Array> run(CompileOptions options) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].write(initial_[i]);
    options.assign = assign_;
    Program program = compile(g_, fetched_, options);
    for (const Feed& f : feeds_)
      if (program.reads(f.input())) program.feed(f);
    std::vector<Array> all;
    for (int i = 0; i < 2; ++i) {
      program.run();
      for (const Tensor& t : fetched_) all.push_back(program.fetch(t));
      for (const Parameter& p : parameters_) all.push_back(p.read());
    }
    return all;
  }

 private:
  static constexpr std::int64_t n = 37;

  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  Tensor any() { return values_[static_cast<std::size_t>(pick(static_cast<int>(values_.size())))]; }
  Array numbers() {
    Array a({n, n}, f64);
    for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, pick(19) - 9);
    return a;
  }
  static Tensor small(const Tensor& x) { return clamp(x, -9, 9); }

  Tensor next() {
    const Tensor a = any(), b = any();
    const std::int64_t axis = pick(2), from = pick(n), length = 1 + pick(static_cast<int>(n - from));
    switch (pick(14)) {
      case 0:
        return small(a + b);
      case 1:
        return small(a * b);
      case 2:
        return small(matmul(a, b));
      case 3:
        return transpose(a, 0, 1);
      case 4:
        return small(expand(sum(a, {axis}, true), {n, n}));
      case 5:
        return concat({slice(a, axis, 0, from), slice(b, axis, from, n)}, axis);
      case 6:
        return slice_assign(a, slice(b, axis, from, from + length), axis,
                            pick(static_cast<int>(n - length + 1)));
      case 7:
        return flip(a, axis);
      case 8:
        return small(cumsum(a, axis));
      case 9:
        return where(greater(a, b), a, transpose(b, 0, 1));
      case 10:
        return small(a - transpose(a, 0, 1));
      case 11:  // GEMMs accumulate these sums; the transpose prevents a fused step
        return small(transpose(matmul(a, b) + any() + matmul(any(), b), 0, 1));
      case 12:
        return maximum(a, expand(max(b, {axis}, true), {n, n}));
      default:
        return index_select(a, 0, argmax(b, {1}));
    }
  }

  std::mt19937 random_;
  Graph g_;
  std::vector<Tensor> values_, fetched_;
  std::vector<Feed> feeds_;
  std::vector<Parameter> parameters_;
  std::vector<Array> initial_;
  std::vector<Assign> assign_;
};

TEST(RandomGraphs, ResultsMatchBitwiseWithAllCompileOptions) {
  const std::vector<CompileOptions> ways{
      {.threads = 1}, {.threads = 2}, {.threads = 1, .fuse = false}, {.threads = 1, .reuse = false}};
  for (unsigned seed = 0; seed < 200; ++seed) {
    RandomGraph graph(seed);
    const std::vector<Array> expected = graph.run({.threads = 1, .fuse = false, .reuse = false});
    for (std::size_t way = 0; way < ways.size(); ++way) {
      const std::vector<Array> got = graph.run(ways[way]);
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(got[i].same_bits(expected[i])) << "seed " << seed << ", way " << way << ", value " << i;
    }
  }
}

// Budgets range from the full memory of the graph down to the minimum.
TEST(RandomGraphs, ResultsMatchBitwiseWithAnyBudget) {
  int ordered = 0, recomputed = 0, products = 0, impossible = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    RandomGraph graph(seed, 80);  // some values are used much later than they are computed
    const std::vector<Array> expected = graph.run({.threads = 1, .fuse = false, .reuse = false});
    const std::size_t peak = graph.memory({.threads = 1, .plan_only = true}).peak();
    for (int less = 1; less <= 4; ++less) {
      const std::size_t budget = peak - static_cast<std::size_t>(less) * 37 * 37 * 8;
      CompileOptions options{.threads = 1, .memory_budget = budget};
      try {
        const MemoryReport memory = graph.memory(options);
        EXPECT_LE(memory.peak(), budget) << "seed " << seed;
        recomputed += memory.recomputed.steps;
        products += memory.recomputed.products;
        ordered += memory.recomputed.saved > 0 && memory.recomputed.steps == 0;
      } catch (const OutOfMemory&) {
        ++impossible;
        break;
      }
      const std::vector<Array> got = graph.run(options);
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(got[i].same_bits(expected[i])) << "seed " << seed << ", less " << less << ", value " << i;
    }
  }
  EXPECT_GT(ordered, 30);
  EXPECT_GT(recomputed, 30);
  EXPECT_GT(products, 0);
  EXPECT_GT(impossible, 0);
}

}  // namespace

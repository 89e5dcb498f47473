// Checks the order of additions in sums. Compares the bits of the results with sum_bits.txt
// (tests/support/golden.h). The file has lines for each instruction set. GEMMs are not included, because
// compilers may contract multiplications and additions.
#include "backends/cpu/kernel.h"
#include "core/base/piece_size.h"
#include "tests/support/golden.h"
#include "tests/support/whole_numbers.h"

namespace {

using namespace tg;
using namespace tg::testing;

std::string bits_of(const Array& a) {
  Checksum sum;
  sum.add(std::string(reinterpret_cast<const char*>(a.raw()), a.bytes()));
  return sum.text();
}

TEST(SumBits, MatchTheGoldenFile) {
  if (has_small_pieces) GTEST_SKIP() << "other pieces";
  GoldenLines now;
  struct Row {
    Shape shape;
    Axes axes;
  };
  const Row rows[] = {{{3, 15}, {1}},        {{1, 32768}, {1}},     {{1, 32769}, {1}},
                      {{10923, 3}, {0}},     {{3, 1025}, {1}},      {{2, 40000}, {1}},
                      {{1, 300000}, {1}},    {{300000, 3}, {0}},    {{257, 513}, {0}},
                      {{700, 600}, {0}},     {{700, 600}, {1}},     {{5, 7, 11}, {0, 2}},
                      {{2, 40000, 5}, {1}},  {{70000, 33}, {0}},    {{40, 30}, {0, 1}},
                      {{6, 50, 70}, {0, 1}}, {{6, 50, 70}, {0, 2}}, {{20, 3, 1500}, {0, 2}}};
  const auto add = [&](const std::string& what, const Tensor& y, const std::vector<Feed>& feeds) {
    const std::string line = std::string(cpu::kernel_set().isa) + " " + what;
    for (const int threads : {1, 3}) {
      Program p = compile(y.graph(), {y}, {.threads = threads});
      for (const Feed& f : feeds)
        if (p.reads(f.input())) p.feed(f);
      p.run();
      const std::string bits = bits_of(p.fetch(y));
      EXPECT_TRUE(threads == 1 || now[line] == bits) << line << " depends on the number of threads";
      now[line] = bits;
    }
  };
  for (const Row& r : rows)
    for (const DType dtype : {f64, f32, bf16}) {
      Graph g;
      Vector v = digits(numel(r.shape), 1, 1000);
      for (double& e : v) e *= 0.001;
      const Whole x = whole(g, r.shape, dtype, v);
      const std::string what = std::string(name_of(dtype)) + r.shape.text() + " over " + r.axes.text();
      add("sum of " + what, sum(x.tensor, r.axes), {x.feed()});
      add("sum of a chain of " + what, sum(x.tensor * 2, r.axes), {x.feed()});
      if (dtype != bf16) add("mean of " + what, mean(x.tensor, r.axes), {x.feed()});
      if (dtype != bf16 && r.shape.size() == 2 && numel(r.shape) < 500000) {
        const Whole b = small(g, {r.shape[1]}, 2, dtype), w = small(g, {r.shape[1]}, 3, dtype);
        const Tensor y = layer_norm(x.tensor, w.tensor, b.tensor);
        const Whole z = whole(g, r.shape, dtype, v);
        add("z_bias of " + what, gradients(y, {b.tensor}, z.tensor)[0],
            {x.feed(), w.feed(), b.feed(), z.feed()});
      }
    }
  EXPECT_GT(now.size(), 100u);
  expect_golden(GOLDEN_FILES "ops/sum_bits.txt", now, false);
}

}  // namespace

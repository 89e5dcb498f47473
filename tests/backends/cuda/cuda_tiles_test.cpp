// Compares op kernels with the CPU over at least three blocks, chunks or pieces. Sizes are slightly larger
// than multiples of the kernels' tiles, so the last block is partial. Skipped if there is no GPU.
#include <functional>

#include <tilegrad/ops/flash_attn.h>
#include "backends/cuda/cuda.h"
#include "tests/support/op_testing.h"
#include "tests/support/paged_problem.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaTiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

std::vector<Array> on(Device device, const std::vector<Tensor>& ts, const std::vector<Feed>& feeds) {
  return eval(ts, feeds, {.device = device});
}

void expect_same_bits(const std::vector<Tensor>& ts, const std::vector<Feed>& feeds) {
  const std::vector<Array> expected = on(Device::cpu(), ts, feeds), got = on(Device::cuda(), ts, feeds);
  for (std::size_t i = 0; i < ts.size(); ++i) {
    bool same = got[i].same_bits(expected[i]);
    if (!same && is_float(ts[i].dtype())) {  // NaN may have any bits
      const Vector a = doubles(expected[i]), b = doubles(got[i]);
      same = std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) {
        return (x == y && std::signbit(x) == std::signbit(y)) || (x != x && y != y);
      });
    }
    EXPECT_TRUE(same) << "result " << i << " " << ts[i].text() << " " << name_of(ts[i].dtype());
  }
}

// Checks |got − expected| ≤ 2·u·|expected| + wide. Here u is the unit roundoff of the result's dtype.
void expect_near(const std::vector<Tensor>& ts, const std::vector<Feed>& feeds, double wide) {
  const std::vector<Array> expected = on(Device::cpu(), ts, feeds), got = on(Device::cuda(), ts, feeds);
  for (std::size_t i = 0; i < ts.size(); ++i) {
    const Vector a = doubles(expected[i]), b = doubles(got[i]);
    for (std::size_t k = 0; k < a.size(); ++k)
      ASSERT_LE(std::abs(a[k] - b[k]), 2 * rounding(ts[i].dtype()) * std::abs(a[k]) + wide)
          << "result " << i << " " << ts[i].text() << " " << name_of(ts[i].dtype()) << ", element " << k;
  }
}

// Returns numbers with few distinct values. Many elements are equal. Floating-point numbers include two NaN
// and zeros of both signs.
Given equal_numbers(Graph& g, const Shape& shape, DType t, View view) {
  Given x = given(g, shape, t, view);
  for (std::int64_t i = 0; i < x.array.numel(); ++i) x.array.set(i, static_cast<double>(i * 7919 % 37));
  if (is_float(t) && x.array.numel() > 30) {
    for (const std::int64_t i : {7, 29}) x.array.set(i, std::numeric_limits<double>::quiet_NaN());
    for (const std::int64_t i : {11, 13}) x.array.set(i, -0.0);
  }
  return x;
}

// Either a block sums a line in chunks of 1,024, or each of the block's 256 threads sums one line.
TEST_F(CudaTiles, CumsumOfLinesInSeveralChunksAgreesWithTheCpu) {
  struct Case {
    Shape shape;
    int axis;
  };
  for (const Case& c : {Case{{5, 3 * 1024 + 17}, 1}, Case{{4, 1029, 3}, 1}, Case{{3 * 256 + 7, 20}, 1},
                        Case{{40, 3 * 512 + 5}, 0}})
    for (const DType t : {f32, f64, bf16, f16, i64, i32, u8})
      for (const View view : {View::contiguous, View::transposed, View::sliced}) {
        if (view != View::contiguous && t != f32 && t != i64) continue;
        Graph g;
        const bool floats = is_float(t);
        const Given x = given(g, c.shape, t, view, 1, floats ? -1 : 0, floats ? 1 : 4);
        const std::vector<Tensor> sums{cumsum(x.tensor, c.axis), cumsum(x.tensor, c.axis, true)};
        // Both devices sum n terms in f64. Terms are at most 1, so partial sums are at most n.
        const auto n = static_cast<double>(c.shape[c.axis]);
        floats ? expect_near(sums, {x.feed()}, 2 * n * n * rounding(f64))
               : expect_same_bits(sums, {x.feed()});
      }
}

// A line is processed by a warp, 256 threads or 1,024 threads. Equal numbers are collected in chunks, one
// number per thread. More than 2,048 selected numbers are sorted in memory. There are more than 32 lines,
// because a multiprocessor runs up to 32 blocks.
TEST_F(CudaTiles, TopKOfLinesInSeveralChunksMatchesTheCpu) {
  struct Case {
    Shape shape;
    std::int64_t k;
  };
  for (const Case& c : {Case{{101, 3 * 32 + 5}, 33}, Case{{4, 5 * 256 + 9}, 700}, Case{{4, 8 * 1024 + 9}, 3},
                        Case{{5, 2500}, 2300}, Case{{3, 70}, 70}})
    for (const DType t : {f32, f64, bf16, f16, i64, i32, u8}) {
      if (c.shape[1] > 2000 && t != f32 && t != i64) continue;
      for (const View view : {View::contiguous, View::transposed}) {
        Graph g;
        const Given x = equal_numbers(g, c.shape, t, view);
        expect_same_bits(top_k(x.tensor, c.k), {x.feed()});
      }
    }
}

TEST_F(CudaTiles, RangesFillSeveralBlocks) {
  for (const DType t : all_dtypes) {
    if (t == boolean || t == u8) continue;  // u8 has too few distinct numbers for three blocks
    Graph g;
    expect_same_bits({arange(g, 1, 1 + 3 * 256 + 5, 1, t)}, {});
    if (is_float(t)) expect_same_bits({arange(g, -50, -50 + 3 * 64 + 1.25, 0.25, t)}, {});
  }
}

// A block computes eight norms of 1,024 elements.
TEST_F(CudaTiles, NormsOfBlocksOfListsAgreeWithTheCpu) {
  for (const DType t : float_dtypes) {
    Graph g;
    std::vector<Given> xs;
    for (const Shape& s : {Shape{3 * 8 * 1024 + 100}, Shape{5}, Shape{40, 257}})
      xs.push_back(given(g, s, t, xs.size() == 2 ? View::transposed : View::contiguous, xs.size() + 1));
    std::vector<Tensor> in;
    for (const Given& x : xs) in.push_back(x.tensor);
    // √Σ x² ≤ √1024. A lane adds 32 squares. Then four sums are added, and then 32 lanes. So each side of Σ
    // has 39 roundings.
    expect_near(block_norms(in), feeds_of(xs), 2 * 39 * 32 * rounding(compute_type(t)));
  }
}

// The program draws numbers in two steps, and they must equal the CPU's numbers. One multiprocessor runs 32
// blocks of 256 threads, and each thread draws four numbers at a time.
TEST_F(CudaTiles, RandomNumbersOfSeveralBlocksMatchTheCpu) {
  const std::int64_t n = 3 * 32 * 1024 + 5;
  for (const DType t : {f32, bf16, f64}) {
    Graph g;
    const Given x = given(g, {n}, t), columns = given(g, {37, 7, 53}, t, View::transposed, 2);
    std::vector<Tensor> ts{uniform(g, {n}, -0.1, 0.7, t), dropout(x.tensor, 0.3),
                           dropout(columns.tensor, 0.3)};
    if (t == f32)
      ts.insert(ts.end(),
                {bernoulli(g, {n}, 0.3), randint(g, {n}, -5, 1000003, i32), normal(g, {4099}, 0.3, 2, t),
                 attention_keep_mask(g.rng(), {2, 3, 65, 67}, 0.3, 3)});
    const std::vector<Feed> feeds{x.feed(), columns.feed()};
    Program host = compile(g, ts, {.device = Device::cpu()}),
            gpu = compile(g, ts, {.device = Device::cuda()});
    for (Program* p : {&host, &gpu}) p->seed(0x123456789abcdef0u);
    for (int step = 0; step < 2; ++step) {
      host.run(feeds), gpu.run(feeds);
      for (std::size_t i = 0; i < ts.size(); ++i)
        EXPECT_TRUE(host.fetch(ts[i]).same_bits(gpu.fetch(ts[i])))
            << "result " << i << " of " << name_of(t) << " in step " << step;
    }
  }
}

// Tests copies, assignments and sums by index over several blocks of 256 threads.
TEST_F(CudaTiles, IndexedElementsOfSeveralBlocksMatchTheCpu) {
  for (const DType t : {f32, bf16, i64, u8})
    for (const View view : {View::contiguous, View::transposed}) {
      Graph g;
      const Given x = given(g, {9, 50, 7}, t, view, 1, 0, 3), src = given(g, {9, 300, 7}, t, view, 2, 0, 3);
      const Tensor rows = g.input("rows", {300}, i64), each = g.input("each", {9, 300, 7}, i32),
                   start = g.input("start", {}, i64);
      Array of_rows({300}, i64), of_each({9, 300, 7}, i32), of_start({}, i64);
      for (std::int64_t i = 0; i < 300; ++i) of_rows.set(i, static_cast<double>(i * i % 50));
      for (std::int64_t i = 0; i < of_each.numel(); ++i) of_each.set(i, static_cast<double>(i * 7919 % 50));
      of_start.set(0, 1);
      std::vector<Feed> feeds{x.feed(), src.feed(), {rows, of_rows}, {each, of_each}, {start, of_start}};
      const Tensor& y = x.tensor;
      expect_same_bits({index_select(y, 1, rows), gather(y, 1, each), index_assign(y, 1, rows, src.tensor),
                        concat({y, src.tensor}, 1), slice_at(y, 0, start, 7),
                        slice_assign(src.tensor, slice(y, 1, 0, 48), 1, 3)},
                       feeds);
      // The result has 3·300 elements. If each of them receives one addition, no sort is needed.
      const Given few = given(g, {3, 5, 300}, t, view, 3, 0, 3),
                  one = given(g, {3, 1, 300}, t, view, 4, 0, 3);
      const Tensor ones = g.input("ones", {3, 1, 300}, i32);
      Array of_ones({3, 1, 300}, i32);
      for (std::int64_t i = 0; i < 900; ++i) of_ones.set(i, static_cast<double>(i * 7 % 5));
      feeds.insert(feeds.end(), {few.feed(), one.feed(), {ones, of_ones}});
      const std::vector<Tensor> sums{index_add(y, 1, rows, src.tensor), scatter_add(y, 1, each, src.tensor),
                                     scatter_add(few.tensor, 1, ones, one.tensor)};
      if (!is_float(t)) {
        expect_same_bits(sums, feeds);
        continue;
      }
      // Each sum has at most 31 terms. Terms are at most 3.
      expect_near(sums, feeds, 2 * 31 * 93 * rounding(compute_type(t)));
    }
}

// Along the middle axis, more than 256 slices are added, so they are sorted. Along the first axis, few slices
// are added, so they are not sorted. A block handles eight rows by 32 columns.
TEST_F(CudaTiles, AddedSlicesOfSeveralBlocksAgreeWithTheCpu) {
  for (const DType t : {f32, bf16, i32}) {
    Graph g;
    const Given x = given(g, {3, 40, 2}, t, View::contiguous, 1, 0, 3),
                src = given(g, {3, 777, 2}, t, View::contiguous, 2, 0, 3),
                y = given(g, {29, 70}, t, View::contiguous, 3, 0, 3),
                few = given(g, {300, 70}, t, View::sliced, 4, 0, 3);
    const Tensor rows = g.input("rows", {777}, i64);
    Array at({777}, i64);
    for (std::int64_t i = 0; i < 777; ++i) at.set(i, static_cast<double>(i * 7919 % 29));
    const std::vector<Tensor> sums{index_add(x.tensor, 1, rows, src.tensor),
                                   index_add(y.tensor, 0, slice(rows, 0, 0, 300), few.tensor)};
    const std::vector<Feed> feeds{x.feed(), src.feed(), y.feed(), few.feed(), {rows, at}};
    // Each sum has at most 28 terms. Terms are at most 3.
    is_float(t) ? expect_near(sums, feeds, 2 * 28 * 84 * rounding(compute_type(t)))
                : expect_same_bits(sums, feeds);
  }
}

// Libraries refuse these operands. The kernel for them has tiles of 16·16.
TEST_F(CudaTiles, ProductsOfSeveralTilesAgreeWithTheCpu) {
  for (const DType t : {f32, f64, bf16}) {
    Graph g;
    const Given a = given(g, {3, 35, 37}, t, View::sliced, 1), b = given(g, {3, 37, 50}, t, View::sliced, 2);
    expect_near({matmul(a.tensor, b.tensor), matmul_wide(a.tensor, b.tensor)}, feeds_of({a, b}),
                2 * 37 * 37 * rounding(compute_type(t)));
  }
}

// Rotates several blocks of 256 pairs. Positions are given or counted.
TEST_F(CudaTiles, RopeInSeveralBlocksAgreesWithTheCpu) {
  for (const DType t : {f32, f64, bf16}) {
    Graph g;
    const Given x = given(g, {2, 65, 26}, t, View::contiguous, 1),
                y = given(g, {2, 3, 65, 24}, t, View::contiguous, 2);
    const Tensor positions = g.input("positions", {2, 65}, i32);
    Array at({2, 65}, i32);
    for (std::int64_t i = 0; i < 130; ++i) at.set(i, static_cast<double>(i * 31 % 130));
    // Each result is a sum of two products with a cosine and a sine. The devices use different libraries for
    // these functions.
    expect_near({rope(x.tensor, positions), rope(x.tensor, {}, {.interleaved = true, .start = 5}),
                 rope(y.tensor, {}, {.dims = 16})},
                {x.feed(), y.feed(), {positions, at}}, 8 * rounding(compute_type(t)));
  }
}

// Each sequence has one query. One block checks 256 sequences. The last block finds a negative length.
TEST_F(CudaTiles, SequencesOfSeveralBlocksAreChecked) {
  constexpr std::int64_t n = 3 * 256 + 9;
  Graph g;
  const Given q = given(g, {1, 1, n, 4}, f64, View::contiguous, 1),
              k = given(g, {1, 1, n, 4}, f64, View::contiguous, 2);
  const Tensor cu = g.input("cu", {n + 1}, i32);
  Array of_cu({n + 1}, i32);
  for (std::int64_t s = 0; s <= n; ++s) of_cu.set(s, static_cast<double>(s));
  const Tensor o = flash_attn(q.tensor, k.tensor, k.tensor, {.cu_seqlens_q = cu, .cu_seqlens_k = cu}).o;
  expect_near({o}, {q.feed(), k.feed(), {cu, of_cu}}, 0);  // each query sees one key
  for (const std::int64_t s : {std::int64_t{300}, std::int64_t{600}, n - 1}) {
    Array wrong = of_cu;
    wrong.set(s, static_cast<double>(s - 2));
    expect_error<Error>([&] { on(Device::cuda(), {o}, {q.feed(), k.feed(), {cu, wrong}}); }, {"position"});
  }
}

// ‖a − b‖ / ‖b‖
double difference(const Array& a, const Array& b) {
  const Vector x = doubles(a), y = doubles(b);
  double apart = 0, all = 0;
  for (std::size_t i = 0; i < x.size(); ++i) apart += (x[i] - y[i]) * (x[i] - y[i]), all += y[i] * y[i];
  return std::sqrt(apart / all);
}

// The backward has tiles of 64 queries and 64 keys, and makes one pass over keys. For wide heads, two groups
// of warps divide the work. In the deterministic order, these heads have a separate pass for z_Q. P, its
// gradient and each result are rounded to bf16.
TEST_F(CudaTiles, GradientsOfAttentionInOnePassAgreeWithTheCpu) {
  struct Case {
    std::int64_t queries, keys, d;
    bool nondeterministic;
  };
  for (const Case& c : {Case{3 * 64 + 21, 2 * 128 + 33, 16, true}, Case{64 + 9, 64 + 11, 136, true},
                        Case{64 + 9, 64 + 11, 136, false}, Case{9, 64 + 11, 200, true}}) {
    const auto gradients_of = [&](DType t, Device device) {
      Graph g;
      std::vector<Given> x;
      std::vector<Tensor> wrt;
      for (const std::int64_t rows : {c.queries, c.keys, c.keys, c.queries}) {
        const Given rounded = given(g, {1, 1, rows, c.d}, bf16, View::contiguous, x.size() + 1);
        x.push_back(rounded);
        wrt.push_back(cast(rounded.tensor, t));
      }
      const Tensor o =
          flash_attn(wrt[0], wrt[1], wrt[2],
                     {.causal = true,
                      .nondeterministic = c.nondeterministic,
                      .kernels = t == bf16 ? AttentionKernels::tensor_cores : AttentionKernels::best})
              .o;
      return on(device, gradients(sum(o * wrt[3]), {wrt[0], wrt[1], wrt[2]}), feeds_of(x));
    };
    const auto expected = gradients_of(f64, Device::cpu()), got = gradients_of(bf16, Device::cuda());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_LT(difference(got[i], expected[i]), 4 * rounding(bf16))
          << "operand " << i << ", " << c.d << " columns, "
          << (c.nondeterministic ? "nondeterministic" : "in order");
  }
}

// There are several sequences with several ranges of keys, and 16 or 72 heads. Hopper's kernels decode these
// latents.
TEST_F(CudaTiles, LatentsOfSeveralRangesMatchTheirDefinition) {
  for (const std::int64_t heads : {16, 72}) {
    PagedCall c{.H = heads,
                .Hk = 1,
                .d = heads == 16 ? 320 : 264,
                .dv = 8,
                .page = 64,
                .dtype = bf16,
                .v_in_k = true};
    c.sequences = {0, 1, 2, 3}, c.lengths = {heads == 16 ? 1024 + 70 : 2048 + 70, 70, 1, 130};
    expect_defined(c, {.device = Device::cuda()}, true);
  }
}

// Scores differ so much that one key has nearly all of P. Any warp may compute this key. In f16, exp(A − c)
// is infinite if c is not the largest score.
TEST_F(CudaTiles, ALargestScoreIsFoundInEveryPartOfATile) {
  struct Heads {
    std::int64_t H, Hk, d, dv;
  };
  for (const Heads& n :
       {Heads{5, 1, 280, 264}, {16, 1, 320, 8}, {72, 1, 264, 8}, {8, 2, 64, 64}, {4, 1, 200, 200}}) {
    SCOPED_TRACE(::testing::Message() << n.H << " heads of " << n.d);
    PagedCall c{.H = n.H, .Hk = n.Hk, .d = n.d, .dv = n.dv, .page = 64, .dtype = f16};
    c.options.scale = 4, c.v_in_k = n.d > 256;
    c.sequences = {0, 1, 2}, c.lengths = {64, 129, 50};
    expect_defined(c, {.device = Device::cuda()}, true);
  }
}

}  // namespace

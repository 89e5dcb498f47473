// Tests index ops on a GPU in larger sizes than the tests of these ops. Adds many slices to few elements, and
// few slices to many elements, in chunks. Also covers units of every width and indices out of range. Skipped
// if there is no GPU.
#include <random>

#include "backends/cuda/cuda.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaIndex : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

// Random indices in [0, size). If `skewed`, most of them are equal.
struct Picked {
  Picked(Graph& g, const Shape& shape, std::int64_t size, bool skewed = false, DType t = i64)
      : tensor(g.input("indices", shape, t)) {
    std::mt19937_64 rng(7);
    std::vector<std::int64_t> v(static_cast<std::size_t>(numel(shape)));
    for (std::int64_t& i : v)
      i = skewed && rng() % 8 != 0 ? size / 2
                                   : static_cast<std::int64_t>(rng() % static_cast<unsigned>(size));
    array = Array::of(shape, v).to(t);
  }
  Feed feed() const { return {tensor, array}; }
  Tensor tensor;
  Array array;
};

// Checks that the GPU's results equal the CPU's results, and that a second program gives the same results.
// Copied elements must be bitwise identical. Sums in a different order may differ by `additions` roundings of
// terms up to 1.
void expect_same(const std::vector<Tensor>& ts, const std::vector<Feed>& feeds, double additions = 0) {
  const std::vector<Array> expected = eval(ts, feeds, {.device = Device::cpu()}),
                           got = eval(ts, feeds, {.device = Device::cuda()}),
                           again = eval(ts, feeds, {.device = Device::cuda(), .reuse = false});
  for (std::size_t i = 0; i < ts.size(); ++i) {
    EXPECT_TRUE(got[i].same_bits(again[i])) << "result " << i << " differs from run to run";
    if (additions == 0 || !is_float(ts[i].dtype())) {
      EXPECT_TRUE(got[i].same_bits(expected[i])) << "result " << i;
      continue;
    }
    const Vector a = doubles(expected[i]), b = doubles(got[i]);
    // Each of the two sums has at most n roundings in the compute type. Partial sums are at most n. The
    // result is then rounded once to the dtype.
    const double wide = additions * additions * rounding(compute_type(ts[i].dtype()));
    for (std::size_t k = 0; k < a.size(); ++k)
      ASSERT_LE(std::abs(a[k] - b[k]), 2 * wide + 2 * rounding(ts[i].dtype()) * (std::abs(a[k]) + wide))
          << "result " << i << ", element " << k;
  }
}

TEST_F(CudaIndex, AddsManySlicesToFewAndFewToMany) {
  struct Case {
    std::int64_t rows, columns, count;
    bool skewed;
  };
  for (const Case& c : {Case{3, 64, 20000, false}, Case{65, 384, 3000, true}, Case{5000, 8, 3000, false},
                        Case{7, 1, 50000, true}, Case{1, 33, 777, false}, Case{300, 1, 100000, false}})
    for (DType t : {f32, f64, bf16, f16, i64, i32, u8}) {
      Graph g;
      const double high = is_float(t) ? 1 : 3;
      const Given x = given(g, {c.rows, c.columns}, t, View::contiguous, 1, 0, high),
                  src = given(g, {c.count, c.columns}, t, View::contiguous, 2, 0, high);
      const Picked at(g, {c.count}, c.rows, c.skewed);
      // Returns the maximum number of additions to one element. If `skewed`, all additions may be to the same
      // element.
      const double most = static_cast<double>(c.skewed ? c.count : 3 * c.count / c.rows + 50);
      expect_same({index_add(x.tensor, 0, at.tensor, src.tensor)}, {x.feed(), src.feed(), at.feed()}, most);
    }
}

// Few slices are added without sorting their indices.
TEST_F(CudaIndex, AddsFewSlices) {
  struct Case {
    std::int64_t rows, columns, count;
    bool skewed;
  };
  for (const Case& c : {Case{65, 64, 256, false}, Case{65, 70, 1024, true}, Case{1, 1, 1, false},
                        Case{1000, 33, 300, false}, Case{9, 5, 1023, false}})
    for (DType t : {f32, bf16, i32, u8}) {
      Graph g;
      const double high = is_float(t) ? 1 : 3;
      const Given x = given(g, {c.rows, c.columns}, t, View::contiguous, 1, 0, high),
                  src = given(g, {c.count, c.columns}, t, View::sliced, 2, 0, high);
      const Picked at(g, {c.count}, c.rows, c.skewed, i32);
      const double most = static_cast<double>(c.skewed ? c.count : 3 * c.count / c.rows + 50);
      expect_same({index_add(x.tensor, 0, at.tensor, src.tensor)}, {x.feed(), src.feed(), at.feed()}, most);
    }
}

TEST_F(CudaIndex, AddsInTheMiddleAndToViews) {
  for (View view : all_views) {
    Graph g;
    const Given x = given(g, {6, 11, 10}, f32, view, 1), src = given(g, {6, 40, 30, 10}, f32, view, 2);
    const Picked at(g, {40, 30}, 11, false, i32);
    expect_same({index_add(x.tensor, 1, at.tensor, src.tensor)}, {x.feed(), src.feed(), at.feed()}, 400);
  }
}

TEST_F(CudaIndex, AssignsSlicesOfAnyAxisAndView) {
  for (View view : all_views)
    for (DType t : {f32, bf16, u8})
      for (int axis : {0, 1, 2}) {
        Graph g;
        const Shape shape{7, 11, 24};
        Shape part{shape[0], shape[1], shape[2]};
        part[axis] = 30;
        const Given x = given(g, shape, t, view, 1, 0, 16), src = given(g, part, t, view, 2, 0, 16);
        const Picked at(g, {30}, shape[axis] + 1, false, i32);  // some are −1, and some are repeated
        expect_same({index_assign(x.tensor, axis, at.tensor - 1, src.tensor)},
                    {x.feed(), src.feed(), at.feed()});
      }
  Graph g;
  const Given x = given(g, {5000, 64}, bf16, View::contiguous, 3),
              src = given(g, {2, 1000, 64}, bf16, View::contiguous, 4);
  const Picked at(g, {2, 1000}, 5000);
  expect_same({index_assign(x.tensor, 0, at.tensor, src.tensor)}, {x.feed(), src.feed(), at.feed()});
}

TEST_F(CudaIndex, ScattersManyToOne) {
  for (View view : all_views)
    for (DType t : {f32, bf16, i64}) {
      Graph g;
      const double high = is_float(t) ? 1 : 3;
      const Given x = given(g, {9, 5, 4}, t, view, 1, 0, high),
                  src = given(g, {8, 900, 3}, t, view, 2, 0, high);
      const Picked at(g, {8, 900, 3}, 5), one(g, {8, 1, 3}, 5);
      expect_same({scatter_add(x.tensor, 1, at.tensor, src.tensor),
                   scatter_add(x.tensor, 1, one.tensor, slice(src.tensor, 1, 0, 1))},
                  {x.feed(), src.feed(), at.feed(), one.feed()}, 900);
    }
}

TEST_F(CudaIndex, PicksAndMovesInUnitsOfEveryWidth) {
  for (DType t : all_dtypes)
    for (std::int64_t width : {1, 3, 6, 16, 40})
      for (View view : all_views) {
        Graph g;
        const Given x = given(g, {5, 9, width}, t, view, 1, 0, 2);
        const Picked at(g, {2, 7}, 9), each(g, {5, 4, width}, 9), start(g, {}, 4);
        const Tensor& y = x.tensor;
        expect_same({index_select(y, 1, at.tensor), gather(y, 1, each.tensor),
                     concat({y, slice(y, 1, 1, 4)}, 1), concat({y, y, slice(y, 2, 0, 1)}, 2),
                     slice_at(y, 1, start.tensor, 5), slice_assign(y, slice(y, 1, 0, 5), 1, start.tensor),
                     slice_assign(y, slice(y, 1, 3, 6), 1, 1, 2)},
                    {x.feed(), at.feed(), each.feed(), start.feed()});
      }
}

// The unit width depends on the strides of all axes. This includes axes before the indexed axis.
TEST_F(CudaIndex, PicksInUnitsThatStridesAllow) {
  for (const DType t : {f32, bf16, u8})
    for (const std::int64_t width : {2, 4, 16})
      for (const std::int64_t unused : {0, 1, 2, 3, 4, 6, 8}) {
        Graph g;
        const Given x = given(g, {3, 5 * width + unused}, t, View::contiguous, 1, 0, 2);
        const Picked at(g, {4}, 5);
        const Tensor y = view(slice(x.tensor, 1, 0, 5 * width), {3, 5, width});
        expect_same({index_select(y, 1, at.tensor)}, {x.feed(), at.feed()});
      }
}

// On Hopper, a kernel begins while the previous kernel still writes the indices.
TEST_F(CudaIndex, ReadsIndicesThatAStepComputes) {
  Graph g;
  const Given x = given(g, {9, 8}, f32);
  const Picked at(g, {6}, 8), start(g, {}, 4);
  const Tensor next = at.tensor + 1, each = contiguous(expand(unsqueeze(next, 1), {6, 8}));
  const Tensor src = embedding(x.tensor, at.tensor) * 2;
  expect_same({embedding(x.tensor, next), index_select(x.tensor, 0, next), gather(x.tensor, 0, each),
               index_assign(x.tensor, 0, next, src), slice_at(x.tensor, 0, start.tensor + 1, 3)},
              {x.feed(), at.feed(), start.feed()});
  expect_same({index_add(x.tensor, 0, next, src), scatter_add(x.tensor, 0, each, src)}, {x.feed(), at.feed()},
              7);
}

TEST_F(CudaIndex, FillsWithOneNumber) {
  for (DType t : all_dtypes) {
    Graph g;
    const Given x = given(g, {3, 64}, t, View::contiguous, 1, 0, 2);
    const Tensor one = expand(full(g, {}, 1, t), {3, 48});
    expect_same({concat({x.tensor, one}, 1), slice_assign(x.tensor, one, 1, 16)}, {x.feed()});
  }
}

TEST_F(CudaIndex, ReportsIndicesOutOfRange) {
  Graph g;
  const Given x = given(g, {5, 8}, f32);
  const Tensor at = g.input("at", {6}, i64), start = g.input("start", {}, i64);
  const std::vector<std::int64_t> numbers{0, 4, 7, 1, -2, 3}, three{3};
  const Feed bad(at, numbers);
  const CompileOptions gpu{.device = Device::cuda()};
  const Tensor row = expand(unsqueeze(at, 1), {6, 8});
  for (const Tensor& y : {embedding(x.tensor, at), index_select(x.tensor, 0, at), gather(x.tensor, 0, row),
                          index_add(x.tensor, 0, at, embedding(x.tensor, at * 0)),
                          index_assign(x.tensor, 0, at, embedding(x.tensor, at * 0)),
                          scatter_add(x.tensor, 0, row, embedding(x.tensor, at * 0))})
    expect_error<Error>([&] { eval(y, {x.feed(), bad}, gpu); }, {"index 7", "expected 0 to 4"});
  for (const Tensor& y :
       {slice_at(x.tensor, 0, start, 3), slice_assign(x.tensor, slice(x.tensor, 0, 0, 3), 0, start)})
    expect_error<Error>(
        [&] {
          eval(y, {x.feed(), {start, three}}, gpu);
        },
        {"index 3 at position 0", "expected 0 to 2"});
}

}  // namespace

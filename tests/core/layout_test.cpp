// Layout algebra: the rules and examples of [Stratos, FlashAttention §B.2-B.3], and the refusals.
#include <tilegrad/core/base/layout.h>

#include <gtest/gtest.h>

namespace {

using namespace tg;

// Which element of the buffer each index reaches, in row-major order of the indices.
std::vector<std::int64_t> places(const Layout& l) {
  std::vector<std::int64_t> out;
  Dims index = Dims::filled(l.rank(), 0);
  for (std::int64_t i = 0; i < l.numel(); ++i) {
    std::int64_t at = l.offset;
    for (int a = 0; a < l.rank(); ++a) at += index[a] * l.strides[a];
    out.push_back(at);
    for (int a = l.rank() - 1; a >= 0 && ++index[a] == l.shape[a]; --a) index[a] = 0;
  }
  return out;
}

template <class E, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

TEST(Layout, StridesAreRowMajor) {  // x.stride() => (3, 1), [Stratos, FlashAttention §B.2]
  EXPECT_EQ(row_major({2, 3}).strides, (Strides{3, 1}));
  EXPECT_EQ(row_major({4, 5, 6}).strides, (Strides{30, 6, 1}));  // (np, p, 1)
  EXPECT_EQ(row_major({}).numel(), 1);
}

TEST(Layout, ViewSplitsARange) {  // torch.arange(12).view(2, 2, 3), [Stratos, FlashAttention §B.3]
  const Layout x = row_major({12});
  EXPECT_EQ(x.strides, (Strides{1}));
  const Layout y = view(x, {2, 2, 3});
  EXPECT_EQ(y.strides, (Strides{6, 3, 1}));
  EXPECT_TRUE(y.is_contiguous());
  EXPECT_EQ(places(y), places(x));
}

TEST(Layout, TransposeSwapsStrides) {
  const Layout x = view(row_major({12}), {4, 3});
  EXPECT_EQ(x.strides, (Strides{3, 1}));
  const Layout y = transpose(x, 0, 1);
  EXPECT_EQ(y.strides, (Strides{1, 3}));
  EXPECT_FALSE(y.is_contiguous());
  EXPECT_EQ(places(y), (std::vector<std::int64_t>{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11}));
}

TEST(Layout, AViewOfATransposeIsRefusedAndNamesReshape) {
  const Layout y = transpose(view(row_major({12}), {4, 3}), 0, 1);
  const std::string m = message_of<ShapeError>([&] { view(y, {12}); });
  EXPECT_NE(m.find("reshape"), std::string::npos) << m;
  EXPECT_NE(m.find("[3, 4]"), std::string::npos) << m;
  EXPECT_FALSE(can_view(y, {12}));
  EXPECT_TRUE(can_view(y, {3, 2, 2}));  // splitting an axis always works
}

TEST(Layout, ExpandHasStrideZero) {  // x.expand(3, 12).stride() => (0, 1), [Stratos, FlashAttention §B.3]
  const Layout x = view(row_major({12}), {1, 12});
  const Layout y = expand(x, {3, 12});
  EXPECT_EQ(y.strides, (Strides{0, 1}));
  EXPECT_FALSE(y.is_contiguous());
  EXPECT_EQ(expand(row_major({3, 1}), {2, 3, 4}).strides, (Strides{0, 1, 0}));
  EXPECT_EQ(expand(row_major({3, 1}), {-1, 4}).shape, (Shape{3, 4}));
  EXPECT_THROW(expand(row_major({3, 2}), {3, 4}), ShapeError);
  EXPECT_THROW(expand(row_major({3, 2}), {2}), ShapeError);
}

TEST(Layout, HeadsAreSplitAndMergedWithoutACopy) {  // [Stratos, FlashAttention footnote 6]
  const std::int64_t T = 5, H = 2, d = 3;
  const Layout q = transpose(view(row_major({T, H * d}), {T, H, d}), 0, 1);
  EXPECT_EQ(q.shape, (Shape{H, T, d}));
  EXPECT_EQ(q.strides, (Strides{d, H * d, 1}));
  EXPECT_TRUE(can_view(transpose(q, 0, 1), {T, H * d}));  // back: a view
  EXPECT_FALSE(can_view(q, {T, H * d}));
}

TEST(Layout, ViewMergesAxesThatOneStrideWalks) {
  const Layout x = slice(row_major({4, 6, 5}), 0, 1, 3);  // whole rows: still mergeable
  EXPECT_EQ(places(view(x, {12, 5})), places(x));
  const Layout cut = slice(row_major({4, 6, 5}), 2, 0, 4);
  EXPECT_FALSE(can_view(cut, {4, 24}));
  EXPECT_EQ(places(view(cut, {24, 4})), places(cut));
  const Layout stretched = expand(row_major({1, 5}), {3, 5});
  EXPECT_FALSE(can_view(stretched, {15}));
  EXPECT_EQ(view(expand(row_major({}), {2, 3}), {6}).strides, (Strides{0}));  // a zero stride walks both axes
  EXPECT_EQ(view(row_major({2, 0, 3}), {0, 7}).numel(), 0);
}

TEST(Layout, SliceMovesTheOffset) {
  const Layout x = slice(row_major({4, 6}), 1, 1, 6, 2);
  EXPECT_EQ(x.shape, (Shape{4, 3}));
  EXPECT_EQ(x.offset, 1);
  EXPECT_EQ(x.strides, (Strides{6, 2}));
  EXPECT_EQ(slice(row_major({5}), 0, -2, 99).shape, (Shape{2}));
  EXPECT_EQ(slice(row_major({5}), 0, 3, 1).numel(), 0);
  EXPECT_THROW(slice(row_major({5}), 0, 0, 5, 0), ShapeError);
  EXPECT_THROW(slice(row_major({5}), 1, 0, 5), ShapeError);
}

TEST(Layout, SqueezeAndUnsqueezeAreInverse) {
  const Layout x = transpose(row_major({2, 3}), 0, 1);
  for (int axis : {0, 1, 2, -1}) EXPECT_EQ(places(squeeze(unsqueeze(x, axis), axis)), places(x));
  EXPECT_THROW(squeeze(x, 0), ShapeError);
}

TEST(Layout, PermuteTakesEveryAxisOnce) {
  EXPECT_EQ(permute(row_major({2, 3, 4}), {2, 0, -2}).shape, (Shape{4, 2, 3}));
  EXPECT_THROW(permute(row_major({2, 3}), {0, 0}), ShapeError);
  EXPECT_THROW(permute(row_major({2, 3}), {0}), ShapeError);
}

TEST(Layout, BroadcastingAlignsAtTheRight) {  // 9×1×3 with 8×1 is 9×8×3, [Stratos, Efficient Attention §A]
  EXPECT_EQ(broadcast_shapes({9, 1, 3}, {8, 1}, "add"), (Shape{9, 8, 3}));
  EXPECT_EQ(broadcast_shapes({}, {2, 0}, "add"), (Shape{2, 0}));
  const std::string m = message_of<ShapeError>([] { broadcast_shapes({4, 8}, {9, 3}, "add"); });
  EXPECT_NE(m.find("[add]"), std::string::npos);
  EXPECT_NE(m.find("[4, 8] with [9, 3]"), std::string::npos);
}

TEST(Layout, DenseLikeKeepsTheOrderInMemory) {
  const Layout blhd = permute(row_major({2, 5, 3, 4}), {0, 2, 1, 3});
  EXPECT_TRUE(blhd.is_dense());
  EXPECT_EQ(dense_like(blhd.shape, blhd).strides, blhd.strides);
  EXPECT_FALSE(slice(blhd, 3, 0, 2).is_dense());
  EXPECT_FALSE(expand(row_major({1, 3}), {2, 3}).is_dense());
}

TEST(Layout, SizesThatOverflowAreRefused) {
  EXPECT_THROW(row_major({1LL << 40, 1LL << 40}), ShapeError);
  EXPECT_THROW(row_major({-1}), ShapeError);
  EXPECT_THROW((Dims{1, 2, 3, 4, 5, 6, 7, 8, 9}), ShapeError);
  EXPECT_THROW(view(row_major({6}), {4, -1}), ShapeError);
  EXPECT_THROW(view(row_major({6}), {-1, -1}), ShapeError);
}

}  // namespace

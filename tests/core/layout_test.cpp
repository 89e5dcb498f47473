// Tests layout algebra with the rules and examples in [Stratos, FlashAttention §B.2-B.3]. Also tests the
// errors about invalid layouts.
#include <tilegrad/core/base/layout.h>

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <optional>
#include <random>

namespace {

using namespace tg;

// The buffer element of each index, in row-major order of the indices.
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
  EXPECT_TRUE(can_view(transpose(q, 0, 1), {T, H * d}));  // merging the heads again is a view
  EXPECT_FALSE(can_view(q, {T, H * d}));
}

TEST(Layout, ViewMergesAxesWithOneCommonStride) {
  const Layout x = slice(row_major({4, 6, 5}), 0, 1, 3);  // complete rows can still be merged
  EXPECT_EQ(places(view(x, {12, 5})), places(x));
  const Layout cut = slice(row_major({4, 6, 5}), 2, 0, 4);
  EXPECT_FALSE(can_view(cut, {4, 24}));
  EXPECT_EQ(places(view(cut, {24, 4})), places(cut));
  const Layout stretched = expand(row_major({1, 5}), {3, 5});
  EXPECT_FALSE(can_view(stretched, {15}));
  EXPECT_EQ(view(expand(row_major({}), {2, 3}), {6}).strides, (Strides{0}));  // both strides are 0
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

TEST(Layout, PermuteUsesEveryAxisOnce) {
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

// Returns layouts of every kind: axes of size 1 and 0, any order, gaps, expanded axes.
class RandomLayouts {
 public:
  explicit RandomLayouts(unsigned seed) : random_(seed) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<unsigned>(n));
  }
  Shape shape(int most) {
    Shape s;
    for (std::int64_t n = below(most + 1); n > 0; --n) s.push_back(below(12) == 0 ? 0 : 1 + below(4));
    return s;
  }
  Layout next() {
    Layout l = row_major(shape(4));
    for (std::int64_t n = below(4); n > 0 && l.rank() > 0; --n) {
      const std::int64_t axis = below(l.rank()), d = l.shape[static_cast<int>(axis)];
      if (below(3) == 0)
        l = transpose(l, axis, below(l.rank()));
      else if (d == 1 && below(2) == 0)
        l = stretched(l, static_cast<int>(axis), 2 + below(2));
      else
        l = slice(l, axis, below(d + 1) / 2, d, 1 + below(2));
    }
    return l;
  }

 private:
  static Layout stretched(const Layout& l, int axis, std::int64_t to) {
    Shape s = l.shape;
    s[axis] = to;
    return expand(l, s);
  }
  std::mt19937 random_;
};

// Derives each property only from the offsets of the elements.
TEST(Layout, PropertiesFollowFromTheOffsetsOfElements) {
  RandomLayouts random(1);
  int contiguous = 0, dense = 0, neither = 0;
  for (int n = 0; n < 4000; ++n) {
    const Layout l = random.next();
    const std::vector<std::int64_t> at = places(l);
    bool in_order = true;
    for (std::size_t i = 0; i < at.size(); ++i)
      in_order = in_order && at[i] - at[0] == static_cast<std::int64_t>(i);
    std::vector<std::int64_t> sorted = at;
    std::sort(sorted.begin(), sorted.end());
    bool gap_free = true;
    for (std::size_t i = 0; i < sorted.size(); ++i)
      gap_free = gap_free && sorted[i] - sorted[0] == static_cast<std::int64_t>(i);
    EXPECT_EQ(l.numel(), std::ssize(at));
    EXPECT_EQ(l.is_contiguous(), in_order) << l.shape.text() << l.strides.text();
    EXPECT_EQ(l.is_dense(), gap_free) << l.shape.text() << l.strides.text();
    EXPECT_EQ(l.extent(), at.empty() ? 0 : sorted.back() + 1);
    contiguous += in_order, dense += gap_free && !in_order, neither += !gap_free;
    if (at.empty()) continue;
    // dense_like() removes gaps and keeps the order in memory.
    const Layout like = dense_like(l.shape, l);
    EXPECT_TRUE(like.is_dense() && like.offset == 0 && like.shape == l.shape);
    const std::vector<std::int64_t> of_like = places(like);
    for (std::size_t i = 1; i < at.size(); ++i)
      if (at[i] != at[i - 1]) {
        EXPECT_EQ(at[i] > at[i - 1], of_like[i] > of_like[i - 1]) << l.strides.text();
      }
  }
  EXPECT_GT(contiguous, 500);
  EXPECT_GT(dense, 100);
  EXPECT_GT(neither, 500);
}

// Returns strides for elements at these offsets. If an axis has one element, its stride equals the stride
// from row_major().
std::optional<Strides> strides_of(const std::vector<std::int64_t>& at, const Shape& shape) {
  Layout l = row_major(shape);
  if (at.empty()) return l.strides;
  l.offset = at[0];
  const Strides steps = l.strides;  // distance in the list of offsets
  for (int a = 0; a < l.rank(); ++a)
    if (shape[a] > 1) l.strides[a] = at[static_cast<std::size_t>(steps[a])] - at[0];
  return places(l) == at ? std::optional(l.strides) : std::nullopt;
}

TEST(Layout, ViewsExistIfStridesCanExpressThem) {
  RandomLayouts random(2);
  int views = 0, refused = 0;
  for (int n = 0; n < 20000; ++n) {
    const Layout l = random.next();
    Shape shape = random.below(4) == 0 ? l.shape : random.shape(4);
    if (numel(shape) != l.numel()) {
      EXPECT_THROW(view(l, shape), ShapeError);
      continue;
    }
    const auto expected = strides_of(places(l), shape);
    EXPECT_EQ(can_view(l, shape), expected.has_value()) << l.shape.text() << l.strides.text() << shape.text();
    ++(expected ? views : refused);
    if (!expected) continue;
    if (l.numel() > 0 && !shape.empty() && random.below(2) == 0)
      shape[static_cast<int>(random.below(shape.size()))] = -1;
    const Layout got = view(l, shape);
    EXPECT_EQ(got.strides, *expected) << l.shape.text() << l.strides.text() << got.shape.text();
    EXPECT_EQ(places(got), places(l));
  }
  EXPECT_GT(views, 500);
  EXPECT_GT(refused, 50);
}

// Expects element i of the result to be the argument's element according to NumPy's rule.
TEST(Layout, ResultsHaveTheElementsOfTheirRules) {
  RandomLayouts random(3);
  for (int n = 0; n < 4000; ++n) {
    const Layout l = random.next();
    const int rank = l.rank();
    const auto at = [](const Layout& x, const Dims& index) {
      std::int64_t place = x.offset;
      for (int a = 0; a < x.rank(); ++a) place += index[a] * x.strides[a];
      return place;
    };
    const auto each = [](const Layout& x, const auto& f) {
      Dims index = Dims::filled(x.rank(), 0);
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        f(index);
        for (int a = x.rank() - 1; a >= 0 && ++index[a] == x.shape[a]; --a) index[a] = 0;
      }
    };
    Axes order;
    for (int a = 0; a < rank; ++a) order.insert(static_cast<int>(random.below(a + 1)), a);
    const Layout permuted = permute(l, order);
    ASSERT_EQ(permuted.rank(), rank);
    each(permuted, [&](const Dims& i) {
      Dims from = i;
      for (int a = 0; a < rank; ++a) from[static_cast<int>(order[a])] = i[a];
      EXPECT_EQ(at(permuted, i), at(l, from));
    });
    for (int a = 0; a < rank; ++a) EXPECT_EQ(permuted.shape[a], l.shape[static_cast<int>(order[a])]);

    const int added = static_cast<int>(random.below(9 - std::max(rank, 5)));
    Shape wide = Dims::filled(added, 2);
    for (int a = 0; a < rank; ++a)
      wide.push_back(random.below(4) == 0 ? -1 : l.shape[a] == 1 ? random.below(4) : l.shape[a]);
    const Layout expanded = expand(l, wide);
    for (int a = 0; a < rank; ++a)
      EXPECT_EQ(expanded.shape[added + a], wide[added + a] == -1 ? l.shape[a] : wide[added + a]);
    each(expanded, [&](const Dims& i) {
      Dims from = Dims::filled(rank, 0);
      for (int a = 0; a < rank; ++a) from[a] = l.shape[a] == 1 ? 0 : i[added + a];
      EXPECT_EQ(at(expanded, i), at(l, from));
    });

    const int gap = static_cast<int>(random.below(rank + 1));
    const Layout unsqueezed = unsqueeze(l, random.below(2) == 0 ? gap : gap - rank - 1);
    EXPECT_EQ(unsqueezed.shape[gap], 1);
    EXPECT_EQ(unsqueezed.strides[gap], gap < rank ? l.shape[gap] * l.strides[gap] : 1);
    EXPECT_EQ(squeeze(unsqueezed, gap), l);
    if (rank == 0) continue;
    const int a = static_cast<int>(random.below(rank)), b = static_cast<int>(random.below(rank));
    const Layout transposed = transpose(l, a, b - (random.below(2) == 0 ? rank : 0));
    Axes swapped;
    for (int c = 0; c < rank; ++c) swapped.push_back(c == a ? b : c == b ? a : c);
    EXPECT_EQ(transposed, permute(l, swapped));

    const std::int64_t d = l.shape[a], from = random.below(2 * d + 3) - d - 1,
                       to = random.below(2 * d + 3) - d - 1, step = 1 + random.below(3);
    const Layout part = slice(l, a - rank, from, to, step);
    std::vector<std::int64_t> kept;  // the indices of the axis
    const auto end = [d](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + d : i, 0, d); };
    for (std::int64_t i = end(from); i < end(to); i += step) kept.push_back(i);
    ASSERT_EQ(part.shape[a], std::ssize(kept));
    each(part, [&](const Dims& i) {
      Dims whole = i;
      whole[a] = kept[static_cast<std::size_t>(i[a])];
      EXPECT_EQ(at(part, i), at(l, whole));
    });
  }
}

TEST(Layout, LimitsAreExact) {
  constexpr std::int64_t most = max_elements, huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(numel({most}), most);
  EXPECT_THROW(numel({most + 1}), ShapeError);
  EXPECT_EQ(numel({most / 2, 0, 2}), 0);
  EXPECT_THROW(numel({most / 2, 0, 3}), ShapeError);
  EXPECT_EQ(add_sizes(most - 1, 1), most);
  EXPECT_THROW(add_sizes(most, 1), ShapeError);
  EXPECT_THROW(add_sizes(huge, 1), ShapeError);
  EXPECT_EQ((Layout{{2, 3}, {10, 1}, 5}.extent()), 5 + 10 + 2 + 1);
  EXPECT_EQ((Layout{{1}, {huge}, 7}.extent()), 8);
  EXPECT_EQ((Layout{{2}, {huge - 2}, 1}.extent()), huge);
  EXPECT_THROW((Layout{{2}, {huge - 1}, 1}.extent()), ShapeError);
  EXPECT_THROW((Layout{{3}, {huge - 1}, 0}.extent()), ShapeError);
  // These layouts are not valid for any buffer.
  constexpr std::int64_t reach = std::int64_t{1} << 60;
  EXPECT_EQ(transpose(Layout{{2, 2}, {reach / 2, 1}, most}, 0, 1).offset, most);
  for (const Layout& l :
       {Layout{{2, 2}, {reach / 2 + 1, 1}, 0}, Layout{{2, 2}, {1, 1}, -1}, Layout{{2, 2}, {1, 1}, most + 1},
        Layout{{2, 2}, {1}, 0}, Layout{{2, 2}, {1, -1}, 0}, Layout{{4, 2}, {huge / 2, 1}, 0}})
    for (const auto& f : std::vector<std::function<void()>>{
             [&] {
               permute(l, {1, 0});
             },
             [&] { transpose(l, 0, 1); }, [&] { view(l, {4}); }, [&] { can_view(l, {4}); },
             [&] {
               expand(l, {3, 2, 2});
             },
             [&] { slice(l, 0, 0, 1); }, [&] { squeeze(l, 0); }, [&] { unsqueeze(l, 0); }})
      EXPECT_NE(message_of<ShapeError>(f).find("do not form a valid layout"), std::string::npos);
  // If the new stride would overflow, it cannot be the distance of two elements. So the old stride is kept.
  EXPECT_EQ(slice(Layout{{2, 2}, {4, 1}, 0}, 0, 0, 2, huge).strides, (Strides{4, 1}));
  EXPECT_EQ(slice(Layout{{2, 2}, {4, 1}, 0}, 0, 0, 2, most / 4).strides, (Strides{most, 1}));
  EXPECT_EQ(slice(Layout{{2, 2}, {4, 1}, 0}, 0, 0, 2, most / 4 + 1).strides, (Strides{4, 1}));
}

TEST(Layout, AxesAreCountedFromBothEndsAndMayNotRepeat) {
  for (std::int64_t axis = -4; axis <= 4; ++axis) {
    if (axis < -3 || axis > 2)
      EXPECT_EQ(message_of<ShapeError>([&] { normalize_axis(axis, 3, "sum"); }),
                "[sum] axis " + std::to_string(axis) + " is out of range for 3 dimensions");
    else
      EXPECT_EQ(normalize_axis(axis, 3, "sum"), axis < 0 ? axis + 3 : axis);
  }
  EXPECT_EQ(normalize_axes({}, 3, "sum"), (Axes{0, 1, 2}));
  EXPECT_EQ(normalize_axes({-1, 0}, 3, "sum"), (Axes{0, 2}));
  EXPECT_EQ(message_of<ShapeError>([] {
              normalize_axes({2, -1}, 3, "sum");
            }),
            "[sum] axis -1 is given twice");
  EXPECT_EQ(infer_shape({2, -1, 3}, 24, "view"), (Shape{2, 4, 3}));
  EXPECT_EQ(infer_shape({2, 12}, 24, "view"), (Shape{2, 12}));
  for (const auto& [shape, n] : std::vector<std::pair<Shape, std::int64_t>>{
           {{5, -1}, 24}, {{0, -1}, 0}, {{0, -1}, 24}, {{4, 5}, 24}, {{-2, -12}, 24}})
    EXPECT_THROW(infer_shape(shape, n, "view"), ShapeError) << shape.text();
  EXPECT_EQ(infer_shape({-1, 3}, 0, "view"), (Shape{0, 3}));
  EXPECT_EQ(broadcast_shapes({1, 4}, {3, 1}, "add"), (Shape{3, 4}));
  EXPECT_EQ(broadcast_shapes({4}, {2, 3, 1}, "add"), (Shape{2, 3, 4}));
  EXPECT_THROW(broadcast_shapes({2, 4}, {4, 4}, "add"), ShapeError);
  EXPECT_THROW(broadcast_shapes({0}, {2}, "add"), ShapeError);
  EXPECT_THROW(expand(row_major({2}), {-1, 2}), ShapeError);
  EXPECT_THROW(expand(row_major({1}), {-2}), ShapeError);
  EXPECT_THROW(expand(row_major({3}), {1}), ShapeError);
  EXPECT_THROW(permute(row_major({2, 3}), {0, 2}), ShapeError);
}

TEST(Dims, AreAShortListOfNumbers) {
  Dims d{5, 6, 7};
  EXPECT_EQ(d.size(), 3);
  EXPECT_FALSE(d.empty());
  EXPECT_TRUE(Dims().empty());
  EXPECT_EQ(d.back(), 7);
  EXPECT_EQ(d.text(), "[5, 6, 7]");
  EXPECT_EQ(Dims().text(), "[]");
  EXPECT_TRUE(d.contains(5) && d.contains(7));
  EXPECT_FALSE(d.contains(0));
  d.insert(1, 9);
  EXPECT_EQ(d, (Dims{5, 9, 6, 7}));
  d.insert(4, 8);
  EXPECT_EQ(d, (Dims{5, 9, 6, 7, 8}));
  d.insert(0, 1);
  d.erase(2);
  EXPECT_EQ(d, (Dims{1, 5, 6, 7, 8}));
  d.erase(4), d.erase(0);
  EXPECT_EQ(d, (Dims{5, 6, 7}));
  EXPECT_FALSE(d == (Dims{5, 6}) || d == (Dims{5, 6, 8}) || d == (Dims{5, 6, 7, 0}));
  EXPECT_EQ(Dims::filled(3, 4), (Dims{4, 4, 4}));
  EXPECT_EQ(std::vector<std::int64_t>(d.begin(), d.end()), (std::vector<std::int64_t>{5, 6, 7}));
  Dims full = Dims::filled(8, 1);
  EXPECT_THROW(full.push_back(1), ShapeError);
  EXPECT_THROW(full.insert(0, 1), ShapeError);
}

TEST(Layout, SizesThatOverflowAreRefused) {
  EXPECT_THROW(row_major({1LL << 40, 1LL << 40}), ShapeError);
  EXPECT_THROW(row_major({-1}), ShapeError);
  EXPECT_THROW((Dims{1, 2, 3, 4, 5, 6, 7, 8, 9}), ShapeError);
  EXPECT_THROW(view(row_major({6}), {4, -1}), ShapeError);
  EXPECT_THROW(view(row_major({6}), {-1, -1}), ShapeError);
}

}  // namespace

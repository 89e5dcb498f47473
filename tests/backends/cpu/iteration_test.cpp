// Tests how kernels iterate. Covers lists of merged axes, copies of regions, and partial lines and rows.
// Results do not depend on merged axes or the division of work. So only these tests compare the iteration
// with plain loops.
#define TG_ISA baseline
#include "backends/cpu/kernels/chain.h"
#include "backends/cpu/kernels/lines.h"
#include "backends/cpu/kernels/rows.h"
#include "backends/cpu/kernels/strided.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "core/base/piece_size.h"
#include "tests/support/golden.h"

namespace tg::cpu::baseline {
namespace {

using Numbers = std::vector<i64>;

// The offsets of all elements in row-major order, by plain loops.
Numbers offsets_of(const Shape& shape, const Numbers& strides) {
  Numbers all{0};
  for (int a = 0; a < shape.size(); ++a) {
    Numbers next;
    for (const i64 at : all)
      for (i64 i = 0; i < shape[a]; ++i) next.push_back(at + i * strides[static_cast<std::size_t>(a)]);
    all = next;
  }
  return all;
}

struct Strided {
  Shape shape;
  Numbers strides;
  int merged;  // number of axes after merging
};
const Strided layouts[] = {{{}, {}, 0},
                           {{1}, {7}, 0},
                           {{5}, {1}, 1},
                           {{2, 3, 4}, {12, 4, 1}, 1},
                           {{2, 1, 4}, {4, 99, 1}, 1},
                           {{2, 3, 4}, {24, 4, 1}, 2},
                           {{2, 3, 4}, {12, 4, 2}, 2},
                           {{2, 3, 4}, {20, 6, 1}, 3},
                           {{4, 3}, {1, 4}, 2},
                           {{2, 3, 4}, {0, 4, 1}, 2},
                           {{3, 2, 2}, {0, 0, 0}, 1},
                           {{2, 3, 4, 2}, {120, 8, 2, 1}, 2},
                           {{2, 2, 3}, {-6, -3, -1}, 1}};

TEST(Iteration, WalksVisitElementsInRowMajorOrder) {
  for (const Strided& l : layouts) {
    const Numbers expected = offsets_of(l.shape, l.strides);
    AxisList list;
    for (int a = 0; a < l.shape.size(); ++a)
      list.push({l.shape[a], l.strides[static_cast<std::size_t>(a)], 0});
    list.merge();
    EXPECT_EQ(list.rank, l.merged) << l.shape.text();
    Counter w(list, 0);
    for (int round = 0; round < 2; ++round)  // the counter restarts after the last element
      for (const i64 at : expected) {
        ASSERT_EQ(w.in, at) << l.shape.text();
        w.next();
      }
    for (std::size_t n = expected.size(); n-- > 0;)
      ASSERT_EQ(Counter(list, static_cast<i64>(n)).in, expected[n]) << l.shape.text();
    Counter half(list, static_cast<i64>(expected.size() / 2));
    half.next();
    EXPECT_EQ(half.in, expected[(expected.size() / 2 + 1) % expected.size()]) << l.shape.text();
  }
  const Layout x = row_major({2, 3, 4, 5}), y = row_major({3, 4});
  const AxisList inner = axes_of(x, 1, 3, 8);
  EXPECT_EQ(inner.rank, 1);
  EXPECT_EQ(inner.axis[0].size, 12);
  EXPECT_EQ(inner.axis[0].in, 40);
  EXPECT_EQ(inner.axis[0].out, 0);
  const AxisList both = axes_of(x, 1, 3, 8, &y, 0, 2);
  EXPECT_EQ(both.rank, 1);
  EXPECT_EQ(both.axis[0].in, 40);
  EXPECT_EQ(both.axis[0].out, 2);
}

TEST(Iteration, ListsOfAxesMergeIfBothStridesAllow) {
  for (const Strided& l : layouts) {
    AxisList list;
    for (int a = 0; a < l.shape.size(); ++a) {
      const i64 stride = l.strides[static_cast<std::size_t>(a)];
      list.push({l.shape[a], stride, 10 * stride});
    }
    const Numbers expected = offsets_of(l.shape, l.strides);
    EXPECT_EQ(list.numel(), static_cast<i64>(expected.size()));
    list.merge();
    EXPECT_EQ(list.rank, l.merged) << l.shape.text();
    EXPECT_EQ(list.numel(), static_cast<i64>(expected.size()));
    for (std::size_t start = 0; start < expected.size(); ++start) {
      Counter c(list, static_cast<i64>(start));
      for (std::size_t n = start; n < expected.size(); ++n, c.next()) {
        ASSERT_EQ(c.in, expected[n]) << l.shape.text();
        ASSERT_EQ(c.out, 10 * expected[n]) << l.shape.text();
      }
    }
    EXPECT_EQ(list.outer().rank, std::max(0, l.merged - 1));
    if (list.rank > 0) {
      EXPECT_EQ(list.outer().numel() * list.inner().size, list.numel());
    }
  }
  AxisList other;  // the output's strides do not allow merging
  other.push({2, 3, 4}), other.push({3, 1, 1});
  other.merge();
  EXPECT_EQ(other.rank, 2);
}

TEST(Iteration, ListsOfAxesAreSortedByTheInput) {
  AxisList list;
  for (const i64 stride : {3, 100, 1, 100, 30}) list.push({stride + 1, stride, list.rank});
  list.sort();
  const Axis expected[] = {{101, 100, 1}, {101, 100, 3}, {31, 30, 4}, {4, 3, 0}, {2, 1, 2}};
  ASSERT_EQ(list.rank, 5);
  for (int a = 0; a < 5; ++a) {
    EXPECT_EQ(list.axis[a].size, expected[a].size) << a;
    EXPECT_EQ(list.axis[a].in, expected[a].in) << a;
    EXPECT_EQ(list.axis[a].out, expected[a].out) << a;
  }
}

// ---- copies ----

struct Region {
  Shape shape;
  Numbers to, from;
  int merged;
};
const Region regions[] = {{{}, {}, {}, 0},
                          {{1}, {5}, {3}, 0},
                          {{6}, {1}, {1}, 1},
                          {{6}, {1}, {0}, 1},
                          {{6}, {2}, {3}, 1},
                          {{2, 3, 4}, {12, 4, 1}, {12, 4, 1}, 1},
                          {{2, 3, 4}, {12, 4, 1}, {24, 4, 1}, 2},
                          {{2, 3, 4}, {24, 4, 1}, {12, 4, 1}, 2},
                          {{3, 4}, {4, 1}, {1, 3}, 2},
                          {{3, 4}, {1, 3}, {1, 3}, 1},  // both are in the target's order
                          {{3, 4}, {1, 3}, {4, 1}, 2},
                          {{2, 1, 4}, {4, 7, 1}, {4, 9, 1}, 1}};

template <class T>
void check_copies(DType dtype) {
  for (const Region& r : regions) {
    const Numbers to = offsets_of(r.shape, r.to), from = offsets_of(r.shape, r.from);
    std::vector<T> source(100), target(100);
    std::iota(source.begin(), source.end(), T{1});
    const Move m(r.shape.size(), r.shape.begin(), dtype, reinterpret_cast<std::byte*>(target.data()),
                 r.to.data(), reinterpret_cast<const std::byte*>(source.data()), r.from.data());
    EXPECT_EQ(m.outer.rank + (m.numel > 1), r.merged) << r.shape.text();
    EXPECT_EQ(m.numel, static_cast<i64>(to.size()));
    for (int a = 0; a < m.outer.rank; ++a) {
      EXPECT_GE(m.outer.axis[a].out, (a + 1 < m.outer.rank ? m.outer.axis[a + 1] : m.run).out)
          << r.shape.text();
    }
    std::map<i64, i64> place;  // target offset → source offset; the copy order is by target offset
    for (std::size_t e = 0; e < to.size(); ++e) place[to[e]] = from[e];
    for (i64 begin = 0; begin <= m.numel; ++begin)
      for (i64 end = begin; end <= m.numel; ++end) {
        std::fill(target.begin(), target.end(), T{0});
        move_elements(m, begin, end);
        std::vector<T> expected(100);
        i64 nth = 0;
        for (const auto& [t, f] : place) {
          if (nth >= begin && nth < end)
            expected[static_cast<std::size_t>(t)] = source[static_cast<std::size_t>(f)];
          ++nth;
        }
        ASSERT_EQ(target, expected) << r.shape.text() << " " << begin << " to " << end;
      }
  }
}

TEST(Iteration, CopiesOfPartsOfRegions) {
  check_copies<std::uint8_t>(DType::u8);
  check_copies<std::uint16_t>(DType::bf16);
  check_copies<std::uint32_t>(DType::f32);
  check_copies<std::uint64_t>(DType::i64);
}

// ---- parts ----

using Part = std::vector<i64>;

TEST(Iteration, RowsAreDividedIntoPartsOfAbout8192Elements) {
  if (has_small_pieces) GTEST_SKIP() << "other pieces";
  const auto parts = [](i64 rows, i64 n) {
    std::vector<Part> all;
    Worker w;
    each_rows(w, rows, n, [&](i64 begin, i64 end) { all.push_back({begin, end}); });
    return all;
  };
  EXPECT_EQ(parts(20, 1000), (std::vector<Part>{{0, 8}, {8, 16}, {16, 20}}));
  EXPECT_EQ(parts(2, 8192), (std::vector<Part>{{0, 1}, {1, 2}}));
  EXPECT_EQ(parts(2, 9000), (std::vector<Part>{{0, 1}, {1, 2}}));
  EXPECT_EQ(parts(4, 4096), (std::vector<Part>{{0, 2}, {2, 4}}));
  EXPECT_EQ(parts(3, 4097), (std::vector<Part>{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(parts(8193, 0), (std::vector<Part>{{0, 8192}, {8192, 8193}}));
  EXPECT_EQ(parts(0, 5), std::vector<Part>());
}

TEST(Iteration, BlocksAreOfAtMost1024Elements) {
  if (has_small_pieces) GTEST_SKIP() << "other pieces";
  for (const i64 n : {0, 1, 1023, 1024, 1025, 8191, 8192, 8193, 20000}) {
    std::vector<Part> all, expected;
    Worker w;
    each_block(w, n, [&](i64 start, i64 count) { all.push_back({start, count}); });
    for (i64 at = 0; at < n; at += 1024) expected.push_back({at, std::min<i64>(1024, n - at)});
    EXPECT_EQ(all, expected) << n;
  }
}

TEST(Iteration, ListsOfTensorsAreOneListOfChunks) {
  if (has_small_pieces) GTEST_SKIP() << "other pieces";
  const i64 sizes[] = {8192, 0, 3, 8193, 20000, 0};
  std::vector<Part> all, expected;
  Worker w;
  each_chunk(
      w, 6, [&](i64 i) { return sizes[i]; },
      [&](i64 tensor, i64 chunk, i64 begin, i64 end) {
        all.push_back({tensor, chunk, begin, end});
      });
  for (i64 tensor = 0, chunk = 0; tensor < 6; ++tensor)
    for (i64 at = 0; at < sizes[tensor]; at += 8192)
      expected.push_back({tensor, chunk++, at, std::min(at + 8192, sizes[tensor])});
  EXPECT_EQ(all, expected);
}

// Each line is in exactly one group. A group consists of adjacent lines.
TEST(Iteration, LinesAreGroupedAlongTheLastOtherAxis) {
  for (const Shape& shape :
       {Shape{7}, Shape{3, 7}, Shape{7, 3}, Shape{2, 5, 9}, Shape{2, 1, 9}, Shape{4, 1, 1}})
    for (int axis = 0; axis < shape.size(); ++axis)
      for (const i64 widest : {1, 2, 4, 100}) {
        const Layout l = row_major(shape);
        const Lines lines(l, axis, widest);
        int run = -1;
        for (int a = axis + 1; a < shape.size(); ++a)
          if (shape[a] > 1) run = a;
        EXPECT_EQ(lines.run, run);
        EXPECT_EQ(lines.length, shape[axis]);
        EXPECT_EQ(lines.width, run < 0 ? 1 : std::min(widest, shape[run]));
        EXPECT_EQ(lines.run_step(l), run < 0 ? 1 : l.strides[run]);
        Numbers found, expected;
        for (i64 group = 0; group < lines.count; ++group) {
          const i64 many = lines.lines(group), at = lines.offset(group, l);
          EXPECT_TRUE(many > 0 && many <= lines.width);
          for (i64 i = 0; i < many; ++i) found.push_back(at + i * lines.run_step(l));
        }
        Shape others = shape;
        others[axis] = 1;
        expected = offsets_of(others, Numbers(l.strides.begin(), l.strides.end()));
        std::sort(found.begin(), found.end());
        EXPECT_EQ(found, expected) << shape.text() << " along " << axis;
        i64 groups = 1;
        for (int a = 0; a < shape.size(); ++a)
          if (a != axis) groups *= a == run ? (shape[a] + lines.width - 1) / lines.width : shape[a];
        EXPECT_EQ(lines.count, groups);
        Numbers visited;
        Worker w;
        lines.each(w, [&](i64 group) { visited.push_back(group); });
        Numbers all(static_cast<std::size_t>(groups));
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(visited, all);
      }
}

// ---- operands ----

Arg arg(float* data, const Shape& shape, const Numbers& strides, DType dtype = DType::f32) {
  Layout l = row_major(shape);
  for (int a = 0; a < shape.size(); ++a) l.strides[a] = strides[static_cast<std::size_t>(a)];
  return {dtype, l, reinterpret_cast<std::byte*>(data)};
}

TEST(Iteration, RowsAreReadInPlaceIfPossible) {
  std::vector<float> data(400), buffer(20);
  std::iota(data.begin(), data.end(), 0.f);
  struct Case {
    Shape shape;
    Numbers strides;
    int axis;
    bool in_place;
  };
  for (const Case& c :
       {Case{{2, 3, 4}, {12, 4, 1}, 2, true}, Case{{2, 3, 4}, {12, 4, 1}, 1, false},
        Case{{2, 3, 4}, {100, 20, 1}, 2, true}, Case{{2, 3, 4}, {100, 20, 2}, 2, false},
        Case{{2, 3, 1}, {3, 1, 5}, 2, true}, Case{{3}, {1}, 0, true}, Case{{4, 2}, {1, 4}, 0, true}}) {
    const Arg a = arg(data.data(), c.shape, c.strides);
    const AxisRows<float> rows(a, c.axis);
    const i64 n = c.shape[c.axis], step = c.strides[static_cast<std::size_t>(c.axis)];
    Shape others = c.shape;
    others[c.axis] = 1;
    const Numbers starts = offsets_of(others, c.strides);
    ASSERT_EQ(rows.count, static_cast<i64>(starts.size()));
    ASSERT_EQ(rows.n, n);
    for (i64 r = 0; r < rows.count; ++r) {
      const float* row = rows.read(r, buffer.data());
      float* const in_memory = data.data() + starts[static_cast<std::size_t>(r)];
      EXPECT_EQ(row, c.in_place ? in_memory : buffer.data()) << c.shape.text();
      EXPECT_EQ(rows.target(r, buffer.data()), c.in_place ? in_memory : buffer.data()) << c.shape.text();
      for (i64 i = 0; i < n; ++i) ASSERT_EQ(row[i], in_memory[i * step]) << c.shape.text();
    }
    const AxisRows<float> elements(a, -1);
    const Numbers all = offsets_of(c.shape, c.strides);
    ASSERT_EQ(elements.count, static_cast<i64>(all.size()));
    ASSERT_EQ(elements.n, 1);
    for (i64 e = 0; e < elements.count; ++e)
      ASSERT_EQ(elements.one(e), data[static_cast<std::size_t>(all[static_cast<std::size_t>(e)])]);
    const Flat<float> flat(a);
    ASSERT_EQ(flat.count, elements.count);
    const bool dense = Numbers(all.begin(), all.end()) == offsets_of({flat.count}, {1});
    for (i64 start = 0; start < flat.count; ++start)
      for (i64 many = 1; start + many <= flat.count && many <= 20; ++many) {
        const float* block = flat.read(start, many, buffer.data());
        EXPECT_EQ(block == buffer.data(), !dense) << c.shape.text();
        for (i64 i = 0; i < many; ++i)
          ASSERT_EQ(block[i], data[static_cast<std::size_t>(all[static_cast<std::size_t>(start + i)])]);
      }
  }
}

// Tests contiguous runs along the innermost axis of a fused step's operand.
TEST(Iteration, RunsCoverAStretch) {
  PointwisePlan p;
  PointwisePlan::Access o{};
  p.rank = 3;
  const i64 shape[] = {2, 3, 4}, strides[] = {100, 10, 2};
  std::copy_n(shape, 3, p.shape), std::copy_n(strides, 3, o.strides);
  const Numbers all = offsets_of({2, 3, 4}, {100, 10, 2});
  for (i64 start = 0; start < 24; ++start)
    for (i64 n = 1; start + n <= 24; ++n) {
      i64 done = 0;
      for_runs(p, o, start, n, [&](i64 at, i64 offset, i64 length) {
        ASSERT_EQ(at, done);
        ASSERT_EQ(offset, all[static_cast<std::size_t>(start + at)]);
        ASSERT_EQ(length, std::min(n - at, 4 - (start + at) % 4));
        done += length;
      });
      ASSERT_EQ(done, n);
    }
}

}  // namespace
}  // namespace tg::cpu::baseline

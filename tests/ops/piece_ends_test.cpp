// Tests how kernels divide their work into pieces: blocks of a row, rows of a part, parts of a copy. Tensors
// end one element before, at or after the end of a piece. Results are compared with plain loops.
#include <algorithm>
#include <numeric>

#include <tilegrad/ops/linear_cross_entropy.h>
#include "tests/support/whole_numbers.h"

namespace {

using namespace tg;
using namespace tg::testing;
using std::to_string;

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// A part of a copy has 32768 elements.
TEST(PieceEnds, IndexSelect) {
  struct Row {
    std::int64_t before, count, slice;
  };
  for (const Row& r : {Row{2, 5, 32767},
                       {1, 3, 32768},
                       {1, 3, 32769},
                       {1, 2, 65537},
                       {1, 31, 1000},
                       {1, 32, 1000},
                       {3, 11, 1000},
                       {5, 13, 1000},
                       {2, 3, 1}}) {
    Graph g;
    const std::int64_t size = 4;
    const Whole x = small(g, {r.before, size, r.slice}, 1);
    const Whole i = whole(g, {r.count}, i64, digits(r.count, 2, 4));
    Vector expected;
    for (std::int64_t p = 0; p < r.before; ++p)
      for (const double j : i.values) {
        const auto from = x.values.begin() + (p * size + static_cast<std::int64_t>(j)) * r.slice;
        expected.insert(expected.end(), from, from + r.slice);
      }
    expect_exactly(index_select(x.tensor, 1, i.tensor), {x.feed(), i.feed()}, expected,
                   to_string(r.before) + " × " + to_string(r.count) + " slices of " + to_string(r.slice));
  }
}

// For n indices, a part has max(64, 32768 / n) elements of a slice.
TEST(PieceEnds, IndexAssign) {
  struct Row {
    std::int64_t count, slice;
  };
  for (const Row& r : {Row{600, 63},
                       {600, 64},
                       {600, 65},
                       {600, 129},
                       {100, 326},
                       {100, 327},
                       {100, 328},
                       {100, 655},
                       {1, 32767},
                       {1, 32768},
                       {1, 32769}}) {
    Graph g;
    const std::int64_t size = 7;
    const Whole x = small(g, {2, size, r.slice}, 1), s = small(g, {2, r.count, r.slice}, 2);
    Vector numbers = digits(r.count, 3, 8);
    for (double& e : numbers) e -= 1;  // −1: the row is not assigned
    const Whole i = whole(g, {r.count}, i32, numbers);
    Vector expected = x.values;
    for (std::int64_t p = 0; p < 2; ++p)
      for (std::int64_t j = 0; j < r.count; ++j)
        if (i.values[at(j)] >= 0)
          std::copy_n(s.values.begin() + (p * r.count + j) * r.slice, r.slice,
                      expected.begin() + (p * size + static_cast<std::int64_t>(i.values[at(j)])) * r.slice);
    expect_exactly(index_assign(x.tensor, 1, i.tensor, s.tensor), {x.feed(), i.feed(), s.feed()}, expected,
                   to_string(r.count) + " slices of " + to_string(r.slice));
  }
}

// A part has 128 elements of a slice and 64 indices. Also checks sums of 4096 equal indices.
TEST(PieceEnds, IndexAdd) {
  struct Row {
    std::int64_t count, slice;
    int size;
  };
  std::vector<Row> rows;
  for (const std::int64_t count : {1, 63, 64, 65, 129, 200})
    for (const std::int64_t slice : {1, 127, 128, 129, 257}) rows.push_back({count, slice, 3});
  for (const std::int64_t count : {4095, 4096, 4097, 8191, 8192, 8193, 12289}) rows.push_back({count, 2, 1});
  for (const Row& r : rows)
    for (const DType dtype : {f32, f64, i64}) {
      if (dtype != f32 && r.slice != 129 && r.slice != 2) continue;
      Graph g;
      const Whole x = small(g, {2, r.size, r.slice}, 1, dtype), s = small(g, {2, r.count, r.slice}, 2, dtype);
      const Whole i = whole(g, {r.count}, i64, digits(r.count, 3, r.size));
      Vector expected = x.values;
      for (std::int64_t p = 0; p < 2; ++p)
        for (std::int64_t j = 0; j < r.count; ++j)
          for (std::int64_t e = 0; e < r.slice; ++e)
            expected[at((p * r.size + static_cast<std::int64_t>(i.values[at(j)])) * r.slice + e)] +=
                s.values[at((p * r.count + j) * r.slice + e)];
      const std::string what = to_string(r.count) + " slices of " + to_string(r.slice);
      const std::vector<Feed> feeds{x.feed(), i.feed(), s.feed()};
      expect_exactly(index_add(x.tensor, 1, i.tensor, s.tensor), feeds, expected, what);
      // Here, the indexed axis is the last axis. So each slice is strided.
      const Tensor last = index_add(contiguous(transpose(x.tensor, 1, 2)), 2, i.tensor,
                                    contiguous(transpose(s.tensor, 1, 2)));
      expect_exactly(transpose(last, 1, 2), feeds, expected, what + ", across");
    }
}

// A part has 1 + 8192 / n rows of n elements.
TEST(PieceEnds, Gather) {
  struct Row {
    std::int64_t rows, length;
  };
  for (const Row& r : {Row{2, 4096},
                       {3, 4096},
                       {4, 4096},
                       {7, 4096},
                       {8192, 1},
                       {8193, 1},
                       {8194, 1},
                       {1, 9000},
                       {2, 9000},
                       {3, 8192}})
    for (const DType dtype : {f64, f32, bf16, u8})
      for (const int axis : {0, 1}) {
        if (dtype != f32 && r.rows != 4) continue;
        Graph g;
        const std::int64_t wide = axis == 1 ? 5 : r.length, tall = axis == 0 ? 5 : r.rows;
        const Whole x = whole(g, {tall, wide}, dtype, digits(tall * wide, 1, 100));
        const Whole i = whole(g, {r.rows, r.length}, i32, digits(r.rows * r.length, 2, 5));
        Vector expected;
        for (std::int64_t a = 0; a < r.rows; ++a)
          for (std::int64_t b = 0; b < r.length; ++b) {
            const auto j = static_cast<std::int64_t>(i.values[at(a * r.length + b)]);
            expected.push_back(x.values[at(axis == 0 ? j * wide + b : a * wide + j)]);
          }
        expect_exactly(gather(x.tensor, axis, i.tensor), {x.feed(), i.feed()}, expected,
                       to_string(r.rows) + " rows of " + to_string(r.length) + " by axis " + to_string(axis));
      }
}

// The kernel adds 256 elements of a line, or 16 adjacent lines, at the same time. A part has several lines.
TEST(PieceEnds, ScatterAdd) {
  struct Row {
    Shape x, src;
    int axis;
  };
  for (const Row& r : {Row{{3, 7}, {3, 255}, 1},
                       {{3, 7}, {3, 256}, 1},
                       {{3, 7}, {3, 257}, 1},
                       {{2, 7}, {2, 513}, 1},
                       {{5, 15}, {4, 15}, 0},
                       {{5, 16}, {4, 16}, 0},
                       {{5, 17}, {4, 17}, 0},
                       {{5, 33}, {4, 33}, 0},
                       {{5, 33}, {4, 15}, 0},
                       {{5, 33}, {4, 16}, 0},
                       {{5, 33}, {4, 17}, 0},
                       {{3, 5, 33}, {2, 9, 18}, 1},
                       {{70, 5, 33}, {69, 3, 32}, 1},
                       {{40, 20, 11}, {40, 3, 11}, 1},
                       {{300, 30}, {300, 2}, 1}}) {
    for (const DType dtype : {f32, i32}) {
      Graph g;
      const Whole x = small(g, r.x, 1, dtype), s = small(g, r.src, 2, dtype);
      const Whole i = whole(g, r.src, i64, digits(numel(r.src), 3, static_cast<int>(r.x[r.axis])));
      Vector expected = x.values;
      for (std::int64_t e = 0; e < numel(r.src); ++e) {
        std::int64_t rest = e, to = 0, step = 1;
        for (int a = r.x.size() - 1; a >= 0; --a) {
          const std::int64_t own = a == r.axis ? static_cast<std::int64_t>(i.values[at(e)]) : rest % r.src[a];
          rest /= r.src[a];
          to += own * step, step *= r.x[a];
        }
        expected[at(to)] += s.values[at(e)];
      }
      expect_exactly(scatter_add(x.tensor, r.axis, i.tensor, s.tensor), {x.feed(), i.feed(), s.feed()},
                     expected, r.x.text() + " and " + r.src.text() + " along axis " + to_string(r.axis));
    }
  }
}

// Errors name the first wrong index in row-major order. It may be in any part.
TEST(PieceEnds, ScatterAddNamesThePositionOfAWrongIndex) {
  for (const Shape& shape : {Shape{2, 600}, Shape{600, 2}, Shape{3, 4, 40}})
    for (int axis = 0; axis < shape.size(); ++axis)
      for (const std::int64_t wrong :
           {std::int64_t{0}, std::int64_t{1}, numel(shape) / 2 + 1, numel(shape) - 1}) {
        Graph g;
        const Tensor x = g.input("x", shape), s = g.input("s", shape), i = g.input("i", shape, i64);
        Array index(shape, i64);
        index.set(wrong, -3);
        index.set(numel(shape) - 1, -3);
        expect_error<Error>(
            [&] {
              eval(scatter_add(x, axis, i, s), {{x, Array(shape, f32)}, {i, index}, {s, Array(shape, f32)}},
                   {.threads = 2});
            },
            {"index -3 at position " + to_string(wrong) + " is out of range: expected 0 to " +
             to_string(shape[axis] - 1)});
      }
}

// Errors name the first wrong index in row-major order. It may be in any part or line.
TEST(PieceEnds, WrongIndicesAreNamed) {
  const auto check = [](const Tensor& y, const Tensor& i, std::int64_t wrong, std::int64_t size) {
    Array index(i.shape(), i.dtype());
    index.set(wrong, static_cast<double>(size));
    index.set(i.numel() - 1, static_cast<double>(size));
    for (const int threads : {1, 3}) {
      Program p = compile(y.graph(), {y}, {.threads = threads});
      p.feed({i, index});
      for (const Node& n : y.graph().nodes())
        if (const Tensor x = y.graph().tensor(n.first_out); n.op == &input_op && x != i && p.reads(x))
          p.feed({x, Array(x.shape(), x.dtype())});
      expect_error<Error>([&] { p.run(); }, {"index " + to_string(size) + " at position " + to_string(wrong) +
                                             " is out of range: expected 0 to " + to_string(size - 1)});
    }
  };
  for (const std::int64_t wrong : {0, 1, 511, 512, 1000, 1199}) {
    for (const DType t : {i64, i32}) {
      Graph g;
      const Tensor x = g.input("x", {7, 40}), s = g.input("s", {30, 40, 40}), i = g.input("i", {30, 40}, t);
      check(embedding(x, i), i, wrong, 7);
      check(index_select(x, 0, i), i, wrong, 7);
      check(index_select(x, 1, i), i, wrong, 40);
      check(index_add(x, 0, i, s), i, wrong, 7);
      check(index_assign(x, 0, i, s), i, wrong, 7);
      const Tensor y = g.input("y", {30, 9}), z = g.input("z", {7, 40});
      check(gather(y, 1, i), i, wrong, 9);
      check(gather(z, 0, i), i, wrong, 7);
    }
    Graph g;
    const Tensor logits = g.input("l", {1200, 5}), t = g.input("t", {1200}, i64), x = g.input("x", {1200, 3}),
                 w = g.input("w", {3, 5});
    check(cross_entropy(logits, t), t, wrong, 5);
    check(gradients(cross_entropy(logits, t), {logits})[0], t, wrong, 5);
    check(linear_cross_entropy(x, w, t), t, wrong, 5);
  }
}

// The kernel adds 256 elements of a line, or neighbors in 256 lines, at the same time.
TEST(PieceEnds, Cumsum) {
  for (const std::int64_t n : {1, 2, 255, 256, 257, 511, 512, 513, 700})
    for (const bool along : {true, false})
      for (const bool reverse : {true, false})
        for (const DType dtype : {f64, f32, bf16, f16, i32}) {
          Graph g;
          const Shape shape = along ? Shape{3, n} : Shape{5, n};
          Vector v;  // sums of any range are small, so they are exact in each type
          for (std::int64_t i = 0; i < numel(shape); ++i) {
            constexpr double pattern[] = {1, 2, -3, 5, -4, -1};
            v.push_back(pattern[(along ? i % n : i / n) % 6]);
          }
          const Whole x = whole(g, shape, dtype, v);
          Vector expected = v;
          const std::int64_t length = shape[along ? 1 : 0], lines = numel(shape) / length;
          for (std::int64_t l = 0; l < lines; ++l)
            for (std::int64_t t = 1; t < length; ++t) {
              const auto place = [&](std::int64_t k) { return at(along ? l * n + k : k * n + l); };
              const std::int64_t k = reverse ? length - 1 - t : t;
              expected[place(k)] += expected[place(reverse ? k + 1 : k - 1)];
            }
          expect_exactly(cumsum(x.tensor, along ? 1 : 0, reverse), {x.feed()}, expected,
                         to_string(n) + (along ? " along" : " across") + (reverse ? ", reverse " : " ") +
                             std::string(name_of(dtype)));
        }
}

// The kernel compares 256 elements at the same time. A part has several short lines.
TEST(PieceEnds, TopK) {
  struct Row {
    std::int64_t lines, n, k;
  };
  for (const Row& r :
       {Row{2, 255, 5}, {2, 256, 1}, {2, 257, 257}, {2, 513, 512}, {3000, 3, 2}, {1700, 5, 5}, {1, 1, 1}})
    for (const DType dtype : {f64, f32, i64})
      for (const int axis : {1, 0}) {
        Graph g;
        const Whole x = whole(g, {r.lines, r.n}, dtype, digits(r.lines * r.n, 4, 90));  // with ties
        Vector values, places;
        for (std::int64_t l = 0; l < r.lines; ++l) {
          std::vector<std::int64_t> order(at(r.n));
          std::iota(order.begin(), order.end(), 0);
          const auto begin = x.values.begin() + l * r.n;
          std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return begin[a] > begin[b]; });
          for (std::int64_t k = 0; k < r.k; ++k) {
            values.push_back(begin[order[at(k)]]);
            places.push_back(static_cast<double>(order[at(k)]));
          }
        }
        const std::string what = to_string(r.k) + " of " + to_string(r.n) + " by axis " + to_string(axis);
        std::vector<Tensor> best = top_k(axis == 1 ? x.tensor : transpose(x.tensor, 0, 1), r.k, axis);
        if (axis == 0)
          for (Tensor& t : best) t = transpose(t, 0, 1);
        expect_all({{best[0], values, 0, what}, {best[1], places, 0, what}}, {x.feed()});
      }
}

// A part has 256 numbers.
TEST(PieceEnds, Arange) {
  for (const std::int64_t n : {0, 1, 255, 256, 257, 512, 513, 1000})
    for (const DType dtype : {f64, f32, i64, i32}) {
      Graph g;
      const double step = is_float(dtype) ? 0.5 : -3, stop = 7 + step * static_cast<double>(n);
      Vector expected;
      for (std::int64_t i = 0; i < n; ++i) expected.push_back(7 + step * static_cast<double>(i));
      expect_exactly(arange(g, 7, stop, step, dtype), {}, expected,
                     to_string(n) + " of " + std::string(name_of(dtype)));
    }
}

// A part of a copy has 32768 elements. Several copies are divided into parts together.
TEST(PieceEnds, Concat) {
  const std::vector<std::vector<std::int64_t>> lists{
      {32767, 1, 32769}, {32768, 32768}, {1, 65536, 32767, 5}, {32769}, {65537, 0, 3}, {20000, 20000, 20000}};
  for (const auto& sizes : lists)
    for (const bool rows : {true, false}) {
      Graph g;
      std::vector<Whole> parts;
      std::vector<Tensor> tensors;
      std::vector<Feed> feeds;
      std::string what;
      for (const std::int64_t n : sizes) {
        parts.push_back(small(g, rows ? Shape{n} : Shape{2, n / 2}, static_cast<int>(n)));
        tensors.push_back(parts.back().tensor), feeds.push_back(parts.back().feed());
        what += to_string(n) + " ";
      }
      Vector expected;
      for (std::int64_t line = 0; line < (rows ? 1 : 2); ++line)
        for (const Whole& p : parts) {
          const std::int64_t n = static_cast<std::int64_t>(p.values.size()) / (rows ? 1 : 2);
          expected.insert(expected.end(), p.values.begin() + line * n, p.values.begin() + (line + 1) * n);
        }
      expect_exactly(concat(tensors, rows ? 0 : 1), feeds, expected, what);
    }
}

TEST(PieceEnds, SliceAssign) {
  for (const std::int64_t n : {32767, 32768, 32769, 65537})
    for (const std::int64_t step : {1, 2}) {
      Graph g;
      const Whole x = small(g, {2 * n + 3}, 1), s = small(g, {n}, 2);
      Vector expected = x.values;
      for (std::int64_t i = 0; i < n; ++i) expected[at(1 + i * step)] = s.values[at(i)];
      expect_exactly(slice_assign(x.tensor, s.tensor, 0, 1, step), {x.feed(), s.feed()}, expected,
                     to_string(n));
      const Whole start = whole(g, {1}, i64, {static_cast<double>(n)});
      expect_exactly(slice_at(x.tensor, 0, start.tensor, n), {x.feed(), start.feed()},
                     Vector(x.values.begin() + n, x.values.begin() + 2 * n), to_string(n));
    }
}

// The kernel searches 1024 elements at the same time. A part has 8192 / n results over n elements.
TEST(PieceEnds, PositionsOfExtremes) {
  struct Row {
    std::int64_t outs, n;
  };
  for (const Row& r : {Row{5, 1023},
                       {5, 1024},
                       {5, 1025},
                       {5, 2049},
                       {80, 100},
                       {81, 100},
                       {82, 100},
                       {163, 100},
                       {3, 8192},
                       {2, 8193},
                       {1, 1},
                       {8193, 1}})
    for (const DType dtype : {f64, f32, bf16, i32})
      for (const bool along : {true, false}) {
        Graph g;
        Vector v = digits(r.outs * r.n, 5, 40);
        for (std::int64_t o = 0; o < r.outs;
             ++o) {  // the extreme is at the end of a block, and also after this block
          const std::int64_t places[] = {0, r.n - 1, 1023, 1024, 2048};
          const std::int64_t first = std::min(places[o % 5], r.n - 1);
          v[at(o * r.n + first)] = 50, v[at(o * r.n + r.n - 1)] = 50;
        }
        const Whole x = whole(g, {r.outs, r.n}, dtype, v);
        Vector most, least;
        for (std::int64_t o = 0; o < r.outs; ++o) {
          const auto begin = v.begin() + o * r.n, end = begin + r.n;
          most.push_back(static_cast<double>(std::max_element(begin, end) - begin));
          least.push_back(static_cast<double>(std::min_element(begin, end) - begin));
        }
        const std::string what = to_string(r.outs) + " over " + to_string(r.n);
        const Tensor t = along ? x.tensor : contiguous(transpose(x.tensor, 0, 1));
        expect_all(
            {{argmax(t, {along ? 1 : 0}), most, 0, what}, {argmin(t, {along ? 1 : 0}), least, 0, what}},
            {x.feed()});
      }
}

// In rows, the kernel adds 1024 elements at the same time. A part has 32768 / n results, or 32768 elements of
// one row. In columns, it adds 512 columns together, four rows at a time. After 256 rows, it adds the sums to
// the total.
TEST(PieceEnds, Reductions) {
  struct Row {
    std::int64_t outs, n;
  };
  std::vector<Row> rows;
  for (const std::int64_t n :
       {1, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 2049, 32767, 32768, 32769, 65537, 98305})
    rows.push_back({3, n});
  for (const std::int64_t outs : {326, 327, 328, 655}) rows.push_back({outs, 100});
  for (const std::int64_t outs : {511, 512, 513, 1025})
    for (const std::int64_t n : {1, 3, 4, 5, 9, 255, 256, 257, 513})
      if (outs < 1000 || n < 10) rows.push_back({outs, n});
  for (const Row& r : rows)
    for (const DType dtype : {f64, f32, i64}) {
      if (dtype != f32 && r.outs * r.n > 40000) continue;
      Graph g;
      const Whole x = small(g, {r.outs, r.n}, 6, dtype);
      Vector total(at(r.outs)), squares(at(r.outs)), most(at(r.outs), -9), least(at(r.outs), 9);
      for (std::int64_t i = 0; i < r.outs * r.n; ++i) {
        const double e = x.values[at(i)];
        const std::size_t o = at(i / r.n);
        total[o] += e, squares[o] += e * e, most[o] = std::max(most[o], e), least[o] = std::min(least[o], e);
      }
      for (const bool along : {true, false}) {
        const std::string what =
            to_string(r.outs) + " over " + to_string(r.n) + (along ? ", rows" : ", columns");
        const Tensor t = along ? x.tensor : copy(contiguous(transpose(x.tensor, 0, 1)));
        const Axes axes{along ? 1 : 0};
        std::vector<Expected> all{{sum(t, axes), total, 0, "sum of " + what},
                                  {max(t, axes), most, 0, "max of " + what},
                                  {min(t, axes), least, 0, "min of " + what}};
        if (is_float(dtype)) {
          all.push_back({sum_squares(t, axes), squares, 0, "sum_squares of " + what});
          all.push_back({sum(t + t, axes, true) * 0.5, total, 0, "sum of a chain, of " + what});
        }
        expect_all(all, {x.feed()});
      }
    }
}

// Fused steps have blocks of 1024 elements. If an operand is transposed, they have square tiles of size 32.
TEST(PieceEnds, FusedSteps) {
  for (const std::int64_t n : {1, 1023, 1024, 1025, 2047, 2048, 2049, 24577}) {
    Graph g;
    const Whole x = small(g, {n}, 1), y = small(g, {n}, 2, bf16), z = small(g, {n}, 3);
    Vector expected;
    for (std::size_t i = 0; i < at(n); ++i) expected.push_back(x.values[i] * y.values[i] + z.values[i]);
    expect_exactly(x.tensor * y.tensor + z.tensor, {x.feed(), y.feed(), z.feed()}, expected, to_string(n));
  }
  for (const std::int64_t rows : {7, 8, 31, 32, 33, 64, 65})
    for (const std::int64_t columns : {7, 8, 31, 32, 33, 64, 65, 97})
      for (const DType dtype : {f64, f32, bf16}) {
        Graph g;
        const Whole x = small(g, {3, columns, rows}, 1, dtype), y = small(g, {3, rows, columns}, 2, dtype);
        Vector expected;
        for (std::int64_t b = 0; b < 3; ++b)
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < columns; ++c)
              expected.push_back(x.values[at((b * columns + c) * rows + r)] +
                                 2 * y.values[at((b * rows + r) * columns + c)]);
        expect_exactly(transpose(x.tensor, 1, 2) + 2 * y.tensor, {x.feed(), y.feed()}, expected,
                       to_string(rows) + " × " + to_string(columns) + " of " + std::string(name_of(dtype)));
      }
}

}  // namespace

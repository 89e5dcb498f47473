// Compares rows with plain loops in f64. Rows end near the end of a vector, a normalizer chunk (1024
// elements) or a block of sums (65536). The number of rows is near the size of a part. Also tests results
// that bypass the caches.
#include <tilegrad/core/base/random.h>
#include <tilegrad/core/base/rng.h>
#include "ops/random.h"
#include "ops/square_sums.h"
#include "tests/support/whole_numbers.h"

namespace {

using namespace tg;
using namespace tg::testing;
using std::to_string;

struct Rows {
  std::int64_t rows, n;
  std::string text() const { return to_string(rows) + " rows of " + to_string(n); }
};
std::vector<Rows> row_ends() {
  std::vector<Rows> all;
  for (const std::int64_t n :
       {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 1023, 1024, 1025, 2047, 2049, 3072})
    all.push_back({3, n});
  for (const std::int64_t rows : {1, 7, 8, 9, 16, 17}) all.push_back({rows, 1000});
  for (const std::int64_t n : {65535, 65536, 65537, 131073}) all.push_back({1, n});
  all.push_back({8193, 1}), all.push_back({2, 8192});
  return all;
}

// Returns random digits on a slope. In even rows, the slope increases, so each chunk has a new maximum. In
// odd rows, it decreases.
Vector slope(const Rows& r, int seed) {
  Vector v = digits(r.rows * r.n, seed, 100);
  for (std::size_t i = 0; i < v.size(); ++i) {
    const double place = static_cast<double>(static_cast<std::int64_t>(i) % r.n) / static_cast<double>(r.n);
    v[i] = v[i] / 40 + (static_cast<std::int64_t>(i) / r.n % 2 == 0 ? 6 : -6) * place;
  }
  return v;
}

double tolerance_of(DType dtype) {
  return dtype == f64 ? 1e-12 : 3e-6;
}

TEST(RowEnds, SoftmaxAndRelatedOps) {
  for (const Rows& r : row_ends())
    for (const DType dtype : {f64, f32}) {
      Graph g;
      const Whole x = whole(g, {r.rows, r.n}, dtype, slope(r, 1)), z = small(g, {r.rows, r.n}, 2, dtype);
      const Vector v = doubles(x.array);
      Vector soft, logs, sums, z_soft, z_logs;
      for (std::int64_t row = 0; row < r.rows; ++row) {
        const auto from = static_cast<std::size_t>(row * r.n), n = static_cast<std::size_t>(r.n);
        double top = v[from], total = 0, zy = 0, zs = 0;
        for (std::size_t i = 0; i < n; ++i) top = std::max(top, v[from + i]);
        for (std::size_t i = 0; i < n; ++i) total += std::exp(v[from + i] - top);
        sums.push_back(top + std::log(total));
        for (std::size_t i = 0; i < n; ++i) {
          logs.push_back(v[from + i] - sums.back()), soft.push_back(std::exp(logs.back()));
          zy += z.values[from + i] * soft.back(), zs += z.values[from + i];
        }
        for (std::size_t i = 0; i < n; ++i) {
          z_soft.push_back(soft[from + i] * (z.values[from + i] - zy));
          z_logs.push_back(z.values[from + i] - soft[from + i] * zs);
        }
      }
      const std::string what = r.text() + " " + std::string(name_of(dtype));
      const Tensor y = softmax(x.tensor), l = log_softmax(x.tensor);
      const double near = tolerance_of(dtype),
                   summed = dtype == f64
                                ? near
                                : near * std::sqrt(static_cast<double>(r.n));  // sums that may cancel
      expect_all({{y, soft, near, "softmax of " + what},
                  {l, logs, near, "log_softmax of " + what},
                  {logsumexp(x.tensor, {1}), sums, near, "logsumexp of " + what},
                  {gradients(y, {x.tensor}, z.tensor)[0], z_soft, summed, "∂softmax of " + what},
                  {gradients(l, {x.tensor}, z.tensor)[0], z_logs, summed, "∂log_softmax of " + what}},
                 {x.feed(), z.feed()});
    }
}

TEST(RowEnds, CrossEntropy) {
  for (const Rows& r : row_ends())
    for (const DType dtype : {f64, f32}) {
      Graph g;
      constexpr double smoothing = 0.25;
      const Whole x = whole(g, {r.rows, r.n}, dtype, slope(r, 3)), z = small(g, {r.rows}, 4, dtype);
      Vector classes = digits(r.rows, 5, static_cast<int>(std::min<std::int64_t>(r.n, 30000)));
      for (std::size_t i = 1; i < classes.size(); i += 4) classes[i] = static_cast<double>(r.n - 1);
      for (std::size_t i = 3; i < classes.size(); i += 4) classes[i] = -7;  // this target is ignored
      const Whole t = whole(g, {r.rows}, i64, classes);
      const Vector v = doubles(x.array);
      Vector losses, gradient;
      for (std::int64_t row = 0; row < r.rows; ++row) {
        const auto from = static_cast<std::size_t>(row * r.n), n = static_cast<std::size_t>(r.n);
        const double target = classes[static_cast<std::size_t>(row)];
        double top = v[from], total = 0, mean = 0;
        for (std::size_t i = 0; i < n; ++i) top = std::max(top, v[from + i]);
        for (std::size_t i = 0; i < n; ++i)
          total += std::exp(v[from + i] - top), mean += (v[from + i] - top) / static_cast<double>(n);
        const double log_sum = std::log(total);
        losses.push_back(
            target < 0 ? 0
                       : log_sum - (1 - smoothing) * (v[from + static_cast<std::size_t>(target)] - top) -
                             smoothing * mean);
        for (std::size_t i = 0; i < n; ++i)
          gradient.push_back(target < 0 ? 0
                                        : z.values[static_cast<std::size_t>(row)] *
                                              (std::exp(v[from + i] - top - log_sum) -
                                               smoothing / static_cast<double>(n) -
                                               (static_cast<double>(i) == target ? 1 - smoothing : 0)));
      }
      const std::string what = r.text() + " " + std::string(name_of(dtype));
      const Tensor y =
          cross_entropy(x.tensor, t.tensor,
                        {.ignore_index = -7, .reduction = Reduction::none, .label_smoothing = smoothing});
      expect_nearly(y, {x.feed(), t.feed()}, losses, tolerance_of(dtype), what);
      expect_nearly(gradients(y, {x.tensor}, z.tensor)[0], {x.feed(), t.feed(), z.feed()}, gradient,
                    tolerance_of(dtype), "∂ of " + what);
    }
}

// Weight gradients are summed over blocks of rows, 128 rows and 256 columns at a time.
TEST(RowEnds, Norms) {
  std::vector<Rows> all = row_ends();
  for (const std::int64_t n : {255, 256, 257, 511, 513}) all.push_back({5, n});
  for (const std::int64_t rows : {127, 128, 129, 257, 1100}) all.push_back({rows, 3});
  for (const std::int64_t rows : {15, 16, 17, 64, 129, 300}) all.push_back({rows, 600});
  for (const Rows& r : all)
    for (const DType dtype : {f64, f32})
      for (const bool centred : {true, false}) {
        if (dtype == f32 && r.n > 70000) continue;
        Graph g;
        constexpr double eps = 0.5;
        const Shape shape{r.rows, r.n}, row_shape{r.n};
        const Whole x = small(g, shape, 1, dtype), z = small(g, shape, 2, dtype),
                    w = small(g, row_shape, 3, dtype), b = small(g, row_shape, 4, dtype);
        const double n = static_cast<double>(r.n);
        Vector y, z_x, z_w(static_cast<std::size_t>(r.n)), z_b(static_cast<std::size_t>(r.n));
        for (std::int64_t row = 0; row < r.rows; ++row) {
          const auto from = static_cast<std::size_t>(row * r.n), count = static_cast<std::size_t>(r.n);
          double mu = 0, squares = 0, mean_g = 0, mean_gx = 0;
          for (std::size_t i = 0; i < count && centred; ++i) mu += x.values[from + i] / n;
          for (std::size_t i = 0; i < count; ++i)
            squares += (x.values[from + i] - mu) * (x.values[from + i] - mu);
          const double scale = 1 / std::sqrt(squares / n + eps);
          for (std::size_t i = 0; i < count; ++i) {
            const double hat = (x.values[from + i] - mu) * scale, zi = z.values[from + i];
            y.push_back(hat * w.values[i] + (centred ? b.values[i] : 0));
            mean_g += zi * w.values[i] / n, mean_gx += zi * w.values[i] * hat / n;
            z_w[i] += zi * hat, z_b[i] += zi;
          }
          for (std::size_t i = 0; i < count; ++i)
            z_x.push_back((z.values[from + i] * w.values[i] - (centred ? mean_g : 0) -
                           (x.values[from + i] - mu) * scale * mean_gx) *
                          scale);
        }
        const std::string what = r.text() + " " + std::string(name_of(dtype)) + (centred ? ", centred" : "");
        const Tensor out =
            centred ? layer_norm(x.tensor, w.tensor, b.tensor, eps) : rms_norm(x.tensor, w.tensor, eps);
        std::vector<Tensor> wrt{x.tensor, w.tensor};
        if (centred) wrt.push_back(b.tensor);
        const std::vector<Tensor> back = gradients(out, wrt, z.tensor);
        const std::vector<Feed> feeds{x.feed(), w.feed(), b.feed(), z.feed()};
        const double tolerance = dtype == f64 ? 1e-11 : 1e-4;
        std::vector<Expected> all_of{{out, y, tolerance, what},
                                     {back[0], z_x, tolerance, "z_x of " + what},
                                     {back[1], z_w, tolerance, "z_w of " + what}};
        if (centred) all_of.push_back({back[2], z_b, 0, "z_b of " + what});
        expect_all(all_of, feeds);
      }
}

// A part has 16 rows of the table of cosines and sines.
TEST(RowEnds, Rope) {
  for (const std::int64_t L : {1, 15, 16, 17, 33})
    for (const std::int64_t d : {2, 6, 14, 16, 18, 34, 66})
      for (const std::int64_t dims : {d, d / 4 * 2})
        for (const bool interleaved : {true, false})
          for (const int kind :
               {0, 1, 2})  // positions: counted, given for each row, or the same for all heads
            for (const DType dtype : {f64, f32}) {
              if (dims == 0 || (kind > 0 && d > 18)) continue;
              Graph g;
              const Shape shape{2, 3, L, d};
              const Whole x = small(g, shape, 1, dtype);
              const Whole p = whole(g, kind == 1 ? Shape{2, 3, L} : Shape{2, 1, L}, i64,
                                    digits((kind == 1 ? 6 : 2) * L, 2, 90));
              const RopeOptions o{.theta = 50, .dims = dims, .interleaved = interleaved, .start = 4};
              Vector expected = x.values;
              for (std::int64_t row = 0; row < 6 * L; ++row)
                for (std::int64_t i = 0; i < dims / 2; ++i) {
                  const std::int64_t l = row % L;
                  const double position = kind == 0 ? static_cast<double>(4 + l)
                                          : kind == 1
                                              ? p.values[static_cast<std::size_t>(row)]
                                              : p.values[static_cast<std::size_t>(row / (3 * L) * L + l)];
                  const double angle =
                      position * std::pow(50, -2 * static_cast<double>(i) / static_cast<double>(dims));
                  const auto first = static_cast<std::size_t>(row * d + (interleaved ? 2 * i : i)),
                             second = first + static_cast<std::size_t>(interleaved ? 1 : dims / 2);
                  const double a = x.values[first], b = x.values[second];
                  expected[first] = a * std::cos(angle) - b * std::sin(angle);
                  expected[second] = a * std::sin(angle) + b * std::cos(angle);
                }
              std::vector<Feed> feeds{x.feed()};
              if (kind > 0) feeds.push_back(p.feed());
              expect_nearly(rope(x.tensor, kind > 0 ? TensorArg(p.tensor) : TensorArg(), o), feeds, expected,
                            dtype == f64 ? 1e-13 : 1e-6,
                            shape.text() + ", " + to_string(dims) + " rotated, positions " + to_string(kind));
            }
}

// A list of tensors is divided into chunks of 8192 elements. Each chunk has blocks of 1024.
TEST(RowEnds, NormsOfLists) {
  const std::vector<std::vector<std::int64_t>> lists{{1023}, {1024},       {1025, 0, 3}, {8191, 8193},
                                                     {8192}, {8192, 8192}, {1},          {17000, 5},
                                                     {7},    {8},          {9, 24577}};
  for (const auto& sizes : lists)
    for (const DType dtype : {f64, f32, bf16}) {
      Graph g;
      std::vector<Tensor> tensors;
      std::vector<Feed> feeds;
      std::vector<Vector> blocks;
      double squares = 0;
      for (const std::int64_t n : sizes) {
        const Whole x = small(g, {n}, static_cast<int>(n), dtype);
        tensors.push_back(x.tensor), feeds.push_back(x.feed());
        blocks.emplace_back();
        for (std::size_t i = 0; i < x.values.size(); ++i) {
          if (i % 1024 == 0) blocks.back().push_back(0);
          blocks.back().back() += x.values[i] * x.values[i], squares += x.values[i] * x.values[i];
        }
      }
      const std::string what = to_string(sizes[0]) + " and more, " + std::string(name_of(dtype));
      expect_exactly(squared_norm(tensors), feeds, {squares}, what);
      expect_nearly(global_norm(tensors), feeds, {std::sqrt(squares)}, tolerance_of(dtype), what);
      const std::vector<Tensor> norms = block_norms(tensors);
      for (std::size_t i = 0; i < norms.size(); ++i) {
        for (double& e : blocks[i]) e = std::sqrt(e);
        expect_nearly(norms[i], feeds, blocks[i], tolerance_of(dtype), what);
      }
    }
}

// The squares of some numbers are out of range. Such a number is at each position of a block. Ordinary
// numbers are next to it.
TEST(RowEnds, NormsOfHugeAndTinyNumbers) {
  for (const double scale : {1., 1e30, 1e-30, 1e200, 1e-200, 1e300, 1e-300})
    for (const double other : {0., 1., 1e30, 1e-30, 1e200, 1e-300})
      for (const std::int64_t n : {1, 7, 8, 9, 23, 1030})
        for (const DType dtype : {f64, f32}) {
          if (dtype == f32 &&
              (scale > 1e35 || scale < 1e-35 || other > 1e35 || (other != 0 && other < 1e-35)))
            continue;
          Graph g;
          Vector v = digits(n, 1, 5), w{3 * other, 4 * other};
          for (double& e : v) e = (e + 1) * scale;
          const Tensor a = g.input("a", {n}, dtype), b = g.input("b", {2}, dtype);
          const Array xs = Array::of(v).to(dtype), ys = Array::of(w).to(dtype);
          long double squares = 0;
          for (const Array* x : {&xs, &ys})
            for (const double e : doubles(*x))
              squares += static_cast<long double>(e) * static_cast<long double>(e);
          const double expected = static_cast<double>(std::sqrt(squares));
          const double got = doubles(eval(global_norm({a, b}), {{a, xs}, {b, ys}}))[0];
          ASSERT_NEAR(got / expected, 1, dtype == f64 ? 1e-14 : 1e-6)
              << scale << " and " << other << ", " << n << " " << name_of(dtype);
        }
}

TEST(RowEnds, SumsOfSquaresUseThreeScales) {
  constexpr double infinity = INFINITY, up = 0x1p600, down = 0x1p-600;
  SquareSums s;
  s.add(3, 1), s.add(5, up), s.add(7, down);
  EXPECT_EQ(s.mid, 3);
  EXPECT_EQ(s.small, 5);
  EXPECT_EQ(s.big, 7);
  SquareSums t;
  t.add(s), t.add(s);
  EXPECT_EQ(t.mid, 6);
  EXPECT_EQ(t.small, 10);
  EXPECT_EQ(t.big, 14);
  for (const double factor : {1 + 0x1p-52, 2., up}) {
    SquareSums one;
    one.add(1, factor);
    EXPECT_EQ(one.small, 1) << factor;
  }
  for (const double factor : {1 - 0x1p-53, 0.5, down}) {
    SquareSums one;
    one.add(1, factor);
    EXPECT_EQ(one.big, 1) << factor;
  }
  const auto of = [](double mid, double big, double small) { return SquareSums{mid, big, small}; };
  EXPECT_EQ(of(4, 0, 0).total(), 4);
  EXPECT_EQ(of(0, 0x1p-1000, 0).total(), 0x1p200);
  EXPECT_EQ(of(0, 0, 4 * up).total(), 4 * down);
  EXPECT_EQ(of(0, 0, 0x1p1000).total(), 0x1p-200);
  EXPECT_EQ(of(9, 0, 0).norm(), 3);
  EXPECT_EQ(of(0, 0.25, 0).norm(), 0.5 * up);
  EXPECT_EQ(of(0, 0, 16).norm(), 4 * down);
  EXPECT_EQ(of(0, 0, 0).norm(), 0);
  EXPECT_EQ(of(0x1p1000, 0x1p-199, 0).norm(), std::sqrt(0x1p-199 + 0x1p-200) * up);
  EXPECT_EQ(of(0x1p-900, 0, 0x1p300).norm(), std::sqrt(0x1p-900 + 0x1p-900));
  EXPECT_EQ(of(0, infinity, 0).norm(), infinity);
  for (const double nan : {std::nan("")})
    for (const SquareSums& x : {of(nan, 0, 1), of(1, nan, 1), of(0, 0, nan), of(nan, 1, 0)})
      EXPECT_TRUE(std::isnan(x.norm()));
  EXPECT_TRUE(is_in_range(0x1p-90f) && is_in_range(3e38f) && is_in_range(0x1p-900) && is_in_range(0x1p900));
  EXPECT_FALSE(is_in_range(0x1p-91f) || is_in_range(INFINITY) || is_in_range(0x1p-901) ||
               is_in_range(0x1p901) || is_in_range(NAN) || is_in_range(std::nan("")));
  EXPECT_EQ(SquareSums::factor_for(1.f), 1);
  EXPECT_EQ(SquareSums::factor_for(0.5), up);
  EXPECT_EQ(SquareSums::factor_for(1.), down);
}

TEST(RowEnds, AdamW) {
  const std::vector<std::vector<std::int64_t>> lists{
      {1, 1023}, {1024, 1025}, {8191, 3, 8193}, {8192, 7}, {17, 16, 15}};
  for (const auto& sizes : lists)
    for (const DType dtype : {f64, f32})
      for (const double scale : {0.5, 0.}) {
        Graph g;
        constexpr double rate = 0.125, step = 3, b1 = 0.75, b2 = 0.875, eps = 0.25;
        std::vector<AdamWTensors> all;
        std::vector<std::vector<Whole>> given;
        for (const std::int64_t n : sizes) {
          std::vector<Whole> own;
          for (int i = 0; i < 4; ++i)
            own.push_back(i == 3 ? whole(g, {n}, dtype, digits(n, 9, 7)) : small(g, {n}, i, dtype));
          all.push_back({own[0].tensor, own[1].tensor, own[2].tensor, own[3].tensor,
                         0.5 * static_cast<double>(given.size())});
          if (dtype == f32) all.back().copy = bf16;
          given.push_back(own);
        }
        const auto results = adamw(all, rate, step, scale, {.beta1 = b1, .beta2 = b2, .eps = eps});
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          Vector p, m, v, copy;
          for (std::size_t i = 0; i < static_cast<std::size_t>(sizes[t]); ++i) {
            const double grad = scale * given[t][1].values[i];
            m.push_back(b1 * given[t][2].values[i] + (1 - b1) * grad);
            v.push_back(b2 * given[t][3].values[i] + (1 - b2) * grad * grad);
            p.push_back((1 - rate * all[t].weight_decay) * given[t][0].values[i] -
                        rate / (1 - std::pow(b1, step)) * m.back() /
                            (std::sqrt(v.back()) / std::sqrt(1 - std::pow(b2, step)) + eps));
            if (scale == 0)
              p.back() = given[t][0].values[i], m.back() = given[t][2].values[i],
              v.back() = given[t][3].values[i];
          }
          std::vector<Feed> feeds;
          for (const auto& own : given)
            for (const Whole& x : own) feeds.push_back(x.feed());
          const std::string what = "tensor " + to_string(t) + " of " + to_string(sizes[t]);
          expect_nearly(results[t].p, feeds, p, tolerance_of(dtype), "p, " + what);
          expect_nearly(results[t].m, feeds, m, scale == 0 ? 0 : tolerance_of(dtype), "m, " + what);
          expect_nearly(results[t].v, feeds, v, scale == 0 ? 0 : tolerance_of(dtype), "v, " + what);
          if (dtype == f32) expect_nearly(results[t].copy, feeds, p, 0x1p-8, "copy, " + what);
        }
      }
}

// The kernel draws 1024 numbers at the same time. A part has 8192 numbers. Each number depends only on the
// random words at its index (core/base/rng.h).
TEST(RowEnds, RandomNumbersDependOnTheirIndex) {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 1023, 1024, 1025, 8191, 8193})
    for (const DType dtype : {f64, f32, f16}) {
      Graph g;
      const Whole x = small(g, {n}, 1, dtype);
      const Tensor drawn = uniform(g, {n}, -2, 3, dtype), gauss = normal(g, {n}, 1, 2, dtype),
                   coins = bernoulli(g, {n}, 0.3), dice = randint(g, {n}, -5, 100),
                   kept = dropout(x.tensor, 0.25);
      const std::vector<Tensor> ts{drawn, gauss, coins, dice, kept};
      const auto key = [&](const Tensor& t) {
        const Node& node = g.node_of(t.id());
        const auto stream = node.op == &dropout_op ? node.attrs.as<DropoutAttrs>().stream
                                                   : node.attrs.as<RandomAttrs>().stream;
        return node_key(77, 5, static_cast<std::uint32_t>(stream));
      };
      const auto word = [&](const Tensor& t, std::int64_t i, std::int64_t each, std::int64_t nth) {
        const std::int64_t at = i * each + nth;
        return philox(element_counter(static_cast<std::uint64_t>(at / 4)),
                      key(t))[static_cast<std::size_t>(at % 4)];
      };
      for (const int threads : {1, 3}) {
        Program p = compile(g, ts, {.threads = threads});
        p.seed(77), p.set_step(5);
        p.run({x.feed()});
        std::vector<Array> got;
        for (const Tensor& t : ts) got.push_back(p.fetch(t));
        ASSERT_TRUE(got[0].same_bits(uniform_array({n}, dtype, -2, 3, key(drawn)))) << n;
        ASSERT_TRUE(got[1].same_bits(normal_array({n}, dtype, 1, 2, key(gauss)))) << n;
        const Vector c = doubles(got[2]), d = doubles(got[3]), k = doubles(got[4]);
        for (std::int64_t i = 0; i < n; ++i) {
          const auto e = static_cast<std::size_t>(i);
          ASSERT_EQ(c[e], word(coins, i, 1, 0) < bernoulli_bound(0.3) ? 1 : 0) << n << " at " << i;
          const std::uint64_t u = std::uint64_t{word(dice, i, 2, 0)} << 32 | word(dice, i, 2, 1);
          ASSERT_EQ(d[e], static_cast<double>(
                              -5 + static_cast<std::int64_t>(static_cast<unsigned __int128>(u) * 105 >> 64)))
              << n << " at " << i;
          const double share = dtype == f64 ? 1 / 0.75 : static_cast<double>(static_cast<float>(1 / 0.75));
          const double whole_part = word(kept, i, 1, 0) >= dropout_bound(0.25) ? x.values[e] * share : 0;
          ASSERT_NEAR(k[e], whole_part, rounding(dtype) * std::abs(whole_part)) << n << " at " << i;
        }
      }
    }
}

TEST(RowEnds, ADropoutMaskDependsOnItsIndices) {
  Graph g;
  const std::int64_t B = 2, H = 3, L = 5, T = 7;
  const Tensor mask = attention_keep_mask(g.rng(), {B, H, L, T}, 0.25, 9);
  for (const int threads : {1, 3}) {
    Program p = compile(g, {mask}, {.threads = threads});
    p.seed(77), p.set_step(5);
    p.run();
    const Vector kept = doubles(p.fetch(mask));
    for (std::int64_t i = 0; i < B * H * L * T; ++i) {
      const auto row = static_cast<std::uint32_t>(i / T), key = static_cast<std::uint32_t>(i % T);
      const PhiloxBlock words = philox(attention_counter(row / L, row % L, key), node_key(77, 5, 9));
      ASSERT_EQ(kept[static_cast<std::size_t>(i)], words[key % 4] >= dropout_bound(0.25)) << i;
    }
  }
}

// Results of 16 MiB or more bypass the caches. If an operand is transposed, results of 4 MiB or more also
// bypass them. The results must be bitwise identical to two halves, which do not bypass the caches.
TEST(RowEnds, LargeResultsMatchTheirHalvesBitwise) {
  struct Row {
    const char* name;
    std::int64_t rows, n;
    Tensor (*f)(const Tensor&);
  };
  const Row all[] = {
      {"softmax", 2 * 2049, 1024, [](const Tensor& x) { return softmax(x); }},
      {"log_softmax", 2 * 2049, 1040, [](const Tensor& x) { return log_softmax(x); }},
      {"layer_norm", 2 * 2049, 1024, [](const Tensor& x) { return layer_norm(x); }},
      {"rope", 2 * 2049, 1024,
       [](const Tensor& x) {
         return rope(x, 0 * x.graph().constant(Array::of(Shape{1}, std::vector<std::int64_t>{1})));
       }},
      {"chain", 2 * 2049, 1024, [](const Tensor& x) { return x * x + 1; }},
      {"chain of odd rows", 2 * 2049, 1033, [](const Tensor& x) { return x * x + 1; }},
  };
  for (const Row& r : all) {
    Graph g;
    const std::int64_t half = r.rows / 2;
    const Tensor x = g.input("x", {r.rows, r.n}), y = g.input("y", {half, r.n});
    Array whole_input({r.rows, r.n}, f32);
    float* to = whole_input.data<float>();
    for (std::int64_t i = 0; i < r.rows * r.n; ++i) to[i] = static_cast<float>((i * 7919) % 1009) * 0.01f;
    const Program both = compile(g, {r.f(x)}, {.threads = 2}), part = compile(g, {r.f(y)}, {.threads = 2});
    Program large = both, small_one = part;
    large.run({{x, whole_input}});
    const Array got = large.fetch(g.tensor(large.outputs()[0]));
    const std::size_t bytes = static_cast<std::size_t>(half * r.n) * sizeof(float);
    for (int h = 0; h < 2; ++h) {
      Array input({half, r.n}, f32);
      std::memcpy(input.data<float>(), to + h * half * r.n, bytes);
      small_one.run({{y, input}});
      const Array expected = small_one.fetch(g.tensor(small_one.outputs()[0]));
      EXPECT_EQ(std::memcmp(got.data<float>() + h * half * r.n, expected.data<float>(), bytes), 0)
          << r.name << ", half " << h;
    }
  }
}

TEST(RowEnds, LargeTransposedResultsMatchPlainLoops) {
  Graph g;
  const std::int64_t rows = 1031, columns = 1025;
  const Tensor x = g.input("x", {columns, rows}), y = g.input("y", {rows, columns});
  Array a({columns, rows}, f32), b({rows, columns}, f32);
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    a.data<float>()[i] = static_cast<float>(i % 8191);
    b.data<float>()[i] = static_cast<float>(i % 127);
  }
  for (const int threads : {1, 3}) {
    const Array got = eval(transpose(x, 0, 1) + y, {{x, a}, {y, b}}, {.threads = threads});
    const float* p = got.data<float>();
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        ASSERT_EQ(p[r * columns + c], a.data<float>()[c * rows + r] + b.data<float>()[r * columns + c])
            << r << " " << c;
  }
}

}  // namespace

// Compares the GEMMs of every instruction set with a plain triple loop in f64.
#define TG_ISA baseline
#include "backends/cpu/kernels/gemm_tiles.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "tests/support/gemm_of_isas.h"
#include "tests/support/guarded.h"
#include "tests/support/kernel_team.h"
#include "tests/support/model_tiles.h"

namespace tg::cpu {

namespace {

using i64 = std::int64_t;

struct Isa {
  const char* name;
  Scratch (*scratch)(const Gemm&, int);
  void (*gemm)(const Gemm&, Worker&);
};
std::vector<Isa> isas() {
  std::vector<Isa> all = {{"baseline", baseline::gemm_scratch, baseline::gemm}};
#ifdef TILEGRAD_ISA_avx2
  if (machine_has("avx2")) all.push_back({"avx2", avx2::gemm_scratch, avx2::gemm});
#endif
#ifdef TILEGRAD_ISA_avx512
  if (machine_has("avx512")) all.push_back({"avx512", avx512::gemm_scratch, avx512::gemm});
#endif
  return all;
}

// A strided operand. It has separate memory of exactly its size. Every element is a small random number.
struct Matrix {
  Matrix(DType t, i64 batch, i64 rows, i64 cols, const std::string& layout, std::mt19937& rng,
         bool share_batch = false)
      : type(t), rows(rows), cols(cols), values(static_cast<std::size_t>(batch * rows * cols)) {
    if (layout == "row") row = cols, col = 1, batch_stride = rows * cols;
    if (layout == "column") row = 1, col = rows, batch_stride = rows * cols;
    if (layout == "padded") row = cols + 5, col = 1, batch_stride = rows * (cols + 5);
    if (layout == "strided") row = 2 * cols + 1, col = 2, batch_stride = rows * (2 * cols + 1);
    if (layout == "equal rows") row = 0, col = 2, batch_stride = 2 * cols;
    if (layout == "equal columns") row = 3, col = 0, batch_stride = 3 * rows;
    if (share_batch) batch_stride = 0;
    const i64 last = (batch - 1) * batch_stride + (rows - 1) * row + (cols - 1) * col;
    const i64 count = batch * rows * cols == 0 ? 0 : last + 1;
    bytes.resize(static_cast<std::size_t>(count) * size_of(t));
    std::uniform_real_distribution<double> u(-1, 1);
    for (i64 e = 0; e < count; ++e)
      dispatch(t, [&](auto zero) {
        using S = decltype(zero);
        if constexpr (std::is_same_v<S, bfloat16> || std::is_same_v<S, float16>) {
          reinterpret_cast<S*>(bytes.data())[e] = S(static_cast<float>(u(rng)));
        } else {
          reinterpret_cast<S*>(bytes.data())[e] = static_cast<S>(u(rng));
        }
      });
  }
  double at(i64 b, i64 i, i64 j) const {
    const i64 e = b * batch_stride + i * row + j * col;
    return dispatch(type, [&](auto zero) -> double {
      using S = decltype(zero);
      if constexpr (std::is_same_v<S, bfloat16> || std::is_same_v<S, float16>) {
        return static_cast<float>(reinterpret_cast<const S*>(bytes.data())[e]);
      } else {
        return static_cast<double>(reinterpret_cast<const S*>(bytes.data())[e]);
      }
    });
  }
  // Copies a matrix with any layout.
  void copy(const Matrix& from) {
    const std::size_t size = size_of(type);
    for (i64 e = 0; e < from.rows * from.cols; ++e) {
      const i64 i = e / from.cols, j = e % from.cols;
      std::memcpy(bytes.data() + static_cast<std::size_t>(i * row + j * col) * size,
                  from.bytes.data() + static_cast<std::size_t>(i * from.row + j * from.col) * size, size);
    }
  }
  Gemm::Matrix operand() { return {bytes.data(), row, col, {batch_stride}}; }

  DType type;
  i64 rows, cols, row = 0, col = 0, batch_stride = 0;
  std::vector<double> values;
  std::vector<std::byte> bytes;
};

struct Case {
  i64 batch, m, n, k;
  std::string a = "row", b = "row", c = "row", d = "none";
  DType type = DType::f32, out = DType::f32;
  bool share_b = false;
  Bf16Unit bf16 = Bf16Unit::f32;
  bool batch_invariant = false;
};

// The unit roundoff of the result's dtype.
double roundoff(DType t) {
  return t == DType::f64 ? 0x1p-53 : t == DType::f32 ? 0x1p-24 : t == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

void check(const Case& x, const std::vector<Isa>& units = isas()) {
  std::mt19937 rng(7);
  Matrix a(x.type, x.batch, x.m, x.k, x.a, rng), b(x.type, x.batch, x.k, x.n, x.b, rng, x.share_b);
  const Matrix c0(x.out, x.batch, x.m, x.n, x.c, rng);
  Matrix d(x.out, x.d == "bias" ? 1 : x.batch, x.d == "bias" ? 1 : x.m, x.n, "row", rng);
  // Computes the product in f64. `bound` is the largest possible error. It includes k dependent multiply-adds
  // and the final rounding.
  std::vector<double> expected, bound;
  const double unit = roundoff(compute_type(x.type)), rounded = roundoff(x.out);
  for (i64 e = 0; e < x.batch; ++e)
    for (i64 i = 0; i < x.m; ++i)
      for (i64 j = 0; j < x.n; ++j) {
        double sum = x.d == "bias"   ? d.at(0, 0, j)
                     : x.d == "full" ? d.at(e, i, j)
                     : x.d == "self" ? c0.at(e, i, j)
                                     : 0;
        double size = std::fabs(sum);
        for (i64 p = 0; p < x.k; ++p) {
          const double term = a.at(e, i, p) * b.at(e, p, j);
          sum += term;
          size += std::fabs(term);
        }
        expected.push_back(sum);
        bound.push_back(1.01 * (static_cast<double>(x.k + 2) * unit * size + rounded * std::fabs(sum)) +
                        1e-30);
      }
  Guarded a_memory(a.bytes), b_memory(b.bytes), d_memory(d.bytes);
  std::vector<std::byte> first;
  for (const Isa& isa : units) {
    bool repeat = false;
    for (int threads = 1; threads <= 3; ++threads) {
      Matrix c = c0;
      Gemm g;
      g.type = x.type, g.out_type = x.out, g.m = x.m, g.n = x.n, g.k = x.k, g.batch_rank = 1,
      g.batch[0] = x.batch;
      g.a = a.operand(), g.b = b.operand(), g.c = c.operand();
      g.a.data = a_memory.data(), g.b.data = b_memory.data();
      if (x.d == "bias") g.d = d.operand(), g.d.row = 0, g.d.batch_strides[0] = 0;
      if (x.d == "full") g.d = d.operand();
      g.d.data = g.d.data ? d_memory.data() : nullptr;
      if (x.d == "self") g.d = g.c;
      g.bf16 = x.bf16, g.batch_invariant = x.batch_invariant;
      run_team(threads, isa.scratch(g, threads), [&](Worker& w) { isa.gemm(g, w); });
      ASSERT_TRUE(ModelTiles::are_released());
      std::size_t at = 0;
      for (i64 e = 0; e < x.batch; ++e)
        for (i64 i = 0; i < x.m; ++i)
          for (i64 j = 0; j < x.n; ++j, ++at)
            ASSERT_NEAR(c.at(e, i, j), expected[at], bound[at])
                << isa.name << " threads " << threads << " " << x.batch << "x" << x.m << "x" << x.n << "x"
                << x.k << " " << x.a << "/" << x.b << "/" << x.c << "/" << x.d << " " << name_of(x.type)
                << " at " << e << "," << i << "," << j;
      if (repeat) {
        ASSERT_EQ(first, c.bytes) << isa.name << ": bits depend on the number of threads";
      }
      first = c.bytes;
      repeat = true;
    }
  }
}

TEST(Gemm, AgreesWithTheTripleLoopOnRaggedShapes) {
  const i64 sizes[] = {1, 2, 5, 13, 14, 15, 16, 17, 31, 33, 48, 65, 100};
  std::mt19937 rng(3);
  for (int i = 0; i < 120; ++i) {
    Case x{1, sizes[rng() % 13], sizes[rng() % 13], sizes[rng() % 13]};
    const char* layouts[] = {"row", "column", "padded", "strided"};
    x.a = layouts[rng() % 4], x.b = layouts[rng() % 4], x.c = layouts[rng() % 4];
    const char* added[] = {"none", "bias", "full", "self"};
    x.d = added[rng() % 4];
    x.batch = 1 + rng() % 3;
    x.share_b = rng() % 2;
    check(x);
  }
}

TEST(Gemm, AcceptsEveryFloatType) {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const char* a : {"row", "column", "strided"})
      for (const char* b : {"row", "column", "strided"})
        for (const char* d : {"none", "bias", "self"}) check({2, 19, 34, 21, a, b, "row", d, t, t});
  check({1, 37, 50, 41, "row", "column", "row", "none", DType::bf16, DType::f32});
  check({1, 37, 50, 41, "row", "column", "strided", "full", DType::f16, DType::f32});
}

TEST(Gemm, AcceptsFewRowsOrColumnsWithLongContiguousOnes) {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (i64 m = 1; m <= 9; ++m) {
      check({2, m, 35, 77, "row", "column", "row", "full", t, t});
      check({1, 35, m, 64, "row", "column", "row", "bias", t, t});
    }
  check({1, 1, 40, 77, "padded", "column", "strided", "self", DType::bf16, DType::f32});
}

#if defined(__x86_64__)
TEST(Gemm, MultipliesPairsOfBf16IfTheProcessorCan) {
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "no avx512_bf16";
  for (const char* a : {"row", "column", "strided", "padded"})
    for (const char* b : {"row", "column", "strided", "padded"})
      for (const i64 k : {1, 2, 41, 64, 801})
        check({2, 37, 50, k, a, b, "row", "bias", DType::bf16, DType::f32, false, Bf16Unit::pairs});
  check({1, 300, 270, 801, "row", "row", "row", "none", DType::bf16, DType::bf16, false, Bf16Unit::pairs});
}
#endif

// GEMMs with tiles run on the emulated tiles. They also run on AMX if the processor has it.
std::vector<Isa> tile_units() {
  std::vector<Isa> units = {{"model of tiles", baseline::tiles_scratch, baseline::run_tiles<ModelTiles>}};
#ifdef TILEGRAD_ISA_avx512
  if (has_bf16_tiles()) units.push_back({"avx512 with tiles", avx512::gemm_scratch, avx512::gemm});
#endif
  return units;
}
void check_tiles(Case x) {
  x.type = DType::bf16;
  x.bf16 = Bf16Unit::tiles;
  check(x, tile_units());
}

TEST(GemmOnTiles, AgreesWithTheTripleLoopOnRaggedShapes) {
  const i64 sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 49, 63, 64, 65, 100, 129};
  const char* layouts[] = {"row", "column", "padded", "strided"};
  const char* added[] = {"none", "bias", "full", "self"};
  std::mt19937 rng(5);
  for (int i = 0; i < 150; ++i) {
    Case x{1 + static_cast<i64>(rng() % 3), sizes[rng() % 15], sizes[rng() % 15], sizes[rng() % 15]};
    x.a = layouts[rng() % 4], x.b = layouts[rng() % 4], x.c = rng() % 3 ? "row" : "strided";
    x.d = added[rng() % 4];
    x.share_b = rng() % 2;
    x.out = rng() % 2 ? DType::bf16 : DType::f32;
    check_tiles(x);
  }
}

// An expanded operand has a single row or column in memory.
TEST(GemmOnTiles, AcceptsExpandedOperands) {
  for (const char* a : {"row", "column", "equal rows", "equal columns"})
    for (const char* b : {"row", "column", "equal rows", "equal columns"}) {
      check_tiles({2, 33, 70, 65, a, b});
      check_tiles({1, 64, 64, 64, a, b});
    }
}

TEST(GemmOnTiles, SplitsLongInnerSizes) {
  for (const char* a : {"row", "column"})
    for (const char* b : {"row", "column"}) check_tiles({1, 33, 35, 700, a, b, "row", "self"});
  check_tiles({1, 40, 70, 2090, "row", "column", "row", "bias", DType::bf16, DType::bf16});
  check_tiles({1, 5, 270, 16400, "row", "row"});  // in several passes
}

TEST(GemmOnTiles, PacksOnceForAllThreadsWhenLarge) {
  Gemm g;
  g.type = DType::bf16, g.m = 300, g.n = 270, g.k = 400;
  EXPECT_TRUE(baseline::plan_tiles(g, 3).shared_b);
  check_tiles({1, 300, 270, 400, "row", "column"});
  check_tiles({2, 300, 270, 400, "row", "row", "strided", "bias"});
}

// The panels of B exceed the memory limit of one pass. The result must equal the result of a single thread,
// which is tested above.
TEST(GemmOnTiles, PacksOnceForAllThreadsInSeveralPasses) {
  constexpr i64 m = 33, n = 270, k = 14600;
  std::mt19937 rng(13);
  Matrix a(DType::bf16, 1, m, k, "row", rng);
  for (const char* layout : {"row", "column"}) {
    Matrix b(DType::bf16, 1, k, n, layout, rng);
    std::vector<float> alone, shared;
    for (const int threads : {1, 3}) {
      std::vector<float>& c = threads == 1 ? alone : shared;
      c.resize(m * n);
      Gemm g;
      g.type = DType::bf16, g.out_type = DType::f32, g.bf16 = Bf16Unit::tiles, g.m = m, g.n = n, g.k = k;
      g.a = a.operand(), g.b = b.operand(), g.c = {c.data(), n, 1};
      const auto plan = baseline::plan_tiles(g, threads);
      ASSERT_LT(plan.pass, plan.panels);
      ASSERT_EQ(plan.shared_b, threads > 1);
      run_team(threads, baseline::tiles_scratch(g, threads),
               [&](Worker& w) { baseline::run_tiles<ModelTiles>(g, w); });
    }
    EXPECT_EQ(alone, shared) << layout;
  }
}

TEST(GemmOnTiles, EmptyOperandsGiveZerosOrTheAddend) {
#ifdef TILEGRAD_ISA_avx512
  if (machine_has("avx512")) {  // gemm() does not use tiles here
    const i64 sizes[][4] = {{2, 5, 7, 0}, {1, 0, 7, 3}, {1, 5, 0, 3}, {0, 5, 7, 3}};
    for (const auto& [batch, m, n, k] : sizes) {
      Case x{batch, m, n, k, "row", "row", "row", "bias", DType::bf16, DType::bf16, false, Bf16Unit::tiles};
      check(x, {{"avx512", avx512::gemm_scratch, avx512::gemm}});
    }
  }
#endif
}

TEST(GemmOnTiles, KeepsInfiniteAndUndefinedNumbersToTheirRowsAndColumns) {
  constexpr i64 m = 17, n = 18, k = 33;
  std::vector<bfloat16> a(m * k, bfloat16(1.0f)), b(k * n, bfloat16(1.0f));
  a[(m - 1) * k + k - 1] = bfloat16(NAN);
  b[(k - 1) * n + n - 1] = bfloat16(INFINITY);
  Gemm g;
  g.type = DType::bf16, g.bf16 = Bf16Unit::tiles, g.m = m, g.n = n, g.k = k;
  std::vector<float> c(m * n);
  g.a = {a.data(), k, 1}, g.b = {b.data(), n, 1}, g.c = {c.data(), n, 1};
  for (const Isa& unit : tile_units()) {
    run_team(1, unit.scratch(g, 1), [&](Worker& w) { unit.gemm(g, w); });
    for (i64 i = 0; i < m; ++i)
      for (i64 j = 0; j < n; ++j) {
        const float got = c[i * n + j];
        const bool right = i == m - 1 ? std::isnan(got) : got == (j == n - 1 ? INFINITY : k);
        EXPECT_TRUE(right) << unit.name << " at " << i << "," << j << ": " << got;
      }
  }
}

#if defined(__x86_64__)
TEST(GemmOnTiles, RunOnThisProcessor) {
  if (!has_bf16_tiles()) GTEST_SKIP() << "no AMX: only its model was tested";
  EXPECT_EQ(bf16_unit() == Bf16Unit::tiles, std::getenv("TG_ISA") == nullptr);
}
#endif

// ---- batch invariance: a row of the result is bitwise identical for any number of rows ----

struct RowsCase {
  i64 n, k;
  std::string b = "column";  // a transposed weight
  DType type = DType::f32;
  Bf16Unit bf16 = Bf16Unit::f32;
  bool adds = false;
};

// Computes rows [first, first + m) of a times b, and adds the same rows of d. If `as_items` is true, each row
// is a batch item.
std::vector<std::byte> rows_product(const RowsCase& x, Matrix& a, Matrix& b, Matrix& d, i64 first, i64 m,
                                    int threads, const Isa& isa, bool as_items = false) {
  Gemm g;
  g.type = g.out_type = x.type, g.m = m, g.n = x.n, g.k = x.k, g.batch_invariant = true, g.bf16 = x.bf16;
  g.a = a.operand(), g.b = b.operand();
  std::vector<std::byte> out(static_cast<std::size_t>(m * x.n) * size_of(x.type));
  g.c = {out.data(), x.n, 1};
  const auto skip = [&](Gemm::Matrix& matrix) {
    matrix.data =
        static_cast<std::byte*>(matrix.data) + first * matrix.row * static_cast<i64>(size_of(x.type));
  };
  skip(g.a);
  if (x.adds) g.d = d.operand(), skip(g.d);
  if (as_items) {
    g.m = 1, g.batch_rank = 2, g.batch[0] = m, g.batch[1] = 1, g.b.batch_strides[0] = 0;
    for (Gemm::Matrix* each : {&g.a, &g.c, &g.d}) each->batch_strides[0] = each->row, each->row = 0;
  }
  run_team(threads, isa.scratch(g, threads), [&](Worker& w) { isa.gemm(g, w); });
  return out;
}

void check_batch_invariant(const RowsCase& x, const std::vector<Isa>& units) {
  constexpr i64 most = 256;
  const std::string shape = std::to_string(x.n) + "x" + std::to_string(x.k) + " " + x.b + " " +
                            std::string(name_of(x.type)) + (x.adds ? " + d" : "");
  const std::size_t row_bytes = static_cast<std::size_t>(x.n) * size_of(x.type);
  for (const Isa& isa : units) {
    std::vector<std::byte> all;  // the result for the first layout; other layouts must give the same bytes
    for (const char* layout : {"row", "column"}) {
      std::mt19937 rng(11);
      Matrix rows(x.type, 1, most, x.k, "row", rng), b(x.type, 1, x.k, x.n, x.b, rng),
          d(x.type, 1, most, x.n, "row", rng);
      Matrix a(x.type, 1, most, x.k, layout, rng), added(x.type, 1, most, x.n, layout, rng);
      a.copy(rows), added.copy(d);
      const auto batch = rows_product(x, a, b, added, 0, most, 1, isa);
      if (all.empty()) all = batch;
      ASSERT_EQ(all, batch) << isa.name << " " << shape << ": bits depend on the layout of the rows, "
                            << layout;
      ASSERT_EQ(all, rows_product(x, a, b, added, 0, most, 3, isa))
          << isa.name << " " << shape << ": threads";
      for (const i64 m : {1, 2, 3, 7, 8, 9, 16, 17, 64, 100})
        for (const i64 first : {i64{0}, most - m}) {
          const auto some = rows_product(x, a, b, added, first, m, 1 + static_cast<int>(m % 2), isa);
          ASSERT_EQ(
              std::memcmp(some.data(), all.data() + static_cast<std::size_t>(first) * row_bytes, some.size()),
              0)
              << isa.name << " " << shape << ": rows " << first << " to " << first + m - 1 << ", " << layout;
          ASSERT_EQ(some, rows_product(x, a, b, added, first, m, 2, isa, true))
              << isa.name << " " << shape << ": " << m << " items, " << layout;
        }
    }
  }
}

TEST(GemmOfBatchInvariant, RowsMatchBitwiseInAnyBatch) {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const char* b : {"column", "row", "strided"})
      for (const i64 n : {1, 5, 75})
        for (const i64 k : {1, 31, 64, 77})
          check_batch_invariant({n, k, b, t, Bf16Unit::f32, k % 2 == 0}, isas());
}

TEST(GemmOfBatchInvariant, AddsInOneOrderOverLongRows) {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const char* b : {"column", "row"})
      for (const i64 k : {769, 2050})
        for (const bool adds : {false, true})
          check_batch_invariant({40, k, b, t, Bf16Unit::f32, adds}, isas());
}

#if defined(__x86_64__)
TEST(GemmOfBatchInvariant, MultipliesPairsOfBf16IfTheProcessorCan) {
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "no avx512_bf16";
  for (const char* b : {"column", "row"})
    for (const i64 n : {1, 40, 75})
      for (const i64 k : {1, 31, 33, 64, 77, 1027, 2051})
        check_batch_invariant({n, k, b, DType::bf16, Bf16Unit::pairs, true}, isas());
}
#endif

TEST(GemmOfBatchInvariant, AgreesWithTheTripleLoop) {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const i64 m : {1, 8, 9, 33, 100})
      for (const char* a : {"row", "column", "strided"})
        for (const char* d : {"none", "bias", "full"}) {
          Case x{2, m, 35, 77, a, "column", "row", d, t, t};
          x.batch_invariant = true;
          check(x);
          x.k = 1301, x.n = 5, x.batch = 1;
          check(x);
        }
}

// gemm() treats few rows with a transposed weight as columns of the transposed GEMM. This function does the
// same.
void rows_on_model(const Gemm& g, Worker& w) {
  baseline::run_tiles<ModelTiles>(g.m <= 16 ? baseline::swapped(g) : g, w);
}
Scratch rows_on_model_scratch(const Gemm& g, int threads) {
  return baseline::tiles_scratch(g.m <= 16 ? baseline::swapped(g) : g, threads);
}

TEST(GemmOfBatchInvariant, ARowOnTilesMatchesBitwiseInAnyBatch) {
  std::vector<Isa> units = {{"model of tiles", rows_on_model_scratch, rows_on_model}};
#ifdef TILEGRAD_ISA_avx512
  if (has_bf16_tiles()) units.push_back({"avx512 with tiles", avx512::gemm_scratch, avx512::gemm});
#endif
  for (const char* b : {"column", "row"})
    for (const i64 n : {1, 75})
      for (const i64 k : {31, 64, 1100})
        check_batch_invariant({n, k, b, DType::bf16, Bf16Unit::tiles, true}, units);
}

// An expanded operand has a single row or column in memory.
TEST(Gemm, AcceptsExpandedOperands) {
  for (const DType t : {DType::f64, DType::f32, DType::bf16})
    for (const char* a : {"row", "column", "equal rows", "equal columns"})
      for (const char* b : {"row", "column", "equal rows", "equal columns"})
        for (const i64 m : {1, 7, 37}) check({2, m, 50, 41, a, b, "row", "none", t, t});
}

TEST(Gemm, SplitsLongInnerSizes) {
  for (const char* a : {"row", "column"})
    for (const char* b : {"row", "column"}) {
      check({1, 20, 35, 1000, a, b});
      check({1, 20, 35, 777, a, b, "row", "self"});
      check({1, 20, 35, 777, a, b, "column", "bias", DType::bf16, DType::bf16});
    }
}

TEST(Gemm, PacksOnceForAllThreadsWhenLarge) {
  check({1, 300, 270, 400, "row", "column"});
  check({2, 260, 90, 1300, "row", "row", "strided", "bias"});
  check({1, 600, 1100, 40, "row", "row"});  // more columns than one block
}

// In the first case, the rows of A are 2 KiB apart, so they conflict in the L1 cache. In the second case, A
// is larger than the L2 cache. In both cases A is packed. The packed rows are complete vectors if there is
// room.
TEST(Gemm, PacksRowsThatDoNotFitTheCaches) {
  for (const DType t : {DType::f32, DType::f64}) {
    check({1, 130, 300, 512, "row", "row", "row", "full", t, t});
    check({1, 512, 200, 70, "column", "column", "row", "none", t, t});
    check({1, 151, 300, 1001, "column", "row", "row", "self", t, t});
  }
}

TEST(Gemm, EmptyOperandsGiveZerosOrTheAddend) {
  check({1, 5, 7, 0});
  check({2, 5, 7, 0, "row", "row", "row", "bias"});
  check({1, 0, 7, 3});
  check({1, 5, 0, 3});
  check({0, 5, 7, 3});
}

}  // namespace
}  // namespace tg::cpu

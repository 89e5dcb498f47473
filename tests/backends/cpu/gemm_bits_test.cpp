// Tests GEMMs of every instruction set. They must be bitwise identical to plain loops that add in the same
// order.
#define TG_ISA baseline
#include "backends/cpu/kernels/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "core/base/piece_size.h"
#include "tests/support/gemm_of_isas.h"
#include "tests/support/kernel_team.h"

namespace tg::cpu {

namespace {

using i64 = std::int64_t;

struct Isa {
  const char* name;
  int bytes;   // size of a vector
  bool fuses;  // fuses products and sums
  Scratch (*scratch)(const Gemm&, int);
  void (*gemm)(const Gemm&, Worker&);
};
std::vector<Isa> isas() {
  std::vector<Isa> all = {{"baseline", 16, false, baseline::gemm_scratch, baseline::gemm}};
#ifdef TILEGRAD_ISA_avx2
  if (machine_has("avx2")) all.push_back({"avx2", 32, true, avx2::gemm_scratch, avx2::gemm});
#endif
#ifdef TILEGRAD_ISA_avx512
  if (machine_has("avx512")) all.push_back({"avx512", 64, true, avx512::gemm_scratch, avx512::gemm});
#endif
  return all;
}

template <class T>
std::vector<T> random_numbers(i64 n, unsigned seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> u(-1, 1);
  std::vector<T> v(static_cast<std::size_t>(n));
  for (T& x : v) x = static_cast<T>(u(rng));
  return v;
}

template <class T>
T multiply_add(const Isa& isa, T a, T b, T sum) {
  if (isa.fuses) return std::fma(a, b, sum);
  volatile T product = a * b;  // rounded
  return product + sum;
}

// k is divided into parts of at most 384 elements. Each part is one sequence of multiply-adds. The first part
// starts from D. The sums of the parts are added from first to last.
template <class T>
T chained(const Isa& isa, const T* a, i64 a_step, const T* b, i64 b_step, i64 k, const T* d) {
  const i64 parts = std::max<i64>(1, (k + 383) / 384);
  T total = 0;
  for (i64 q = 0; q < parts; ++q) {
    T sum = 0;
    for (i64 p = q * k / parts; p < (q + 1) * k / parts; ++p)
      sum = multiply_add(isa, a[p * a_step], b[p * b_step], sum);
    total = q > 0 ? total + sum : d ? *d + sum : sum;
  }
  return total;
}

// Each lane adds chunks of 2 KiB. If there are more than 32 chunks, the sums of every 32 chunks are added to
// a total. The last chunk starts from the total. Finally, the upper half of the lanes is added to the lower
// half until one lane is left.
template <class T>
T in_lanes(const Isa& isa, const T* a, i64 a_step, const T* b, i64 b_step, i64 k) {
  const i64 W = isa.bytes / static_cast<i64>(sizeof(T)), chunk = 2048 / static_cast<i64>(sizeof(T));
  const i64 chunks = std::max<i64>(1, k / chunk);
  std::vector<T> sum(static_cast<std::size_t>(W)), total;
  for (i64 q = 0; q < chunks; ++q) {
    const bool last = q + 1 == chunks;
    if (chunks > 32 && q > 0 && (last || q % 32 == 0)) {
      if (total.empty())
        total = sum;
      else
        for (std::size_t l = 0; l < sum.size(); ++l) total[l] += sum[l];
      sum = last ? total : std::vector<T>(sum.size());
    }
    for (i64 p = q * chunk, end = last ? k : (q + 1) * chunk; p < end; ++p) {
      T& s = sum[static_cast<std::size_t>((p - q * chunk) % W)];
      s = multiply_add(isa, a[p * a_step], b[p * b_step], s);
    }
  }
  for (std::size_t half = sum.size() / 2; half > 0; half /= 2)
    for (std::size_t l = 0; l < half; ++l) sum[l] += sum[l + half];
  return sum[0];
}

template <class T, class F>
void check(const Isa& isa, const Gemm& shape, const std::vector<T>& d, F expected) {
  Gemm g = shape;
  g.type = g.out_type = dtype_of<T>;
  const std::vector<T> a = random_numbers<T>(g.m * g.k, 1), b = random_numbers<T>(g.k * g.n, 2);
  g.a.data = const_cast<T*>(a.data()), g.b.data = const_cast<T*>(b.data());
  if (!d.empty()) g.d = {const_cast<T*>(d.data()), 0, 1};
  for (const int threads : {1, 3}) {
    std::vector<T> c(static_cast<std::size_t>(g.m * g.n));
    g.c = {c.data(), g.n, 1};
    run_team(threads, isa.scratch(g, threads), [&](Worker& w) { isa.gemm(g, w); });
    for (i64 i = 0; i < g.m; ++i)
      for (i64 j = 0; j < g.n; ++j) {
        const T want = expected(a.data() + i * g.a.row, b.data() + j * g.b.col,
                                d.empty() ? nullptr : &d[static_cast<std::size_t>(j)]);
        const T got = c[static_cast<std::size_t>(i * g.n + j)];
        ASSERT_EQ(std::memcmp(&got, &want, sizeof got), 0)
            << isa.name << " " << g.m << "×" << g.n << "×" << g.k << " at " << i << "," << j << ": got "
            << got << ", expected " << want;
      }
  }
}

template <class T>
void check_fused(const Isa& isa) {
  for (const i64 k : {1, 2, 384, 385, 769, 1200})
    for (const auto& [m, n] : {std::pair<i64, i64>{1, 2}, {3, 40}, {17, 33}, {60, 5}})
      for (const bool column : {false, true})
        for (const bool adds : {false, true}) {
          Gemm g;
          g.m = m, g.n = n, g.k = k;
          g.a.row = column ? 1 : k, g.a.col = column ? m : 1, g.b.row = n, g.b.col = 1;
          check<T>(isa, g, adds ? random_numbers<T>(n, 3) : std::vector<T>(),
                   [&](const T* a, const T* b, const T* d) { return chained(isa, a, g.a.col, b, n, k, d); });
          if (::testing::Test::HasFatalFailure()) return;
        }
}

TEST(GemmBits, TilesMatchPlainLoopsBitwise) {
  if (tg::has_small_pieces) GTEST_SKIP() << "other pieces";
  for (const Isa& isa : isas()) {
    check_fused<float>(isa);
    check_fused<double>(isa);
  }
}

template <class T>
void check_lanes(const Isa& isa) {
  for (const i64 k : {32, 33, 500, 511, 512, 513, 1023, 1024, 1025, 3000, 16383, 16384, 16896, 16897, 34000})
    for (const auto& [m, n] : {std::pair<i64, i64>{1, 1}, {1, 70}, {5, 7}, {8, 3}, {9, 2}}) {
      if (k > 4000 && m * n > 20) continue;
      Gemm g;
      g.m = m, g.n = n, g.k = k;
      g.a.row = k, g.a.col = 1, g.b.row = 1, g.b.col = k;
      if (sizeof(T) == 8 && k < 64 && isa.bytes == 64) continue;  // too short
      check<T>(isa, g, {}, [&](const T* a, const T* b, const T*) { return in_lanes(isa, a, 1, b, 1, k); });
      if (::testing::Test::HasFatalFailure()) return;
    }
}

TEST(GemmBits, DotProductsMatchPlainLoopsBitwise) {
  if (tg::has_small_pieces) GTEST_SKIP() << "other pieces";
  for (const Isa& isa : isas()) {
    check_lanes<float>(isa);
    check_lanes<double>(isa);
  }
}

}  // namespace
}  // namespace tg::cpu

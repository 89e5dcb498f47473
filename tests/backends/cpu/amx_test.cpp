// Tests GEMMs that round to bf16 in the order of AMX tiles. The tests run on every processor with the bf16
// instruction. AMX is not required.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include <tilegrad/core/base/dtype.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,fma,f16c")
#pragma GCC diagnostic ignored "-Wuninitialized"  // the compiler's intrinsics cause these warnings
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#if !defined(__AVX512F__)  // a separate preprocessor does not know the pragma
#define __AVX512F__ 1
#endif
#define TG_ISA amx_test
#include "backends/cpu/kernels/amx.h"

namespace tg::cpu::amx_test {
namespace {

constexpr int width = 16;

[[gnu::noinline]] void round_pairs(const float* first, const float* second, bfloat16* to) {
  const F32 pairs = Amx::round_pairs(load(first), load(second));
  std::memcpy(static_cast<void*>(to), &pairs, sizeof pairs);
}
[[gnu::noinline]] void round_row(bfloat16* to, const float* from) {
  Amx::round_row(to, from);
}

}  // namespace
}  // namespace tg::cpu::amx_test
#pragma GCC pop_options

namespace tg::cpu::amx_test {
namespace {

TEST(AmxRounding, PairsAndRowsAreAtTheirPositions) {
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "no avx512_bf16";
  float numbers[2 * width];
  for (int i = 0; i < 2 * width; ++i)
    numbers[i] = static_cast<float>(std::sin(1 + i)) * static_cast<float>(std::pow(3, i - width));
  numbers[5] = 1 + 0x1p-8f, numbers[6] = 1 + 0x3p-8f, numbers[20] = -(1 + 0x1p-8f);  // ties round to even
  bfloat16 pairs[2 * width], row[2 * width];
  round_pairs(numbers, numbers + width, pairs);
  round_row(row, numbers);
  for (int i = 0; i < width; ++i) {
    EXPECT_EQ(pairs[2 * i].bits, bfloat16(numbers[i]).bits) << i;
    EXPECT_EQ(pairs[2 * i + 1].bits, bfloat16(numbers[width + i]).bits) << i;
  }
  for (int i = 0; i < 2 * width; ++i) EXPECT_EQ(row[i].bits, bfloat16(numbers[i]).bits) << i;
}

}  // namespace
}  // namespace tg::cpu::amx_test

#endif

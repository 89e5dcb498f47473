// Tests that conversions round once, to the nearest number of the type. Covers conversions from f64, f32 and
// integers to the 16-bit types, wherever the library converts.
#include <bit>
#include <limits>

#include "backends/cpu/kernel.h"
#include "io/checkpoints/tensor_values.h"
#include "tests/support/halfway_cases.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

// Finds the nearest number of the type by comparison. In a tie, the even number is the nearest.
template <class Half>
float nearest(long double x) {
  const auto number = [](std::uint16_t bits) {
    Half h;
    h.bits = bits;
    return static_cast<long double>(static_cast<float>(h));
  };
  constexpr std::uint16_t infinity = std::is_same_v<Half, bfloat16> ? 0x7f80 : 0x7c00;
  const long double size = std::abs(x);
  std::uint16_t low = 0, high = infinity - 1;  // the largest number not above `size`
  while (low < high) {
    const auto middle = static_cast<std::uint16_t>((low + high + 1) / 2);
    if (number(middle) <= size)
      low = middle;
    else
      high = static_cast<std::uint16_t>(middle - 1);
  }
  // The next number after the largest one has the same distance from it as the previous number. It counts as
  // infinity.
  const long double from = number(low),
                    to = low + 1 == infinity ? 2 * from - number(low - 1) : number(low + 1);
  const long double middle = from / 2 + to / 2;
  if (size > middle || (size == middle && low % 2 == 1)) ++low;
  const float result =
      static_cast<float>(low == infinity ? std::numeric_limits<long double>::infinity() : number(low));
  return std::signbit(x) ? -result : result;
}

float nearest(DType dtype, long double x) {
  return dtype == bf16 ? nearest<bfloat16>(x) : nearest<float16>(x);
}

// Returns f64 numbers close to the midpoint of two neighbors. They are the midpoint, the next f64 number, and
// a number that f32 rounds to the midpoint.
Vector doubles_near_ties() {
  Vector cases{0., -0., 1e300, -1e300, 5e-324, -5e-324, 65519.99, 65520, 65520.01, 0x1.fep127, 0x1.ffp127};
  const auto add = [&](const auto& pairs) {
    for (const auto& [low, high] : pairs) {
      const double middle = (static_cast<double>(low) + static_cast<double>(high)) / 2;
      for (const double part : {0., 0x1p-52, -0x1p-52, 0x1p-30, -0x1p-30, 0x1p-25, -0x1p-25})
        cases.push_back(middle * (1 + part));
    }
  };
  add(neighbours<bfloat16>());
  add(neighbours<float16>());
  return cases;
}

// Returns integers of up to 63 bits: 2^a ± 2^b ± 2^c ± a small number.
std::vector<std::int64_t> integers_near_ties() {
  std::vector<std::int64_t> cases{0, std::numeric_limits<std::int64_t>::max(),
                                  std::numeric_limits<std::int64_t>::min()};
  for (int a = 7; a < 63; ++a)
    for (int b = std::max(0, a - 9); b < a; ++b)
      for (int c = 0; c < b; c += 3)
        for (const std::int64_t little : {-1, 0, 1}) {
          const std::int64_t x =
              (std::int64_t{1} << a) + (std::int64_t{1} << b) - (std::int64_t{1} << c) + little;
          cases.insert(cases.end(), {x, -x});
        }
  return cases;
}

TEST(Conversions, RoundDoublesOnce) {
  const Vector cases = doubles_near_ties();
  const auto n = static_cast<std::int64_t>(cases.size());
  const Array values = Array::of(cases);
  for (const DType half : {bf16, f16}) {
    Graph g;
    const Tensor x = g.input("x", {n}, f64), two = g.input("two", {n, 2}, f64), one = slice(two, 1, 1, 2);
    Array pairs({n, 2}, f64);
    for (std::int64_t i = 0; i < n; ++i) pairs.set(2 * i + 1, cases[static_cast<std::size_t>(i)]);
    // Converts dense and strided tensors with the op. Also converts inside a fused step, at its end, and in a
    // host array.
    std::vector<Array> results =
        run_checked({cast(x, half), cast(one, half), cast(x * 1, half), cast(cast(x, half), f64) * 1},
                    {{x, values}, {two, pairs}});
    results.push_back(values.to(half));
    for (std::int64_t i = 0; i < n; ++i) {
      const double from = cases[static_cast<std::size_t>(i)];
      const float expected = nearest(half, from);
      for (std::size_t k = 0; k < results.size(); ++k)
        ASSERT_EQ(results[k].at(i), expected)
            << name_of(half) << " of " << std::hexfloat << from << ", result " << k;
    }
    // All values of a file must be in the range of the type.
    Vector small;
    for (std::size_t i = 0; i < cases.size(); i += 5)
      if (std::isfinite(results[0].at(static_cast<std::int64_t>(i)))) small.push_back(cases[i]);
    const auto many = static_cast<std::int64_t>(small.size());
    const Array read =
        io::converted({f64, {many}, std::as_bytes(std::span(small))}, {many}, half, "file", "x");
    EXPECT_TRUE(read.same_bits(Array::of(small).to(half)));
  }
}

TEST(Conversions, RoundIntegersOnce) {
  const std::vector<std::int64_t> cases = integers_near_ties();
  const auto n = static_cast<std::int64_t>(cases.size());
  std::vector<std::int32_t> narrow;
  for (const std::int64_t x : cases)
    narrow.push_back(static_cast<std::int32_t>(x >> (x > INT32_MAX || x < INT32_MIN ? 32 : 0)));
  const Array wide_values = Array::of(cases), narrow_values = Array::of(narrow);
  for (const DType half : {bf16, f16}) {
    Graph g;
    const Tensor x = g.input("x", {n}, i64), y = g.input("y", {n}, i32);
    std::vector<Array> results =
        run_checked({cast(x, half), cast(x * 1, half), cast(cast(x, half), f32) * 1, cast(y, half)},
                    {{x, wide_values}, {y, narrow_values}});
    results.push_back(wide_values.to(half));
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      for (const std::size_t k : {0, 1, 2, 4})
        ASSERT_EQ(results[k].at(i), nearest(half, static_cast<long double>(cases[at])))
            << name_of(half) << " of " << cases[at] << ", result " << k;
      ASSERT_EQ(results[3].at(i), nearest(half, narrow[at])) << name_of(half) << " of " << narrow[at];
    }
  }
  // Conversions to f64 do not use f32 as an intermediate type. i64 stays exact.
  Graph g;
  const Tensor x = g.input("x", {n}, i64);
  const Array wide = eval(cast(x, f32), {{x, wide_values}}), host = wide_values.to(f32);
  for (std::int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(wide.data<float>()[i], static_cast<float>(cases[static_cast<std::size_t>(i)]));
    ASSERT_EQ(host.data<float>()[i], static_cast<float>(cases[static_cast<std::size_t>(i)]));
  }
  EXPECT_TRUE(wide_values.to(i64).same_bits(wide_values));
  EXPECT_THROW(wide_values.to(i32), DTypeError);
}

TEST(Conversions, KeepNaNAndInfinity) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Vector cases{infinity, -infinity};
  for (const std::uint64_t bits :
       {0x7ff8000000000000u, 0x7ff0000000000001u, 0xfff0000000000001u, 0x7fffffffffffffffu})
    cases.push_back(std::bit_cast<double>(std::uint64_t{bits}));
  Graph g;
  const Tensor x = g.input("x", {6}, f64);
  const Array values = Array::of(cases);
  for (const DType half : {bf16, f16})
    for (const Array& y : {eval(cast(x, half), {{x, values}}), values.to(half)}) {
      EXPECT_EQ(y.at(0), infinity);
      EXPECT_EQ(y.at(1), -infinity);
      for (int i = 2; i < 6; ++i) EXPECT_TRUE(std::isnan(y.at(i))) << name_of(half) << " " << i;
    }
}

// Tests numbers in a graph. Covers tensors with a single number, and constants of a fused step.
TEST(Conversions, RoundConstantsOnce) {
  for (const DType half : {bf16, f16}) {
    const double step = rounding(half);
    const double cases[] = {1 + step + 0x1p-30,
                            1 + step - 0x1p-30,
                            -(1 + step + 0x1p-52),
                            1 + 3 * step - 0x1p-40,
                            (1 + step) * 0x1p-5 + 0x1p-50,
                            1 + step,
                            0.1,
                            -3};
    for (const double c : cases) {
      Graph g;
      const Tensor x = g.input("x", {3}, half), truth = equal(x, 0);
      const Tensor number = full(g, {3}, c, half);
      const auto v = run_checked(
          {number, full(g, {3}, c, half) * 1, x + c, where(truth, c, x), copy(full(g, {3}, c, half)),
           cast(full(g, {3}, c, f64), half), arange(g, c, c + 0.5, 1, half)},
          {{x, Array({3}, half)}});
      for (std::size_t k = 0; k < v.size(); ++k)
        EXPECT_EQ(v[k].at(0), nearest(half, c)) << name_of(half) << " of " << c << ", result " << k;
    }
  }
  // If a number of a narrower type is converted to f64, its value does not change.
  Graph g;
  const auto v = run_checked({cast(full(g, {2}, 0.1, f32), f64), cast(full(g, {2}, 0.1, bf16), f64)}, {});
  EXPECT_EQ(v[0].at(0), double{0.1f});
  EXPECT_EQ(v[1].at(0), nearest(bf16, 0.1));
}

// A cast inside a fused step rounds each element, on every instruction set. This includes complete vectors
// and the elements after them.
TEST(Conversions, CastsInsideOfAFusedStepRound) {
  const std::pair<const char*, DType> casts[] = {{"cast_f32", f32}, {"cast_bf16", bf16}, {"cast_f16", f16}};
  int found = 0;
  for (const cpu::KernelSet* set : cpu::runnable_sets())
    for (const cpu::BlockEntry& e : *set->blocks)
      for (const auto& [name, dtype] : casts) {
        if (e.op != name) continue;
        ++found;
        for (std::int64_t n = 1; n < 40; ++n) {
          std::vector<double> in, out(static_cast<std::size_t>(n));
          for (std::int64_t i = 0; i < n; ++i) in.push_back(std::sin(1.0 + 0.37 * static_cast<double>(i)));
          e.f64(out.data(), in.data(), nullptr, nullptr, n);
          Array expected = Array::of<double>({n}, in).to(dtype);
          for (std::int64_t i = 0; i < n; ++i)
            EXPECT_EQ(out[static_cast<std::size_t>(i)], expected.at(i))
                << set->isa << " " << name << ", " << n;
        }
      }
  EXPECT_EQ(found, 3 * static_cast<int>(cpu::runnable_sets().size()));
  for (const std::int64_t n : {1, 3, 8, 17}) {
    Graph g;
    const Tensor x = g.input("x", {n}, f64), y = cast(cast(x * 3, f32), f64);
    std::vector<double> in;
    for (std::int64_t i = 0; i < n; ++i) in.push_back(std::sin(1.0 + 0.37 * static_cast<double>(i)));
    const Array got = eval(y, {{x, in}});
    for (std::int64_t i = 0; i < n; ++i)
      EXPECT_EQ(got.at(i), static_cast<double>(static_cast<float>(in[static_cast<std::size_t>(i)] * 3))) << n;
  }
}

}  // namespace

// Tests plain values. Covers numbers of every dtype, ranges, sizes in bytes, devices, hashes, costs of steps,
// and the exact bits of random numbers.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include <tilegrad/core/base/device.h>
#include <tilegrad/core/base/host_view.h>
#include <tilegrad/core/base/random.h>
#include <tilegrad/core/base/range.h>
#include <tilegrad/core/run/cost.h>
#include "core/base/alignment.h"
#include "core/base/hash.h"
#include "core/compile/lower.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

constexpr double infinity = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();

// Computes the value of a 16-bit floating-point pattern by definition. The format has `fraction` fraction
// bits and this exponent bias.
double number_of(std::uint32_t bits, int fraction, int bias) {
  const int width = 15 - fraction;
  const std::uint32_t exponent = bits >> fraction & ((1u << width) - 1), rest = bits & ((1u << fraction) - 1);
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1u << width) - 1) return rest ? nan : sign * infinity;
  return exponent == 0
             ? sign * std::ldexp(rest, 1 - bias - fraction)
             : sign * std::ldexp(1 + std::ldexp(rest, -fraction), static_cast<int>(exponent) - bias);
}

TEST(Halves, EveryPatternMatchesItsDefinition) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    bfloat16 b;
    float16 h;
    b.bits = h.bits = static_cast<std::uint16_t>(bits);
    const auto check = [&](auto half, double expected) {
      const auto got = static_cast<float>(half);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << bits;
        ASSERT_TRUE(std::isnan(static_cast<float>(decltype(half)(got)))) << bits;
        ASSERT_EQ(decltype(half)(got).bits >> 15, bits >> 15);
      } else {
        ASSERT_EQ(got, expected) << bits;
        ASSERT_EQ(decltype(half)(got).bits, bits);
        ASSERT_EQ(decltype(half)(expected).bits, bits);
      }
    };
    check(b, number_of(bits, 7, 127));
    check(h, number_of(bits, 10, 15));
  }
  // The upper half of this f32 NaN, read as bf16, is an infinity.
  EXPECT_EQ(bfloat16(std::bit_cast<float>(0x7f800001u)).bits, 0x7fc0);
  EXPECT_EQ(bfloat16(std::bit_cast<float>(0xff800001u)).bits, 0xffc0);
  EXPECT_EQ(float16(std::bit_cast<float>(0x7f800001u)).bits, 0x7e00);
  EXPECT_EQ(float16(std::bit_cast<float>(0xff800001u)).bits, 0xfe00);
  EXPECT_EQ(float16(std::bit_cast<float>(0x477fefffu)).bits,
            0x7bff);  // the largest number that is not rounded to infinity
  EXPECT_EQ(float16(std::bit_cast<float>(0x477ff000u)).bits, 0x7c00);
}

TEST(Halves, NumbersBetweenF32NumbersAreRoundedToOdd) {
  for (const double sign : {1., -1.})
    for (const float x : {1.f, 1.5f, 0x1.fffffep3f, 0x1.000002p-3f, 3e30f}) {
      const float next = std::nextafter(x, 2 * x);
      EXPECT_EQ(odd_float(sign * double{x}), sign * x);
      const float odd = std::bit_cast<std::uint32_t>(x) & 1 ? x : next;
      for (const double part : {1e-6, 0.5, 1 - 1e-6})
        EXPECT_EQ(odd_float(sign * (x + part * (double{next} - x))), sign * odd) << x << " " << part;
    }
  EXPECT_EQ(odd_float(0.), 0);
  EXPECT_TRUE(std::isnan(odd_float(nan)));
  EXPECT_EQ(odd_float(infinity), std::numeric_limits<float>::infinity());
  EXPECT_EQ(odd_float(1e300), std::numeric_limits<float>::max());
  EXPECT_EQ(odd_float(-1e300), std::numeric_limits<float>::lowest());
  EXPECT_EQ(odd_float(1e-300), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(odd_float(-1e-300), -std::numeric_limits<float>::denorm_min());
}

TEST(DTypes, HaveTheirSizesNamesAndKinds) {
  std::string all;
  for (const DType t : all_dtypes)
    all += std::string(name_of(t)) + " " + std::to_string(size_of(t)) + (is_float(t) ? " float" : "") +
           (is_int(t) ? " int" : "") + " " + std::string(name_of(compute_type(t))) + "; ";
  EXPECT_EQ(
      all,
      "f64 8 float f64; f32 4 float f32; bf16 2 float f32; f16 2 float f32; i64 8 int i64; i32 4 int i64; "
      "u8 1 int i64; bool 1 i64; ");
}

// Tests the first and last numbers of each dtype, and the numbers next to them.
TEST(Numbers, WithinTheRangeOfADTypeAreStored) {
  struct Row {
    DType dtype;
    std::vector<double> held, not_held;
  };
  const double two63 = 0x1p63, below63 = 0x1p63 - 1024;
  const std::vector<Row> rows{{u8, {0, 255, 7}, {-1, 256, 0.5, nan, infinity}},
                              {boolean, {0, 1}, {-1, 2, 0.5, nan}},
                              {i32, {-2147483648., 2147483647}, {-2147483649., 2147483648., 1.5, -infinity}},
                              {i64, {-two63, below63}, {two63, -two63 - 2048, 0.25, nan}},
                              {f16, {65504, -65519.9, nan, infinity, -infinity, 1e-30}, {65520, -65520}},
                              {bf16, {3.38e38, nan, infinity}, {3.4e38, -3.4e38}},
                              {f32, {3.4028234663852886e38, nan, -infinity, 1e-300}, {3.5e38, -1e300}},
                              {f64, {1e308, nan, infinity}, {}}};
  for (const Row& row : rows) {
    for (const double x : row.held) EXPECT_TRUE(holds(row.dtype, x)) << name_of(row.dtype) << " " << x;
    for (const double x : row.not_held) EXPECT_FALSE(holds(row.dtype, x)) << name_of(row.dtype) << " " << x;
  }
  // Conversion to an integer truncates the fraction. If the result is out of range, the conversion is
  // refused.
  std::byte element[8];
  const auto stored = [&](DType t, double x) {
    store_element(t, element, 0, x);
    return load_element(t, element, 0);
  };
  EXPECT_EQ(stored(u8, 255.9), 255);
  EXPECT_EQ(stored(u8, -0.9), 0);
  EXPECT_EQ(stored(i32, -2147483648.9), -2147483648.);
  EXPECT_EQ(stored(i32, 2147483647.9), 2147483647.);
  EXPECT_EQ(stored(i64, -two63), -two63);
  EXPECT_EQ(stored(i64, -2.9), -2);
  EXPECT_EQ(stored(boolean, 0.5), 1);
  EXPECT_EQ(stored(boolean, nan), 1);
  EXPECT_EQ(stored(boolean, 0), 0);
  for (const auto& [t, x] : std::vector<std::pair<DType, double>>{{u8, 256},
                                                                  {u8, -1},
                                                                  {i32, 2147483648.},
                                                                  {i32, -2147483649.},
                                                                  {i64, two63},
                                                                  {i64, nan},
                                                                  {u8, infinity}})
    EXPECT_NE(error_of([&] { store_element(t, element, 0, x); }).find("is out of the range of "),
              std::string::npos)
        << name_of(t) << " " << x;
  EXPECT_EQ(stored_number(bf16, 1.0039), 1.0);
  EXPECT_EQ(stored_number(f16, 1.00098), 1 + 0x1p-10);
  EXPECT_EQ(stored_number(f32, 0.1), double{0.1f});
  EXPECT_EQ(stored_number(f64, 0.1), 0.1);
}

TEST(Numbers, AreConvertedOneByOneFromEachDTypeToEach) {
  for (const DType from : all_dtypes)
    for (const DType to : all_dtypes) {
      Array a({3}, from);
      a.set(0, 1), a.set(1, 0), a.set(2, from == boolean ? 1 : 100);
      const Array b = a.to(to);
      EXPECT_EQ(b.dtype(), to);
      for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(b.at(i), to == boolean ? a.at(i) != 0 : a.at(i));
    }
  const Array large = Array::of<std::int64_t>({2}, {(std::int64_t{1} << 53) + 1, -1});
  EXPECT_EQ(large.to(i64).data<std::int64_t>()[0], (std::int64_t{1} << 53) + 1);
  EXPECT_NE(error_of([&] { large.to(i32); }).find("9007199254740993 is out of the range of i32"),
            std::string::npos);
  EXPECT_NE(error_of([&] { large.to(u8); }).find("is out of the range of u8"), std::string::npos);
  EXPECT_EQ((Array::of<std::int64_t>({2}, {2147483647, -2147483648}).to(i32).at(1)), -2147483648.);
  EXPECT_THROW((Array::of<std::int64_t>({1}, {-2147483649}).to(i32)), DTypeError);
}

TEST(HostViews, ReadAndWriteTheirElements) {
  float values[6] = {0, 1, 2, 3, 4, 5};
  const HostView view{f32, {2, 3}, reinterpret_cast<std::byte*>(values)};
  EXPECT_EQ(view.numel(), 6);
  EXPECT_EQ(view.at(0), 0);
  EXPECT_EQ(view.at(5), 5);
  view.set(5, 9);
  EXPECT_EQ(values[5], 9);
  EXPECT_EQ(view.values<const float>().size(), 6u);
  EXPECT_EQ(view.values<float>()[5], 9);
  EXPECT_EQ(error_of([&] { view.at(6); }), "[host view] element 6 of f32 [2, 3]");
  EXPECT_EQ(error_of([&] { view.set(-1, 0); }), "[host view] element -1 of f32 [2, 3]");
  EXPECT_EQ(error_of([&] { HostView{f32, {2}}.at(0); }), "[host view] element 0 of f32 [2]");
  EXPECT_EQ(error_of([&] { view.values<double>(); }), "[host view] holds f32, read as f64");
}

TEST(Arrays, StoreTheirValues) {
  Array a = Array::of<float>({2, 2}, {1, 2, 3, 4.5});
  EXPECT_EQ(a.text(), "f32 [2, 2] {1, 2, 3, 4.5}");
  EXPECT_EQ(a.bytes(), 16u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.raw()) % 64, 0u);
  const Array shared = a, apart = a.copy();
  a.set(3, -1);
  EXPECT_EQ(shared.at(3), -1);
  EXPECT_EQ(apart.at(3), 4.5);
  EXPECT_FALSE(a.same_bits(apart));
  EXPECT_TRUE(a.same_bits(shared));
  EXPECT_FALSE((a.same_bits(Array::of<float>({4}, {1, 2, 3, -1}))));
  EXPECT_FALSE((Array::of<std::int32_t>({1}, {0}).same_bits(Array::of<float>({1}, {0}))));
  EXPECT_TRUE((Array(Shape{0, 3}, f32).same_bits(Array(Shape{0, 3}, f32))));
  EXPECT_EQ(error_of([&] { a.at(4); }), "[array] element 4 of f32 [2, 2], which has 4");
  EXPECT_EQ(error_of([&] { a.set(-1, 0); }), "[array] element -1 of f32 [2, 2], which has 4");
  EXPECT_EQ(error_of([&] { a.data<double>(); }), "[array] holds f32, read as f64");
  EXPECT_EQ(error_of([&] { a.item<float>(); }), "[array] shape [2, 2] holds 4 elements, not 1");
  EXPECT_EQ((error_of([&] {
              Array::of<float>({2, 2}, {1, 2, 3});
            })),
            "[array] shape [2, 2] holds 4 elements, not 3");
  EXPECT_EQ((Array::of<float>({1, 1}, {6}).item<float>()), 6);
  EXPECT_EQ(Array(Shape{17}, u8).text(), "u8 [17]");
  EXPECT_EQ(Array(Shape{16}, boolean).text(), "bool [16] {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}");
  Array moved = std::move(a);
  EXPECT_EQ(moved.numel(), 4);
  EXPECT_EQ(a.numel(), 0);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(a.text(), "f32 [0]");
  EXPECT_EQ(Array().numel(), 0);
}

TEST(Ranges, ContainTheirEndsUnlessTheEndsAreOpen) {
  struct Row {
    Range range;
    std::vector<double> inside, outside;
    std::string text;
  };
  const double most = Range::largest_f32, beyond = std::nextafter(most, infinity);
  const std::vector<Row> rows{
      {Range::between(0, 1), {0, 1, 0.5}, {-1e-9, 1 + 1e-9, nan}, "from 0 to 1"},
      {Range::from_below(0, 1), {0, 0.99}, {1, -0.1, nan}, "of at least 0 and below 1"},
      {Range::above_to(0, 1), {1, 1e-9}, {0, 1.01}, "above 0 and at most 1"},
      {Range::inside(0, 1), {0.5}, {0, 1}, "above 0 and below 1"},
      {Range::at_least(-2), {-2, most}, {-2.1, beyond, infinity}, "of at least -2, finite in f32"},
      {Range::above(0.25), {0.26, most}, {0.25, beyond}, "above 0.25, finite in f32"},
      {Range::finite(), {-most, most, 0}, {beyond, -beyond, nan}, "that f32 holds"},
      {Range::whole_from(3), {3, infinity}, {2, nan}, "of at least 3"},
      {Range::size(1), {1, 2147483647.}, {0, 2147483648.}, "from 1 to 2147483647"},
      {Range::softcap(0), {0, 5}, {-1}, "of at least 0, finite in f32"},
      {Range::softcap(3),
       {3, std::numeric_limits<float>::min()},
       {0},
       "of at least 1.1754943508222875e-38, finite in f32"},
      {Range{-infinity, 5, false, true}, {-infinity, 4.9}, {5}, "below 5"},
      {Range{-infinity, 5}, {5}, {5.1}, "at most 5"},
      {Range{}, {-infinity, infinity, 0}, {nan}, ""},
      {Range::between(0x1p53, 0x1p54), {0x1p53}, {0}, "from 9007199254740992 to 18014398509481984"}};
  for (const Row& row : rows) {
    EXPECT_EQ(row.range.text(), row.text);
    for (const double x : row.inside) EXPECT_TRUE(row.range.contains(x)) << row.text << " " << x;
    for (const double x : row.outside) EXPECT_FALSE(row.range.contains(x)) << row.text << " " << x;
  }
}

TEST(Ranges, TheFirstNumberOutsideIsReported) {
  const std::optional<double> none, half = 0.5;
  EXPECT_EQ(range_mistake({{"a", 1, Range::between(0, 1)}, {"b", none, Range::between(2, 3)}}), "");
  EXPECT_EQ(range_mistake({{"a", 1, Range::between(0, 1)},
                           {"b", half, Range::between(2, 3)},
                           {"c", 9, Range::between(0, 1)}}),
            "b is out of range: got 0.5, expected a number from 2 to 3");
  EXPECT_EQ(range_mistake({{"n", -4, Range::whole_from(1)}}),
            "n is out of range: got -4, expected a whole number of at least 1");
  EXPECT_EQ(range_mistake({{"n", std::numeric_limits<std::uint64_t>::max(), Range::size(1)}}),
            "n is out of range: got 18446744073709551615, expected a whole number from 1 to 2147483647");
  EXPECT_EQ(range_mistake({{"x", nan, Range::finite()}}),
            "x is out of range: got nan, expected a number that f32 holds");
  EXPECT_EQ(error_of([] {
              check_options("op", {{"x", 2.5, Range::inside(0, 1)}});
            }),
            "[op] x is out of range: got 2.5, expected a number above 0 and below 1");
  EXPECT_EQ(error_of([] {
              check_options("", {{"x", 2., Range::inside(0, 1)}});
            }),
            "x is out of range: got 2, expected a number above 0 and below 1");
  EXPECT_THROW((check_options<ShapeError>("op", {{"x", 2, Range::inside(0, 1)}})), ShapeError);
}

TEST(Bytes, AreRoundedUpAddedAndPrinted) {
  EXPECT_EQ(aligned_bytes(0), 0u);
  EXPECT_EQ(aligned_bytes(1), 64u);
  EXPECT_EQ(aligned_bytes(64), 64u);
  EXPECT_EQ(aligned_bytes(65), 128u);
  constexpr std::size_t most = std::size_t{1} << 60;
  EXPECT_EQ(add_bytes(most, 0, "x"), most);
  EXPECT_EQ(add_bytes(0, most, "x"), most);
  EXPECT_EQ(add_bytes(3, 4, "x"), 7u);
  EXPECT_EQ(error_of([] { add_bytes(most, 1, "results"); }),
            "[compile] results would need 1073741824 + 0 GiB, more than any memory");
  EXPECT_THROW(add_bytes(1, most, "x"), OutOfMemory);
  EXPECT_THROW(add_bytes(most + 1, 0, "x"), OutOfMemory);
  EXPECT_EQ(bytes_text(0), "0 KiB");
  EXPECT_EQ(bytes_text(1), "1 KiB");
  EXPECT_EQ(bytes_text(1024), "1 KiB");
  EXPECT_EQ(bytes_text(1025), "2 KiB");
  EXPECT_EQ(bytes_text((10 << 20) - 1), "10240 KiB");
  EXPECT_EQ(bytes_text(10 << 20), "10 MiB");
  EXPECT_EQ(bytes_text((10 << 20) + 1), "11 MiB");
}

TEST(Devices, AreParsedAndPrinted) {
  for (const char* text : {"cpu", "cuda", "cuda:3"}) EXPECT_EQ(Device::parse(text).text(), text);
  EXPECT_EQ(Device::parse("cuda:0").text(), "cuda");
  EXPECT_EQ(Device::parse("cuda:12").ordinal, 12);
  EXPECT_TRUE(Device::cuda(1) == Device::parse("cuda:1"));
  EXPECT_FALSE(Device::cuda(1) == Device::cuda(2) || Device::cuda() == Device::cpu());
  for (const char* text :
       {"", "CPU", "cpu0", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "gpu", "cuda1", "cuda:99999999999"})
    EXPECT_EQ(error_of([&] { Device::parse(text); }),
              "[device] expected cpu, cuda or cuda:N, got '" + std::string(text) + "'");
}

TEST(Hashes, DependOnTheBytesOfTheirValues) {
  Hasher h;
  h.add(std::uint64_t{0x0102030405060708});
  h.add("ab");
  h.add(Dims{5, -1});
  const std::string bytes = {
      "\x08\x07\x06\x05\x04\x03\x02\x01\x02\0\0\0\0\0\0\0ab\x02\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0"
      "\xff\xff\xff\xff\xff\xff\xff\xff",
      8 + 8 + 2 + 8 + 8 + 8};
  const auto [low, high] = h.digest();
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  for (std::size_t cut : {std::size_t{0}, std::size_t{9}, bytes.size()}) {
    const std::string_view all = bytes, pieces[] = {all.substr(0, cut), all.substr(cut)};
    EXPECT_EQ(xxh3_128(pieces), text);
  }
}

TEST(Costs, CountOperandsAndOps) {
  EXPECT_EQ(bytes_of(f32, row_major({3, 4})), 48);
  EXPECT_EQ(bytes_of(bf16, expand(row_major({4}), {100, 4})), 8);        // an expanded operand
  EXPECT_EQ(bytes_of(f64, slice(row_major({10}), 0, 5, 10, 2)), 3 * 8);  // a strided operand with an offset
  EXPECT_EQ(flops_of_a_byte(bf16), 160);
  EXPECT_EQ(flops_of_a_byte(f16), 160);
  EXPECT_EQ(flops_of_a_byte(f32), 16);
  EXPECT_EQ(flops_of_a_byte(f64), 16);
  EXPECT_EQ(price_of({.flops = 1600, .bytes = 99}, f16), 99);
  Op op{.name = "op",
        .cost =
            [](std::span<const Operand> in, std::span<const Operand> out, const Attrs&) {
              return Cost{100. * static_cast<double>(in.size()) + static_cast<double>(out.size()), 7};
            },
        .roundings =
            [](std::span<const Operand> in, std::span<const Operand> out, const Attrs&) {
              return 10. * static_cast<double>(in.size()) + static_cast<double>(out.size());
            }};
  const Arg x{f32, row_major({5})}, y{f16, row_major({2})};
  Step step{&op, {}, {x, x, y}, {y}, "layer/op"};
  EXPECT_EQ(cost_of(step).flops, 301);
  EXPECT_EQ(work_of(step).flops, 301);
  EXPECT_EQ(work_of(step).bytes, 7 + 20 + 20 + 4 + 4);
  EXPECT_EQ(roundings_of(step), 31);
  EXPECT_EQ(kind_of(step), "op");
  op.cost = nullptr, op.roundings = nullptr;
  EXPECT_EQ(cost_of(step).flops, 0);
  EXPECT_EQ(work_of(step).bytes, 48);
  EXPECT_EQ(roundings_of(step), 1);
  step.op = &fused_op;
  EXPECT_EQ(kind_of(step), "fused to op");
  step.name = "gelu";
  EXPECT_EQ(kind_of(step), "fused to gelu");
}

// The expected sum was computed by a separate Python program from the published algorithms.
TEST(RandomNumbers, AreBitwiseIdenticalOnAllMachines) {
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < 40000; ++i) {
    const PhiloxBlock w = philox({i, 0, 0, 0}, 9);
    for (const int k : {0, 2}) {
      double x[2];
      normal_pair(w[k], w[k + 1], x[0], x[1]);
      for (const double number : x) sum = sum * 0x100000001B3u + std::bit_cast<std::uint64_t>(number);
    }
  }
  EXPECT_EQ(sum, 0x7757caa7a9fed2c7u);
  EXPECT_EQ(philox({1, 2, 3, 4}, 5), (PhiloxBlock{0xf5404135, 0x7f4caf1c, 0x2fa24baa, 0x480fc9fa}));
  EXPECT_EQ(node_key(0x123456789abcdef0, 0x1122334455667788, 7), 0x86b843c9eb736096u);
}

TEST(RandomNumbers, UseTheWordsOfTheirBlock) {
  EXPECT_EQ(uniform(0xffffffffu), 1 - 0x1p-24f);
  EXPECT_EQ(uniform(0x000001ffu), 0x1p-24f);
  EXPECT_EQ(uniform(0xffffffffu, 0xffffffffu), 1 - 0x1p-53);
  EXPECT_EQ(uniform(0x80000000u, 0xfffu), 0.5 + 0x1p-53);
  EXPECT_EQ(uniform(0u, 0x7ffu), 0);
  EXPECT_EQ(dropout_bound(0.25), 0x40000000u);
  EXPECT_EQ(dropout_bound(1 - 0x1p-32), 0xffffffffu);
  EXPECT_EQ(dropout_bound(1 - 0x1p-31), 0xfffffffeu);
  EXPECT_EQ(bernoulli_bound(1), std::uint64_t{1} << 32);
  EXPECT_EQ(bernoulli_bound(0.5), 0x80000000u);
  EXPECT_EQ(element_counter(0x123456789abcdef0), (PhiloxBlock{0x9abcdef0, 0x12345678, 0, 0}));
  EXPECT_EQ(attention_counter(5, 6, 11), (PhiloxBlock{6, 2, 5, 0}));
  // One random block has enough words for four f32 numbers or two f64 numbers.
  const std::uint64_t key = 77;
  const Array narrow = uniform_array({9}, f32, 0, 1, key), wide = uniform_array({9}, f64, 0, 1, key),
              normals = normal_array({9}, f64, 1, 2, key);
  for (std::uint32_t i = 0; i < 9; ++i) {
    EXPECT_EQ(narrow.at(i), uniform(philox({i / 4, 0, 0, 0}, key)[i % 4]));
    const PhiloxBlock w = philox({i / 2, 0, 0, 0}, key), n = philox({i / 4, 0, 0, 0}, key);
    EXPECT_EQ(wide.at(i), uniform(w[i % 2 * 2], w[i % 2 * 2 + 1]));
    double x[2];
    normal_pair(n[i % 4 / 2 * 2], n[i % 4 / 2 * 2 + 1], x[0], x[1]);
    EXPECT_EQ(normals.at(i), 1 + 2 * x[i % 2]);
  }
}

TEST(RandomNumbers, UniformRangesBeginAndEndAtNumbersOfTheDType) {
  struct Row {
    DType dtype;
    double low, high, first, last;
  };
  for (const Row& r :
       std::vector<Row>{{f64, 0, 1, 0, 1 - 0x1p-53},
                        {f64, -1, 1, -1, 1 - 0x1p-53},
                        {f64, -1, 0, -1, -5e-324},
                        {f32, 0, 1, 0, 1 - 0x1p-24},
                        {f32, 0.1, 0.7, double{0.1f},
                         std::nextafter(double{0.7f} < 0.7 ? std::nextafter(0.7f, 1.f) : 0.7f, 0.f)},
                        {bf16, 0, 1, 0, 1 - 0x1p-8},
                        {bf16, -1, 1, -1, 1 - 0x1p-8},
                        {f16, 0, 1, 0, 1 - 0x1p-11},
                        {f16, -2, -1, -2, -1 - 0x1p-10},
                        {f16, 0, 0x1p-24, 0, 0},
                        {f16, -0x1p-24, 0x1p-24, -0x1p-24, 0},
                        {bf16, 3, 3.03, 3, 3.015625},
                        {f16, 2.5, 2.5, 2.5, 2.5}}) {
    const UniformRange range = uniform_range(r.dtype, r.low, r.high);
    EXPECT_EQ(range.first, r.first) << name_of(r.dtype) << " " << r.low;
    EXPECT_EQ(range.last, r.last) << name_of(r.dtype) << " " << r.low;
    EXPECT_EQ(range.at(0), std::max(r.low, r.first));
    EXPECT_EQ(range.at(1), r.last);
    EXPECT_EQ(range.at(0.5), std::clamp(r.low + (r.high - r.low) / 2, r.first, r.last));
  }
  const double huge = std::numeric_limits<double>::max();
  EXPECT_DOUBLE_EQ(uniform_range(f64, -huge, huge).at(0.75), huge / 2);
  EXPECT_EQ(uniform_range(f64, -huge, huge).at(0), -huge);
  EXPECT_DOUBLE_EQ(uniform_range(f64, -huge, huge / 2).at(0.5), -huge / 4);
}

}  // namespace

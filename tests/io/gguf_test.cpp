// Tests GGUF files. A written file can be read again. If a file breaks a rule, it is refused, and the error
// names the rule. Also tests blocks of Q8_0.
#include <gtest/gtest.h>
#include <cmath>
#include <cstring>
#include <random>

#include <tilegrad/core/base/dtype.h>
#include "io/files/gguf.h"
#include "io/files/gguf_format.h"
#include "tests/support/files.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/largest_piece.h"

namespace {

using namespace tg;
using namespace tg::testing;
using io::Gguf;
using io::GgufStart;
using io::GgufType;

using Bytes = GgufBytes;

std::vector<std::string_view> strings_of(const Gguf& file, std::string_view key) {
  std::vector<std::string_view> all;
  file.each_string(key, [&](std::string_view s) { all.push_back(s); });
  return all;
}
std::vector<std::int64_t> integers_of(const Gguf& file, std::string_view key) {
  std::vector<std::int64_t> all;
  file.each_integer(key, [&](std::int64_t x) { all.push_back(x); });
  return all;
}

TEST(Gguf, RoundTripPreservesEverything) {
  GgufStart start;
  start.add("a.u32", std::uint32_t{7}), start.add("a.f32", 0.5f), start.add("a.bool", true);
  start.add("a.text", "Grüße");
  start.add("a.texts", std::vector<std::string>{"x", "", "yz"});
  start.add("a.i32s", std::vector<std::int32_t>{-1, 2});
  start.add("a.f32s", std::vector<float>{1.5f, -2});
  start.add_tensor("w", GgufType::f16, {3, 5});
  start.add_tensor("b", GgufType::q8_0, {2, 32});
  start.add_tensor("v", GgufType::f32, {2, 1, 3});
  std::string bytes = start.bytes();
  EXPECT_EQ(bytes.size() % 32, 0u);
  bytes += std::string(30, 'w') + io::gguf_padding(30) + std::string(68, 'b') + io::gguf_padding(68) +
           std::string(24, 'v');
  const Gguf file(bytes, "test");
  EXPECT_EQ(file.keys(), (std::vector<std::string_view>{"a.bool", "a.f32", "a.f32s", "a.i32s", "a.text",
                                                        "a.texts", "a.u32"}));
  EXPECT_EQ(file.integer("a.u32"), 7);
  EXPECT_EQ(file.number("a.u32"), 7);
  EXPECT_EQ(file.number("a.f32"), 0.5);
  EXPECT_TRUE(file.boolean("a.bool"));
  EXPECT_EQ(file.string("a.text"), "Grüße");
  EXPECT_EQ(strings_of(file, "a.texts"), (std::vector<std::string_view>{"x", "", "yz"}));
  EXPECT_EQ(integers_of(file, "a.i32s"), (std::vector<std::int64_t>{-1, 2}));
  std::vector<double> numbers;
  file.each_number("a.f32s", [&](double x) { numbers.push_back(x); });
  EXPECT_EQ(numbers, (std::vector<double>{1.5, -2}));
  EXPECT_EQ(file.integer("a.other", 9), 9);
  EXPECT_EQ(file.tensor_count(), 3u);
  const auto w = file.tensor("w"), b = file.tensor("b"), v = file.tensor("v");
  EXPECT_EQ(w->shape, (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(w->bytes, std::string(30, 'w'));
  EXPECT_EQ(b->bytes, std::string(68, 'b'));
  EXPECT_EQ(v->shape, (std::vector<std::int64_t>{2, 1, 3}));
  EXPECT_EQ(v->bytes, std::string(24, 'v'));
  EXPECT_FALSE(file.tensor("x"));
}

TEST(Gguf, ReadsEveryKindOfNumber) {
  Bytes f;
  f.start(0, 11, 2);
  f.key("u8", 0).number(std::uint8_t{200}), f.key("i8", 1).number(std::int8_t{-3});
  f.key("u16", 2).number(std::uint16_t{65000}), f.key("i16", 3).number(std::int16_t{-300});
  f.key("i32", 5).number(std::int32_t{-70000}), f.key("u64", 10).number(std::uint64_t{1} << 40);
  f.key("i64", 11).number(-(std::int64_t{1} << 40)), f.key("f64", 12).number(0.1);
  f.key("f32", 6).number(std::nanf("")), f.key("bools", 9).number(std::int32_t{7}).number(std::uint64_t{2});
  f.number(std::uint8_t{1}).number(std::uint8_t{0});
  f.key("none", 9).number(std::int32_t{8}).number(std::uint64_t{0});
  const Gguf file(f.all, "test");
  EXPECT_EQ(file.integer("u8"), 200);
  EXPECT_EQ(file.integer("i8"), -3);
  EXPECT_EQ(file.integer("u16"), 65000);
  EXPECT_EQ(file.integer("i16"), -300);
  EXPECT_EQ(file.integer("i32"), -70000);
  EXPECT_EQ(file.integer("u64"), std::int64_t{1} << 40);
  EXPECT_EQ(file.integer("i64"), -(std::int64_t{1} << 40));
  EXPECT_EQ(file.number("f64"), 0.1);
  EXPECT_EQ(integers_of(file, "bools"), (std::vector<std::int64_t>{1, 0}));
  EXPECT_TRUE(strings_of(file, "none").empty());
  EXPECT_EQ(error_of([&] { file.number("f32"); }), "test: f32 is not finite, expected a finite number");
  EXPECT_EQ(error_of([&] { file.string("i8"); }), "test: i8 is -3, expected a text");
  EXPECT_EQ(error_of([&] { file.integer("absent"); }), "test: has no key absent, expected a whole number");
}

struct Broken {
  const char* name;
  std::string file, message;
};

std::string one_tensor(std::vector<std::int64_t> sizes, std::int32_t type, std::uint64_t offset = 0,
                       std::size_t data = 64, std::string_view name = "w") {
  return Bytes().start(1, 0).tensor(name, std::move(sizes), type, offset).align().fill(data, 'x').all;
}
std::string with_alignment(std::int32_t kind, std::uint32_t value) {
  return Bytes()
      .start(1, 1)
      .key("general.alignment", kind)
      .number(value)
      .tensor("w", {4}, 0, 0)
      .align(64)
      .fill(64, 'x')
      .all;
}

std::vector<Broken> broken_files() {
  const std::int64_t huge = INT64_MAX, large = std::int64_t{1} << 33;
  const std::string key = Bytes().key("k", 4).number(std::uint32_t{1}).all;
  std::vector<Broken> all{
      {"empty", "", "does not begin with GGUF"},
      {"magic", "GGUX" + std::string(20, '\0'), "does not begin with GGUF"},
      {"cut", Bytes().start(0, 0).all.substr(0, 20), "ends within the number of keys"},
      {"version1", Bytes().start(0, 0, 1).all, "version is 1, expected 2 or 3"},
      {"version_big_endian", Bytes().start(0, 0, 0x03000000).all, "version is 50331648"},
      {"many_tensors", Bytes().start(2, 0).fill(40, 'x').all, "has 2 tensors, for which the 48 bytes"},
      {"negative_tensors", Bytes().start(-1, 0).all, "has -1 tensors"},
      {"many_keys", Bytes().start(0, huge).fill(100, 'x').all, "keys, for which the 100 bytes"},
      {"long_name", Bytes().start(0, 1).number(std::uint64_t{1} << 63).fill(20, 'x').all,
       "within the name of a key"},
      {"key_not_utf8", Bytes().start(0, 1).key("\xff", 0).fill(20, 'x').all, "is not UTF-8"},
      {"key_too_long", Bytes().start(0, 1).key(std::string(65536, 'k'), 0).fill(4, 'x').all,
       "has 65536 bytes"},
      {"kind", Bytes().start(0, 1).key("k", 13).fill(20, 'x').all, "key \"k\" has type 13, expected 0 to 12"},
      {"bool", Bytes().start(0, 1).key("k", 7).number(std::uint8_t{2}).fill(1, 'x').all, "has a bool of 2"},
      {"bools", Bytes().start(0, 1).key("k", 9).number(7).number(std::uint64_t{1}).fill(1, 'x').all,
       "has a bool of 120"},
      {"nested", Bytes().start(0, 1).key("k", 9).number(9).number(std::uint64_t{1}).fill(12, 'x').all,
       "an array of arrays"},
      {"array_count",
       Bytes().start(0, 1).key("k", 9).number(4).number(std::uint64_t{1} << 62).fill(12, 'x').all,
       "key \"k\" has 4611686018427387904 items, for which the 12 bytes"},
      {"array_strings",
       Bytes().start(0, 1).key("k", 9).number(8).number(std::uint64_t{1}).number(UINT64_MAX).all,
       "ends within key \"k\""},
      {"two_keys", Bytes().start(0, 2).all + key + key, "has two of key \"k\""},
      {"two_tensors",
       Bytes().start(2, 0).tensor("w", {8}, 0, 0).tensor("w", {8}, 0, 32).align().fill(64, 'x').all,
       "has two of tensor \"w\""},
      {"tensor_name", one_tensor({4}, 0, 0, 64, std::string(64, 'w')),
       "has a name of 64 bytes, expected at most 63"},
      {"tensor_not_utf8", one_tensor({4}, 0, 0, 64, "\xc0w"), "is not UTF-8"},
      {"no_dimensions", Bytes().start(1, 0).tensor("w", {}, 0, 0).align().fill(64, 'x').all,
       "has 0 dimensions, expected 1 to 4"},
      {"five_dimensions", one_tensor({1, 1, 1, 1, 1}, 0), "has 5 dimensions"},
      {"size_zero", one_tensor({4, 0}, 0), "has a size of 0"},
      {"size_negative", one_tensor({-4, -4}, 0), "has a size of -4"},
      {"product", one_tensor({large, large}, 0), "product overflows"},
      {"product_bytes", one_tensor({huge}, 0), "product overflows"},
      {"padding_wraps", one_tensor({huge / 4}, 0), "product overflows"},
      {"large", one_tensor({huge / 8}, 0), "has 4611686018427387900 bytes from 0, the file 128"},
      {"type_q4_k", one_tensor({256}, 12), "tensor \"w\" is of type Q4_K, expected F32, F16, BF16 or Q8_0"},
      {"type_unknown", one_tensor({4}, 1000), "is of type 1000"},
      {"row_of_blocks", one_tensor({33}, 8), "has rows of 33 numbers, expected a multiple of 32 for Q8_0"},
      {"first_offset", one_tensor({4}, 0, 32), "is at 32, expected 0"},
      {"next_offset",
       Bytes().start(2, 0).tensor("v", {3}, 0, 0).tensor("w", {4}, 0, 12).align().fill(64, 'x').all,
       "tensor \"w\" is at 12, expected 32"},
      {"end", one_tensor({17}, 0), "tensor \"w\" ends at byte"},
      {"end_after_records",
       Bytes().start(2, 0).tensor("v", {8}, 0, 0).tensor("w", {30}, 0, 32).align().fill(64, 'x').all,
       "tensor \"w\" ends at byte"},
      {"alignment_zero", with_alignment(4, 0),
       "general.alignment is 0, expected a u32 that is a power of two"},
      {"alignment_48", with_alignment(4, 48), "general.alignment is 48"},
      {"alignment_large", with_alignment(4, 1 << 17), "general.alignment is 131072"},
      {"alignment_kind", with_alignment(5, 32), "general.alignment is 32, expected a u32"},
  };
  return all;
}

TEST(Gguf, RefusesEachViolatedRule) {
  for (const Broken& b : broken_files()) {
    const std::string message = error_of([&] { Gguf(b.file, "F.gguf"); });
    EXPECT_NE(message.find(b.message), std::string::npos) << b.name << ": " << message;
    EXPECT_TRUE(message.starts_with("F.gguf: ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_LT(message.size(), 300u);
  }
}

TEST(Gguf, AcceptsFilesJustWithinTheRules) {
  for (const std::string& file : {Bytes().start(0, 0).all, one_tensor({16}, 0), one_tensor({32}, 8, 0, 34),
                                  with_alignment(4, 64), one_tensor({4}, 0, 0, 16, std::string(63, 'w')),
                                  Bytes().start(0, 1).key("k", 7).number(std::uint8_t{1}).all})
    EXPECT_EQ(error_of([&] { Gguf(file, "test"); }), "no error");
}

// These files have the smallest possible records, which need the most memory per byte of the file.
std::vector<std::pair<const char*, std::string>> files_of_small_pieces() {
  constexpr std::size_t n = 100'000;
  Bytes strings, numbers, keys, tensors;
  strings.start(0, 1).key("k", 9).number(8).number(std::uint64_t{n});
  for (std::size_t i = 0; i < n; ++i) strings.text("");
  numbers.start(0, 1).key("k", 9).number(0).number(std::uint64_t{n}).fill(n, 'x');
  keys.start(0, n), tensors.start(n, 1).key("general.alignment", 4).number(std::uint32_t{1});
  for (std::size_t i = 0; i < n; ++i) keys.key(std::to_string(i), 0).number(std::uint8_t{1});
  for (std::size_t i = 0; i < n; ++i) tensors.tensor(std::to_string(i), {1}, 1, 2 * i);
  tensors.fill(2 * n, 'x');
  return {{"strings", strings.all},
          {"numbers", numbers.all},
          {"a long string", Bytes().start(0, 1).key("k", 8).text(std::string(n, 'x')).all},
          {"no UTF-8", Bytes().start(0, 1).key("k", 8).text(std::string(n, '\xff')).all},
          {"keys", keys.all},
          {"tensors", tensors.all},
          {"a long key", Bytes().start(0, 1).text(std::string(n, 'k')).all}};
}

TEST(Gguf, AllocatesAtMostTheFileSizePlus64KiB) {
  for (const auto& [name, bytes] : files_of_small_pieces()) {
    std::uint64_t items = 0;
    largest_piece = 0;
    const std::string error = error_of([&] {
      const Gguf file(bytes, "test");
      for (std::size_t i = 0; i < file.tensor_count(); ++i) items += file.tensor(i).bytes.size();
      for (const std::string_view key : file.keys()) {
        file.text(key);
        if (!file.is_array(key)) continue;
        error_of([&] { file.each_string(key, [&](std::string_view) { ++items; }); });
        error_of([&] { file.each_integer(key, [&](std::int64_t) { ++items; }); });
        error_of([&] { file.each_number(key, [&](double) { ++items; }); });
      }
      error_of([&] { file.string("k"); });
    });
    EXPECT_LE(largest_piece, piece_bound(bytes.size())) << name << ": " << error;
    EXPECT_EQ(error == "no error", name != std::string("a long key")) << name << ": " << error;
    const std::string kind = name;
    EXPECT_EQ(items, kind == "numbers" || kind == "tensors" ? 200'000u : kind == "strings" ? 100'000u : 0u);
  }
}

// ---- Q8_0

TEST(Q8_0, RoundsHalfAwayFromZeroWithTheUnroundedScale) {
  std::vector<float> x(32, 0);
  x[0] = 127, x[1] = 0.5f, x[2] = -0.5f, x[3] = 1.49f, x[4] = -126.5f, x[5] = 2.5f;
  std::vector<std::byte> block(34);
  ASSERT_TRUE(io::to_q8_0(x, block));
  tg::float16 d;
  std::memcpy(&d.bits, block.data(), 2);
  EXPECT_EQ(static_cast<float>(d), 1);
  const auto q = [&](std::size_t i) { return static_cast<int>(static_cast<std::int8_t>(block[2 + i])); };
  EXPECT_EQ(q(0), 127);
  EXPECT_EQ(q(1), 1);
  EXPECT_EQ(q(2), -1);
  EXPECT_EQ(q(3), 1);
  EXPECT_EQ(q(4), -127);
  EXPECT_EQ(q(5), 3);
  // Here d is not representable in f16. q must be computed from the f32 value of d.
  x.assign(32, 0), x[0] = 1, x[1] = 0.5f;
  ASSERT_TRUE(io::to_q8_0(x, block));
  const float exact = 1.0f / 127;
  std::memcpy(&d.bits, block.data(), 2);
  EXPECT_EQ(d.bits, tg::float16(exact).bits);
  EXPECT_NE(static_cast<float>(d), exact);
  EXPECT_EQ(q(0), 127);
  EXPECT_EQ(q(1), static_cast<int>(std::round(0.5f * (1 / exact))));
}

TEST(Q8_0, RoundTripErrorIsWithinHalfAStep) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(32 * 50), back(x.size());
  for (float& value : x) value = normal(random);
  std::fill(x.begin() + 64, x.begin() + 96, 0.0f);
  x[96] = 1e-40f;  // a block whose scale is 0 in f16
  std::fill(x.begin() + 97, x.begin() + 128, 0.0f);
  std::vector<std::byte> blocks(34 * 50);
  ASSERT_TRUE(io::to_q8_0(x, blocks));
  io::from_q8_0(blocks, back);
  for (std::size_t b = 0; b < 50; ++b) {
    float largest = 0;
    for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[b * 32 + i]));
    for (std::size_t i = 0; i < 32; ++i)
      EXPECT_NEAR(back[b * 32 + i], x[b * 32 + i], largest / 127 * 0.5f * 1.01f + largest * 0.0005f + 1e-7f);
  }
  x[0] = 1e30f;
  EXPECT_FALSE(io::to_q8_0(x, blocks));
}

}  // namespace

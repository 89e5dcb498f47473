// Tests every kind of GGUF value with every reader, arrays and tensors at the end of a file, and the limits
// of names and sizes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "io/files/gguf.h"
#include "tests/support/files.h"
#include "tests/support/gguf_bytes.h"

namespace {

using namespace tg;
using namespace tg::testing;
using io::Gguf;

using Bytes = GgufBytes;

struct Kind {
  std::uint32_t number;
  std::size_t size;
  std::string bytes, shown;  // the kind of a value
  bool is_whole, is_real;
  double value;
};

template <class T>
Kind kind_of(std::uint32_t number, T x, const std::string& shown) {
  return {number,
          sizeof x,
          {reinterpret_cast<const char*>(&x), sizeof x},
          shown,
          std::is_integral_v<T>,
          !std::is_integral_v<T>,
          static_cast<double>(x)};
}

std::vector<Kind> kinds() {
  std::vector<Kind> all{kind_of(0, std::uint8_t{250}, "250"),
                        kind_of(1, std::int8_t{-6}, "-6"),
                        kind_of(2, std::uint16_t{65530}, "65530"),
                        kind_of(3, std::int16_t{-6}, "-6"),
                        kind_of(4, std::uint32_t{4294967290}, "4294967290"),
                        kind_of(5, std::int32_t{-6}, "-6"),
                        kind_of(6, 0.5f, "0.5"),
                        kind_of(7, std::uint8_t{1}, "true"),
                        {8, 0, std::string("\2\0\0\0\0\0\0\0xy", 10), "\"xy\"", false, false, 0},
                        kind_of(10, std::uint64_t{1} << 40, "1099511627776"),
                        kind_of(11, std::int64_t{-6}, "-6"),
                        kind_of(12, 0.25, "0.25")};
  all[7].is_whole = false;
  return all;
}

TEST(GgufValues, ScalarsAreReadOnlyByTheReadersOfTheirKind) {
  for (const Kind& k : kinds()) {
    Bytes b;
    b.start(0, 1).key("k", k.number);
    b.all += k.bytes;
    const Gguf file(b.all, "F");
    const std::string begin = "F: k is " + k.shown + ", expected ";
    const bool is_boolean = k.number == 7, is_text = k.number == 8;
    EXPECT_EQ(file.text("k"), k.shown);
    EXPECT_FALSE(file.is_array("k"));
    EXPECT_EQ(error_of([&] { EXPECT_EQ(static_cast<double>(file.integer("k")), k.value); }),
              k.is_whole ? "no error" : begin + "a whole number");
    EXPECT_EQ(error_of([&] { EXPECT_EQ(file.number("k"), k.value); }),
              k.is_whole || k.is_real ? "no error" : begin + "a number");
    EXPECT_EQ(error_of([&] { EXPECT_TRUE(file.boolean("k")); }),
              is_boolean ? "no error" : begin + "true or false");
    EXPECT_EQ(error_of([&] { EXPECT_EQ(file.string("k"), "xy"); }), is_text ? "no error" : begin + "a text");
    EXPECT_EQ(error_of([&] { file.count("k"); }), begin + "an array");
    EXPECT_EQ(error_of([&] { file.each_string("k", [](std::string_view) {}); }),
              begin + "an array of strings");
    EXPECT_EQ(error_of([&] { file.each_integer("k", [](std::int64_t) {}); }),
              begin + "an array of whole numbers");
    EXPECT_EQ(error_of([&] { file.each_number("k", [](double) {}); }), begin + "an array of numbers");
  }
}

TEST(GgufValues, ArrayItemsAreReadInOrder) {
  for (const Kind& k : kinds()) {
    Bytes b;
    b.start(0, 2).array("k", k.number, 3);
    const std::string zero(k.bytes.size(), '\0');
    b.all += k.bytes + (k.number == 8 ? std::string(8, '\0') : zero) + k.bytes;
    b.key("last", 4).number(std::uint32_t{7});
    const Gguf file(b.all, "F");
    EXPECT_EQ(file.integer("last"), 7);
    EXPECT_TRUE(file.is_array("k"));
    EXPECT_EQ(file.count("k"), 3u);
    EXPECT_EQ(file.text("k"), "an array of 3");
    std::vector<std::string> texts;
    std::vector<double> whole, numbers;
    EXPECT_EQ(error_of([&] { file.each_string("k", [&](std::string_view s) { texts.emplace_back(s); }); }),
              k.number == 8 ? "no error" : "F: k is an array of 3, expected an array of strings");
    EXPECT_EQ(error_of([&] {
                file.each_integer("k", [&](std::int64_t x) { whole.push_back(static_cast<double>(x)); });
              }),
              k.is_whole || k.number == 7 ? "no error"
                                          : "F: k is an array of 3, expected an array of whole numbers");
    EXPECT_EQ(error_of([&] { file.each_number("k", [&](double x) { numbers.push_back(x); }); }),
              k.is_whole || k.is_real ? "no error" : "F: k is an array of 3, expected an array of numbers");
    const std::vector<double> expected{k.value, 0, k.value};
    const std::vector<double> none;
    EXPECT_EQ(texts, k.number == 8 ? std::vector<std::string>({"xy", "", "xy"}) : std::vector<std::string>());
    EXPECT_EQ(whole, k.is_whole || k.number == 7 ? expected : none);
    EXPECT_EQ(numbers, k.is_whole || k.is_real ? expected : none);
    EXPECT_EQ(error_of([&] { file.integer("k"); }), "F: k is an array of 3, expected a whole number");
    EXPECT_EQ(error_of([&] { file.number("k"); }), "F: k is an array of 3, expected a number");
    EXPECT_EQ(error_of([&] { file.boolean("k"); }), "F: k is an array of 3, expected true or false");
    EXPECT_EQ(error_of([&] { file.string("k"); }), "F: k is an array of 3, expected a text");
  }
}

// The file ends with the last item or one byte earlier.
TEST(GgufValues, ArraysBeyondTheEndOfTheFileAreRefused) {
  for (const Kind& k : kinds()) {
    const std::size_t size = k.number == 8 ? 8 : k.size;
    Bytes whole, less;
    whole.start(0, 1).array("k", k.number, 4).fill(4 * size);
    less.start(0, 1).array("k", k.number, 4).fill(4 * size - 1);
    EXPECT_EQ(error_of([&] { Gguf(whole.all, "F"); }), "no error");
    EXPECT_EQ(error_of([&] { Gguf(less.all, "F"); }), "F: key \"k\" has 4 items, for which the " +
                                                          std::to_string(4 * size - 1) +
                                                          " bytes that are left are too few");
    const std::string cut = Bytes().start(0, 1).key("k", k.number).fill(size - 1).all;
    const std::string what = k.number == 8 ? "8" : std::to_string(size);
    EXPECT_EQ(error_of([&] { Gguf(cut, "F"); }), "F: it ends within key \"k\", which needs " + what +
                                                     " bytes of " + std::to_string(size - 1) +
                                                     " that are left");
  }
}

TEST(GgufValues, MissingKeysHaveTheGivenDefault) {
  Bytes b;
  b.start(0, 4)
      .key("b", 7)
      .number(std::uint8_t{0})
      .key("i", 4)
      .number(std::uint32_t{5})
      .key("r", 6)
      .number(0.5f);
  b.key("s", 8).text("x");
  const Gguf file(b.all, "F");
  EXPECT_EQ(file.integer("i", 9), 5);
  EXPECT_EQ(file.integer("no", 9), 9);
  EXPECT_EQ(file.number("r", 9), 0.5);
  EXPECT_EQ(file.number("no", 9), 9);
  EXPECT_FALSE(file.boolean("b", true));
  EXPECT_TRUE(file.boolean("no", true));
  EXPECT_EQ(file.string("s", "y"), "x");
  EXPECT_EQ(file.string("no", "y"), "y");
  EXPECT_EQ(file.text("no"), "not there");
  EXPECT_FALSE(file.is_array("no"));
  EXPECT_EQ(error_of([&] { file.integer("no"); }), "F: has no key no, expected a whole number");
  EXPECT_EQ(error_of([&] { file.number("no"); }), "F: has no key no, expected a number");
  EXPECT_EQ(error_of([&] { file.boolean("no"); }), "F: has no key no, expected true or false");
  EXPECT_EQ(error_of([&] { file.string("no"); }), "F: has no key no, expected a text");
  EXPECT_EQ(error_of([&] { file.count("no"); }), "F: has no key no, expected an array");
}

TEST(GgufValues, UnusableValuesAreRefused) {
  Bytes b;
  b.start(0, 4).key("inf", 12).number(HUGE_VAL).key("nan", 6).number(NAN);
  b.key("text", 8).text("\xff").key("wide", 10).number(std::uint64_t{1} << 63);
  const Gguf file(b.all, "F");
  EXPECT_EQ(error_of([&] { file.number("inf"); }), "F: inf is not finite, expected a finite number");
  EXPECT_EQ(error_of([&] { file.number("nan"); }), "F: nan is not finite, expected a finite number");
  EXPECT_EQ(error_of([&] { file.string("text"); }), "F: text is not UTF-8, expected a text in UTF-8");
  EXPECT_EQ(file.integer("wide"), std::numeric_limits<std::int64_t>::min());
}

// unread_key() returns the first key that was not read, for any kind of value.
TEST(GgufValues, KeysThatWereReadAreMarked) {
  Bytes b;
  b.start(0, 3)
      .key("c", 4)
      .number(std::uint32_t{1})
      .key("a", 4)
      .number(std::uint32_t{2})
      .key("b", 8)
      .text("x");
  const Gguf file(b.all, "F");
  const auto none = [](std::string_view) { return false; };
  EXPECT_EQ(file.keys(), (std::vector<std::string_view>{"a", "b", "c"}));
  EXPECT_EQ(file.unread_key(none), "a");
  EXPECT_TRUE(file.has("a"));
  EXPECT_EQ(file.text("a"), "2");
  EXPECT_EQ(file.unread_key(none), "a");
  EXPECT_EQ(file.integer("a"), 2);
  EXPECT_EQ(file.unread_key(none), "b");
  EXPECT_EQ(file.unread_key([](std::string_view name) { return name == "b"; }), "c");
  EXPECT_THROW(file.integer("b"), FormatError);
  EXPECT_EQ(file.unread_key(none), "c");
  EXPECT_EQ(file.integer("c"), 1);
  EXPECT_EQ(file.unread_key(none), "");
}

struct Limit {
  const char* name;
  std::string file, message;
};

std::string f32s(std::int64_t n,
                 std::size_t bytes) {  // a tensor of n numbers; the file has `bytes` bytes of data
  Bytes b;
  return b.start(1, 0).tensor("w", {n}, 0, 0).align().fill(bytes).all;
}

TEST(GgufLimits, FilesBeyondALimitAreRefused) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto aligned = [](std::uint32_t alignment, std::uint64_t offset) {
    Bytes b;
    b.start(2, 1).key("general.alignment", 4).number(alignment);
    b.tensor("v", {3}, 0, 0).tensor("w", {1}, 1, offset).align(alignment);
    return b.fill(offset + 2).all;
  };
  const auto named = [](std::size_t n) {
    return Bytes().start(1, 0).tensor(std::string(n, 'w'), {1}, 0, 0).align().fill(4).all;
  };
  const std::string many_keys = "keys, for which the ", many_tensors = "tensors, for which the ";
  const Limit limits[] = {
      {"two keys in 25 bytes", Bytes().start(0, 2).fill(25).all, "has 2 " + many_keys + "25 bytes"},
      {"two keys in 26 bytes", Bytes().start(0, 2).fill(26).all, "two of key \"\""},
      {"two tensors in 63 bytes", Bytes().start(2, 0).fill(55).all, "has 2 " + many_tensors + "63 bytes"},
      {"two tensors in 64 bytes", Bytes().start(2, 0).fill(56).all, "tensor \"\" has 0 dimensions"},
      {"no tensor", Bytes().start(0, 0).all, "no error"},
      {"only the magic", "GGU", "does not begin with GGUF"},
      {"a key of 65535 bytes", Bytes().start(0, 1).key(std::string(65535, 'k'), 0).fill(1).all, "no error"},
      {"a key of 65536 bytes", Bytes().start(0, 1).key(std::string(65536, 'k'), 0).fill(1).all,
       "has 65536 bytes"},
      {"a control character", Bytes().start(0, 1).key("a\nb", 0).fill(1).all, "has control characters"},
      {"kind 12", Bytes().start(0, 1).key("k", 12).fill(8).all, "no error"},
      {"kind 13", Bytes().start(0, 1).key("k", 13).fill(8).all, "has type 13, expected 0 to 12"},
      {"a name of 63 bytes", named(63), "no error"},
      {"a name of 64 bytes", named(64), "has a name of 64 bytes, expected at most 63"},
      {"4 dimensions", Bytes().start(1, 0).tensor("w", {1, 2, 1, 2}, 0, 0).align().fill(16).all, "no error"},
      {"5 dimensions", Bytes().start(1, 0).tensor("w", {1, 1, 1, 1, 1}, 0, 0).align().fill(4).all,
       "has 5 dimensions, expected 1 to 4"},
      {"a size of 0", Bytes().start(1, 0).tensor("w", {0}, 0, 0).align().fill(4).all, "has a size of 0"},
      {"all of the data", f32s(16, 64), "no error"},
      {"one byte less", f32s(16, 63), "tensor \"w\" ends at byte"},
      {"more data", f32s(15, 64), "no error"},
      {"numbers below the limit", f32s((most - 65536) / 4, 64), "bytes from 0, the file"},
      {"numbers above the limit", f32s((most - 65536) / 4 + 1, 64), "product overflows"},
      {"one type more", Bytes().start(1, 0).tensor("w", {256}, 2, 0).align().fill(999).all,
       "is of type Q4_0"},
      {"f16", Bytes().start(1, 0).tensor("w", {5}, 1, 0).align().fill(10).all, "no error"},
      {"bf16", Bytes().start(1, 0).tensor("w", {5}, 30, 0).align().fill(10).all, "no error"},
      {"bf16, one byte less", Bytes().start(1, 0).tensor("w", {5}, 30, 0).align().fill(9).all,
       "ends at byte"},
      {"q8_0", Bytes().start(1, 0).tensor("w", {32, 3}, 8, 0).align().fill(102).all, "no error"},
      {"q8_0, one byte less", Bytes().start(1, 0).tensor("w", {32, 3}, 8, 0).align().fill(101).all,
       "ends at byte"},
      {"q8_0, columns", Bytes().start(1, 0).tensor("w", {16, 2}, 8, 0).align().fill(102).all,
       "has rows of 16 numbers"},
      {"alignment 1", aligned(1, 12), "no error"},
      {"alignment 2", aligned(2, 12), "no error"},
      {"alignment 16", aligned(16, 16), "no error"},
      {"alignment 16, wrong", aligned(16, 32), "tensor \"w\" is at 32, expected 16"},
      {"alignment 65536", aligned(65536, 65536), "no error"},
      {"alignment 131072", aligned(131072, 131072),
       "is 131072, expected a u32 that is a power of two up to 65536"},
      {"alignment 3", aligned(3, 12), "is 3, expected"},
  };
  for (const Limit& limit : limits) {
    const std::string error = error_of([&] { Gguf(limit.file, "F"); });
    EXPECT_NE(error.find(limit.message), std::string::npos) << limit.name << ": " << error;
  }
}

TEST(GgufLimits, TypesHaveGgmlsNames) {
  EXPECT_EQ(io::name_of(io::GgufType::f32), "F32");
  EXPECT_EQ(io::name_of(io::GgufType::f16), "F16");
  EXPECT_EQ(io::name_of(io::GgufType::q8_0), "Q8_0");
  EXPECT_EQ(io::name_of(io::GgufType::bf16), "BF16");
  EXPECT_EQ(io::ggml_type_name(39), "MXFP4");
  EXPECT_EQ(io::ggml_type_name(40), "");
  EXPECT_EQ(io::ggml_type_name(4), "");
  for (const auto& [bytes, padded] :
       {std::pair<std::uint64_t, std::uint64_t>{0, 0}, {1, 32}, {31, 32}, {32, 32}, {33, 64}}) {
    EXPECT_EQ(io::gguf_padded(bytes), padded);
    EXPECT_EQ(io::gguf_padding(bytes), std::string(padded - bytes, '\0'));
  }
  EXPECT_EQ(io::gguf_padded(33, 16), 48u);
}

// Tensors are ordered by name, regardless of their order in the file. Each has its own bytes.
TEST(GgufLimits, TensorsAreFoundByNameAndNumber) {
  Bytes b;
  b.start(3, 0).tensor("b", {2}, 0, 0).tensor("c", {4, 2}, 1, 32).tensor("a", {1}, 0, 64).align();
  b.number(1.5f).number(2.5f).align().fill(16).align().number(7.5f);
  const Gguf file(b.all, "F");
  ASSERT_EQ(file.tensor_count(), 3u);
  const char* names[] = {"a", "b", "c"};
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(file.tensor(i).name, names[i]);
  EXPECT_THROW(file.tensor(3), std::out_of_range);
  const io::GgufTensor a = file.tensor("a").value(), c = file.tensor("c").value();
  float first = 0;
  std::memcpy(&first, a.bytes.data(), 4);
  EXPECT_EQ(first, 7.5f);
  EXPECT_EQ(a.bytes.size(), 4u);
  EXPECT_EQ(c.shape, (std::vector<std::int64_t>{2, 4}));  // slowest axis first
  EXPECT_EQ(c.bytes.size(), 16u);
  EXPECT_EQ(c.type, io::GgufType::f16);
  for (const char* other : {"", "0", "aa", "bb", "d"}) EXPECT_FALSE(file.tensor(other)) << other;
}

}  // namespace

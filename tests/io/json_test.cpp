// Tests that the JSON reader accepts exactly the grammar of RFC 8259 and can read the writer's output.
#include <tilegrad/io/files/json.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>

#include <tilegrad/core/base/error.h>
#include "io/files/json_tree.h"
#include "io/files/utf8.h"
#include "tests/support/files.h"

namespace tg {
namespace {

void accept(std::string_view text) {
  io::JsonReader json(text, "test");
  json.skip();
  json.end();
}

std::string error_of(std::string_view text) {
  try {
    accept(text);
  } catch (const FormatError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(JsonReader, ReadsAnObjectMemberByMember) {
  io::JsonReader json(R"( {"a" : [1, -2.5e1 , true], "b":{"c":null}, "d":"x"} )", "test");
  json.begin_object();
  EXPECT_EQ(json.next_key(), "a");
  json.begin_array();
  ASSERT_TRUE(json.next_item());
  EXPECT_EQ(json.integer(), 1);
  ASSERT_TRUE(json.next_item());
  EXPECT_EQ(json.number(), -25.0);
  ASSERT_TRUE(json.next_item());
  EXPECT_TRUE(json.boolean());
  EXPECT_FALSE(json.next_item());
  EXPECT_EQ(json.next_key(), "b");
  json.skip();
  EXPECT_EQ(json.next_key(), "d");
  EXPECT_EQ(json.peek(), io::JsonReader::Kind::string);
  EXPECT_EQ(json.string(), "x");
  EXPECT_EQ(json.next_key(), std::nullopt);
  json.end();
}

TEST(JsonReader, AcceptsTheWholeGrammar) {
  for (const char* text : {"{}", "[]", "[[],{}]", "0", "-0", "1.5", "1e3", "1E-3", "-1.25e+10", "\"\"",
                           "true", "false", "null", " \t\r\n1 ", R"("\"\\\/\b\f\n\r\té€")"}) {
    EXPECT_NO_THROW(accept(text)) << text;
  }
}

// Each input is listed with its mistake. A caret marks the byte that the message names.
TEST(JsonReader, NamesTheMistakeAndItsByte) {
  const std::pair<const char*, const char*> cases[] = {
      {"^", "JSON ends, expected a value"},
      {" \t\r\n^", "JSON ends, expected a value"},
      {"[1, ^", "JSON ends, expected a value"},
      {"{\"a\":^", "JSON ends, expected a value"},
      {"^tru", "no JSON value"},
      {"^nul", "no JSON value"},
      {"^falze", "no JSON value"},
      {"^True", "no JSON value"},
      {"^nan", "no JSON value"},
      {"^Infinity", "no JSON value"},
      {"^'a'", "no JSON value"},
      {"^/*c*/1", "no JSON value"},
      {"^.5", "no JSON value"},
      {"^+1", "no JSON value"},
      {"^]", "no JSON value"},
      {"^\v1", "no JSON value"},
      {"[1,^]", "no JSON value"},
      {"[^,1]", "no JSON value"},
      {"[^}", "no JSON value"},
      {"{^]", "no JSON value"},
      {"{\"a\":1,^}", "no JSON value"},
      {"{\"a\":^}", "no JSON value"},
      {"{^1:2}", "expected a key in quotes"},
      {"{^null:2}", "expected a key in quotes"},
      {"{\"a\"^}", "expected ':' after a key"},
      {"{\"a\"^", "expected ':' after a key"},
      {"{\"a\" ^1}", "expected ':' after a key"},
      {"{\"a\":1 ^\"b\":2}", "expected ',' or '}'"},
      {"{\"a\":1^:2}", "expected ',' or '}'"},
      {"[1 ^2]", "expected ',' or ']'"},
      {"[1^}", "expected ',' or ']'"},
      {"{\"a\":1^]", "expected ',' or '}'"},
      {"[1 ^", "array is not closed"},
      {"[^", "array is not closed"},
      {"[[1]^", "array is not closed"},
      {"[{}^", "array is not closed"},
      {"{^", "object is not closed"},
      {"{\"a\":1^", "object is not closed"},
      {"{\"a\":[]^", "object is not closed"},
      {"^01", "number starts with a zero"},
      {"^-01", "number starts with a zero"},
      {"^00", "number starts with a zero"},
      {"^-", "malformed number"},
      {"^-a", "malformed number"},
      {"^--1", "malformed number"},
      {"^1.", "malformed number"},
      {"^1.e5", "malformed number"},
      {"^1e", "malformed number"},
      {"^1e+", "malformed number"},
      {"^1E-x", "malformed number"},
      {"^1e999", "number beyond double precision"},
      {"[0, ^-1e999]", "number beyond double precision"},
      {"0^x10", "text after the end of the JSON value"},
      {"1 ^2", "text after the end of the JSON value"},
      {"{} ^{}", "text after the end of the JSON value"},
      {"1^]", "text after the end of the JSON value"},
      {"1^\v", "text after the end of the JSON value"},
      {"1.5^.5", "text after the end of the JSON value"},
      {"true^true", "text after the end of the JSON value"},
      {"\"abc^", "string is not closed"},
      {"\"^", "string is not closed"},
      {"\"\\^", "string is not closed"},
      {"\"\\\"^", "string is not closed"},
      {"\"\\u1234^", "string is not closed"},
      {"\"a^\nb\"", "control character in a string"},
      {"\"^\x1f\"", "control character in a string"},
      {"\"^\t\"", "control character in a string"},
      {"\"\\^x\"", "unknown escape in a string"},
      {"\"\\^U0041\"", "unknown escape in a string"},
      {"\"\\u^12\"", "expected four hexadecimal digits after \\u"},
      {"\"\\u^123", "expected four hexadecimal digits after \\u"},
      {"\"\\u^12g4\"", "expected four hexadecimal digits after \\u"},
      {"\"\\u^-123\"", "expected four hexadecimal digits after \\u"},
      {"\"\\u^+123\"", "expected four hexadecimal digits after \\u"},
      {"\"\\u^ 123\"", "expected four hexadecimal digits after \\u"},
      {"\"\\u^0x12\"", "expected four hexadecimal digits after \\u"},
      {"{\"a\":1,\"a\"^:2}", "duplicate key \"a\""},
      {"[{\"\":{},\"\"^:2}]", "duplicate key \"\""}};
  for (const auto& [marked, what] : cases) {
    std::string text = marked;
    const std::size_t at = text.find('^');
    text.erase(at, 1);
    EXPECT_EQ(error_of(text), "test: " + std::string(what) + " at byte " + std::to_string(at)) << text;
  }
}

// Tests every code point as an escape, with upper-case and lower-case hexadecimal digits, and as an escaped
// pair.
TEST(JsonReader, EscapesBecomeTheirCodePoints) {
  for (char32_t c = 0; c <= 0x10ffff;
       c += c < 0x100 || (c > 0xd7f0 && c < 0x10100) || c > 0x10fff0 ? 1 : 53) {
    char text[32];
    const bool is_upper = c % 2 == 0;
    const auto high = static_cast<unsigned>(0xd800 + ((c - 0x10000) / 0x400)),
               low = static_cast<unsigned>(0xdc00 + ((c - 0x10000) % 0x400));
    if (c < 0x10000)
      std::snprintf(text, sizeof text, is_upper ? "\"\\u%04X\"" : "\"\\u%04x\"", static_cast<unsigned>(c));
    else
      std::snprintf(text, sizeof text, is_upper ? "\"\\u%04X\\u%04X\"" : "\"\\u%04x\\u%04x\"", high, low);
    if (c >= 0xd800 && c <= 0xdfff) {
      EXPECT_EQ(error_of(text), "test: lone surrogate in a string at byte 7");
      continue;
    }
    std::string expected;
    io::utf8_append(expected, c);
    ASSERT_EQ(io::JsonReader(text, "test").string(), expected) << text;
  }
  EXPECT_EQ(io::JsonReader(R"("\"\\\/\b\f\n\r\t")", "test").string(), "\"\\/\b\f\n\r\t");
  // A high surrogate must be followed by a low surrogate, and each must be in its range.
  for (const char* low : {"\\udbff", "\\ue000", "\\u0041", "\\ud800"})
    EXPECT_EQ(error_of("\"\\ud800" + std::string(low) + "\""), "test: lone surrogate in a string at byte 13")
        << low;
  for (const char* first : {"\"\\udc00", "\"\\udfff"})
    EXPECT_EQ(error_of(first + std::string("\\udc00\"")), "test: lone surrogate in a string at byte 7");
  for (const char* other : {"", "x", "\\n", "\\", "udc00"})
    EXPECT_EQ(error_of("\"\\udbff" + std::string(other) + "\""), "test: lone surrogate in a string at byte 7")
        << other;
}

// raw() returns the characters of a value. Reading continues as if the value had been skipped.
TEST(JsonReader, RawReturnsTheCharactersOfOneValue) {
  for (const std::string value :
       {"{\"a\": [1, {}]}", "[ 1,2 ]", "\"x\\n\"", "-1.5e3", "true", "false", "null"}) {
    const std::string text = "[ " + value + " , 7]";
    io::JsonReader json(text, "test");
    json.begin_array();
    ASSERT_TRUE(json.next_item());
    EXPECT_EQ(json.raw(), value);
    ASSERT_TRUE(json.next_item());
    EXPECT_EQ(json.integer(), 7);
    EXPECT_FALSE(json.next_item());
    json.end();
  }
}

TEST(JsonReader, NumbersAreTheNearestOfDoublePrecision) {
  for (const double x :
       {0.0, 1.0, -2.5, 0.1, 1e22, 1e23, 123456.789, 5e-324, 1.7976931348623157e308, -1e-7}) {
    char text[64];
    for (const char* format : {"%.17g", "%.20e", "%.17E", "%.0f"}) {
      if (format == std::string("%.0f") && std::abs(x) > 1e20) continue;
      std::snprintf(text, sizeof text, format, x);
      EXPECT_EQ(io::JsonReader(text, "test").number(), std::strtod(text, nullptr)) << text;
    }
  }
  EXPECT_EQ(io::JsonReader("1e2", "t").number(), 100);
  EXPECT_EQ(io::JsonReader("1E+2", "t").number(), 100);
  EXPECT_EQ(io::JsonReader("25e-2", "t").number(), 0.25);
  EXPECT_EQ(io::JsonReader("-0", "t").integer(), 0);
}

TEST(JsonReader, RefusesDuplicateKeysAtEveryLevelEvenInSkippedValues) {
  EXPECT_EQ(error_of(R"({"a":1,"a":2})"), "test: duplicate key \"a\" at byte 10");
  EXPECT_NE(error_of(R"([{"x":{"a":1,"\u0061":2}}])").find("duplicate key"), std::string::npos);
  EXPECT_EQ(error_of(R"([{"a":1},{"a":1}])"), "accepted");
}

TEST(JsonReader, RefusesInvalidUtf8AndNamesTheByte) {
  EXPECT_EQ(error_of("\"ab\xff\""), "test: not UTF-8 at byte 3");
  EXPECT_EQ(error_of("\"\xc0\xaf\""), "test: not UTF-8 at byte 1");          // overlong encoding
  EXPECT_EQ(error_of("\"\xed\xa0\x80\""), "test: not UTF-8 at byte 1");      // surrogate
  EXPECT_EQ(error_of("\"\xf4\x90\x80\x80\""), "test: not UTF-8 at byte 1");  // beyond U+10FFFF
}

TEST(JsonReader, ReadsSurrogatePairsAndRefusesLoneOnes) {
  io::JsonReader json(R"("\ud83d\ude00\u00e9")", "test");
  EXPECT_EQ(json.string(), "\xf0\x9f\x98\x80\xc3\xa9");
  for (const char* text :
       {R"("\ud83d")", R"("\ud83dx")", R"("\ude00")", R"("\ud83d\u0041")", R"("\ud83d\ud83d")"}) {
    EXPECT_NE(error_of(text).find("lone surrogate"), std::string::npos) << text;
  }
}

TEST(JsonReader, LimitsTheDepth) {
  const std::size_t limit = io::JsonReader::max_depth;
  EXPECT_EQ(error_of(std::string(limit, '[') + std::string(limit, ']')), "accepted");
  EXPECT_NE(error_of(std::string(limit + 1, '[') + std::string(limit + 1, ']')).find("64 levels"),
            std::string::npos);
  EXPECT_NE(error_of(std::string(1'000'000, '[')), "accepted");
}

TEST(JsonReader, IntegersAreExactOrRefused) {
  EXPECT_EQ(io::JsonReader("9223372036854775807", "t").integer(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(io::JsonReader("-9223372036854775808", "t").integer(), std::numeric_limits<std::int64_t>::min());
  for (const char* text : {"9223372036854775808", "1.0", "1e2", "\"1\""}) {
    EXPECT_THROW(io::JsonReader(text, "t").integer(), FormatError) << text;
  }
}

TEST(JsonReader, DoesNotEndInsideAContainer) {
  io::JsonReader array("[1", "t"), object("{", "t");
  array.begin_array(), array.next_item(), array.integer(), object.begin_object();
  EXPECT_EQ(testing::error_of([&] { array.end(); }), "t: array is not closed at byte 2");
  EXPECT_EQ(testing::error_of([&] { object.end(); }), "t: object is not closed at byte 1");
}

TEST(JsonReader, RefusesAValueOfADifferentKind) {
  const auto error = [](const char* text, const std::function<void(io::JsonReader&)>& read) {
    io::JsonReader json(text, "t");
    return testing::error_of([&] { read(json); });
  };
  EXPECT_EQ(error(" 1", [](auto& j) { j.string(); }), "t: expected a string at byte 1");
  EXPECT_EQ(error("\"1\"", [](auto& j) { j.number(); }), "t: expected a number at byte 0");
  EXPECT_EQ(error("true", [](auto& j) { j.integer(); }), "t: expected a number at byte 0");
  EXPECT_EQ(error("[]", [](auto& j) { j.begin_object(); }), "t: expected an object at byte 0");
  EXPECT_EQ(error("{}", [](auto& j) { j.begin_array(); }), "t: expected an array at byte 0");
  EXPECT_EQ(error("1", [](auto& j) { j.boolean(); }), "t: expected true or false at byte 0");
  EXPECT_EQ(error("0", [](auto& j) { j.null(); }), "t: expected null at byte 0");
  EXPECT_EQ(error("1", [](auto& j) { j.next_item(); }), "t: no such container is open at byte 0");
  EXPECT_EQ(error("[1]", [](auto& j) { j.begin_array(), j.next_key(); }),
            "t: no such container is open at byte 1");
  EXPECT_EQ(error("{}", [](auto& j) { j.begin_object(), j.next_item(); }),
            "t: no such container is open at byte 1");
  EXPECT_EQ(error("1.5", [](auto& j) { j.integer(); }), "t: expected a 64-bit integer at byte 0");
}

// The order of members does not change. text() has at most 100 bytes.
TEST(JsonTree, KeepsMembersAndWritesJson) {
  const auto tree = [](const std::string& text) {
    io::JsonReader json(text, "test");
    const io::JsonTree value = io::read_json_tree(json);
    json.end();
    return value;
  };
  const std::pair<const char*, const char*> texts[] = {
      {" {} ", "{}"},
      {"[]", "[]"},
      {"[1,2.50,-3e2]", "[1, 2.5, -300]"},
      {R"({"b":true,"a":[false,null]})", R"({"b": true, "a": [false, null]})"},
      {R"("q\"\u00e9")", R"("q\"é")"},
      {R"([{"x":{}},{"y":[[]]}])", R"([{"x": {}}, {"y": [[]]}])"}};
  for (const auto& [text, expected] : texts) EXPECT_EQ(tree(text).text(), expected);
  const io::JsonTree value = tree(R"({"b": "text", "a": [1, true, null], "n": null})");
  using Kind = io::JsonReader::Kind;
  EXPECT_EQ(value.kind, Kind::object);
  ASSERT_EQ(value.members.size(), 3u);
  EXPECT_EQ(value.members[0].first, "b");
  ASSERT_NE(value.find("b"), nullptr);
  EXPECT_EQ(value.find("b")->scalar, "text");
  ASSERT_NE(value.find("a"), nullptr);
  ASSERT_EQ(value.find("a")->items.size(), 3u);
  EXPECT_EQ(value.find("a")->items[0].scalar, "1");
  EXPECT_TRUE(value.find("a")->items[1].logical);
  EXPECT_TRUE(value.find("a")->items[2].is_null());
  EXPECT_FALSE(value.find("a")->is_null());
  EXPECT_TRUE(value.find("n")->is_null());
  EXPECT_EQ(value.find("c"), nullptr);
  EXPECT_EQ(value.find("a")->find("b"), nullptr);
  EXPECT_FALSE(tree("false").logical);
  for (const int n : {96, 97, 98, 99, 100, 300}) {
    const std::string whole = "\"" + std::string(static_cast<std::size_t>(n), 'x') + "\"";
    EXPECT_EQ(tree(whole).text(), whole.size() <= 100 ? whole : whole.substr(0, 100) + "…") << n;
  }
  std::string numbers = "[0";
  for (int i = 1; i < 200; ++i) numbers += ", " + std::to_string(i);
  EXPECT_EQ(tree(numbers + "]").text(), numbers.substr(0, 100) + "…");
}

TEST(JsonWriter, ExcerptsHaveAtMost80Bytes) {
  for (const int n : {0, 79, 80, 81, 200}) {
    const std::string s(static_cast<std::size_t>(n), 'x');
    EXPECT_EQ(io::json_excerpt(s), n <= 80 ? "\"" + s + "\"" : "\"" + s.substr(0, 80) + "…\"") << n;
  }
  EXPECT_EQ(io::json_excerpt(std::string(79, 'x') + "é"), "\"" + std::string(79, 'x') + "…\"");
}

TEST(JsonWriter, StringsAreEscaped) {
  EXPECT_EQ(io::json_string("\"\\/\b\f\n\r\t\x01\x0f\x10\x1f\x7f é"),
            R"("\"\\/\u0008\u000c\n\r\t\u0001\u000f\u0010\u001f)"
            "\x7f é\"");
}

TEST(JsonWriter, StringsReadBack) {
  std::string all = "é€😀\"\\/";
  for (char c = 0; c < 0x20; ++c) all += c;
  const std::string text = io::json_string(all);
  EXPECT_EQ(io::JsonReader(text, "t").string(), all);
}

TEST(JsonWriter, BytesThatAreNotUtf8BecomeReplacementCharacters) {
  EXPECT_EQ(io::json_string("a\xff\xfe"
                            "b"),
            "\"a\xef\xbf\xbd\xef\xbf\xbd"
            "b\"");
}

TEST(JsonWriter, NumbersAreShortestAndNonFiniteIsNull) {
  EXPECT_EQ(io::json_number(0.1), "0.1");
  EXPECT_EQ(io::json_number(1.88f), "1.88");
  EXPECT_EQ(io::json_number(std::nan("")), "null");
  EXPECT_EQ(io::json_number(std::numeric_limits<float>::infinity()), "null");
  for (const double x : {0.0, -1.5, 1e300, 5e-324, 1.0 / 3.0, 123456789.0}) {
    const std::string text = io::json_number(x);
    EXPECT_EQ(io::JsonReader(text, "t").number(), x) << text;
  }
}

}  // namespace
}  // namespace tg

// The JSON reader takes what RFC 8259 allows and nothing else; the writer's text reads back.
#include <tilegrad/io/files/json.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <tilegrad/core/base/error.h>
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

TEST(JsonReader, TakesAnObjectMemberByMember) {
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

TEST(JsonReader, RefusesWhatIsNotJson) {
  for (const char* text :
       {"",         " ",          "{",           "[",        "{]",        "[}",
        "[1",       "[1,",        "[1,]",        "[,1]",     "[1 2]",     "{\"a\"}",
        "{\"a\":}", "{\"a\":1,}", "{a:1}",       "{1:2}",    "{\"a\" 1}", "{\"a\":1 \"b\":2}",
        "01",       "-",          "-a",          "1.",       ".5",        "+1",
        "1e",       "1e+",        "0x10",        "tru",      "nul",       "True",
        "NaN",      "Infinity",   "'a'",         "\"",       "\"a",       "\"\\\"",
        "\"\\x\"",  "\"\\u12\"",  "\"\\u12g4\"", "\"a\nb\"", "1 2",       "{} {}",
        "/*c*/1",   "1e999",      "1//"}) {
    EXPECT_NE(error_of(text), "accepted") << text;
  }
}

TEST(JsonReader, RefusesDuplicateKeysAtEveryLevelEvenInSkippedValues) {
  EXPECT_EQ(error_of(R"({"a":1,"a":2})"), "test: duplicate key \"a\" at byte 10");
  EXPECT_NE(error_of(R"([{"x":{"a":1,"\u0061":2}}])").find("duplicate key"), std::string::npos);
  EXPECT_EQ(error_of(R"([{"a":1},{"a":1}])"), "accepted");
}

TEST(JsonReader, RefusesTextThatIsNotUtf8AndNamesTheByte) {
  EXPECT_EQ(error_of("\"ab\xff\""), "test: not UTF-8 at byte 3");
  EXPECT_EQ(error_of("\"\xc0\xaf\""), "test: not UTF-8 at byte 1");          // overlong
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

TEST(JsonReader, BoundsTheDepth) {
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

TEST(JsonReader, RefusesAValueOfAnotherKind) {
  EXPECT_THROW(io::JsonReader("1", "t").string(), FormatError);
  EXPECT_THROW(io::JsonReader("\"1\"", "t").number(), FormatError);
  EXPECT_THROW(io::JsonReader("[]", "t").begin_object(), FormatError);
  EXPECT_THROW(io::JsonReader("{}", "t").begin_array(), FormatError);
  EXPECT_THROW(io::JsonReader("1", "t").boolean(), FormatError);
  EXPECT_THROW(io::JsonReader("0", "t").null(), FormatError);
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

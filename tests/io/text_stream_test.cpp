// Tests streamed output. A string may be divided into tokens in any way. The stream must output the same
// bytes, as early as possible.
#include <tilegrad/io/text/text_stream.h>

#include <gtest/gtest.h>

#include <random>

#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/text.h>
#include "tests/support/files.h"
#include "tests/support/text_stream_reference.h"

namespace tg {
namespace {

using testing::error_of;
using testing::PieceTokenizer;
using Stops = std::vector<std::string>;

// Streams `pieces` and compares each step with the definition.
void expect_stream(const std::vector<std::string>& pieces, const Stops& stops) {
  const PieceTokenizer tokenizer(pieces);
  text::TextStream stream(tokenizer, stops);
  std::string read, shown;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    read += pieces[i];
    shown += stream.add(static_cast<std::int32_t>(i));
    const testing::StoppedText expected = testing::stopped_text(read, stops);
    ASSERT_EQ(stream.stopped(), !expected.stop.empty()) << read;
    ASSERT_EQ(stream.stop(), expected.stop) << read;
    if (stream.stopped())
      ASSERT_EQ(shown, expected.text) << read;
    else
      ASSERT_EQ(shown, read.substr(0, testing::shown_bytes(read, stops))) << read;
  }
  shown += stream.finish();
  ASSERT_EQ(shown, testing::stopped_text(read, stops).text) << read;
}

// Tries every division of the string into tokens of one byte or more.
void expect_all_divisions(const std::string& text, const Stops& stops) {
  for (unsigned cuts = 0; cuts < 1u << (text.size() - 1); ++cuts) {
    std::vector<std::string> pieces{""};
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (i > 0 && (cuts >> (i - 1) & 1)) pieces.emplace_back();
      pieces.back() += text[i];
    }
    expect_stream(pieces, stops);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

std::string random_text(std::mt19937& random, std::size_t size, std::string_view bytes) {
  std::string text;
  while (text.size() < size) text += bytes[random() % bytes.size()];
  return text;
}

constexpr std::string_view euro = "\xe2\x82\xac", emoji = "\xf0\x9f\x98\x80";

std::string streamed(std::string_view text, const Stops& stops) {
  const text::ByteTokenizer tokenizer;
  text::TextStream stream(tokenizer, stops);
  std::string shown;
  for (const std::int32_t id : tokenizer.encode(text)) shown += stream.add(id);
  return shown + stream.finish();
}

TEST(TextStream, EveryDivisionIntoTokensGivesTheSameBytesAsEarlyAsPossible) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    // There are few distinct bytes, so stop strings overlap each other and the streamed string.
    const std::string_view bytes = trial % 3 == 0   ? "ab"
                                   : trial % 3 == 1 ? "a\xc3\xa9"
                                                    : "\xf0\x9f\x98\x80\xe2";
    Stops stops(random() % 4);
    for (std::string& stop : stops) stop = random_text(random, 1 + random() % 4, bytes);
    expect_all_divisions(random_text(random, 1 + random() % 8, bytes), stops);
    if (HasFatalFailure()) return;
  }
}

TEST(TextStream, LongStringsWithLongStopStringsAndEmptyTokensMatch) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 100; ++trial) {
    const std::string_view bytes = trial % 2 ? "ab" : "a \n\xe2\x82\xac\xff";
    Stops stops(random() % 3);
    for (std::string& stop : stops) stop = random_text(random, 4 + random() % 8, bytes);
    std::vector<std::string> pieces(40);
    for (std::string& piece : pieces) piece = random_text(random, random() % 8, bytes);
    expect_stream(pieces, stops);
    if (HasFatalFailure()) return;
  }
}

TEST(TextStream, OutputsWholeCharactersIfBpeTokensSplitThem) {
  const std::string text = "caf\xc3\xa9 " + std::string(emoji) + std::string(euro) + "!";
  const text::Bpe bpe({});  // a token for each byte
  text::TextStream stream(bpe);
  std::vector<std::string> pieces;
  for (const std::int32_t id : bpe.encode(text))
    if (std::string piece = stream.add(id); !piece.empty()) pieces.push_back(piece);
  EXPECT_EQ(pieces, (std::vector<std::string>{"c", "a", "f", "\xc3\xa9", " ", std::string(emoji),
                                              std::string(euro), "!"}));
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, InvalidUtf8IsPassedOnAndHoldsBackAtMostThreeBytes) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += static_cast<char>(random() % 4 ? 0x80 + random() % 128 : random());
    const text::ByteTokenizer tokenizer;
    text::TextStream stream(tokenizer);
    std::string shown;
    for (std::size_t i = 0; i < text.size(); ++i) {
      shown += stream.add(static_cast<unsigned char>(text[i]));
      ASSERT_GE(shown.size() + 3, i + 1);
    }
    ASSERT_EQ(shown + stream.finish(), text);
  }
}

TEST(TextStream, AStopStringEndsTheOutputBeforeIt) {
  EXPECT_EQ(streamed("one\n\ntwo", {"\n\n"}), "one");
  EXPECT_EQ(streamed("User: hi", {"User:"}), "");   // a stop string at the beginning of the output
  EXPECT_EQ(streamed("aab", {"ab"}), "a");          // an incomplete stop string
  EXPECT_EQ(streamed("one\n", {"\n\n"}), "one\n");  // a partial stop string at the end
  EXPECT_EQ(streamed("xabc", {"abc", "ab"}), "x");
  EXPECT_EQ(streamed("abcd", {"abcd", "bc"}), "a");  // the stop string that ends first counts
  EXPECT_EQ(streamed("abcd", {"cd", "bcd"}), "a");   // if several end at the same byte, the longest counts
  EXPECT_EQ(streamed(euro, {"\x82"}), "\xe2");       // a stop string within a character
}

TEST(TextStream, ACopyContinuesIndependently) {
  const text::ByteTokenizer tokenizer;
  text::TextStream stream(tokenizer, {"ab"});
  EXPECT_EQ(stream.add('a'), "");
  text::TextStream copy = stream;
  EXPECT_EQ(stream.add('b'), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(copy.add('c'), "ac");
  EXPECT_FALSE(copy.stopped());
}

TEST(TextStream, TokensAfterAStopStringAddNothing) {
  const text::ByteTokenizer tokenizer;
  text::TextStream stream(tokenizer, {"."});
  EXPECT_EQ(stream.add('a'), "a");
  EXPECT_EQ(stream.add('.'), "");
  EXPECT_EQ(stream.add('b'), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, InvalidCallsAreErrors) {
  const text::ByteTokenizer tokenizer;
  EXPECT_EQ(error_of([&] {
              text::TextStream(tokenizer, {"a", ""});
            }),
            "[text_stream] a stop string is empty, expected one byte or more");
  text::TextStream stream(tokenizer);
  EXPECT_EQ(error_of([&] { stream.add(256); }), "[decode] id 256, expected 0 to 255");
  stream.finish();
  EXPECT_EQ(error_of([&] { stream.add(1); }), "[text_stream] add() after finish()");
  EXPECT_EQ(error_of([&] { stream.finish(); }), "[text_stream] finish() after finish()");
}

}  // namespace
}  // namespace tg

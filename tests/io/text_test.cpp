// Tests text loading, the character vocabulary, the split, and the batch sampler.
#include <tilegrad/io/text/text.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/base/rng.h>
#include "tests/support/files.h"

namespace tg {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::TemporaryDirectory;

std::string load_error(const std::string& path) {
  return error_of([&] { text::load_text(path); });
}

TEST(LoadText, ReturnsTheBytesOfAValidFile) {
  const TemporaryDirectory dir;
  const std::string text("é€😀\r\n\0z", 13);
  EXPECT_EQ(text::load_text(dir.file("a", text)), text);
}

TEST(LoadText, EveryInvalidFileGivesAOneLineError) {
  const TemporaryDirectory dir;
  const std::string none = (dir.path / "none").string(), directory = dir.path.string(),
                    empty = dir.file("e", "");
  EXPECT_EQ(load_error(none), "[load_text] cannot read " + none + ": No such file or directory");
  EXPECT_EQ(load_error(directory), "[load_text] cannot read " + directory + ": Is a directory");
  EXPECT_EQ(load_error(empty), "[load_text] " + empty + " is empty");
  if (geteuid() != 0) {  // root may read everything
    fs::permissions(empty, fs::perms::none);
    EXPECT_EQ(load_error(empty), "[load_text] cannot read " + empty + ": Permission denied");
  }
}

TEST(LoadText, NamesTheFirstByteThatIsNotUtf8) {
  const TemporaryDirectory dir;
  const std::pair<std::string, std::string> cases[] = {
      {"abc\xff"
       "d",
       "0xff at offset 3"},                // this is never a lead byte
      {"é\x80", "0x80 at offset 2"},       // a continuation byte without a lead byte
      {"ab\xe2\x82", "0xe2 at offset 2"},  // truncated
      {"\xe2\x82"
       "a",
       "0xe2 at offset 0"},                      // a lead byte without its continuation
      {"a\xc0\xaf", "0xc0 at offset 1"},         // overlong
      {"a\xe0\x80\x80", "0xe0 at offset 1"},     // overlong
      {"\xed\xa0\x80", "0xed at offset 0"},      // surrogate
      {"\xf4\x90\x80\x80", "0xf4 at offset 0"},  // beyond U+10FFFF
  };
  for (const auto& [content, where] : cases) {
    const std::string path = dir.file("bad", content);
    EXPECT_EQ(load_error(path), "[load_text] " + path + " is not UTF-8: bad byte " + where);
  }
}

TEST(CharVocab, IdsAreRanksOfCodePoints) {
  const text::CharVocab v("banana €é");
  EXPECT_EQ(v.characters(), (std::vector<char32_t>{U' ', U'a', U'b', U'n', U'é', U'€'}));
  EXPECT_EQ(v.encode("nab€"), (std::vector<std::int32_t>{3, 1, 2, 5}));
  EXPECT_EQ(v.decode(std::vector<std::int32_t>{4, 0, 2}), "é b");
}

TEST(CharVocab, DecodingInvertsEncoding) {
  const std::string text = "Zwölf Boxkämpfer 😀\n\tjagen \xf4\x8f\xbf\xbf";
  const text::CharVocab v{std::string_view(text)};
  EXPECT_EQ(v.decode(v.encode(text)), text);
  const text::CharVocab again(std::vector<char32_t>(v.characters().rbegin(), v.characters().rend()));
  EXPECT_EQ(again.encode(text), v.encode(text));
}

TEST(CharVocab, UnknownCharactersAndIdsAreNamed) {
  const text::CharVocab v("abc");
  EXPECT_EQ(error_of([&] { v.encode("abé"); }),
            "[encode] character 'é' (U+00E9) at byte 2 is not in the vocabulary of 3 characters");
  EXPECT_EQ(error_of([&] { v.encode("\n"); }),
            "[encode] character U+000A at byte 0 is not in the vocabulary of 3 characters");
  for (const auto& [character, name] : {std::pair{"\x01", "U+0001"},
                                        {"\x1f", "U+001F"},
                                        {" ", "' ' (U+0020)"},
                                        {"~", "'~' (U+007E)"},
                                        {"\x7f", "U+007F"},
                                        {"\u009f", "U+009F"},
                                        {"\u00a0", "'\u00a0' (U+00A0)"},
                                        {"\U0001f600", "'\U0001f600' (U+1F600)"}})
    EXPECT_EQ(
        error_of([&] { v.encode(character); }),
        "[encode] character " + std::string(name) + " at byte 0 is not in the vocabulary of 3 characters");
  EXPECT_EQ(v.metadata(), (io::Metadata{{"tokenizer", "chars"}, {"characters", "abc"}}));
  const std::vector<char32_t> ends{0, 0xd7ff, 0xe000, 0x10ffff};
  EXPECT_EQ(text::CharVocab(std::vector<char32_t>(ends.rbegin(), ends.rend())).characters(), ends);
  EXPECT_EQ(error_of([&] { v.decode(std::vector<std::int32_t>{1, 3}); }), "[decode] id 3, expected 0 to 2");
  EXPECT_EQ(error_of([&] { v.decode(std::vector<std::int32_t>{-1}); }), "[decode] id -1, expected 0 to 2");
  EXPECT_EQ(error_of([&] {
              text::CharVocab(std::vector<char32_t>{U'a', U'b', U'a'});
            }),
            "[CharVocab] 'a' (U+0061) is in the vocabulary twice");
  for (const char32_t none : {char32_t{0xd800}, char32_t{0xdfff}, char32_t{0x110000}})
    EXPECT_EQ(error_of([&] {
                text::CharVocab(std::vector<char32_t>{U'a', none});
              }),
              "[CharVocab] got " + std::to_string(static_cast<unsigned>(none)) +
                  ", which is not a Unicode character");
}

std::vector<std::int32_t> count_to(int n) {
  std::vector<std::int32_t> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

TEST(SplitText, HoldsOutTheLastTenthOfTheTokens) {
  for (int n = 0; n < 200; ++n) {
    const auto tokens = count_to(n);
    const text::TextSplit s = text::split_text(tokens);
    EXPECT_EQ(s.train.size(), static_cast<std::size_t>(9 * n / 10));
    EXPECT_EQ(s.train.size() + s.validation.size(), tokens.size());
    if (s.validation.size() > 0) {
      std::int32_t first = -1;
      s.validation.copy(0, {&first, 1});
      EXPECT_EQ(first, static_cast<int>(s.train.size()));
    }
  }
}

struct Batch {
  std::vector<std::int32_t> x, y;
  explicit Batch(const text::BatchSampler& s)
      : x(static_cast<std::size_t>(s.batch() * s.context())), y(x.size()) {}
};

// Here each token equals its position. In a crop, each token must be the previous token plus 1, and y must be
// x plus 1.
void expect_crops(const text::BatchSampler& s, const Batch& b, int n) {
  const auto T = static_cast<std::size_t>(s.context());
  for (std::size_t i = 0; i < b.x.size(); ++i) {
    EXPECT_EQ(b.x[i], b.x[i / T * T] + static_cast<int>(i % T));
    EXPECT_EQ(b.y[i], b.x[i] + 1);
    EXPECT_GE(b.x[i], 0);
    EXPECT_LT(b.y[i], n);
  }
}

TEST(BatchSampler, EveryRowIsACropAndItsSuccessors) {
  const auto tokens = count_to(100);
  const text::BatchSampler s(tokens, 7, 9, "text");
  Batch b(s);
  for (std::uint64_t step = 0; step < 50; ++step) {
    s.random(3, step, b.x, b.y);
    expect_crops(s, b, 100);
  }
}

TEST(BatchSampler, DependsOnlyOnSeedAndStep) {
  const auto tokens = count_to(100000);
  const text::BatchSampler s(tokens, 4, 8, "text"), same(tokens, 4, 8, "text");
  Batch a(s), b(s), c(s), d(s);
  s.random(1, 5, a.x, a.y);
  s.random(1, 6, b.x, b.y);
  s.random(2, 5, c.x, c.y);
  same.random(1, 5, d.x, d.y);
  EXPECT_EQ(a.x, d.x);
  EXPECT_EQ(a.y, d.y);
  EXPECT_NE(a.x, b.x);
  EXPECT_NE(a.x, c.x);
}

TEST(BatchSampler, AWiderBatchStartsWithTheRowsOfANarrowerOne) {
  const auto tokens = count_to(1000);
  const text::BatchSampler narrow(tokens, 2, 8, "text"), wide(tokens, 5, 8, "text");
  Batch a(narrow), b(wide);
  narrow.random(1, 0, a.x, a.y);
  wide.random(1, 0, b.x, b.y);
  EXPECT_TRUE(std::equal(a.x.begin(), a.x.end(), b.x.begin()));
}

TEST(BatchSampler, EveryStartIsDrawnAboutEquallyOften) {
  const auto tokens = count_to(20);
  const text::BatchSampler s(tokens, 10, 4, "text");  // 16 starts, 0 to 15
  Batch b(s);
  std::vector<int> drawn(20);
  for (std::uint64_t step = 0; step < 1600; ++step) {
    s.random(9, step, b.x, b.y);
    for (int row = 0; row < 10; ++row)
      ++drawn[static_cast<std::size_t>(b.x[static_cast<std::size_t>(4 * row)])];
  }
  // With 16000 draws, each start is drawn 1000 ± 31 times (one standard deviation). A deviation of six
  // standard deviations is too unlikely to occur by chance.
  for (std::size_t start = 0; start < 20; ++start) {
    if (start < 16) {
      EXPECT_NEAR(drawn[start], 1000, 186) << start;
    } else {
      EXPECT_EQ(drawn[start], 0) << start;
    }
  }
}

TEST(BatchSampler, EvaluationIsFixedAndCoversEveryToken) {
  for (const int n : {9, 10, 11, 64, 100, 101, 997}) {
    const auto tokens = count_to(n);
    const text::BatchSampler s(tokens, 3, 8, "text");
    Batch b(s);
    std::set<int> predicted;
    const std::int64_t count = s.evaluation_count();
    for (std::int64_t k = 0; k < count; ++k) {
      s.evaluation(k, count, b.x, b.y);
      expect_crops(s, b, n);
      predicted.insert(b.y.begin(), b.y.end());
    }
    EXPECT_EQ(predicted.size(), static_cast<std::size_t>(n - 1)) << n;
    EXPECT_LE((count - 1) * 3 * 8, n - 1) << "one batch fewer would do";
  }
}

TEST(BatchSampler, AFewEvaluationBatchesCoverTheWholeRange) {
  const auto tokens = count_to(1000);
  const text::BatchSampler s(tokens, 2, 10, "text");
  Batch b(s);
  s.evaluation(0, 3, b.x, b.y);
  EXPECT_EQ(b.x.front(), 0);
  s.evaluation(2, 3, b.x, b.y);
  EXPECT_EQ(b.y.back(), 999);
}

TEST(BatchSampler, ACorpusShorterThanTheContextIsRefused) {
  const auto tokens = count_to(9);
  EXPECT_NO_THROW(text::BatchSampler(tokens, 1, 8, "text"));
  EXPECT_EQ(error_of([&] { text::BatchSampler(tokens, 1, 9, "validation text"); }),
            "[BatchSampler] validation text has 9 tokens, expected at least context + 1 = 10");
  EXPECT_EQ(error_of([&] { text::BatchSampler(tokens, 1, 9223372036854775807, "text"); }),
            "[BatchSampler] text has 9 tokens, expected at least context + 1 = 9223372036854775808");
  EXPECT_THROW(text::BatchSampler(tokens, 0, 4, "text"), ShapeError);
  const text::BatchSampler s(tokens, 2, 4, "text");
  std::vector<std::int32_t> x(8), y(7);
  EXPECT_THROW(s.random(0, 0, x, y), ShapeError);
}

TEST(BatchSampler, RowsOfAStepAreTheSameInParts) {
  const auto tokens = count_to(500);
  const text::BatchSampler whole(tokens, 6, 8, "text"), part(tokens, 2, 8, "text");
  Batch all(whole), some(part);
  whole.random(3, 4, all.x, all.y);
  for (const std::int64_t first : {0, 2, 4}) {
    part.random(3, 4, first, some.x, some.y);
    EXPECT_TRUE(std::equal(some.x.begin(), some.x.end(), all.x.begin() + first * 8));
    EXPECT_TRUE(std::equal(some.y.begin(), some.y.end(), all.y.begin() + first * 8));
  }
}

// The header defines the starts: ⌊u·(n − context)⌋ for 64-bit fractions u.
TEST(BatchSampler, RandomStartsMatchPhilox) {
  const auto tokens = count_to(1000);
  const std::uint64_t seeds[] = {0, 1, 1ull << 40}, steps[] = {0, 5, 1ull << 33};
  for (const std::int64_t context : {1, 9, 999})
    for (const std::uint64_t seed : seeds)
      for (const std::uint64_t step : steps)
        for (const std::int64_t first : {std::int64_t{0}, std::int64_t{3}, (std::int64_t{1} << 32) - 1}) {
          const text::BatchSampler s(tokens, 3, context, "text");
          Batch b(s);
          s.random(seed, step, first, b.x, b.y);
          for (std::int64_t row = 0; row < 3; ++row) {
            const auto at = static_cast<std::uint64_t>(first + row);
            const PhiloxBlock block =
                philox({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32), 0, 0},
                       node_key(seed, step, 0xffffffffu));
            const unsigned __int128 u = block[0] + (std::uint64_t{block[1]} << 32);
            EXPECT_EQ(b.x[static_cast<std::size_t>(row * context)],
                      static_cast<std::int32_t>(u * static_cast<unsigned>(1000 - context) >> 64));
          }
          expect_crops(s, b, 1000);
          if (first == 0) {
            Batch same(s);
            s.random(seed, step, same.x, same.y);
            EXPECT_EQ(same.x, b.x);
          }
        }
}

TEST(BatchSampler, EvaluationStartsAreEvenlySpaced) {
  for (const int n : {5, 6, 40, 101})
    for (const std::int64_t context : {1, 4})
      for (const std::int64_t batch : {1, 3}) {
        const auto tokens = count_to(n);
        const text::BatchSampler s(tokens, batch, context, "text");
        Batch b(s);
        for (const std::int64_t count : {1, 2, 5})
          for (std::int64_t k = 0; k < count; ++k) {
            s.evaluation(k, count, b.x, b.y);
            expect_crops(s, b, n);
            for (std::int64_t row = 0; row < batch; ++row) {
              const std::int64_t crops = count * batch, place = k * batch + row, last = n - context - 1;
              EXPECT_EQ(b.x[static_cast<std::size_t>(row * context)],
                        crops == 1 ? 0 : last * place / (crops - 1));
            }
          }
        std::int64_t least = 1;  // batches needed to predict every token except the first
        while (least * batch * context < n - 1) ++least;
        EXPECT_EQ(s.evaluation_count(), least) << n << " " << context << " " << batch;
        for (const auto& [k, count] : {std::pair{-1, 2}, {2, 2}, {0, 0}})
          EXPECT_EQ(
              error_of([&] { s.evaluation(k, count, b.x, b.y); }),
              "[BatchSampler] got evaluation batch " + std::to_string(k) + " of " + std::to_string(count));
      }
}

TEST(BatchSampler, InvalidSizesAreRefused) {
  const auto tokens = count_to(20);
  constexpr std::int64_t most = 9223372036854775807;
  const std::string expected = ", expected at least 1, and a product of 64 bits";
  const auto refusal = [&](std::int64_t batch, std::int64_t context) {
    return error_of([&] { text::BatchSampler(tokens, batch, context, "text"); });
  };
  for (const auto& [batch, context] :
       {std::pair<std::int64_t, std::int64_t>{0, 4}, {-1, 4}, {4, 0}, {4, -1}, {most / 4 + 1, 4}})
    EXPECT_EQ(refusal(batch, context), "[BatchSampler] got batch " + std::to_string(batch) + " and context " +
                                           std::to_string(context) + expected);
  EXPECT_EQ(refusal(most / 4, 4), "no error");
  EXPECT_EQ(refusal(1, 19), "no error");
  const text::BatchSampler s(tokens, 2, 4, "text");
  for (const std::size_t nx : {7, 8, 9})
    for (const std::size_t ny : {7, 8, 9}) {
      std::vector<std::int32_t> x(nx), y(ny);
      const std::string message = "[BatchSampler] got room for " + std::to_string(nx) + " and " +
                                  std::to_string(ny) + " tokens, expected batch · context = 8";
      EXPECT_EQ(error_of([&] { s.random(0, 0, x, y); }), nx == 8 && ny == 8 ? "no error" : message);
      EXPECT_EQ(error_of([&] { s.evaluation(0, 1, x, y); }), nx == 8 && ny == 8 ? "no error" : message);
    }
}

}  // namespace
}  // namespace tg

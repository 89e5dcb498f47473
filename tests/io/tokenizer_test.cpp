// Tests tokenizers. Every byte string must survive a round trip. Training must find the same
// merges as a direct implementation of the definition. A saved tokenizer can be loaded. If a tokenizer is
// invalid, the error names the reason.
#include <tilegrad/io/text/tokenizer.h>

#include <gtest/gtest.h>

#include <map>
#include <random>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/text.h>
#include "tests/support/files.h"

namespace tg {
namespace {

using testing::error_of;

using text::WordRule;

std::vector<std::string> words_of(std::string_view text, WordRule rule = WordRule::bytes) {
  std::vector<std::string> words;
  for (std::size_t i = 0, end = 0; i < text.size(); i = end) {
    end = text::word_end(rule, text, i);
    words.emplace_back(text.substr(i, end - i));
  }
  return words;
}

// Returns a string with enough repetition to contain frequent pairs, and with bytes of every kind.
std::string random_text(std::mt19937& random, std::size_t size) {
  static constexpr std::string_view often = "  eettaaoinhs\n'.,1\xc3\xa9";
  std::string text;
  while (text.size() < size)
    text += random() % 20 == 0 ? static_cast<char>(random()) : often[random() % often.size()];
  return text;
}

TEST(Words, AreSplitLikeGpt2) {
  using List = std::vector<std::string>;
  EXPECT_EQ(words_of("It's what they've got."), (List{"It", "'s", " what", " they", "'ve", " got", "."}));
  EXPECT_EQ(words_of("a  b\n\n c"), (List{"a", " ", " b", "\n\n", " c"}));
  EXPECT_EQ(words_of("x=12, (y)"), (List{"x", "=", "12", ",", " (", "y", ")"}));
  EXPECT_EQ(words_of("f\xc3\xbcr \xe2\x82\xac"), (List{"f\xc3\xbcr", " \xe2\x82\xac"}));
  EXPECT_EQ(words_of(" \n"), (List{" \n"}));
  EXPECT_EQ(words_of("'"), (List{"'"}));
  EXPECT_EQ(words_of("'v"), (List{"'", "v"}));
  EXPECT_EQ(words_of("'s"), (List{"'s"}));
}

// Tests word rules that are defined on characters. hf_tokenizer_test compares complete tokenizers with the
// reference.
TEST(Words, CharacterRulesMatchTheirPatterns) {
  using List = std::vector<std::string>;
  const auto of = [](WordRule rule) {
    return [rule](std::string_view text) { return words_of(text, rule); };
  };
  const auto gpt2 = of(WordRule::gpt2), llama3 = of(WordRule::llama3), qwen2 = of(WordRule::qwen2),
             deepseek = of(WordRule::deepseek_words);
  EXPECT_EQ(gpt2("It's 12345  x\n\ny"), (List{"It", "'s", " 12345", " ", " x", "\n", "\n", "y"}));
  EXPECT_EQ(gpt2("f\u00fcr\u00a0x \u20ac\u00bd"), (List{"f\u00fcr", "\u00a0", "x", " \u20ac", "\u00bd"}));
  EXPECT_EQ(gpt2("\x1f-a"), (List{"\x1f-", "a"}));  // U+001F is not white space
  EXPECT_EQ(gpt2("'S'\u017f"), (List{"'", "S", "'", "\u017f"}));
  EXPECT_EQ(gpt2("a\xff\xff b"), (List{"a", "\xff\xff", " b"}));
  EXPECT_EQ(llama3("'S'\u017f'LLx"), (List{"'S", "'\u017f", "'LL", "x"}));
  EXPECT_EQ(llama3("'\u017fx"), (List{"'\u017f", "x"}));
  EXPECT_EQ(llama3("12345 (x).\r\n\n y"), (List{"123", "45", " (", "x", ").\r\n\n", " y"}));
  EXPECT_EQ(llama3("a \n \n  b"), (List{"a", " \n \n", " ", " b"}));
  EXPECT_EQ(llama3("\tx\u093f"), (List{"\tx", "\u093f"}));  // a mark is not a letter
  EXPECT_EQ(qwen2("123 4"), (List{"1", "2", "3", " ", "4"}));
  EXPECT_EQ(deepseek("(abc\u00e9 x\u093f."), (List{"(abc", "\u00e9", " x\u093f", "."}));
  EXPECT_EQ(deepseek("\x01\x02x"), (List{"\x01", "\x02x"}));
  EXPECT_EQ(words_of("12345a", WordRule::deepseek_digits), (List{"123", "45", "a"}));
  EXPECT_EQ(words_of("a\u4e00\u3042b", WordRule::deepseek_ideographs), (List{"a", "\u4e00\u3042", "b"}));
  EXPECT_EQ(words_of("ab12c", WordRule::each_digit), (List{"ab", "1", "2", "c"}));
  EXPECT_EQ(words_of("ab12c", WordRule::digits), (List{"ab", "12", "c"}));
  const std::string mark = "\u2581";
  EXPECT_EQ(words_of("x" + mark + mark + "y", WordRule::each_space), (List{"x", mark, mark + "y"}));
  EXPECT_EQ(words_of("x" + mark + mark + "y", WordRule::spaces), (List{"x", mark + mark + "y"}));
}

TEST(Words, StayWithinTheLimitAndRestoreTheInput) {
  std::mt19937 random(1);
  for (const std::string& text :
       {std::string(1000, 'x'), std::string(1000, ' '), random_text(random, 5000)}) {
    std::string joined;
    for (const std::string& word : words_of(text)) {
      EXPECT_LE(word.size(), text::max_word_bytes);
      EXPECT_GT(word.size(), 0u);
      joined += word;
    }
    EXPECT_EQ(joined, text);
  }
}

TEST(Words, AStringSplitAtSafePointsHasTheSameWords) {
  std::mt19937 random(2);
  const std::string text = random_text(random, 20000);
  for (const WordRule rule :
       {WordRule::bytes, WordRule::gpt2, WordRule::llama3, WordRule::qwen2, WordRule::deepseek_words}) {
    const auto whole = words_of(text, rule);
    int cuts = 0;
    for (std::size_t limit = 0; limit <= text.size(); limit += 97) {
      const std::size_t cut = text::safe_cut(text, limit);
      ASSERT_LE(cut, limit);
      if (cut == 0) continue;
      auto parts = words_of(std::string_view(text).substr(0, cut), rule);
      const auto rest = words_of(std::string_view(text).substr(cut), rule);
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_EQ(parts, whole) << cut;
      ++cuts;
    }
    EXPECT_GT(cuts, 100);
  }
}

// Trains by definition, without optimizations: counts all pairs, joins the most frequent pair, and repeats.
std::vector<text::Bpe::Merge> plain_training(std::string_view text, std::int64_t vocabulary) {
  std::vector<std::vector<std::int32_t>> words;
  for (const std::string& word : words_of(text, WordRule::gpt2)) {
    words.emplace_back();
    for (const char c : word) words.back().push_back(static_cast<unsigned char>(c));
  }
  std::vector<text::Bpe::Merge> merges;
  std::vector<std::size_t> bytes(256, 1);
  const auto bytes_of = [&](const text::Bpe::Merge& m) {
    return bytes[static_cast<std::size_t>(m.first)] + bytes[static_cast<std::size_t>(m.second)];
  };
  while (256 + static_cast<std::int64_t>(merges.size()) < vocabulary) {
    std::map<text::Bpe::Merge, std::int64_t> counts;
    for (const auto& word : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    std::pair<text::Bpe::Merge, std::int64_t> best{{}, 1};
    for (const auto& entry : counts)
      if (entry.second > best.second && bytes_of(entry.first) <= text::max_word_bytes)
        best = entry;  // among equally frequent pairs, the pair with the smallest ids is first
    if (best.second < 2) break;
    for (auto& word : words) {
      std::vector<std::int32_t> joined;
      for (std::size_t i = 0; i < word.size(); ++i) {
        const bool both = i + 1 < word.size() && text::Bpe::Merge(word[i], word[i + 1]) == best.first;
        joined.push_back(both ? static_cast<std::int32_t>(256 + merges.size()) : word[i]);
        i += both;
      }
      word = joined;
    }
    merges.push_back(best.first);
    bytes.push_back(bytes_of(best.first));
  }
  return merges;
}

TEST(Bpe, TrainingMatchesTheDefinition) {
  std::mt19937 random(3);
  for (const std::size_t size : {0, 1, 5, 300, 4000}) {
    const std::string text = random_text(random, size);
    EXPECT_EQ(text::Bpe::train(text, 400).merges(), plain_training(text, 400)) << size;
  }
  const std::string runs = "aaaaa aaa aaaaaaa aaaa\naaaaaaaaaaaaa bababab";
  EXPECT_EQ(text::Bpe::train(runs, 300).merges(), plain_training(runs, 300));
  const std::string long_runs(2000, '-');  // otherwise tokens would have 256, 512 and more bytes
  EXPECT_EQ(text::Bpe::train(long_runs, 300).merges(), plain_training(long_runs, 300));
}

// Encodes by definition: applies each merge in order to the complete word.
std::vector<std::int32_t> plain_encoding(const text::Bpe& bpe, std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const std::string& word : words_of(text, bpe.words())) {
    std::vector<std::int32_t> tokens;
    for (const char c : word) tokens.push_back(static_cast<unsigned char>(c));
    for (std::size_t k = 0; k < bpe.merges().size(); ++k)
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i)
        if (text::Bpe::Merge(tokens[i], tokens[i + 1]) == bpe.merges()[k]) {
          tokens[i] = static_cast<std::int32_t>(256 + k);
          tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  }
  return ids;
}

TEST(Bpe, EncodingMatchesTheDefinitionAndEveryByteStringSurvives) {
  std::mt19937 random(4);
  const text::Bpe bpe = text::Bpe::train(random_text(random, 20000), 500), old(bpe.merges(), WordRule::bytes);
  EXPECT_EQ(bpe.size(), 500);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  std::vector<std::string> texts{"", " ", "\n", std::string(400, 'e'), all, all + all};
  for (int i = 0; i < 200; ++i) texts.push_back(random_text(random, random() % 300));
  for (int i = 0; i < 200; ++i) {
    std::string noise(random() % 300, ' ');
    for (char& c : noise) c = static_cast<char>(random());
    texts.push_back(noise);
  }
  for (const std::string& text : texts) {
    const auto ids = bpe.encode(text);
    ASSERT_EQ(ids, plain_encoding(bpe, text));
    ASSERT_EQ(bpe.decode(ids), text);
    ASSERT_EQ(old.encode(text), plain_encoding(old, text));
  }
  const std::string trained = random_text(random, 20000);
  EXPECT_LT(bpe.encode(trained).size(), trained.size() * 3 / 4);
}

// An old checkpoint split words by bytes, and its metadata do not mention this.
TEST(Bpe, AnOldCheckpointEncodesAsBefore) {
  const std::string merges = "195 169\n32 10\n226 128\n";  // é; a space and a line break; of “ and ”
  const auto old = text::load_tokenizer({{"tokenizer", "bpe"}, {"merges", merges}}, "m");
  EXPECT_EQ(old->metadata(), (io::Metadata{{"tokenizer", "bpe"}, {"merges", merges}}));
  const auto now = text::load_tokenizer({{"tokenizer", "bpe"}, {"merges", merges}, {"words", "gpt2"}}, "m");
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(old->encode("x \nx"), (Ids{'x', 257, 'x'}));  // GPT-2's rule joins the line break and the x
  EXPECT_EQ(now->encode("x \nx"), (Ids{'x', ' ', '\n', 'x'}));
  EXPECT_EQ(old->encode("a\u201c"), (Ids{'a', 258, 0x9c}));
  EXPECT_EQ(now->encode("a\u201c"), (Ids{'a', 258, 0x9c}));
  EXPECT_EQ(error_of([&] {
              text::load_tokenizer({{"tokenizer", "bpe"}, {"merges", merges}, {"words", "x"}}, "m");
            }),
            "m: words is 'x', expected gpt2");
  EXPECT_THROW(text::Bpe({}, WordRule::llama3), Error);
}

TEST(Bpe, MoreDistinctWordsThanTheCacheHoldsEncodeTheSame) {
  std::string text;
  for (int i = 0; i < 300000; ++i) text += " w" + std::to_string(i);
  const text::Bpe bpe = text::Bpe::train(" w1 w12 w123 w12 w1", 262);
  EXPECT_EQ(bpe.decode(bpe.encode(text)), text);
  EXPECT_EQ(bpe.encode(text + " w1"), [&] {
    auto ids = bpe.encode(text);
    const auto last = bpe.encode(" w1");
    ids.insert(ids.end(), last.begin(), last.end());
    return ids;
  }());
}

// If a mapped file has become shorter, zeros replace the lost data. They would be one long word.
TEST(Bpe, InputIsCheckedBeforeTheFirstMerge) {
  int calls = 0;
  EXPECT_EQ(text::Bpe::train("the other the other", 262, [&] { ++calls; }).merges(),
            text::Bpe::train("the other the other", 262).merges());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(error_of([] { text::Bpe::train("the other", 262, [] { throw Error("it shrank"); }); }),
            "it shrank");
}

TEST(Bpe, AnImpossibleVocabularyIsAnError) {
  EXPECT_EQ(error_of([] { text::Bpe::train("text", 256); }),
            "[bpe] got a vocabulary of 256, expected 257 to 1048576");
  EXPECT_EQ(text::Bpe::train("abc", 1000).size(), 256);  // no pair occurs twice
}

TEST(Bytes, EveryByteIsItsToken) {
  const text::ByteTokenizer bytes;
  const std::string text("\0\xff z", 4);
  EXPECT_EQ(bytes.encode(text), (std::vector<std::int32_t>{0, 255, 32, 122}));
  EXPECT_EQ(bytes.decode(bytes.encode(text)), text);
}

TEST(Numbers, AreTheirTokens) {
  const text::NumberTokenizer numbers(300);
  EXPECT_EQ(numbers.encode(" 17  4\n299"), (std::vector<std::int32_t>{17, 4, 299}));
  EXPECT_EQ(numbers.decode(numbers.encode("17 4 299")), "17 4 299 ");
  EXPECT_EQ(text::load_tokenizer(numbers.metadata(), "m")->size(), 300);
  EXPECT_EQ(error_of([&] { numbers.encode("1 300"); }), "[encode] expected numbers from 0 to 299, at byte 2");
  for (const char* bad : {"-1", "x", "1x", "99999999999"}) EXPECT_THROW(numbers.encode(bad), Error) << bad;
  for (const char* bad : {"", "0", "x", "2147483648", "5 "})
    EXPECT_EQ(error_of([&] {
                text::load_tokenizer({{"tokenizer", "numbers"}, {"vocabulary", bad}}, "m");
              }),
              "m: vocabulary is '" + std::string(bad) + "', expected 1 to 2147483647");
  EXPECT_THROW(text::NumberTokenizer(0), Error);
}

TEST(Tokenizers, SurviveARoundTrip) {
  const std::string text = "Ein für alle Mal: ein für alle Mal.\n";
  const text::Bpe bpe = text::Bpe::train(text, 270);
  const text::CharVocab chars(text);
  const text::ByteTokenizer bytes;
  for (const text::Tokenizer* saved :
       {static_cast<const text::Tokenizer*>(&bpe), static_cast<const text::Tokenizer*>(&chars),
        static_cast<const text::Tokenizer*>(&bytes)}) {
    io::Metadata metadata = saved->metadata();
    metadata["model"] = "gpt";
    const auto loaded = text::load_tokenizer(metadata, "m");
    EXPECT_EQ(loaded->kind(), saved->kind());
    EXPECT_EQ(loaded->size(), saved->size());
    EXPECT_EQ(loaded->encode(text), saved->encode(text));
    EXPECT_EQ(loaded->decode(saved->encode(text)), text);
    EXPECT_EQ(loaded->metadata(), saved->metadata());
  }
}

TEST(Tokenizers, AnUnknownIdIsAnError) {
  const std::int32_t above = 256, below = -1;
  const text::Bpe bpe = text::Bpe::train("", 300);
  EXPECT_EQ(error_of([&] { bpe.decode({&above, 1}); }), "[decode] id 256, expected 0 to 255");
  EXPECT_EQ(error_of([&] {
              text::ByteTokenizer().decode({&below, 1});
            }),
            "[decode] id -1, expected 0 to 255");
}

TEST(Tokenizers, InvalidTokenizersAreRefusedByName) {
  const auto refused = [](const io::Metadata& m) { return error_of([&] { text::load_tokenizer(m, "m"); }); };
  const auto merges = [&](const std::string& lines) {
    return refused({{"tokenizer", "bpe"}, {"merges", lines}});
  };
  EXPECT_EQ(refused({}), "m: metadata has no tokenizer");
  EXPECT_EQ(refused({{"tokenizer", "words"}}),
            "m: tokenizer is 'words', expected chars, bytes, bpe, numbers or hf");
  EXPECT_EQ(refused({{"tokenizer", "bpe"}}), "m: metadata has no merges");
  EXPECT_EQ(refused({{"tokenizer", "chars"}}), "m: metadata has no characters");
  const std::string not_text = "m: characters are not UTF-8 text of one character or more";
  EXPECT_EQ(refused({{"tokenizer", "chars"}, {"characters", ""}}), not_text);
  EXPECT_EQ(refused({{"tokenizer", "chars"}, {"characters", "a\xff"}}), not_text);
  EXPECT_EQ(refused({{"tokenizer", "chars"}, {"characters", "aba"}}),
            "m: [CharVocab] 'a' (U+0061) is in the vocabulary twice");
  const std::string line = ": expected two token ids and a line break";
  for (const char* bad :
       {"1", "1 2", "1 2 ", "1 2 3\n", "1\n", "a b\n", "1  2\n", " 1 2\n", "1 99999999999\n", "\n"})
    EXPECT_EQ(merges(bad), "m: merges, line 1" + line) << bad;
  EXPECT_EQ(merges("1 2\n3 4\r\n"), "m: merges, line 2" + line);
  EXPECT_EQ(merges("1 2\n256 257\n"),
            "m: [bpe] merge 1 (256 257) names a token that does not exist before it, expected 0 to 256");
  EXPECT_EQ(merges("-1 2\n"),
            "m: [bpe] merge 0 (-1 2) names a token that does not exist before it, expected 0 to 255");
  EXPECT_EQ(merges("1 2\n1 2\n"), "m: [bpe] merge 1 (1 2) occurs twice");
  std::string doubled = "0 0\n";  // each token is twice as long as the previous one
  for (int i = 256; i < 280; ++i) doubled += std::to_string(i) + " " + std::to_string(i) + "\n";
  EXPECT_EQ(merges(doubled), "m: [bpe] merge 7 (262 262) makes a token of 256 bytes, expected at most 128");
}

TEST(Tokenizers, LimitsOfVocabularies) {
  constexpr std::int64_t most = 2147483647;
  EXPECT_EQ(text::NumberTokenizer(1).encode("0 0"), (std::vector<std::int32_t>{0, 0}));
  EXPECT_EQ(text::NumberTokenizer(most).encode("2147483646"), std::vector<std::int32_t>{2147483646});
  EXPECT_EQ(text::NumberTokenizer(most).metadata(),
            (io::Metadata{{"tokenizer", "numbers"}, {"vocabulary", "2147483647"}}));
  EXPECT_EQ(text::load_tokenizer({{"tokenizer", "numbers"}, {"vocabulary", "2147483647"}}, "m")->size(),
            most);
  EXPECT_EQ(text::load_tokenizer({{"tokenizer", "numbers"}, {"vocabulary", "1"}}, "m")->size(), 1);
  EXPECT_EQ(error_of([] { text::NumberTokenizer(0); }),
            "[tokenizer] got a vocabulary of 0, expected 1 to 2147483647");
  EXPECT_EQ(error_of([] { text::NumberTokenizer(most + 1); }),
            "[tokenizer] got a vocabulary of 2147483648, expected 1 to 2147483647");
  const text::NumberTokenizer numbers(300);
  EXPECT_EQ(numbers.encode("1\n2\n"), (std::vector<std::int32_t>{1, 2}));
  EXPECT_TRUE(numbers.encode("").empty());
  EXPECT_TRUE(numbers.encode(" \n ").empty());
  for (const auto& [text, at] :
       {std::pair{"300", 0}, {"1 2,3", 2}, {" x", 1}, {"1 2\t3", 2}, {"1 2 -3", 4}, {"0 1 2147483648", 4}})
    EXPECT_EQ(error_of([&] { numbers.encode(text); }),
              "[encode] expected numbers from 0 to 299, at byte " + std::to_string(at));
  for (const std::int32_t id : {-1, 300}) {
    EXPECT_EQ(error_of([&] {
                numbers.decode({&id, 1});
              }),
              "[decode] id " + std::to_string(id) + ", expected 0 to 299");
    EXPECT_EQ(error_of([&] {
                text::Bpe(std::vector<text::Bpe::Merge>{{1, 2}}).bytes(id);
              }),
              id < 0 ? "[decode] id -1, expected 0 to 256" : "[decode] id 300, expected 0 to 256");
  }
  EXPECT_EQ(error_of([] { text::Bpe::train("text", 1048577); }),
            "[bpe] got a vocabulary of 1048577, expected 257 to 1048576");
  EXPECT_EQ(text::Bpe::train("abab", 1048576).size(), 257);
  EXPECT_EQ(text::Bpe::train("abababab", 257).merges(), (std::vector<text::Bpe::Merge>{{97, 98}}));
  const text::Bpe bpe(std::vector<text::Bpe::Merge>{{97, 98}, {256, 99}});
  EXPECT_EQ(bpe.bytes(257), "abc");
  EXPECT_EQ(bpe.bytes(256), "ab");
  EXPECT_EQ(bpe.bytes(255), "\xff");
  EXPECT_EQ(bpe.bytes(0), std::string(1, '\0'));
  EXPECT_EQ(bpe.metadata(),
            (io::Metadata{{"tokenizer", "bpe"}, {"merges", "97 98\n256 99\n"}, {"words", "gpt2"}}));
  EXPECT_EQ(bpe.continuation(257), "abc");
  EXPECT_EQ(bpe.encode_whole("abc"), std::vector<std::int32_t>{257});
  EXPECT_EQ(bpe.safe_cut("ab cd", 4), 2u);
  std::string lines;
  for (std::int64_t i = 256; i < text::Bpe::max_vocabulary; ++i) lines += "0 0\n";
  EXPECT_EQ(text::parse_merges(lines, "m").size(), 1048320u);
  EXPECT_EQ(error_of([&] { text::parse_merges(lines + "0 0\n", "m"); }), "m, line 1048321: too many merges");
  EXPECT_EQ(error_of([] { text::Bpe(std::vector<text::Bpe::Merge>(1048321)); }),
            "[bpe] 1048577 tokens, expected at most 1048576");
  std::vector<text::Bpe::Merge> doubled{{0, 0}};  // tokens of up to 128 bytes, the longest allowed
  for (int i = 256; i < 262; ++i) doubled.emplace_back(i, i);
  EXPECT_EQ(text::Bpe(doubled).bytes(262).size(), 128u);
  doubled.emplace_back(262, 0);
  EXPECT_EQ(error_of([&] { text::Bpe{doubled}; }),
            "[bpe] merge 7 (262 0) makes a token of 129 bytes, expected at most 128");
}

}  // namespace
}  // namespace tg

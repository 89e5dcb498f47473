// Tests tokenizers of Hugging Face folders. Ids must equal the reference.
// tests/interop/make_tokenizer_golden.py wrote the reference. Every byte string must survive a round trip.
// Unsupported settings must be refused, and the error must name the setting.
#include <tilegrad/io/text/hf_tokenizer.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <random>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/text/text_stream.h>
#include "io/files/utf8.h"
#include "io/text/char_runs.h"
#include "io/text/unicode.h"
#include "tests/support/files.h"

namespace tg {
namespace {

using testing::error_of;
using Ids = std::vector<std::int32_t>;

std::string golden(const std::string& name) {
  return std::string(TG_TOKENIZERS) + "/" + name;
}

Ids ids_of(io::JsonReader& json) {
  Ids ids;
  json.begin_array();
  while (json.next_item()) ids.push_back(static_cast<std::int32_t>(json.integer()));
  return ids;
}

// Replaces bytes that are not UTF-8 in the same way as the reference.
std::string lossy(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    char32_t c = 0;
    std::size_t length = io::utf8_decode(text, i, c);
    if (length > 0) {
      out += text.substr(i, length);
    } else {
      // If bytes are the beginning of a character, one U+FFFD replaces them.
      for (length = 1; i + length < text.size() && length < 4; ++length)
        if (io::utf8_incomplete_bytes(text.substr(i, length + 1)) != length + 1) break;
      out += "\xef\xbf\xbd";
    }
    i += length;
  }
  return out;
}

// Computes FNV-1a over numbers instead of bytes.
class Checksum {
 public:
  void add(std::uint64_t number) { value_ = (value_ ^ number) * 0x100000001b3; }
  std::string text() const {
    char shown[20];
    std::snprintf(shown, sizeof shown, "%016llx", static_cast<unsigned long long>(value_));
    return shown;
  }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

// Replaces each '?' in the pattern by a code point, and calls f with the result. Does this for every assigned
// code point and some others.
template <class F>
void for_every_code_point(const std::string& pattern, F&& f) {
  for (char32_t c = 0; c < 0xe1000; ++c) {
    if ((c >= 0xd800 && c <= 0xdfff) || (c >= 0x33000 && c < 0xe0000)) continue;
    std::string character, text;
    io::utf8_append(character, c);
    for (const char letter : pattern) text += letter == '?' ? character : std::string(1, letter);
    f(text);
  }
}

class HfGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(HfGolden, IdsMatchTheReference) {
  const text::HfTokenizer tokenizer = text::HfTokenizer::open(golden(GetParam()));
  const std::string file = io::read_file(golden(GetParam()) + "/cases.json", "test");
  io::JsonReader json(file, "cases");
  std::string code_points, pattern;
  int cases = 0;
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key == "code_points" || *key == "template") {
      (*key == "template" ? pattern : code_points) = json.string();
      continue;
    }
    json.begin_array();
    while (json.next_item()) {
      std::string text;
      Ids ids;
      std::optional<Ids> whole;
      std::optional<std::string> decoded;
      json.begin_object();
      while (const auto field = json.next_key()) {
        if (*field == "text") text = json.string();
        if (*field == "ids") ids = ids_of(json);
        if (*field == "whole") whole = ids_of(json);
        if (*field == "decoded") decoded = json.string();
      }
      EXPECT_EQ(tokenizer.encode(text), ids) << text;
      EXPECT_EQ(tokenizer.encode_whole(text), whole.value_or(ids)) << text;
      // Added tokens decode to their own characters. The reference decodes these characters as byte letters,
      // so the set "added" is skipped. Invalid bytes do not change.
      if (tokenizer.is_byte_level() && GetParam() != "added") {
        EXPECT_EQ(lossy(tokenizer.decode(ids)), decoded.value_or(text)) << text;
      }
      ++cases;
    }
  }
  EXPECT_GT(cases, 300);
  if (code_points.empty()) return;
  Checksum checksum;
  for_every_code_point(pattern, [&](const std::string& text) {
    for (const std::int32_t id : tokenizer.encode(text)) checksum.add(static_cast<std::uint64_t>(id));
  });
  EXPECT_EQ(checksum.text(), code_points);
}

INSTANTIATE_TEST_SUITE_P(All, HfGolden,
                         ::testing::Values("gpt2", "llama3", "qwen2", "deepseek3", "deepseek",
                                           "deepseek_coder", "smollm", "prefix_space", "llama2", "qwen35",
                                           "gpt4o", "tekken", "sentencepiece", "metaspace_first",
                                           "metaspace_always", "added"),
                         [](const auto& param) { return param.param; });

// Compares the number of code points in each class with the reference (tools/unicode_tables.py).
TEST(Unicode, ClassesMatchVersion16) {
  const std::uint8_t* classes = text::char_classes();
  const auto count = [&](int flag) {
    return std::count_if(classes, classes + 0x110000, [&](int c) { return c & flag; });
  };
  EXPECT_EQ(count(text::char_class::letter), 141028);
  EXPECT_EQ(count(text::char_class::mark), 2501);
  EXPECT_EQ(count(text::char_class::number), 1911);
  EXPECT_EQ(count(text::char_class::punctuation), 855);
  EXPECT_EQ(count(text::char_class::symbol), 8514);
  EXPECT_EQ(count(text::char_class::space), 25);
  EXPECT_EQ(count(text::char_class::numeric), 1924);
  EXPECT_EQ(classes[0x1f], 0);
}

// Compares the word boundaries and the normal form of a string with every code point.
TEST(Unicode, WordsAndNfcMatchTheReference) {
  using text::WordRule;
  const std::vector<std::pair<std::string, WordRule>> rules{
      {"gpt2", WordRule::gpt2},
      {"llama3", WordRule::llama3},
      {"qwen2", WordRule::qwen2},
      {"qwen35", WordRule::qwen35},
      {"gpt4o", WordRule::gpt4o},
      {"tekken", WordRule::tekken},
      {"deepseek_digits", WordRule::deepseek_digits},
      {"deepseek_ideographs", WordRule::deepseek_ideographs},
      {"deepseek_words", WordRule::deepseek_words},
      {"each_digit", WordRule::each_digit},
      {"digits", WordRule::digits}};
  std::vector<Checksum> words(rules.size());
  for_every_code_point("a?b ?1?2345  ?'s?\n? ??  ?x", [&](const std::string& text) {
    for (std::size_t r = 0; r < rules.size(); ++r)
      for (std::size_t i = 0; i < text.size(); words[r].add(i)) i = text::word_end(rules[r].second, text, i);
  });
  Checksum nfc;
  for_every_code_point("?a?\u0334 \u0345? ?\u0327 ?\u0301\u11a8", [&](const std::string& text) {
    for (const char c : text::nfc(text)) nfc.add(static_cast<unsigned char>(c));
  });
  const std::string file = io::read_file(golden("checksums.json"), "test");
  io::JsonReader json(file, "checksums");
  json.begin_object();
  for (std::size_t r = 0; const auto name = json.next_key(); ++r) {
    EXPECT_EQ(*name, r < rules.size() ? rules[r].first : "nfc");
    EXPECT_EQ(r < rules.size() ? words[r].text() : nfc.text(), json.string()) << *name;
  }
}

TEST(Unicode, NfcComposesAndOrders) {
  EXPECT_EQ(text::nfc("Cafe\u0301 \u212b A\u030a"), "Caf\u00e9 \u00c5 \u00c5");
  EXPECT_EQ(text::nfc("e\u0301\u0327"), "\u0229\u0301");
  EXPECT_EQ(text::nfc("\u1100\u1161\u11a8 \uac00\u11a8"), "\uac01 \uac01");
  EXPECT_EQ(text::nfc("\u0958"), "\u0915\u093c");                // Unicode excludes this composition
  EXPECT_EQ(text::nfc("e\xff\u0301 \xcc"), "e\xff\u0301 \xcc");  // an invalid byte prevents composition
  const std::string ascii = "plain text";
  EXPECT_EQ(text::nfc(ascii), ascii);
}

TEST(CharRuns, MatchTheirPatterns) {
  const auto words = [](const std::string& pattern, std::string_view text) {
    std::vector<std::string> found;
    const auto runs = text::CharRuns::parse(pattern).value();
    for (std::size_t i = 0, end = 0; i < text.size(); i = end) {
      end = runs.word_end(text, i);
      found.emplace_back(text.substr(i, end - i));
    }
    return found;
  };
  using List = std::vector<std::string>;
  EXPECT_EQ(words("[\r\n]", "a\r\n\nb"), (List{"a", "\r", "\n", "\n", "b"}));
  EXPECT_EQ(words(R"(\s?[a-c\-\]]+)", "xa- ]c  b"), (List{"x", "a-", " ]c", " ", " b"}));
  EXPECT_EQ(words("\\s?[\u3000\\p{N}]+", "1\u3000\u3000 x"), (List{"1\u3000\u3000", " x"}));
  EXPECT_EQ(words(R"(\p{P}{1,3})", "a....b"), (List{"a", "...", ".", "b"}));
  EXPECT_EQ(words(R"(\s+$)", " a b  "), (List{" a b", "  "}));
  for (const char* other : {"", "a+", "[a", "[]+", "[^a]+", "[b-a]+", "[a[b]]+", R"([\w]+)", R"(\p{Lu}+)",
                            "[a]*", "[a]+?", R"(\s?)", R"(\s+)"})
    EXPECT_FALSE(text::CharRuns::parse(other)) << other;
}

TEST(HfTokenizer, EveryByteStringSurvivesARoundTrip) {
  std::mt19937 random(1);
  for (const char* name : {"gpt2", "llama3", "deepseek3", "deepseek", "smollm", "llama2"}) {
    const text::HfTokenizer tokenizer = text::HfTokenizer::open(golden(name));
    for (int i = 0; i < 300; ++i) {
      std::string noise(random() % 60, ' ');
      for (char& c : noise)
        c = random() % 2 == 0 ? "ab \n\xc3\xa9"[random() % 6] : static_cast<char>(random());
      const Ids ids = tokenizer.encode(noise);
      ASSERT_EQ(tokenizer.decode(ids), noise) << name;
      std::string pieces;
      for (const std::int32_t id : ids) pieces += tokenizer.continuation(id);
      if (tokenizer.is_byte_level()) {
        ASSERT_EQ(pieces, noise) << name;
      }
    }
  }
}

TEST(HfTokenizer, AStreamKeepsTheSpacesOfWordsAndWaitsForBytes) {
  const text::HfTokenizer tokenizer = text::HfTokenizer::open(golden("llama2"));
  text::TextStream stream(tokenizer);
  std::string shown;
  for (const std::int32_t id : tokenizer.encode("the \U0001f999 the")) {
    const std::string piece = stream.add(id);
    EXPECT_EQ(io::utf8_valid_bytes(piece), piece.size());
    shown += piece;
  }
  EXPECT_EQ(shown + stream.finish(), " the \U0001f999 the");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the \U0001f999 the")), "the \U0001f999 the");
}

// If a token includes the white space after it, this white space does not belong to the next token. This is
// also true if the same token includes white space at both ends.
TEST(HfTokenizer, WhiteSpaceBelongsToOneAddedToken) {
  std::string json = io::read_file(golden("added/tokenizer.json"), "test");
  const std::string from = "\"<lr>\"";
  json.replace(json.find(from), from.size(), "\"\\n\"");
  const text::HfTokenizer tokenizer(json, "m");
  const std::int32_t line = tokenizer.find("\n").value(), r = tokenizer.find("<r>").value();
  EXPECT_EQ(tokenizer.encode("\n \n\n"), Ids{line});
  EXPECT_EQ(tokenizer.encode("<r>\n \n<r>"), (Ids{r, r}));
}

// Models often have more rows than tokens, and may generate the id of an additional row.
TEST(HfTokenizer, IdsWithoutATokenDecodeToNothing) {
  const auto tokenizer = text::HfTokenizer::open(golden("gpt2"));
  Ids ids = tokenizer.encode("the tree");
  const auto above = static_cast<std::int32_t>(tokenizer.size());
  ids.insert(ids.begin() + 1, {above, above + 1000, std::numeric_limits<std::int32_t>::max()});
  EXPECT_EQ(tokenizer.decode(ids), "the tree");
  text::TextStream stream(tokenizer);
  EXPECT_EQ(stream.add(above), "");
  EXPECT_EQ(error_of([&] { tokenizer.decode(Ids{-1}); }),
            "[decode] id -1, expected 0 to " + std::to_string(above - 1));
}

TEST(HfTokenizer, SpecialTokensInUserInputAreOrdinaryCharacters) {
  const text::HfTokenizer tokenizer = text::HfTokenizer::open(golden("gpt2"));
  const std::int32_t end = tokenizer.find("<|endoftext|>").value();
  EXPECT_TRUE(tokenizer.is_special(end) && tokenizer.is_added(end));
  EXPECT_EQ(tokenizer.encode("<|endoftext|>"), Ids{end});
  const Ids as_text = tokenizer.encode("<|endoftext|>", {.special = false});
  EXPECT_GT(as_text.size(), 1u);
  EXPECT_EQ(tokenizer.decode(as_text), "<|endoftext|>");
}

TEST(HfTokenizer, SurvivesARoundTripThroughACheckpoint) {
  const text::HfTokenizer tokenizer = text::HfTokenizer::open(golden("qwen2"));
  const auto loaded = text::load_tokenizer(tokenizer.metadata(), "m");
  EXPECT_EQ(loaded->kind(), "hf");
  EXPECT_EQ(loaded->size(), tokenizer.size());
  EXPECT_EQ(loaded->encode("Hello <|im_start|>"), tokenizer.encode("Hello <|im_start|>"));
  EXPECT_EQ(loaded->metadata(), tokenizer.metadata());
}

TEST(HfTokenizer, AStringSplitAtSafePointsHasTheSameIds) {
  const std::string text = "One line.\nAnother one  with <|endoftext|> words\n\nand 123 more\r\nof it \n x";
  for (const char* name :
       {"gpt2", "llama3", "qwen2", "deepseek3", "smollm", "llama2", "prefix_space", "added"}) {
    const text::HfTokenizer tokenizer = text::HfTokenizer::open(golden(name));
    int cuts = 0;
    for (std::size_t limit = 0; limit < text.size(); ++limit) {
      const std::size_t cut = tokenizer.safe_cut(text, limit);
      if (cut == 0) continue;
      ++cuts;
      Ids ids = tokenizer.encode(text.substr(0, cut));
      const Ids rest = tokenizer.encode(text.substr(cut));
      ids.insert(ids.end(), rest.begin(), rest.end());
      EXPECT_EQ(ids, tokenizer.encode(text)) << name << " " << cut;
    }
    EXPECT_EQ(cuts > 0, tokenizer.is_byte_level() && name != std::string("prefix_space") &&
                            name != std::string("added"));
  }
}

// Words have no maximum length. The time to encode a word must not grow with the square of its length.
TEST(HfTokenizer, AWordOfAMegabyteIsEncoded) {
  for (const char* name : {"gpt2", "llama2"}) {
    const text::HfTokenizer tokenizer = text::HfTokenizer::open(golden(name));
    const std::string word(1'000'000, 'e');
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(word)), word);
  }
}

TEST(HfTokenizer, ABpeOfOursIsExportedExactly) {
  const std::string text = io::read_file(std::string(TG_TOKENIZERS) + "/gpt2/cases.json", "test");
  const text::Bpe bpe = text::Bpe::train(text, 700);
  const text::HfTokenizer exported(text::tokenizer_json(bpe), "test");
  EXPECT_EQ(exported.size(), bpe.size());
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string noise = text.substr(random() % text.size(), 80);
    if (i % 2 == 0)
      for (char& c : noise)
        if (random() % 4 == 0) c = static_cast<char>(random());
    ASSERT_EQ(exported.encode(noise), bpe.encode(noise));
  }
  EXPECT_NE(error_of([&] {
              text::tokenizer_json(text::Bpe(bpe.merges(), text::WordRule::bytes));
            }).find("older checkpoints"),
            std::string::npos);
}

// Returns a small valid file. One part of it can be replaced.
std::string small_file(const std::string& from = "", const std::string& to = "") {
  std::string file = R"({"version":"1.0","truncation":null,"padding":null,
 "added_tokens":[{"id":4,"content":"<e>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
 "normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
 "post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
 "model":{"type":"BPE","dropout":null,"unk_token":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,
 "vocab":{"a":0,"b":1,"ab":2,"abab":3},"merges":[["a","b"],["ab","ab"]]}})";
  if (const std::size_t at = file.find(from); !from.empty()) file.replace(at, from.size(), to);
  return file;
}
std::string refusal(const std::string& from, const std::string& to) {
  return error_of([&] { text::HfTokenizer(small_file(from, to), "m"); });
}

// As in the reference, the unknown token is emitted after the bytes that follow the character.
TEST(HfTokenizer, CharactersWithoutATokenAreUnknown) {
  const auto encode = [](const std::string& fuse, std::string_view text) {
    return text::HfTokenizer(
               R"({"pre_tokenizer":null,"decoder":{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},"model":
                {"type":"BPE","unk_token":"?","fuse_unk":)" +
                   fuse + R"(,"byte_fallback":true,
                 "vocab":{"?":0,"a":1,"<0xC3>":2,"<0xA9>":3},"merges":[]}})",
               "m")
        .encode(text);
  };
  EXPECT_EQ(encode("true", "xya"), (Ids{0, 1}));
  EXPECT_EQ(encode("false", "xya"), (Ids{0, 0, 1}));
  EXPECT_EQ(encode("true", "xy\u00e9za"), (Ids{2, 3, 0, 1}));
  EXPECT_EQ(encode("false", "xy\u00e9za"), (Ids{0, 2, 3, 0, 0, 1}));
  EXPECT_EQ(encode("true", "\u00e9x"), (Ids{2, 3, 0}));
}

// Words are split before ▁, unless a merge joins characters before and after this boundary.
TEST(HfTokenizer, MergesAcrossSpacesAreApplied) {
  const auto encode = [](const std::string& vocabulary, const std::string& merges, std::string_view text) {
    return text::HfTokenizer(
               R"({"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"\u2581"},"pre_tokenizer":null,
                "decoder":{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},"model":{"type":"BPE","unk_token":"?",
                "fuse_unk":true,"byte_fallback":true,"vocab":{"?":0,"a":1,"b":2,"\u2581":3,"\u2581b":4,)" +
                   vocabulary + R"(},"merges":[["\u2581","b"],)" + merges + "]}}",
               "m")
        .encode(text);
  };
  const std::string across = R"("a\u2581b":5)", merge = R"(["a","\u2581b"])";
  EXPECT_EQ(encode(across, merge, "a ba bb b b"), (Ids{5, 5, 2, 4, 4}));
  EXPECT_EQ(encode(across, merge, "xa b x b"), (Ids{0, 5, 3, 0, 4}));
  const std::string byte = R"("<0xFF>":5,"<0xFF>\u2581b":6)", byte_merge = R"(["<0xFF>","\u2581b"])";
  EXPECT_EQ(encode(byte, byte_merge, "\xff b"), Ids{6});
  const std::string unknown = R"("?\u2581b":5)", unknown_merge = R"(["?","\u2581b"])";
  EXPECT_EQ(encode(unknown, unknown_merge, "xy b"), Ids{5});
}

TEST(HfTokenizer, UnsupportedSettingsAreRefusedByNameAndValue) {
  EXPECT_EQ(text::HfTokenizer(small_file(), "m").encode("ababab<e>"), (Ids{3, 2, 4}));
  EXPECT_EQ(text::HfTokenizer(small_file(R"(["a","b"],["ab","ab"])", R"("a b","ab ab")"), "m").encode("abab"),
            Ids{3});
  EXPECT_EQ(refusal(R"("normalizer":null)", R"("normalizer":{"type":"Lowercase"})"),
            R"(m: normalizer.type is "Lowercase", expected NFC, Prepend, Replace or Sequence)");
  EXPECT_EQ(refusal(R"("normalizer":null)",
                    R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"NFKC"}]})"),
            R"(m: normalizer.normalizers[1].type is "NFKC", expected NFC, Prepend, Replace or Sequence)");
  EXPECT_EQ(refusal(R"("normalizer":null)",
                    R"("normalizer":{"type":"Replace","pattern":{"Regex":"x+"},"content":""})"),
            R"(m: normalizer.pattern is {"Regex": "x+"}, expected a String)");
  EXPECT_EQ(
      refusal(R"("pre_tokenizer":{"type":"ByteLevel")", R"("pre_tokenizer":{"type":"Whitespace")"),
      R"(m: pre_tokenizer.type is "Whitespace", expected ByteLevel, Digits, Metaspace, Split or Sequence)");
  EXPECT_EQ(refusal(R"("use_regex":true},)", R"("use_regex":true,"fast":1},)"),
            "m: pre_tokenizer (ByteLevel) has fast = 1, which is not supported");
  EXPECT_EQ(
      refusal(
          R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})",
          R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\w+"},"behavior":"Isolated","invert":false})"),
      R"(m: pre_tokenizer.pattern is {"Regex": "\\w+"}, expected one of those of GPT-2, GPT-4, GPT-4o, Llama 3, Qwen 2, Qwen 3.5, Tekken and DeepSeek)");
  EXPECT_EQ(
      refusal(R"("post_processor":null)", R"("post_processor":{"type":"T5Processing"})"),
      R"(m: post_processor.type is "T5Processing", expected TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel or Sequence)");
  EXPECT_EQ(
      refusal(R"("post_processor":null)", R"("post_processor":{"type":"RobertaProcessing","sep":["b",1]})"),
      "m: post_processor has no cls");
  EXPECT_EQ(refusal(R"("post_processor":null)",
                    R"("post_processor":{"type":"RobertaProcessing","sep":["b",1],"cls":["a"]})"),
            R"(m: post_processor.cls is ["a"], expected a token's text and its id)");
  EXPECT_EQ(refusal(R"("post_processor":null)", R"("post_processor":{"type":"ByteLevel","single":[]})"),
            R"(m: post_processor (ByteLevel) has single = [], which is not supported)");
  EXPECT_EQ(refusal(R"("decoder":{"type":"ByteLevel")", R"("decoder":{"type":"WordPiece")"),
            R"(m: decoder.type is "WordPiece", expected ByteLevel)");
  for (const char* off : {"0", "null", "\"\""})
    EXPECT_EQ(text::HfTokenizer(small_file(R"("dropout":null)", "\"dropout\":" + std::string(off)), "m")
                  .encode("abab"),
              Ids{3})
        << off;
  EXPECT_NE(refusal(R"(["ab","ab"])", R"(["ab"])").find("a merge of fewer than two strings"),
            std::string::npos);
  EXPECT_NE(refusal(R"(["ab","ab"])", R"(["ab","ab","ab"])").find("a merge of more than two strings"),
            std::string::npos);
  for (const char* merge : {"ab", "a b ab", "ab ab "})
    EXPECT_NE(
        refusal(R"(["a","b"],["ab","ab"])", "\"a b\",\"" + std::string(merge) + "\"")
            .find("merge \"" + std::string(merge) + "\", expected two strings with a space between them"),
        std::string::npos)
        << merge;
  EXPECT_NE(
      refusal(R"("type":"BPE")", R"("type":"Unigram")").find(R"(model.type is "Unigram", expected "BPE")"),
      std::string::npos);
  EXPECT_NE(refusal(R"("dropout":null)", R"("dropout":0.1)").find("model.dropout is 0.1, expected null"),
            std::string::npos);
  EXPECT_NE(refusal(R"("dropout":null)", R"("speed":9)").find("model has speed = 9, which is not supported"),
            std::string::npos);
  EXPECT_NE(refusal(R"("truncation":null)", R"("truncation":5)")
                .find("truncation is 5, expected null or an object"),
            std::string::npos);
}

// A file that was saved after use has these settings. They have no effect, because each use sets both again.
TEST(HfTokenizer, PaddingAndTruncationAreIgnored) {
  std::string file = small_file(R"("truncation":null)", R"("truncation":{"max_length":1,"stride":0})");
  file.replace(file.find(R"("padding":null)"), 14, R"("padding":{"strategy":{"Fixed":9},"pad_id":0})");
  EXPECT_EQ(text::HfTokenizer(file, "m").encode_whole("ababab<e>"), (Ids{3, 2, 4}));
}

std::string with_split(const std::string& pattern, const std::string& behavior, const std::string& invert) {
  return small_file(
      R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})",
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)" +
          io::json_string(pattern) + R"(},"behavior":")" + behavior + R"(","invert":)" + invert +
          R"(},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})");
}

// "Removed" removes characters between matches. It is supported only if the pattern matches all characters,
// so that no character is removed.
TEST(HfTokenizer, RemovedNeedsAPatternThatMatchesEverything) {
  const std::string pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  const auto message = [](const std::string& file) {
    return error_of([&] { text::HfTokenizer(file, "m"); });
  };
  for (const auto& [behavior, invert] :
       {std::pair{"Removed", "true"}, {"Isolated", "true"}, {"Isolated", "false"}})
    EXPECT_EQ(text::HfTokenizer(with_split(pattern, behavior, invert), "m").encode("ababab"), (Ids{3, 2}));
  EXPECT_EQ(
      message(with_split(pattern, "Removed", "false")),
      R"(m: pre_tokenizer.pretokenizers[0].behavior is "Removed" with invert false, expected Isolated, or Removed with invert true)");
  EXPECT_TRUE(
      message(with_split(R"(\p{N}{1,3})", "Removed", "true"))
          .starts_with(R"(m: pre_tokenizer.pretokenizers[0].pattern is {"Regex": "\\p{N}{1,3}"}, expected)"));
}

TEST(HfTokenizer, AFileThatContradictsItselfIsRefused) {
  EXPECT_EQ(refusal(R"(["ab","ab"])", R"(["ab","c"])"),
            R"(m: model.merges: merge 1 ("ab", "c") needs token "c", which is not in the vocabulary)");
  EXPECT_EQ(refusal(R"(["ab","ab"])", R"(["ab","a"])"),
            R"(m: model.merges: merge 1 ("ab", "a") needs token "aba", which is not in the vocabulary)");
  EXPECT_EQ(refusal(R"(["ab","ab"])", R"(["","ab"])"),
            R"(m: model.merges: merge 1 ("", "ab") needs token "", which is not in the vocabulary)");
  EXPECT_EQ(refusal(R"("ab":2)", R"("ab":1)"), R"(m: model.vocab: token "ab" has id 1, which "b" has too)");
  EXPECT_NE(refusal(R"("ab":2)", R"("ab":-2)").find("id -2, expected 0 to 2147483646"), std::string::npos);
  EXPECT_NE(refusal(R"("ab":2)", R"("ab":99999999999)").find("id 99999999999, expected 0 to 2147483646"),
            std::string::npos);
  EXPECT_NE(refusal(R"("ab":2)", R"("ab":2,"ab":9)").find(R"(duplicate key "ab")"), std::string::npos);
  EXPECT_EQ(refusal(R"("abab":3)", R"("abab":2000000000)"), "no error");  // gaps between ids need no memory
  EXPECT_EQ(refusal(R"("unk_token":null)", R"("unk_token":"<u>")"),
            R"(m: model.unk_token is "<u>", which is not in the vocabulary)");
  EXPECT_EQ(
      refusal(R"("id":4,"content":"<e>")", R"("id":5,"content":"<e>")"),
      R"(m: added token "<e>" has id 5, expected 4: those that are not in the vocabulary follow it in order)");
  EXPECT_EQ(refusal(R"("id":4,"content":"<e>")", R"("id":4,"content":"ab")"),
            R"(m: added token "ab" has id 4, but 2 in the vocabulary)");
  EXPECT_EQ(
      refusal(
          R"("post_processor":null)",
          R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[77],"tokens":["<s>"]}}})"),
      "m: post_processor has id 77, which no token has");
  const std::string file = small_file();
  for (std::size_t n = 0; n < file.size(); ++n)
    EXPECT_THROW(text::HfTokenizer(file.substr(0, n), "m"), FormatError) << n;
  EXPECT_EQ(error_of([&] { text::HfTokenizer::open("/nowhere"); }),
            "[tokenizer] cannot read /nowhere: No such file or directory");
  EXPECT_EQ(error_of([&] { text::HfTokenizer(small_file(), "m").encode("xyz"); }),
            "[encode] byte 0x78 has no token, and the tokenizer has no unknown token");
}

}  // namespace
}  // namespace tg

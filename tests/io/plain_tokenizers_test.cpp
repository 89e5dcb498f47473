// Encodes random strings and compares merges, unknown characters and added tokens with plain code. The plain
// code merges by definition and searches for added tokens at every byte.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include <tilegrad/io/files/json.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/text/added_tokens.h"
#include "io/text/bpe_model.h"
#include "io/text/hf_stages.h"
#include "io/text/merge_table.h"
#include "io/text/word_cache.h"
#include "tests/support/files.h"
#include "tests/support/plain_letters.h"

namespace tg {
namespace {

using Ids = std::vector<std::int32_t>;
using testing::Letter;
using testing::Letters;
using testing::letters_of;
using testing::random_text;

// ---- Merges

// Joins the pair with the lowest rank until no pair has a rank. If several pairs have this rank, joins the
// leftmost.
template <class Token>
std::vector<Token> merged(std::vector<Token> tokens,
                          const std::map<std::pair<Token, Token>, std::pair<std::size_t, Token>>& ranks) {
  while (true) {
    std::size_t best = ~std::size_t{0}, at = 0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i)
      if (const auto found = ranks.find({tokens[i], tokens[i + 1]});
          found != ranks.end() && found->second.first < best)
        best = found->second.first, at = i;
    if (best == ~std::size_t{0}) return tokens;
    tokens[at] = ranks.at({tokens[at], tokens[at + 1]}).second;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Long words are merged with a heap. Tests words near the minimum length for a heap, and long words.
TEST(PlainMerges, PairsAreJoinedByRankFromTheLeft) {
  std::mt19937 random(10);
  for (int trial = 0; trial < 60; ++trial) {
    const std::int32_t letters = 1 + static_cast<std::int32_t>(random() % 3);
    const std::size_t merges = random() % 12;
    text::MergeTable table(merges);
    std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::size_t, std::int32_t>> ranks;
    for (std::size_t r = 0; r < merges; ++r) {
      const std::int32_t next = letters + static_cast<std::int32_t>(r);
      const std::pair pair{static_cast<std::int32_t>(random() % static_cast<unsigned>(next)),
                           static_cast<std::int32_t>(random() % static_cast<unsigned>(next))};
      const std::size_t rank = trial % 2 == 0 ? r : merges - r;  // some merges precede the merges of their
                                                                 // parts
      EXPECT_EQ(table.add(pair.first, pair.second, static_cast<std::uint32_t>(rank), next),
                ranks.try_emplace(pair, rank, next).second);
    }
    for (const std::size_t n : {0, 1, 2, 3, 5, 31, 32, 33, 34, 64, 150}) {
      Ids tokens(n);
      for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(random() % static_cast<unsigned>(letters));
      const Ids expected = merged(tokens, ranks);
      tokens.resize(table.apply(tokens));
      ASSERT_EQ(tokens, expected) << trial << " " << n;
    }
  }
}

// A model on characters. If a character has no token, it is encoded as the tokens of its bytes. If a byte has
// no token, the character is unknown.
TEST(PlainModels, RandomStringsAreEncodedByTheDefinition) {
  std::mt19937 random(11);
  const std::string space = "\u2581";
  const std::vector<std::string> letters{"a", "b", space, "\u00e9", "\u4e00", "?"};
  const std::vector<std::string> pieces{"a",      "b", " ", "a",      "b",    " ",   space, "\u00e9",
                                        "\u4e00", "?", "x", "\u00e8", "\xff", "aab", "b a"};
  int with_unknown = 0, with_bytes = 0;
  for (int trial = 0; trial < 120; ++trial) {
    std::vector<std::string> vocabulary(letters.begin(), letters.end());
    const bool falls_back = random() % 3 > 0, fuses = random() % 2 == 0, ignores = random() % 4 == 0,
               has_all = random() % 2 == 0;
    for (const int byte : {0xc3, 0xa8, 0x78, 0xff}) {
      char token[8];
      std::snprintf(token, sizeof token, "<0x%02X>", static_cast<unsigned>(byte));
      if (has_all || random() % 2 == 0) vocabulary.push_back(token);
    }
    std::map<std::pair<std::string, std::string>, std::pair<std::size_t, std::string>> ranks;
    std::vector<std::pair<std::string, std::string>> merges;
    for (std::size_t r = 0; r < random() % 10; ++r) {
      const std::pair merge{vocabulary[random() % vocabulary.size()],
                            vocabulary[random() % vocabulary.size()]};
      const std::string both = merge.first + merge.second;
      if (std::ranges::find(vocabulary, both) == vocabulary.end()) vocabulary.push_back(both);
      ranks[merge] = {merges.size(), both};  // the last duplicate of a pair counts
      merges.push_back(merge);
    }
    const bool prepends = random() % 2 == 0;
    std::string json =
        R"({"normalizer":{"type":"Sequence","normalizers":[)" +
        std::string(prepends ? "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"}," : "") +
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},"
        "\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},\"content\":\" \"},"
        "\"model\":{\"unk_token\":\"?\",\"fuse_unk\":" +
        (fuses ? "true" : "false") + ",\"byte_fallback\":" + (falls_back ? "true" : "false") +
        ",\"ignore_merges\":" + (ignores ? "true" : "false") + ",\"vocab\":{";
    std::map<std::string, std::int32_t> ids;
    for (const std::string& token : vocabulary) {
      json += (ids.empty() ? "" : ",") + io::json_string(token) + ":" + std::to_string(ids.size());
      ids.emplace(token, static_cast<std::int32_t>(ids.size()));
    }
    json += "},\"merges\":[";
    for (std::size_t r = 0; r < merges.size(); ++r)
      json += (r > 0 ? ",[" : "[") + io::json_string(merges[r].first) + "," +
              io::json_string(merges[r].second) + "]";
    const text::HfTokenizer tokenizer(json + "]}}", "m");
    for (int i = 0; i < 12; ++i) {
      const std::string text = random_text(random, pieces, i < 10 ? 12 : 60);
      std::string normal = prepends && !text.empty() ? space : "";
      for (const char c : text) normal += c == ' ' ? space : std::string(1, c);
      std::vector<std::string> tokens;
      bool unknown = false;
      const auto flush = [&] {
        if (unknown) tokens.push_back("?");
        unknown = false;
      };
      for (const Letter& l : letters_of(normal)) {
        const std::string letter = normal.substr(l.begin, l.end - l.begin);
        std::vector<std::string> bytes;
        for (const char c : letter) {
          char token[8];
          std::snprintf(token, sizeof token, "<0x%02X>",
                        static_cast<unsigned>(static_cast<unsigned char>(c)));
          bytes.push_back(token);
        }
        if (ids.contains(letter)) {
          flush(), tokens.push_back(letter);
        } else if (falls_back && std::ranges::all_of(bytes, [&](const auto& b) { return ids.contains(b); })) {
          tokens.insert(tokens.end(), bytes.begin(), bytes.end()), ++with_bytes;
        } else {
          if (!fuses) flush();
          unknown = true, ++with_unknown;
        }
      }
      flush();
      tokens = ignores && ids.contains(normal) ? std::vector{normal} : merged(tokens, ranks);
      Ids expected;
      for (const std::string& token : tokens) expected.push_back(ids.at(token));
      ASSERT_EQ(tokenizer.encode(text), expected) << json << "\n" << io::json_string(text);
    }
  }
  EXPECT_GT(with_unknown, 100);
  EXPECT_GT(with_bytes, 100);
}

// The model has no merges, and the word may have any id.
TEST(PlainModels, AWordOfTheVocabularyIsOneTokenIfMergesAreIgnored) {
  std::vector<std::string> vocabulary{"ab", "a", "b"};
  for (std::size_t rotation = 0; rotation < vocabulary.size(); ++rotation) {
    const auto id = [&](const std::string& token) {
      return static_cast<std::int32_t>(std::ranges::find(vocabulary, token) - vocabulary.begin());
    };
    std::string vocab;
    for (const std::string& token : vocabulary)
      vocab += (vocab.empty() ? "" : ",") + io::json_string(token) + ":" + std::to_string(id(token));
    for (const bool ignores : {false, true}) {
      const text::HfTokenizer tokenizer(
          "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
          "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"ignore_merges\":" +
              std::string(ignores ? "true" : "false") + ",\"vocab\":{" + vocab + "},\"merges\":[]}}",
          "m");
      EXPECT_EQ(tokenizer.encode("ab"), ignores ? Ids{id("ab")} : (Ids{id("a"), id("b")})) << vocab;
      EXPECT_EQ(tokenizer.encode("b"), Ids{id("b")}) << vocab;
    }
    std::ranges::rotate(vocabulary, vocabulary.begin() + 1);
  }
}

// ---- Added tokens

TEST(PlainAddedTokens, TheLongestOfTheFirstMatchesIsFound) {
  std::mt19937 random(12);
  const std::vector<std::string> pieces{"a",  "b", "ab",     "c",      " ", " ",    "\u00a0",
                                        "\n", "_", "\u00e9", "\u0301", ".", "\xff", "\x80"};
  int found = 0;
  for (int trial = 0; trial < 150; ++trial) {
    text::AddedTokenFinder finder;
    std::vector<text::AddedToken> tokens;
    std::set<std::string> seen;
    for (std::size_t n = 1 + random() % 4; n > 0; --n) {
      std::string content = random_text(random, pieces, 2);
      if (content.empty()) content = "a";
      const unsigned draw = random();
      const text::AddedToken token{static_cast<std::int32_t>(tokens.size()),
                                   content,
                                   (draw & 3) == 0,
                                   (draw & 12) == 0,
                                   (draw & 48) == 0,
                                   false,
                                   (draw & 64) == 0};
      const bool is_new = seen.insert(content).second;
      EXPECT_EQ(finder.add(content, token), is_new);
      if (is_new) tokens.push_back(token);
    }
    EXPECT_FALSE(finder.empty());
    for (int i = 0; i < 20; ++i) {
      const std::string text = random_text(random, pieces, 12);
      const bool special = i % 2 == 0;
      const Letters letters = letters_of(text);
      const auto flags_before = [&](std::size_t at) {  // flags of the last character
        for (const Letter& l : letters)
          if (l.end == at) return l.flags;
        return 0;
      };
      const auto letter_at = [&](std::size_t at) {
        return letters_of(std::string_view(text).substr(at)).front();
      };
      std::string expected;
      std::size_t written = 0;
      for (std::size_t at = 0; at < text.size();) {
        const text::AddedToken* best = nullptr;
        for (const text::AddedToken& t : tokens)
          if (std::string_view(text).substr(at).starts_with(t.content) &&
              (best == nullptr || t.content.size() > best->content.size()))
            best = &t;
        if (best == nullptr) {
          ++at;
          continue;
        }
        std::size_t begin = at, end = at + best->content.size();
        at = end;
        if (best->special && !special) continue;
        if (best->single_word &&
            ((begin > 0 && (flags_before(begin) & text::char_class::word) != 0) ||
             (end < text.size() && (letter_at(end).flags & text::char_class::word) != 0)))
          continue;
        if (best->lstrip)
          while (begin > written && (flags_before(begin) & text::char_class::space) != 0)
            for (const Letter& l : letters)
              if (l.end == begin) {
                begin = l.begin;
                break;
              }
        begin = best->lstrip ? std::max(begin, written) : begin;
        if (best->rstrip)
          while (end < text.size() && (letter_at(end).flags & text::char_class::space) != 0)
            end += letter_at(end).end;
        if (begin >= end) continue;
        if (written < begin) expected += std::to_string(written) + "-" + std::to_string(begin) + " ";
        expected += std::to_string(begin) + "-" + std::to_string(end) + "=" + std::to_string(best->id) + " ";
        written = end, ++found;
      }
      if (written < text.size())
        expected += std::to_string(written) + "-" + std::to_string(text.size()) + " ";
      std::string got;
      for (const auto& part : finder.split(text, special))
        got += std::to_string(part.begin) + "-" + std::to_string(part.end) +
               (part.id ? "=" + std::to_string(*part.id) : "") + " ";
      ASSERT_EQ(got, expected) << io::json_string(text);
    }
  }
  EXPECT_GT(found, 1000);
  EXPECT_TRUE(text::AddedTokenFinder().empty());
}

// ---- The cache of words

TEST(WordCache, FoundWordsHaveTheirTokens) {
  text::WordCache cache(20);
  std::mt19937 random(13);
  std::map<std::string, Ids> kept;
  for (int i = 0; i < 3000; ++i) {
    std::string word(1 + random() % 12, 'a');
    for (char& c : word) c = static_cast<char>('a' + random() % 3);
    text::WordCache::Entry& entry = cache.find(word);
    const auto known = kept.find(word);
    ASSERT_EQ(entry.length != 0, known != kept.end()) << word;
    if (known != kept.end()) {
      const auto tokens = cache.tokens(entry);
      ASSERT_EQ(Ids(tokens.begin(), tokens.end()), known->second) << word;
      continue;
    }
    Ids tokens(random() % 4);
    for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(random() % 1000);
    cache.fill(entry, word, tokens);
    if (kept.size() < text::WordCache::most) kept[word] = tokens;
  }
  EXPECT_GE(kept.size(), std::min<std::size_t>(1000, text::WordCache::most));
  text::WordCache fresh(20);
  for (const std::size_t n : {255u, 256u, 257u}) {  // long words are not cached
    const std::string word(n, 'x');
    fresh.fill(fresh.find(word), word, Ids{1});
    EXPECT_EQ(fresh.find(word).length, n <= 256 ? n : 0) << n;
  }
}

TEST(PlainModels, VocabulariesThatContradictThemselvesAreRefused) {
  using Entries = std::vector<text::BpeModel::Entry>;
  const auto refusal = [](const Entries& vocabulary) {
    return testing::error_of([&] { text::BpeModel(vocabulary, {}, {}); });
  };
  EXPECT_EQ(refusal({{"b", 5}, {"a", 0}}), "no error");
  EXPECT_EQ(refusal({{"a", 5}, {"a", 0}}), "model.vocab: token \"a\" occurs twice");
  EXPECT_EQ(refusal({{"a", 5}, {"b", 5}}), "model.vocab: token \"b\" has id 5, which \"a\" has too");
  EXPECT_EQ(refusal({{"a", 0}, {"b", -1}}),
            "model.vocab: token \"b\" with id -1, expected text and an id from 0");
  EXPECT_EQ(refusal({{"a", 0}, {"", 1}}),
            "model.vocab: token \"\" with id 1, expected text and an id from 0");
  const text::BpeModel model(Entries{{"b", 7}, {"a", 0}}, {}, {});
  EXPECT_EQ(model.vocabulary(), (Entries{{"a", 0}, {"b", 7}}));
  EXPECT_EQ(model.find("b"), 7);
  EXPECT_EQ(model.find("c"), std::nullopt);
}

// ---- Normal form

// Computes NFC by definition [UAX 15], with the decompositions and classes of a few characters: decompose,
// sort, compose.
std::string plain_nfc(std::string_view text) {
  using Pair = std::pair<char32_t, char32_t>;
  static const std::map<char32_t, Pair> parts{
      {U'\u00e9', {U'e', U'\u0301'}},      {U'\u0229', {U'e', U'\u0327'}},
      {U'\u1e1d', {U'\u0229', U'\u0306'}}, {U'\u00c5', {U'A', U'\u030a'}},
      {U'\u01fa', {U'\u00c5', U'\u0301'}}, {U'\u0344', {U'\u0308', U'\u0301'}},
      {U'\u212b', {U'\u00c5', 0}},         {U'\u0958', {U'\u0915', U'\u093c'}},
      {U'\u0cca', {U'\u0cc6', U'\u0cc2'}}, {U'\u0ccb', {U'\u0cca', U'\u0cd5'}},
      {U'\u0cc7', {U'\u0cc6', U'\u0cd5'}}, {U'\u0115', {U'e', U'\u0306'}},
      {U'\u00eb', {U'e', U'\u0308'}},      {U'\u00c1', {U'A', U'\u0301'}},
      {U'\u0102', {U'A', U'\u0306'}},      {U'\u00c4', {U'A', U'\u0308'}},
      {U'\u1eae', {U'\u0102', U'\u0301'}}, {U'\u1e8d', {U'x', U'\u0308'}}};
  static const std::set<char32_t> excluded{0x344, 0x212b, 0x958};
  static const std::map<char32_t, int> classes{{0x301, 230}, {0x306, 230}, {0x308, 230}, {0x30a, 230},
                                               {0x327, 202}, {0x345, 240}, {0x334, 1},   {0x93c, 7}};
  const auto class_of = [&](char32_t c) { return classes.contains(c) ? classes.at(c) : 0; };
  std::vector<char32_t> all;
  const std::function<void(char32_t)> decompose = [&](char32_t c) {
    if (c >= 0xac00 && c < 0xac00 + 11172) {
      const char32_t s = c - 0xac00;
      all.push_back(0x1100 + s / 588), all.push_back(0x1161 + s % 588 / 28);
      if (s % 28 > 0) all.push_back(0x11a7 + s % 28);
    } else if (const auto found = parts.find(c); found != parts.end()) {
      decompose(found->second.first);
      if (found->second.second != 0) decompose(found->second.second);
    } else {
      all.push_back(c);
    }
  };
  for (const Letter& l : letters_of(text)) decompose(l.code);
  for (std::size_t n = 0; n < all.size(); ++n)  // exchanges neighbors until all are in order
    for (std::size_t i = 0; i + 1 < all.size(); ++i)
      if (class_of(all[i + 1]) > 0 && class_of(all[i]) > class_of(all[i + 1])) std::swap(all[i], all[i + 1]);
  const auto composed = [&](char32_t a, char32_t b) -> char32_t {
    if (a >= 0x1100 && a < 0x1113 && b >= 0x1161 && b < 0x1176)
      return 0xac00 + ((a - 0x1100) * 21 + b - 0x1161) * 28;
    if (a >= 0xac00 && a < 0xac00 + 11172 && (a - 0xac00) % 28 == 0 && b > 0x11a7 && b < 0x11c3)
      return a + b - 0x11a7;
    for (const auto& [c, pair] : parts)
      if (pair == Pair{a, b} && !excluded.contains(c)) return c;
    return 0;
  };
  for (std::size_t i = 1; i < all.size();) {
    std::size_t starter = i;
    bool is_blocked = false;
    while (starter-- > 0 && class_of(all[starter]) != 0)
      is_blocked = is_blocked || class_of(all[starter]) >= class_of(all[i]);
    const bool has_starter = starter < i;
    if (has_starter && starter + 1 < i && class_of(all[i]) == 0) is_blocked = true;
    const char32_t both = has_starter && !is_blocked ? composed(all[starter], all[i]) : 0;
    if (both == 0) {
      ++i;
      continue;
    }
    all[starter] = both;
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
    if (i == 0) i = 1;
  }
  std::string out;
  for (const char32_t c : all) io::utf8_append(out, c);
  return out;
}

TEST(PlainNfc, RandomStringsAgreeWithTheDefinition) {
  const std::vector<std::string> pieces{
      "e",      "A",      "x",      " ",      "\u0301", "\u0301", "\u0327", "\u0327", "\u0306", "\u030a",
      "\u0334", "\u0345", "\u0344", "\u00e9", "\u0229", "\u00c5", "\u212b", "\u0958", "\u0915", "\u093c",
      "\u1100", "\u1112", "\u1161", "\u1175", "\u11a8", "\u11c2", "\u11a7", "\u1113", "\u1176", "\u11c3",
      "\uac00", "\ud788", "\uac01", "\ud7a3", "\u0cc6", "\u0cc2", "\u0cd5", "\u0cca", "\u1e1d", "\u01fa"};
  std::mt19937 random(14);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_text(random, pieces, 7);
    ASSERT_EQ(text::nfc(text), plain_nfc(text)) << text;
  }
}

// ---- Word boundaries on characters

// At most 16 characters. After these characters, a word does not end before ▁.
TEST(PlainModels, WordsEndBeforeSpacesExceptAfterSomeCharacters) {
  using Merges = std::vector<std::pair<std::string, std::string>>;
  const std::string space = "\u2581";
  const auto kept = [&](const Merges& merges, const std::string& options = "") {
    std::map<std::string, std::size_t> ids{{space, 0}, {"?", 1}};
    std::string json, list;
    for (const auto& [left, right] : merges) {
      for (const std::string& token : {left, right, left + right}) ids.try_emplace(token, ids.size());
      list += (list.empty() ? "[" : ",[") + io::json_string(left) + "," + io::json_string(right) + "]";
    }
    for (const auto& [token, id] : ids)
      json += (json.empty() ? "" : ",") + io::json_string(token) + ":" + std::to_string(id);
    const text::HfTokenizer tokenizer(
        "{\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},\"content\":\" "
        "\"},\"model\":{\"vocab\":{" +
            json + "},\"merges\":[" + list + "]" + options + "}}",
        "m");
    const auto& steps = tokenizer.stages().pre_tokenizer;
    if (steps.empty()) return std::string("none");
    EXPECT_EQ(steps.size(), 1u);
    EXPECT_EQ(steps[0].rule, text::WordRule::spaces);
    std::string all;
    for (const std::string& c : steps[0].kept) all += c;
    return all;
  };
  EXPECT_EQ(kept({}), "");
  EXPECT_EQ(kept({{"a", "b"}, {space, "a"}}), "");
  EXPECT_EQ(kept({{"a", space}}), "a");
  EXPECT_EQ(
      kept({{"a", space}, {"ba", space}, {"c\u00e9", space}, {"\u4e00", space + "x"}, {"\U0001f600", space}}),
      "a\u00e9\u4e00\U0001f600");
  EXPECT_EQ(kept({{"a" + space, space}}), "");  // a word never ends between two ▁
  Merges many;
  std::string all;
  for (char c = 'a'; c < 'a' + 16; ++c) many.emplace_back(std::string(1, c), space), all += c;
  EXPECT_EQ(kept(many), all);
  many.emplace_back("z", space);
  EXPECT_EQ(kept(many), "none");
  EXPECT_EQ(kept({{"<0x41>", space}}), "none");  // this token represents the byte A
  EXPECT_EQ(kept({{"b<0x41>", space}}), "none");
  EXPECT_EQ(kept({{"<0y41>", space}}), ">");
  EXPECT_EQ(kept({{"0x41>", space}}), ">");
  const std::string unknown = ",\"unk_token\":\"?\"";
  EXPECT_EQ(kept({{"?", space}}), "?");
  EXPECT_EQ(kept({{"?", space}}, unknown), "none");
  EXPECT_EQ(kept({{"a?", space}}, unknown), "none");
  EXPECT_EQ(kept({{"a", space}}, unknown), "a");
  EXPECT_EQ(kept({{"a", space}}, ",\"ignore_merges\":true"), "none");
}

}  // namespace
}  // namespace tg

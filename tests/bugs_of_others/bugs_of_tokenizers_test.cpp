// Reproduces public bugs of tokenizers. The vocabularies are small enough to determine the expected ids by
// hand.
#include <tilegrad/io/text/hf_tokenizer.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <tilegrad/io/files/json.h>
#include <tilegrad/io/text/text_stream.h>

namespace tg {
namespace {

using text::HfTokenizer;
using Ids = std::vector<std::int32_t>;

// Returns a tokenizer.json. `rest` contains further members, each followed by a comma.
struct Json {
  std::vector<std::string> tokens = {};
  std::string merges = {}, options = {}, added = {}, rest = {};

  std::string text(const std::string& decoder) const {
    std::string vocabulary;
    for (std::size_t id = 0; id < tokens.size(); ++id)
      vocabulary += (id > 0 ? ", " : "") + io::json_string(tokens[id]) + ": " + std::to_string(id);
    return "{" + rest + R"("added_tokens": [)" + added + R"(], "decoder": )" + decoder +
           R"(, "model": {"type": "BPE", )" + options + R"("vocab": {)" + vocabulary + R"(}, "merges": [)" +
           merges + "]}}";
  }
};

// Returns a tokenizer like GPT-2's. Its tokens are written in byte letters.
HfTokenizer of_bytes(Json json,
                     const std::string& splits = R"({"type": "ByteLevel", "add_prefix_space": false})") {
  json.rest += R"("pre_tokenizer": )" + splits + ", ";
  return {json.text(R"({"type": "ByteLevel"})"), "here"};
}

// Returns a tokenizer like Llama 2's. Its tokens are written in characters, with ▁ for a space.
HfTokenizer of_characters(const Json& json) {
  return {json.text(R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})"),
          "here"};
}

struct Flags {
  bool single_word = false, rstrip = false, special = false;
};
std::string added_token(int id, const std::string& content, Flags flags = {}) {
  const auto shown = [](bool flag) { return flag ? "true" : "false"; };
  return R"({"id": )" + std::to_string(id) + R"(, "content": )" + io::json_string(content) +
         R"(, "single_word": )" + shown(flags.single_word) + R"(, "lstrip": false, "rstrip": )" +
         shown(flags.rstrip) + R"(, "normalized": false, "special": )" + shown(flags.special) + "}";
}

// https://github.com/soniqo/speech-swift/pull/41
// Each token was decoded separately. If a character consisted of several tokens, it became replacement
// characters. The bytes of all tokens must be joined before decoding.
TEST(BugsOfOthersTokenizers, BytesOfACharacterAreJoinedBeforeDecoding) {
  EXPECT_EQ(of_bytes({{"Ã", "©"}}).decode(Ids{0, 1}), "\xc3\xa9");
}

// https://github.com/paiml/aprender/issues/3677
// Characters such as é were looked up as if they were byte letters. Bytes must be converted to byte letters
// first: é consists of the bytes C3 A9.
TEST(BugsOfOthersTokenizers, LatinLettersAreNotByteLetters) {
  EXPECT_EQ(of_bytes({{"Ã", "©", "é"}}).encode("\xc3\xa9"), (Ids{0, 1}));
}

// https://github.com/ohdearquant/lattice/pull/260
// If some bytes of a character have no token, only its other bytes were encoded. Such a character must become
// one unknown token.
TEST(BugsOfOthersTokenizers, CharacterWithoutAllByteTokensIsOneUnknown) {
  const HfTokenizer tokenizer =
      of_characters({.tokens = {"<unk>", "<0xE2>", "<0x82>"},
                     .options = R"("unk_token": "<unk>", "byte_fallback": true, )"});
  EXPECT_EQ(tokenizer.encode("€"), (Ids{0}));
}

// https://github.com/invergent-ai/surogate/issues/157 https://github.com/huggingface/tokenizers/issues/772
// If added tokens had a common prefix, the first in the list was used. The longest match must be used.
TEST(BugsOfOthersTokenizers, LongestAddedTokenAtAPositionIsMatched) {
  const HfTokenizer tokenizer =
      of_bytes({.tokens = {"1", "2", "3"},
                .added = added_token(3, "my_token_1") + ", " + added_token(4, "my_token_12") + ", " +
                         added_token(5, "my_token_123")});
  EXPECT_EQ(tokenizer.encode("my_token_123"), (Ids{5}));
  EXPECT_EQ(tokenizer.encode("my_token_12"), (Ids{4}));
  EXPECT_EQ(tokenizer.encode("my_token_13"), (Ids{3, 2}));
}

// https://github.com/ggml-org/llama.cpp/pull/29102
// The longest added tokens were searched first. If two tokens overlapped, the longer one was found, although
// the shorter one began earlier. Tokens must be matched from left to right.
TEST(BugsOfOthersTokenizers, LeftmostAddedTokenWinsOverALongerLaterOne) {
  const HfTokenizer tokenizer = of_bytes(
      {.tokens = {"a", "b", "c", "d"}, .added = added_token(4, "ab") + ", " + added_token(5, "bcd")});
  EXPECT_EQ(tokenizer.encode("abcd"), (Ids{4, 2, 3}));
}

// https://github.com/antirez/ds4/issues/95 https://github.com/huggingface/transformers/issues/29279
// https://github.com/trevornk/ramblr/issues/78
// User input can contain the characters of a special token. They became this token, which could end or begin
// a chat message. Such characters must be encoded as ordinary text.
TEST(BugsOfOthersTokenizers, SpecialTokensInUserInputAreCharacters) {
  const HfTokenizer tokenizer = of_bytes(
      {.tokens = {"<", "|", "e", "n", "d", ">"}, .added = added_token(6, "<|end|>", {.special = true})});
  EXPECT_EQ(tokenizer.encode("<|end|>", {.special = false}), (Ids{0, 1, 2, 3, 4, 1, 5}));
  EXPECT_EQ(tokenizer.encode("<|end|>", {.special = true}), (Ids{6}));
}

// https://github.com/huggingface/tokenizers/issues/1392
// The decoder interpreted the letters of an added token as byte letters. It must return them unchanged.
TEST(BugsOfOthersTokenizers, AddedTokenKeepsItsByteLetters) {
  EXPECT_EQ(of_bytes({.tokens = {"a"}, .added = added_token(1, "é")}).decode(Ids{0, 1}), "a\xc3\xa9");
}

// https://github.com/google/sentencepiece/issues/1043 https://github.com/Lightning-AI/litgpt/pull/2326
// https://github.com/huggingface/transformers/issues/28776
// When tokens were shown one at a time, each was decoded as a complete sequence, so it lost its leading
// space. Only the first space of a sequence must be removed.
TEST(BugsOfOthersTokenizers, StreamedWordsKeepTheirSpaces) {
  const HfTokenizer tokenizer = of_characters({.tokens = {"▁Hello", "▁world"}});
  EXPECT_EQ(tokenizer.decode(Ids{0, 1}), "Hello world");
  text::TextStream stream(tokenizer);
  EXPECT_EQ(stream.add(1), " world");
  EXPECT_EQ(stream.add(1), " world");
}

// https://github.com/ml-explore/mlx-lm/pull/1754
// All leading spaces were removed, so code lost its indentation. The decoder must remove only one space.
TEST(BugsOfOthersTokenizers, DecodingRemovesOneSpaceAtMost) {
  EXPECT_EQ(of_characters({.tokens = {"▁", "▁a"}}).decode(Ids{0, 0, 1}), "  a");
}

// https://github.com/huggingface/tokenizers/pull/1357
// Special tokens split the input into sections. A space mark was added at the beginning of every section.
// With the scheme "first", the mark must be added only to the first section.
TEST(BugsOfOthersTokenizers, OnlyTheFirstPieceGetsTheSpaceMark) {
  const HfTokenizer tokenizer = of_characters(
      {.tokens = {"▁", "a", "▁a"},
       .merges = R"("▁ a")",
       .added = added_token(3, "<s>", {.special = true}),
       .rest = R"("pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}, )"});
  EXPECT_EQ(tokenizer.encode("a<s>a"), (Ids{2, 3, 1}));
}

// https://github.com/huggingface/swift-transformers/pull/319
// If a Metaspace had neither prepend_scheme nor add_prefix_space, no mark was prepended to the input. By
// default, a mark must be prepended.
TEST(BugsOfOthersTokenizers, MetaspacePrependsByDefault) {
  const HfTokenizer tokenizer =
      of_characters({.tokens = {"▁", "a", "▁a"},
                     .merges = R"("▁ a")",
                     .rest = R"("pre_tokenizer": {"type": "Metaspace", "replacement": "▁"}, )"});
  EXPECT_EQ(tokenizer.encode("a"), (Ids{2}));
}

// https://github.com/ggml-org/llama.cpp/pull/7193
// Llama 3's setting ignore_merges had no effect. With it, a word that is a token must become this token, even
// if no merges produce it.
TEST(BugsOfOthersTokenizers, WordOfTheVocabularyNeedsNoMerges) {
  const HfTokenizer tokenizer =
      of_bytes({.tokens = {"a", "b", "ab"}, .options = R"("ignore_merges": true, )"});
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{2}));
}

// https://github.com/huggingface/tokenizers/pull/909 https://github.com/huggingface/tokenizers/issues/566
// Merges of tokens that contain spaces could not be read, because a space separates the two tokens. Such
// merges can be written as pairs of strings, which must be read.
TEST(BugsOfOthersTokenizers, MergeOfATokenWithASpaceIsRead) {
  const HfTokenizer tokenizer = of_characters({.tokens = {"a", " ", "b", "c", " b", "a b", "a bc"},
                                               .merges = R"([" ", "b"], ["a", " b"], ["a b", "c"])"});
  EXPECT_EQ(tokenizer.encode("a bc"), (Ids{6}));
}

// https://github.com/huggingface/swift-transformers/pull/131 https://github.com/robertknight/rten/pull/392
// Merges are written as pairs of strings in newer files, and as "a b" in older files. Readers of the old form
// failed. Both forms must give the same merges.
TEST(BugsOfOthersTokenizers, MergesAsPairsAndAsStringsAreTheSame) {
  const std::vector<std::string> tokens{"a", "b", "ab"};
  EXPECT_EQ(of_bytes({.tokens = tokens, .merges = R"("a b")"}).encode("ab"), (Ids{2}));
  EXPECT_EQ(of_bytes({.tokens = tokens, .merges = R"(["a", "b"])"}).encode("ab"), (Ids{2}));
}

// https://github.com/pegainfer-project/pegainfer/issues/673 https://github.com/mosaicml/llm-foundry/pull/841
// https://github.com/vllm-project/vllm/issues/340
// A model with a padded vocabulary can sample an id without a token. Decoding this id crashed. The result
// must be an empty string.
TEST(BugsOfOthersTokenizers, IdsBeyondTheVocabularyDecodeToNothing) {
  EXPECT_EQ(of_bytes({{"a"}}).decode(Ids{0, 7, 0}), "aa");
}

// https://github.com/huggingface/course/issues/608
// A course described that merges are applied from left to right. The merge that was learned first must be
// applied first. So "thug" becomes t hug, although "th" begins before "ug".
TEST(BugsOfOthersTokenizers, MergesApplyInTheOrderOfTheirRanks) {
  const HfTokenizer tokenizer =
      of_bytes({.tokens = {"t", "h", "u", "g", "ug", "hug", "th"}, .merges = R"("u g", "h ug", "t h")"});
  EXPECT_EQ(tokenizer.encode("thug"), (Ids{0, 5}));
}

// https://github.com/deepseek-ai/DeepSeek-R1/issues/151 https://github.com/sgl-project/sglang/pull/888
// https://github.com/janhq/cortex.cpp/issues/618
// A rendered chat begins with a start token, and the tokenizer added a second one. Only encode_whole() must
// add a start token.
TEST(BugsOfOthersTokenizers, RenderedPromptKeepsOneStartToken) {
  const HfTokenizer tokenizer = of_bytes({.tokens = {"a"},
                                          .added = added_token(1, "<s>", {.special = true}),
                                          .rest = R"("post_processor": {"type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}, )"});
  EXPECT_EQ(tokenizer.encode("<s>a"), (Ids{1, 0}));
  EXPECT_EQ(tokenizer.encode("a", {.whole = true}), (Ids{1, 0}));
}

// https://github.com/huggingface/tokenizers/issues/1544 https://github.com/huggingface/tokenizers/issues/1408
// https://github.com/paiml/aprender/issues/2013 https://github.com/huggingface/transformers/issues/47861
// Added tokens were searched after the input was normalized, which had changed their letters. Added tokens
// with "normalized": false must be found before normalization.
TEST(BugsOfOthersTokenizers, AddedTokenIsCutOutBeforeNormalization) {
  const HfTokenizer tokenizer = of_characters(
      {.tokens = {"<", "b", ">"},
       .added = added_token(3, "<a>"),
       .rest = R"("normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}, )"});
  EXPECT_EQ(tokenizer.encode("a<a>"), (Ids{1, 3}));
}

// https://github.com/huggingface/tokenizers/issues/918 https://github.com/huggingface/transformers/pull/1178
// Added tokens were found inside longer words. With single_word, they are found only as whole words.
TEST(BugsOfOthersTokenizers, SingleWordTokenIsNotFoundInsideWords) {
  const HfTokenizer tokenizer = of_characters(
      {.tokens = {"c", "a", "t", "s", " "}, .added = added_token(5, "cat", {.single_word = true})});
  EXPECT_EQ(tokenizer.encode("cats cat"), (Ids{0, 1, 2, 3, 4, 5}));
}

// https://github.com/huggingface/tokenizers/issues/917
// An added token with rstrip left the spaces after the token in the input. It must remove them.
TEST(BugsOfOthersTokenizers, TokenWithRstripRemovesSpacesAfterIt) {
  const HfTokenizer tokenizer =
      of_characters({.tokens = {"a", " "}, .added = added_token(2, "<mask>", {.rstrip = true})});
  EXPECT_EQ(tokenizer.encode("<mask>  a a"), (Ids{2, 0, 1, 0}));
}

// https://github.com/allenai/open-instruct/pull/1862
// The embedding had one row per token of the vocabulary, without rows for added tokens. The ids of added
// tokens were out of range.
TEST(BugsOfOthersTokenizers, SizeCountsAddedTokens) {
  EXPECT_EQ(of_bytes({.tokens = {"a", "b"}, .added = added_token(2, "<s>")}).size(), 3);
}

// https://github.com/Luce-Org/lucebox/pull/662 https://github.com/ggml-org/llama.cpp/issues/6914
// Numbers were not split as in Llama 3's training. They must be split from the left into words of three
// digits.
TEST(BugsOfOthersTokenizers, DigitsAreInGroupsOfThree) {
  const std::string pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const HfTokenizer tokenizer =
      of_bytes({.tokens = {"1", "11", "111", "1111"}, .merges = R"("1 1", "11 1", "111 1")"},
               R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": )" +
                   io::json_string(pattern) + R"(}, "behavior": "Isolated", "invert": false},
                   {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})");
  EXPECT_EQ(tokenizer.encode("1111"), (Ids{2, 0}));
  EXPECT_EQ(tokenizer.encode("11111111"), (Ids{2, 2, 1}));
}

// https://github.com/ggml-org/llama.cpp/issues/8691
// Input that ends within a character could not be encoded. The remaining bytes must be encoded as tokens.
TEST(BugsOfOthersTokenizers, BytesOfAPartialCharacterAreEncoded) {
  EXPECT_EQ(of_bytes({{"æ", "Ń"}}).encode("\xe6\xad"), (Ids{0, 1}));
}

}  // namespace
}  // namespace tg

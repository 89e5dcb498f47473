// Public bugs of streamed text. Each piece is shown after one token.
#include <tilegrad/io/text/text_stream.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/text_stream_reference.h"

namespace tg {
namespace {

using testing::PieceTokenizer;
using text::TextStream;
using Pieces = std::vector<std::string>;

// The output after each of the tokens, and at the end.
Pieces shown(const Pieces& tokens, const std::vector<std::string>& stops = {}) {
  const PieceTokenizer tokenizer(tokens);
  TextStream stream(tokenizer, stops);
  Pieces pieces;
  for (std::size_t id = 0; id < tokens.size(); ++id)
    pieces.push_back(stream.add(static_cast<std::int32_t>(id)));
  pieces.push_back(stream.finish());
  return pieces;
}

// https://github.com/mzau/mlx-knife/issues/68
// Each token was compared with the stop string by itself, so a stop string of several tokens never ended a
// sequence.
TEST(BugsOfOthersStreams, StopStringAcrossTokensEndsTheSequence) {
  EXPECT_EQ(shown({"a", "EN", "D", "b"}, {"END"}), (Pieces{"a", "", "", "", ""}));
}

// https://github.com/vllm-project/vllm/issues/3574
// The beginning of a stop string was shown before its end was generated. It is held back until that is
// decided.
TEST(BugsOfOthersStreams, StopStringPrefixIsHeldUntilDecided) {
  EXPECT_EQ(shown({"x", "a", "c", "a"}, {"ab"}), (Pieces{"x", "", "ac", "", "a"}));
}

// https://github.com/SharpAI/SwiftLM/issues/126
// Only the last of three tokens of a stop string was held back, and the first was shown. All are held back.
TEST(BugsOfOthersStreams, PrefixOfASplitStopStringIsNotShown) {
  EXPECT_EQ(shown({"x<", "|end", "|>"}, {"<|end|>"}), (Pieces{"x", "", "", ""}));
}

// https://github.com/huggingface/text-generation-inference/issues/1039
// https://github.com/huggingface/text-generation-inference/issues/1254
// A stop string was found only at the end of a token, so one that ended within a token was shown.
TEST(BugsOfOthersStreams, StopStringMayEndWithinAToken) {
  EXPECT_EQ(shown({"aENDb", "c"}, {"END"}), (Pieces{"a", "", ""}));
}

// https://github.com/ggml-org/llama.cpp/pull/9867
// The characters before a stop string in the same token were lost.
TEST(BugsOfOthersStreams, CharactersBeforeAStopStringInItsTokenAreShown) {
  EXPECT_EQ(shown({"fooEND"}, {"END"}), (Pieces{"foo", ""}));
}

// https://github.com/LostRuins/koboldcpp/pull/1031
// If a sequence ended while the beginning of a stop string was held back, it was lost.
TEST(BugsOfOthersStreams, PrefixHeldForAStopStringIsShownAtTheEnd) {
  EXPECT_EQ(shown({"THE E"}, {"END"}), (Pieces{"THE ", "E"}));
}

// https://github.com/mozilla-ai/llamafile/pull/727 https://github.com/Blaizzy/mlx-vlm/pull/1076
// https://github.com/huanglizhuo/QwenASR/pull/12
// Characters of several tokens were shown as replacement characters. The first bytes wait for the others.
TEST(BugsOfOthersStreams, CharacterSplitAcrossTokensIsShownWhole) {
  EXPECT_EQ(shown({"\xe2", "\x82", "\xac"}), (Pieces{"", "", "€", ""}));
}

// https://github.com/unslothai/llama.cpp/pull/202
// Bytes that begin no character were held back forever, and all later characters, too.
TEST(BugsOfOthersStreams, InvalidUtf8PassesThrough) {
  EXPECT_EQ(shown({"\xff", "a"}), (Pieces{"\xff", "a", ""}));
}

}  // namespace
}  // namespace tg

// Reproduces public bugs of streamed text. After each token, a stream outputs all complete characters.
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

// Returns the output after each token, and at the end.
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
// Each token was compared with the stop string separately. A stop string of several tokens never ended a
// sequence.
TEST(BugsOfOthersStreams, StopStringAcrossTokensEndsTheSequence) {
  EXPECT_EQ(shown({"a", "EN", "D", "b"}, {"END"}), (Pieces{"a", "", "", "", ""}));
}

// https://github.com/vllm-project/vllm/issues/3574
// The beginning of a stop string was shown before the rest was generated. It must be held back until later
// tokens complete the stop string or differ from it.
TEST(BugsOfOthersStreams, StopStringPrefixIsHeldUntilDecided) {
  EXPECT_EQ(shown({"x", "a", "c", "a"}, {"ab"}), (Pieces{"x", "", "ac", "", "a"}));
}

// https://github.com/SharpAI/SwiftLM/issues/126
// If a stop string had three tokens, only the last was held back, and the first was shown. All tokens must be
// held back.
TEST(BugsOfOthersStreams, PrefixOfASplitStopStringIsNotShown) {
  EXPECT_EQ(shown({"x<", "|end", "|>"}, {"<|end|>"}), (Pieces{"x", "", "", ""}));
}

// https://github.com/huggingface/text-generation-inference/issues/1039
// https://github.com/huggingface/text-generation-inference/issues/1254
// Stop strings were found only at the end of a token. If a stop string ended within a token, it was shown.
TEST(BugsOfOthersStreams, StopStringMayEndWithinAToken) {
  EXPECT_EQ(shown({"aENDb", "c"}, {"END"}), (Pieces{"a", "", ""}));
}

// https://github.com/ggml-org/llama.cpp/pull/9867
// If a token contained characters before a stop string, these characters were lost.
TEST(BugsOfOthersStreams, CharactersBeforeAStopStringInItsTokenAreShown) {
  EXPECT_EQ(shown({"fooEND"}, {"END"}), (Pieces{"foo", ""}));
}

// https://github.com/LostRuins/koboldcpp/pull/1031
// If a sequence ended while the beginning of a stop string was held back, the held characters were lost.
TEST(BugsOfOthersStreams, PrefixHeldForAStopStringIsShownAtTheEnd) {
  EXPECT_EQ(shown({"THE E"}, {"END"}), (Pieces{"THE ", "E"}));
}

// https://github.com/mozilla-ai/llamafile/pull/727 https://github.com/Blaizzy/mlx-vlm/pull/1076
// https://github.com/huanglizhuo/QwenASR/pull/12
// If a character consisted of several tokens, replacement characters were shown. The first bytes must be held
// back until the character is complete.
TEST(BugsOfOthersStreams, CharacterSplitAcrossTokensIsShownWhole) {
  EXPECT_EQ(shown({"\xe2", "\x82", "\xac"}), (Pieces{"", "", "€", ""}));
}

// https://github.com/unslothai/llama.cpp/pull/202
// Bytes that cannot begin a character were held back forever. All later characters were held back, too.
TEST(BugsOfOthersStreams, InvalidUtf8PassesThrough) {
  EXPECT_EQ(shown({"\xff", "a"}), (Pieces{"\xff", "a", ""}));
}

}  // namespace
}  // namespace tg

// Public bugs of text that is shown as it is generated. Each piece is shown after one token.
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

// What is shown after each of the tokens, and at the end.
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
// Each token was compared with the stop string on its own, so one of several tokens never ended a sequence.
TEST(BugsOfOthersStreams, StopStringAcrossTokensEndsTheSequence) {
  EXPECT_EQ(shown({"a", "EN", "D", "b"}, {"END"}), (Pieces{"a", "", "", "", ""}));
}

// https://github.com/vllm-project/vllm/issues/3574
// The beginning of a stop string was shown before its end was generated. It is held until that is decided.
TEST(BugsOfOthersStreams, NothingOfAStopStringIsShownBeforeItIsDecided) {
  EXPECT_EQ(shown({"x", "a", "c", "a"}, {"ab"}), (Pieces{"x", "", "ac", "", "a"}));
}

// https://github.com/SharpAI/SwiftLM/issues/126
// Of a stop string of three tokens only the last one was held back, and the first was shown. All are held.
TEST(BugsOfOthersStreams, PrefixOfASplitStopStringIsNotShown) {
  EXPECT_EQ(shown({"x<", "|end", "|>"}, {"<|end|>"}), (Pieces{"x", "", "", ""}));
}

// https://github.com/huggingface/text-generation-inference/issues/1039
// https://github.com/huggingface/text-generation-inference/issues/1254
// A stop string was found only where a token ends, and one that ends within a token was shown.
TEST(BugsOfOthersStreams, StopStringMayEndWithinAToken) {
  EXPECT_EQ(shown({"aENDb", "c"}, {"END"}), (Pieces{"a", "", ""}));
}

// https://github.com/ggml-org/llama.cpp/pull/9867
// The characters before a stop string in the same token were lost.
TEST(BugsOfOthersStreams, CharactersBeforeAStopStringInItsTokenAreShown) {
  EXPECT_EQ(shown({"fooEND"}, {"END"}), (Pieces{"foo", ""}));
}

// https://github.com/LostRuins/koboldcpp/pull/1031
// A sequence that ended while the beginning of a stop string was held back lost it.
TEST(BugsOfOthersStreams, PrefixHeldForAStopStringIsShownAtTheEnd) {
  EXPECT_EQ(shown({"THE E"}, {"END"}), (Pieces{"THE ", "E"}));
}

// https://github.com/mozilla-ai/llamafile/pull/727 https://github.com/Blaizzy/mlx-vlm/pull/1076
// https://github.com/huanglizhuo/QwenASR/pull/12
// Characters of several tokens were shown as replacement signs. The first bytes wait for the others.
TEST(BugsOfOthersStreams, CharacterSplitAcrossTokensIsShownWhole) {
  EXPECT_EQ(shown({"\xe2", "\x82", "\xac"}), (Pieces{"", "", "€", ""}));
}

// https://github.com/unslothai/llama.cpp/pull/202
// Bytes that begin no character were held back for good, and all characters after them.
TEST(BugsOfOthersStreams, InvalidUtf8PassesThrough) {
  EXPECT_EQ(shown({"\xff", "a"}), (Pieces{"\xff", "a", ""}));
}

}  // namespace
}  // namespace tg

// Reproduces public bugs about training data: lines of files, targets of an example, and token files.
#include <tilegrad/train/examples.h>

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/token_file.h>
#include "tests/support/files.h"

namespace tg {
namespace {

using testing::TemporaryDirectory;
using Tokens = std::vector<std::int32_t>;

std::size_t examples_in(const std::string& file) {
  const TemporaryDirectory dir;
  return train::read_examples(dir.file("data.jsonl", file)).size();
}

// The tokens and targets of the first of two examples. The second example is held out.
struct Row {
  Tokens x, y;
  Row(const train::Example& example, std::int64_t context)
      : x(static_cast<std::size_t>(context)), y(x.size()) {
    train::ExampleBatches({example, {{1, 2}, 0}}, 1, 1, context).training(1, 0, x, y);
  }
};

// https://github.com/infiniflow/ragflow/issues/19179 https://github.com/huggingface/datasets/issues/8241
// A byte order mark at the beginning of a file corrupted the first line without an error. The mark must be
// rejected.
TEST(BugsOfOthersExamples, ExamplesThatBeginWithAByteOrderMarkAreRefused) {
  EXPECT_THROW(examples_in("\xef\xbb\xbf{\"text\": \"a\"}\n{\"text\": \"b\"}\n"), Error);
}

// https://github.com/Modalities/modalities/issues/395 https://github.com/datalad/datalad/issues/4360
// The last line of a file that does not end with a line break was lost.
TEST(BugsOfOthersExamples, LastLineWithoutLineBreakCounts) {
  EXPECT_EQ(examples_in("{\"text\": \"a\"}\n{\"text\": \"b\"}"), 2u);
}

// https://github.com/ckan/ckanapi/issues/80
// An empty line ended the reading with an error. Empty lines must be skipped.
TEST(BugsOfOthersExamples, BlankLinesAreSkipped) {
  EXPECT_EQ(examples_in("{\"text\": \"a\"}\n\n  \r\n{\"text\": \"b\"}\n\n"), 2u);
}

// https://github.com/areal-project/AReaL/pull/1427
// Prompt tokens were counted in a separate encoding of the prompt. But prompt and answer may share a token at
// the border. The shared token must be learned.
TEST(BugsOfOthersExamples, TokenAcrossThePromptsEndIsLearned) {
  const text::Bpe pairs({{'a', 'b'}});
  const train::Example e = train::encode_example({"xa", "b"}, pairs, {});
  EXPECT_EQ(e.tokens, (Tokens{'x', 256}));
  EXPECT_EQ(e.given, 1u);
}

// https://github.com/OpenRLHF/OpenRLHF/issues/973
// The mask of a prompt was one token too long, so the first token of the answer was never learned.
TEST(BugsOfOthersExamples, FirstTokenOfTheAnswerIsATarget) {
  EXPECT_EQ(Row({{5, 6, 7, 8}, 2}, 4).y, (Tokens{-100, 7, 8, -100}));
}

// https://github.com/tatsu-lab/stanford_alpaca/issues/126 https://github.com/verl-project/verl/issues/655
// The end token was masked like padding, so models never learned to end an answer.
TEST(BugsOfOthersExamples, EndTokenIsATarget) {
  const text::ByteTokenizer bytes;
  const train::Example e = train::encode_example({"a", "b"}, bytes, 0);
  EXPECT_EQ(Row(e, 4).y, (Tokens{'b', 0, -100, -100}));
}

// https://github.com/huggingface/transformers/issues/19742
// If an example was truncated to the context, an end token was added, although the answer does not end there.
TEST(BugsOfOthersExamples, CutExampleHasNoEndToken) {
  EXPECT_EQ(Row({{5, 6, 7, 8, 9}, 0}, 3).y, (Tokens{6, 7, 8}));
}

// https://github.com/karpathy/nanochat/pull/582
// Tokens of prompts were learned. Only the answer must be learned.
TEST(BugsOfOthersExamples, PromptIsNotLearned) {
  EXPECT_EQ(Row({{5, 6, 7, 8, 9}, 3}, 5).y, (Tokens{-100, -100, 8, 9, -100}));
}

// https://github.com/huggingface/datatrove/issues/118 https://github.com/urvashik/knnlm/issues/6
// Ids above 65535 were written in 16 bits and read as different ids.
TEST(BugsOfOthersExamples, IdsAbove65535KeepTheirValue) {
  const TemporaryDirectory dir;
  const Tokens ids{1, 65536, 69999};
  text::TokenFileWriter writer(dir / "t", text::NumberTokenizer(70000));
  writer.write(ids);
  writer.close();
  Tokens read(ids.size());
  text::TokenFile(dir / "t").tokens().copy(0, read);
  EXPECT_EQ(read, ids);
}

// https://github.com/mlfoundations/open_lm/pull/77
// Ids outside of the vocabulary were mapped into the vocabulary. Such ids must cause an error.
TEST(BugsOfOthersExamples, TokenBeyondTheVocabularyIsRefused) {
  const std::uint16_t ids[] = {1, 7};
  Tokens read(2);
  EXPECT_THROW(text::TokenView(ids, 2, 2, 5).copy(0, read), Error);
}

// https://github.com/modelscope/ms-swift/issues/10050
// Each pass over the data had the order of the first pass. Each pass must have a different order. This must
// also hold if a run is resumed within a pass.
TEST(BugsOfOthersExamples, LaterPassHasItsOwnOrder) {
  std::vector<train::Example> all;
  for (std::int32_t i = 0; i < 20; ++i) all.push_back({{i, 1}, 0});
  constexpr std::int64_t trained = 18;  // the last two are held out
  const auto pass = [&](const train::ExampleBatches& batches, std::int64_t number) {
    Tokens order(trained), y(trained);
    batches.training(1, number, order, y);
    return order;
  };
  const train::ExampleBatches whole(all, trained, 2, 1), resumed(all, trained, 2, 1);
  const Tokens first = pass(whole, 0), second = pass(whole, 1);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set<std::int32_t>(first.begin(), first.end()),
            std::set<std::int32_t>(second.begin(), second.end()));
  EXPECT_EQ(pass(resumed, 1), second);
}

}  // namespace
}  // namespace tg

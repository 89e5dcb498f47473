// Reproduces public bugs in generation: caches, shared pages, windows, end tokens and beams.
#include <tilegrad/nn/generation/engine.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/generation/page_pool.h>
#include <tilegrad/nn/generation/sampling.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>

namespace tg {
namespace {

using nn::BeamSearch;
using nn::Engine;
using nn::Generator;
using nn::PagePool;
using nn::PageTable;
using Tokens = std::vector<std::int32_t>;

nn::ModelConfig small(const nn::Architecture& architecture = {}) {
  nn::ModelConfig c{
      .vocabulary = 29, .context = 48, .layers = 2, .heads = 2, .width = 16, .tied_head = false, .std = 0.3};
  c.architecture = architecture;
  return c;
}

struct Writer {
  nn::Params params{1};
  const nn::Model model;

  explicit Writer(const nn::Architecture& architecture = {}) : model(params, small(architecture)) {}

  // Returns the greedy tokens after a prompt. Each token is computed from the complete sequence, without a
  // cache.
  Tokens expected(Tokens text, std::int64_t count) const {
    Generator generator(model, {.threads = 1, .cache = false});
    const auto begin = std::ssize(text);
    for (std::int64_t n = 0; n < count; ++n) {
      const std::span<const float> logits = generator.next(text);
      text.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
    }
    return {text.begin() + begin, text.end()};
  }
  // Returns the tokens that the engine generates after each prompt.
  static std::vector<Tokens> written(Engine& engine, const std::vector<Tokens>& prompts, std::int64_t count) {
    std::vector<Tokens> texts(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i)
      engine.add({.prompt = prompts[i],
                  .tokens = count,
                  .sampling = {.temperature = 0},
                  .report = [&text = texts[i]](const Engine::Token& t) {
                    text.push_back(t.token);
                    return text.size() < 100;
                  }});
    for (int step = 0; step < 500 && engine.step(); ++step) continue;
    return texts;
  }
};

Tokens numbers(std::int32_t count, std::int32_t step = 1) {
  Tokens all;
  for (std::int32_t i = 0; i < count; ++i) all.push_back((5 + i * step) % 29);
  return all;
}

std::vector<float> next(Generator& generator, const Tokens& text) {
  const std::span<const float> logits = generator.next(text);
  return {logits.begin(), logits.end()};
}

// The pages of a prompt. The prompt is processed in one call.
PageTable opened(PagePool& pool, const Tokens& text) {
  PageTable table = pool.open(text);
  std::vector<nn::PageCopy> copies;
  EXPECT_TRUE(table.reserve(std::ssize(text) - table.length(), copies));
  table.append(std::span(text).subspan(static_cast<std::size_t>(table.length())));
  return table;
}

// https://github.com/vllm-project/vllm/pull/17999 https://github.com/vllm-project/vllm/pull/11186
// If all pages of a prompt were cached, nothing was left to process, so there were no logits. In this case,
// the last token must be processed again.
TEST(BugsOfOthersGeneration, LastTokenOfACachedPromptIsProcessedAgain) {
  PagePool pool(8, 2);
  opened(pool, {1, 2, 3, 4});
  EXPECT_EQ(pool.open(Tokens{1, 2, 3, 4}).length(), 2);
  EXPECT_EQ(pool.open(Tokens{1, 2, 3, 4, 5}).length(), 4);
}

// https://github.com/LMCache/LMCache/pull/3322
// If a prompt was a prefix of the cached sequence, its logits were the logits of the cached sequence.
TEST(BugsOfOthersGeneration, ShorterCachedPromptHasItsOwnLogits) {
  const Writer w;
  Generator generator(w.model, {.threads = 1}), other(w.model, {.threads = 1});
  next(generator, {1, 2, 3, 4});
  EXPECT_EQ(next(generator, {1, 2}), next(other, {1, 2}));
}

// https://github.com/openvinotoolkit/openvino.genai/issues/3722
// Pages were found by their hash only, so a collision gave a request the keys of another request. Tokens must
// also be compared.
TEST(BugsOfOthersGeneration, PagesWithTheSameHashAreDistinguished) {
  PagePool pool(8, 2, 0);  // hashes with 0 bits: all are equal
  opened(pool, {1, 2, 3});
  EXPECT_EQ(pool.open(Tokens{4, 5, 6}).length(), 0);
  EXPECT_EQ(pool.open(Tokens{1, 2, 6}).length(), 2);
}

// https://github.com/vllm-project/aibrix/issues/2329
// A page was identified only by the tokens in it. But keys depend on all earlier tokens.
TEST(BugsOfOthersGeneration, SamePageAfterADifferentPrefixIsDistinct) {
  PagePool pool(8, 2, 0);
  opened(pool, {1, 2, 5, 6, 9});
  opened(pool, {3, 4, 9});
  EXPECT_EQ(pool.open(Tokens{3, 4, 5, 6, 9}).length(), 2);
}

// https://github.com/InternLM/lmdeploy/issues/4917 https://github.com/NVIDIA-NeMo/RL/pull/4018
// After weights were replaced, prompts still used cached keys from the old weights. forget() must remove
// these keys.
TEST(BugsOfOthersGeneration, PrefixOfOldWeightsIsNotUsed) {
  Writer w;
  Engine engine(w.model, {.slots = 2, .page_size = 4, .threads = 1});
  const Tokens prompt = numbers(13);
  EXPECT_EQ(Writer::written(engine, {prompt}, 6)[0], w.expected(prompt, 6));
  nn::Params replaced(2);
  const nn::Model other(replaced, small());
  for (Parameter p : w.params.all()) p.write(replaced.find(p.name())->read());
  engine.forget();
  EXPECT_EQ(Writer::written(engine, {prompt}, 6)[0], w.expected(prompt, 6));
}

// https://github.com/ovg-project/kvcached/issues/362
// A reused page was still found by its old tokens.
TEST(BugsOfOthersGeneration, ReusedPageIsNotFoundByItsOldContent) {
  PagePool pool(2, 2);
  opened(pool, {1, 2, 3, 4});
  PageTable other = pool.open(Tokens{5, 6, 7, 8});
  std::vector<nn::PageCopy> copies;
  ASSERT_TRUE(other.reserve(4, copies));
  EXPECT_EQ(pool.open(Tokens{1, 2, 3, 4}).length(), 0);
}

// https://github.com/GeeeekExplorer/nano-vllm/pull/217 https://github.com/vllm-project/vllm-gaudi/pull/524
// https://github.com/vllm-project/vllm/issues/16832
// A preempted sequence continued with wrong tokens. After preemption, its tokens must be processed again.
TEST(BugsOfOthersGeneration, PreemptedSequenceIsUnchanged) {
  const Writer w;
  Engine engine(w.model, {.slots = 3, .cache_tokens = 48, .page_size = 4, .threads = 1, .ahead = false});
  const std::vector<Tokens> prompts{numbers(6), numbers(7, 3), numbers(5, 4)};
  const std::vector<Tokens> texts = Writer::written(engine, prompts, 20);
  EXPECT_GT(engine.scheduler().preemptions(), 0);
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(texts[i], w.expected(prompts[i], 20)) << i;
}

// https://github.com/ml-explore/mlx-lm/issues/1906 https://github.com/ml-explore/mlx-lm/issues/439
// https://github.com/ml-explore/mlx-lm/issues/735 https://github.com/unslothai/unsloth/issues/3699
// https://github.com/Blaizzy/mlx-vlm/pull/1542
// If a batch contained a longer prompt, the positions of a shorter prompt included its padding. Positions of
// each sequence must start at 0.
TEST(BugsOfOthersGeneration, ShortPromptNextToALongOneIsUnchanged) {
  const Writer w;
  Engine engine(w.model, {.slots = 2, .threads = 1, .ahead = false});
  const std::vector<Tokens> prompts{numbers(20), numbers(3)};
  const std::vector<Tokens> texts = Writer::written(engine, prompts, 8);
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(texts[i], w.expected(prompts[i], 8)) << i;
}

// https://github.com/karpathy/nanochat/pull/456 https://github.com/karpathy/nanochat/issues/452
// https://github.com/goombalab/hnet/issues/20
// When tokens were decoded one at a time, layers with a window attended to the complete cache. In training,
// they attended only to the window.
TEST(BugsOfOthersGeneration, WindowHoldsWhileDecodingFromTheCache) {
  const Writer w(nn::Llama{.windows = {3, 3}});
  const Tokens text = numbers(12, 3);
  Generator cached(w.model, {.threads = 1}), whole(w.model, {.threads = 1, .cache = false});
  for (std::size_t n = 9; n <= text.size(); ++n) {
    const Tokens part(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n));
    const std::vector<float> a = next(cached, part), b = next(whole, part);
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4) << n;
  }
}

// https://github.com/huggingface/transformers/issues/37574
// https://github.com/huggingface/transformers/pull/38046
// https://github.com/EricLBuehler/mistral.rs/issues/246
// A paged cache keeps all keys. When tokens were generated one at a time, they attended to keys beyond the
// window.
TEST(BugsOfOthersGeneration, TokensBeyondTheWindowAreNotSeenInPages) {
  const Writer w(nn::Llama{.windows = {3, 3}});
  Engine engine(w.model, {.slots = 2, .page_size = 4, .threads = 1, .ahead = false});
  const Tokens prompt = numbers(12, 3);
  EXPECT_EQ(Writer::written(engine, {prompt}, 16)[0], w.expected(prompt, 16));
}

// https://github.com/nicedreamzapp/claude-code-local/pull/47
// A new prompt shared a prefix with the cache. The cache kept its old tokens after this prefix.
TEST(BugsOfOthersGeneration, CacheIsTruncatedToTheSharedPrefix) {
  const Writer w;
  Generator generator(w.model, {.threads = 1}), other(w.model, {.threads = 1, .cache = false});
  next(generator, {1, 2, 3, 4, 5});
  const std::vector<float> a = next(generator, {1, 2, 6}), b = next(other, {1, 2, 6});
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4);
}

// The request's seed draws token 0 first. The tests use several lists of end tokens.
struct FirstTokenZero {
  Writer w;
  std::uint64_t seed = 0;
  std::vector<Engine::End> ends = {};

  FirstTokenZero() {
    Generator generator(w.model, {.threads = 1});
    while (nn::sample_token(generator.next(prompt), {}, nn::sampling_draw(seed, 0)) != 0) ++seed;
  }
  const Tokens prompt = {3};
  Tokens written(const Tokens& end_tokens) {
    Tokens text;
    Engine engine(w.model, {.slots = 1, .threads = 1});
    engine.add({.prompt = prompt,
                .tokens = 5,
                .sampling = {},
                .seed = seed,
                .ends = end_tokens,
                .report = [&](const Engine::Token& t) {
                  text.push_back(t.token), ends.push_back(t.end);
                  return true;
                }});
    engine.run();
    return text;
  }
};

// https://github.com/openvinotoolkit/openvino.genai/pull/3593
// An end token with id 0 was ignored, and the sequence continued.
TEST(BugsOfOthersGeneration, EndTokenZeroEndsASequence) {
  FirstTokenZero text;
  EXPECT_EQ(text.written({0}), (Tokens{0}));
  EXPECT_EQ(text.ends, (std::vector{Engine::End::token}));
}

// https://github.com/anthony-chaudhary/fak/issues/12604
// If a model had no end token, sequences ended at token 0. Without an end token, a sequence must end only at
// the maximum number of tokens.
TEST(BugsOfOthersGeneration, SequenceWithoutEndTokensDoesNotEndAtTokenZero) {
  FirstTokenZero text;
  EXPECT_EQ(text.written({}).size(), 5u);
  EXPECT_EQ(text.ends.back(), Engine::End::count);
}

// https://github.com/intel/ipex-llm/pull/11896
// If there were several end tokens, only the first of them ended a sequence.
TEST(BugsOfOthersGeneration, AnyEndTokenOfAListEnds) {
  FirstTokenZero text;
  EXPECT_EQ(text.written({28, 0, 27}), (Tokens{0}));
}

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// https://github.com/facebookresearch/ParlAI/issues/2058
// Ended beams occupied slots of live beams, until only one live beam was searched.
TEST(BugsOfOthersGeneration, EndedBeamsDoNotOccupySlots) {
  BeamSearch search(2, 5, {0});
  search.offer(0, logits_of({.5, .3, .2}));
  EXPECT_EQ(search.advance(), (std::vector<std::size_t>{0, 0}));
  ASSERT_EQ(search.live().size(), 2u);
  EXPECT_EQ(search.live()[0].tokens, (Tokens{1}));
  EXPECT_EQ(search.live()[1].tokens, (Tokens{2}));
}

// https://github.com/ottokart/beam_search/pull/1
// The search ended as soon as enough beams had ended, although a live beam was more likely. Here tokens 1, 1,
// 0 have probability 0.19. The sequence 1, 0 ends earlier and has probability 0.175.
TEST(BugsOfOthersGeneration, SearchContinuesWhileALikelierSequenceIsPossible) {
  BeamSearch search(2, 5, {0});
  search.offer(0, logits_of({.3, .5, .2}));
  ASSERT_EQ(search.advance().size(), 2u);
  search.offer(0, logits_of({.35, .4, .25}));
  search.offer(1, logits_of({.1, .5, .4}));
  ASSERT_EQ(search.advance().size(), 2u);
  search.offer(0, logits_of({.95, .03, .02}));
  search.offer(1, logits_of({.1, .5, .4}));
  search.advance();
  const std::vector<nn::Hypothesis> best = search.results();
  ASSERT_EQ(best.size(), 2u);
  EXPECT_EQ(best[0].tokens, (Tokens{0}));
  EXPECT_EQ(best[1].tokens, (Tokens{1, 1, 0}));
  EXPECT_NEAR(best[1].score, std::log(.5 * .4 * .95), 1e-6);
}

// https://github.com/huggingface/transformers/issues/8722
// The sequences that a search returned lacked their end tokens.
TEST(BugsOfOthersGeneration, EndTokenIsPartOfItsHypothesis) {
  BeamSearch search(1, 5, {0});
  search.offer(0, logits_of({.8, .1, .1}));
  search.advance();
  const std::vector<nn::Hypothesis> best = search.results();
  ASSERT_EQ(best.size(), 1u);
  EXPECT_EQ(best[0].tokens, (Tokens{0}));
}

}  // namespace
}  // namespace tg

// Runs many requests in an Engine. Each sequence must equal the result of a batch of one request,
// and the result of Generator.
#include <tilegrad/nn/generation/generate.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/engine_requests.h"

namespace {

using namespace tg;
using namespace tg::testing;

TEST(Engine, SequencesMatchABatchOfOne) {
  for (const Kind& kind : engine_kinds()) {
    nn::Params params(1);
    const nn::Model model(params, kind.config);
    const auto list = requests(24, 7);
    const std::vector<Written> expected = alone(model, list);
    for (const nn::Engine::Options& options :
         {nn::Engine::Options{.slots = 8, .threads = 1},
          {.slots = 3, .page_size = 5, .chunk = 7, .threads = 1},
          {.slots = 24, .page_size = 64, .threads = 3},
          {.slots = 8, .cache_tokens = 160, .threads = 1},
          {.slots = 8, .cache_tokens = 160, .host_tokens = 400, .threads = 1},
          {.slots = 4, .page_size = 96, .threads = 1},
          {.slots = 1, .threads = 1, .ahead = true},
          {.slots = 8, .threads = 1, .ahead = true},
          {.slots = 3, .page_size = 5, .chunk = 7, .threads = 1, .ahead = true},
          {.slots = 8, .cache_tokens = 160, .threads = 1, .ahead = true},
          {.slots = 8, .cache_tokens = 160, .host_tokens = 400, .threads = 1, .ahead = true}}) {
      nn::Engine engine(model, options);
      const std::vector<Written> got = together(engine, list);
      for (std::size_t i = 0; i < list.size(); ++i) {
        EXPECT_EQ(got[i].tokens, expected[i].tokens) << kind.name << ", request " << i;
        EXPECT_TRUE(got[i].logits == expected[i].logits) << kind.name << ", request " << i;
      }
      EXPECT_EQ(engine.sequences(), 0u);
      EXPECT_EQ(engine.scheduler().pool().free(), engine.scheduler().pool().pages());
      if (options.cache_tokens > 0) {
        EXPECT_GT(engine.scheduler().preemptions(), 0);
      }
    }
  }
}

// Records the number of rows of each program of an engine.
nn::LanguageModel noting(const nn::Model& model, std::vector<std::int64_t>& rows) {
  nn::LanguageModel noting = model;
  noting.features = [features = noting.features, &rows](TensorArg tokens, const nn::CallArgs& call) {
    rows.push_back(tokens.tensor().numel());
    return features(tokens, call);
  };
  return noting;
}

TEST(Engine, ReadsPromptsInTheRunOfGeneratingSequences) {
  nn::Params params(1);
  const nn::Model model(params, engine_kinds()[0].config);
  std::vector<std::int64_t> rows;
  nn::Engine engine(noting(model, rows), {.slots = 4, .threads = 1, .ahead = false});
  engine.add(nn::Engine::Request{.prompt = Tokens(4, 1)});
  engine.step();
  engine.add(nn::Engine::Request{.prompt = Tokens(17, 2)});
  engine.add(nn::Engine::Request{.prompt = Tokens(3, 2)});
  engine.step();
  engine.step();
  // The numbers of rows are:
  // - one row, for the size of the vocabulary;
  // - two groups of 8 tokens; one token is needed;
  // - all slots and four groups, which contain 17 and 3 tokens;
  // - all slots.
  EXPECT_EQ(rows, (std::vector<std::int64_t>{1, 2 * 8, 4 + 4 * 8, 4}));
}

TEST(Engine, PreparesAllProgramsThatStepsNeed) {
  nn::Params params(1);
  const nn::Model model(params, engine_kinds()[0].config);
  const auto list = requests(24, 7);
  for (const std::int64_t chunk : {256, 40, 7}) {
    std::vector<std::int64_t> rows;
    nn::Engine engine(noting(model, rows), {.slots = 20, .cache_tokens = 640, .chunk = chunk, .threads = 1});
    engine.prepare();
    const std::size_t prepared = rows.size();
    const std::vector<Written> got = together(engine, list);
    EXPECT_EQ(rows.size(), prepared);
    EXPECT_TRUE(got == alone(model, list));
  }
}

// Searches without sharing: reads every continuation as a separate sequence.
std::vector<nn::Hypothesis> searched(const nn::Model& model, const nn::Engine::Search& s) {
  nn::Generator generator(model, {.threads = 1, .cache = false});
  std::vector<nn::Hypothesis> live(1), ended;
  const auto likelier = [](const nn::Hypothesis& a, const nn::Hypothesis& b) { return a.score > b.score; };
  const auto n = static_cast<std::size_t>(s.beams);
  for (std::int64_t step = 0; step < s.tokens; ++step) {
    std::vector<nn::Hypothesis> all;
    for (const nn::Hypothesis& h : live) {
      Tokens sequence = s.prompt;
      sequence.insert(sequence.end(), h.tokens.begin(), h.tokens.end());
      const auto logits = generator.next(sequence);
      double sum = 0;
      for (const float x : logits) sum += std::exp(double{x});
      for (std::size_t t = 0; t < logits.size(); ++t) {
        all.push_back(h);
        all.back().tokens.push_back(static_cast<std::int32_t>(t));
        all.back().score += logits[t] - std::log(sum);
      }
    }
    std::stable_sort(all.begin(), all.end(), likelier);
    live.clear();
    for (const nn::Hypothesis& h : all)
      if (live.size() < n)
        (std::ranges::find(s.ends, h.tokens.back()) != s.ends.end() ? ended : live).push_back(h);
    std::stable_sort(ended.begin(), ended.end(), likelier);
    if (ended.size() > n) ended.resize(n);
    if (ended.size() == n && ended.back().score >= live[0].score) return ended;
  }
  ended.insert(ended.end(), live.begin(), live.end());
  std::stable_sort(ended.begin(), ended.end(), likelier);
  ended.resize(n);
  return ended;
}

TEST(Engine, BeamSearchMatchesASearchWithoutSharing) {
  for (const Kind& kind : engine_kinds()) {
    nn::Params params(2);
    const nn::Model model(params, kind.config);
    for (const auto& [beams, ends] :
         {std::pair<std::int64_t, Tokens>{1, {}}, {4, {}}, {3, {5}}, {5, {11, 5, 7}}}) {
      const nn::Engine::Search search{.prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2},
                                      .tokens = 12,
                                      .beams = beams,
                                      .ends = ends};
      const auto expected = searched(model, search);
      // Runs the search by itself. Then runs two searches and other sequences together. The cache is small,
      // so beams must wait for free pages.
      for (const bool in_company : {false, true}) {
        nn::Engine engine(model, {.slots = 8,
                                  .cache_tokens = in_company ? 160 : 0,
                                  .page_size = 4,
                                  .threads = 1,
                                  .ahead = in_company});
        std::vector<nn::Hypothesis> got, again;
        auto first = search, second = search;
        first.report = [&](std::vector<nn::Hypothesis> h) { got = std::move(h); };
        second.report = [&](std::vector<nn::Hypothesis> h) { again = std::move(h); };
        engine.search(first);
        if (in_company) {
          for (const auto& r : requests(6, 3)) engine.add(r);
          engine.search(second);
        }
        engine.run();
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i].tokens, expected[i].tokens) << kind.name << ", " << beams << " beams, " << i;
          EXPECT_NEAR(got[i].score, expected[i].score, 1e-4);
          if (in_company) {
            EXPECT_EQ(again.at(i).tokens, expected[i].tokens);
          }
        }
        EXPECT_EQ(engine.scheduler().pool().free(), engine.scheduler().pool().pages());
      }
    }
  }
}

}  // namespace

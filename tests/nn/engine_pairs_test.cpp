// Tests each option of an Engine by itself, in pairs, and in two engines of one model that step alternately.
// Each request must get the same tokens and logits as without other requests.
#include <gtest/gtest.h>

#include "tests/support/engine_requests.h"
#include "tests/support/option_pairs.h"

namespace tg::nn {

auto fields_of(const Engine::Options& o) {
  const auto& [slots, cache_tokens, page_size, chunk, host_tokens, threads, precision, cache_dtype, ahead] =
      o;
  return std::tie(slots, cache_tokens, page_size, chunk, host_tokens, threads, precision, cache_dtype, ahead);
}

namespace {

using namespace testing;

struct OneThread : Engine::Options {
  OneThread() { threads = 1; }
};

struct Row {
  const char* name;
  void (*set)(OneThread&);
};
const Row rows[] = {
    {"one slot", [](auto& o) { o.slots = 1; }},
    {"three slots", [](auto& o) { o.slots = 3; }},
    {"small cache", [](auto& o) { o.cache_tokens = 48; }},
    {"pages of a token", [](auto& o) { o.page_size = 1; }},
    {"pages of five", [](auto& o) { o.page_size = 5; }},
    {"chunk", [](auto& o) { o.chunk = 3; }},
    {"host", [](auto& o) { o.host_tokens = 100; }},
    {"threads", [](auto& o) { o.threads = 2; }},
    {"precision", [](auto& o) { o.precision = Precision::bf16; }},
    {"cache dtype", [](auto& o) { o.cache_dtype = f16; }},
    {"ahead", [](auto& o) { o.ahead = true; }},
    {"not ahead", [](auto& o) { o.ahead = false; }},
};

OneThread both(std::size_t a, std::size_t b) {
  OneThread o;
  rows[a].set(o);
  if (a != b) rows[b].set(o);
  return o;
}

struct EnginePairs : ::testing::Test {
  Params params{1};
  const Model model{params,
                    {.architecture = Llama{.key_heads = 1},
                     .vocabulary = 29,
                     .context = 32,
                     .layers = 1,
                     .heads = 2,
                     .width = 16,
                     .tied_head = false,
                     .std = 0.2}};
  // Two of the five requests have a common prefix. A small cache is too small for all five at the same time.
  const std::vector<Engine::Request> list = {
      {.prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, .tokens = 9, .seed = 2},
      {.prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3}, .tokens = 7, .sampling = {.temperature = 0}},
      {.prompt = {7}, .tokens = 12, .seed = 4},
      {.prompt = Tokens(14, 8), .tokens = 11, .sampling = {.temperature = 2, .top_k = 9}, .seed = 5},
      {.prompt = {3, 1, 4, 1, 5, 9, 20}, .tokens = 1, .seed = 6}};

  // The tokens and logits of a request depend only on these two options.
  using Numbers = std::pair<Precision, std::optional<DType>>;
  std::map<Numbers, std::vector<Written>> known;
  const std::vector<Written>& expected(const Engine::Options& o) {
    auto& sequences = known[{o.precision, o.cache_dtype}];
    if (!sequences.empty()) return sequences;
    sequences.resize(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      Engine engine(model,
                    {.slots = 1, .threads = 1, .precision = o.precision, .cache_dtype = o.cache_dtype});
      engine.add(keeping(list[i], sequences[i]));
      engine.run();
    }
    return sequences;
  }

  struct Running {
    Engine engine;
    std::vector<Written> sequences;
    std::size_t added = 0;
    Running(const Model& model, const Engine::Options& o, std::size_t count)
        : engine(model, o), sequences(count) {}
    // Adds a request and runs a step. The first call adds several requests. Returns false when all requests
    // have ended.
    bool step(const std::vector<Engine::Request>& list) {
      for (const std::size_t until = std::min(list.size(), added + (added == 0 ? 3 : 1)); added < until;
           ++added)
        engine.add(keeping(list[added], sequences[added]));
      return engine.step() || added < list.size();
    }
  };
  void run(const std::vector<Engine::Options>& options) {
    std::vector<std::unique_ptr<Running>> all;
    for (const Engine::Options& o : options) all.push_back(std::make_unique<Running>(model, o, list.size()));
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (const auto& one : all) goes_on = one->step(list) || goes_on;
    }
    for (std::size_t n = 0; n < all.size(); ++n) {
      const auto& alone = expected(options[n]);
      for (std::size_t i = 0; i < list.size(); ++i) {
        EXPECT_EQ(all[n]->sequences[i].tokens, alone[i].tokens) << "engine " << n << ", sequence " << i;
        EXPECT_TRUE(all[n]->sequences[i].logits == alone[i].logits) << "engine " << n << ", sequence " << i;
      }
      const Scheduler& scheduler = all[n]->engine.scheduler();
      EXPECT_EQ(scheduler.pool().free(), scheduler.pool().pages());
      if (options[n].cache_tokens > 0 && options[n].slots > 1) {
        EXPECT_GT(scheduler.preemptions(), 0);
      }
    }
  }
};

TEST(EngineOptions, RowsSetEachField) {
  expect_each_field_is_set(std::size(rows), [](std::size_t i) { return both(i, i); });
}

TEST_F(EnginePairs, OptionsOfOneEngineDoNotChangeTokens) {
  each_pair(std::size(rows), [&](std::size_t a, std::size_t b) {
    SCOPED_TRACE(std::string(rows[a].name) + " and " + rows[b].name);
    run({both(a, b)});
  });
}

TEST_F(EnginePairs, OptionsOfTwoEnginesDoNotChangeTokens) {
  each_pair(std::size(rows), [&](std::size_t a, std::size_t b) {
    SCOPED_TRACE(std::string(rows[a].name) + " beside " + rows[b].name);
    run({both(a, a), both(b, b)});
  });
}

TEST_F(EnginePairs, PrecisionAndCacheDtypeChangeLogits) {
  const auto& plain = expected({});
  EXPECT_FALSE(expected({.precision = Precision::bf16}) == plain);
  EXPECT_FALSE(expected({.cache_dtype = f16}) == plain);
}

}  // namespace
}  // namespace tg::nn

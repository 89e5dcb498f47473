// Tests Engine's programs for different numbers of sequences, rows that move to the host and back, and the
// default options.
#include <tilegrad/nn/models/gpt.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>

#include <tilegrad/nn/generation/generate.h>
#include "nn/generation/programs.h"
#include "tests/support/engine_calls.h"

namespace {

using namespace tg;
using namespace tg::testing;

// A model of two tables, without attention. It records the number of rows of each program.
struct Rows {
  nn::Params params{4};
  nn::Embedding tokens{nn::Path(params) / "tokens", 9, 4, nn::Init::normal(1)};
  nn::Linear head{nn::Path(params) / "head", 4, 9, {.init = nn::Init::normal(1)}};
  std::vector<std::int64_t> rows;

  nn::LanguageModel model() {
    return {.features =
                [this](TensorArg x, const nn::CallArgs&) {
                  rows.push_back(x.tensor().numel());
                  return tokens(x);
                },
            .head = [this](TensorArg x) { return head(x); },
            .context = 32,
            .parameters = params.all()};
  }
  // Adds `count` prompts of `size` tokens. The prompts do not share pages.
  static void add(Engine& engine, std::int64_t count, std::int64_t size, std::int64_t tokens) {
    for (std::int64_t i = 0; i < count; ++i) {
      Tokens prompt(static_cast<std::size_t>(size), 3);
      for (std::int64_t k = 0, n = i; k < std::min<std::int64_t>(size, 3); ++k, n /= 9)
        prompt[static_cast<std::size_t>(k)] = static_cast<std::int32_t>(n % 9);
      engine.add({.prompt = std::move(prompt), .tokens = tokens});
    }
  }
};

std::int64_t first_from(const std::vector<std::int64_t>& sizes, std::int64_t n) {
  return *std::ranges::lower_bound(sizes, n);
}

TEST(EnginePrograms, RoundUpToOneOfFewNumbersOfRows) {
  Rows r;
  Engine engine(r.model(), {.slots = 260, .page_size = 4, .chunk = 2048, .threads = 1, .ahead = false});
  EXPECT_EQ(r.rows, std::vector<std::int64_t>{1});
  const std::vector<std::int64_t> singles{1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 260},
      groups{2, 4, 8, 16, 24, 32, 64, 128}, beside{0, 16, 64, 80, 96, 128, 192, 256, 260};
  std::vector<std::int64_t> numbers;
  for (const std::int64_t n : singles)
    for (const std::int64_t k : {n, n + 1})
      if (k <= 260 && (numbers.empty() || k > numbers.back())) numbers.push_back(k);
  for (const std::int64_t n : numbers) {
    Rows::add(engine, n, 1, 1);
    engine.run();
    EXPECT_EQ(r.rows.back(), first_from(singles, n)) << n << " sequences";
  }
  EXPECT_EQ(r.rows.size(), singles.size());
  numbers.clear();
  for (const std::int64_t n : groups)
    for (const std::int64_t k : {n - 1, n, n + 1})
      if (k <= 128 && (numbers.empty() || k > numbers.back())) numbers.push_back(k);
  for (const std::int64_t n : numbers) {
    engine.forget();
    Rows::add(engine, n, 8, 1);
    engine.run();
    EXPECT_EQ(r.rows.back(), 8 * first_from(groups, n)) << n << " groups";
  }
  EXPECT_EQ(r.rows.size(), singles.size() + groups.size());
  // 131 groups are read in two runs. The programs of these runs already exist.
  engine.forget();
  Rows::add(engine, 131, 8, 1);
  engine.run();
  EXPECT_EQ(r.rows.size(), singles.size() + groups.size());
  for (const std::int64_t n : {1, 16, 17, 64, 65, 80, 81, 96, 97, 128, 129, 192, 193, 256, 257}) {
    engine.forget();
    Rows::add(engine, n, 1, 3);
    engine.step();
    Rows::add(engine, 1, 8, 1);
    engine.step();
    EXPECT_EQ(r.rows.back(), first_from(beside, n) + 16) << n << " sequences next to a group";
    engine.run();
  }
}

TEST(EnginePrograms, ArePreparedInAdvance) {
  Rows r;
  Engine engine(r.model(), {.slots = 20, .cache_tokens = 640, .chunk = 40, .threads = 1});
  engine.prepare();
  EXPECT_EQ(r.rows, (std::vector<std::int64_t>{1, 16, 32, 40, 2, 4, 8, 12, 16, 32, 48, 56, 20, 36, 52, 60}));
  r.rows.clear();
  Engine few(r.model(), {.slots = 20, .cache_tokens = 48, .chunk = 9, .threads = 1});  // three pages
  few.prepare();
  EXPECT_EQ(r.rows, (std::vector<std::int64_t>{1, 16, 2, 4, 32}));
}

// Sequences have more rows than one run moves. Several page sizes are tested. Some sequences have a common
// prefix. The pages of this prefix are found in the cache, and the other pages are restored.
TEST(Engine, LongSequencesMoveToTheHostAndBack) {
  nn::Params params(1);
  nn::ModelConfig c{
      .vocabulary = 13, .context = 400, .layers = 1, .heads = 2, .width = 8, .tied_head = false, .std = 0.5};
  const nn::Model model(params, c);
  std::mt19937 random(2);
  std::vector<Engine::Request> list;
  Tokens common(130);
  for (std::int32_t& t : common) t = static_cast<std::int32_t>(random() % 13);
  for (const std::size_t size : {300, 301, 290, 60}) {
    Tokens prompt = common;
    prompt.resize(size);
    for (std::size_t i = std::min<std::size_t>(130, size / 2); i < size; ++i)
      prompt[i] = static_cast<std::int32_t>(random() % 13);
    list.push_back({.prompt = prompt, .tokens = 24, .seed = size});
  }
  const auto written = [&](const Engine::Options& options, std::int64_t& moves) {
    Engine engine(model, options);
    std::vector<Tokens> all(list.size() + 1);
    Engine::Handle first = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Engine::Handle h = engine.add(EngineCalls::into(all[i], list[i]));
      if (i == 0) first = h;
    }
    while (all[0].size() < 4) engine.step();
    engine.fork(first, 7, EngineCalls::into(all.back(), {}).report);
    EngineCalls::run(engine);
    moves = engine.scheduler().preemptions();
    return all;
  };
  std::int64_t moves = 0;
  const std::vector<Tokens> expected = written({.slots = 1, .threads = 1}, moves);
  EXPECT_EQ(moves, 0);
  EXPECT_EQ(expected.back().size(), 20u);
  for (const Engine::Options& o :
       {Engine::Options{.slots = 5, .cache_tokens = 704, .page_size = 64, .host_tokens = 2048, .threads = 1},
        {.slots = 5, .cache_tokens = 645, .page_size = 43, .host_tokens = 2048, .threads = 1},
        {.slots = 5, .cache_tokens = 960, .page_size = 320, .host_tokens = 2048, .threads = 1}}) {
    EXPECT_EQ(written(o, moves), expected) << o.page_size;
    EXPECT_GT(moves, 0) << o.page_size;
  }
}

// The cache has fewer rows than a row has elements.
TEST(Engine, WideRowsMoveToTheHostAndBack) {
  nn::Params params(1);
  nn::ModelConfig c = config();
  c.heads = 1, c.width = 128;
  const nn::Model model(params, c);
  std::vector<Engine::Request> list;
  for (std::int32_t i = 0; i < 4; ++i) list.push_back({.prompt = {i, 1, 4, 1, 5}, .tokens = 20, .seed = 5});
  const auto written = [&](const Engine::Options& options) {
    Engine engine(model, options);
    std::vector<Tokens> all(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) engine.add(EngineCalls::into(all[i], list[i]));
    EngineCalls::run(engine);
    EXPECT_EQ(engine.scheduler().preemptions() > 0, options.host_tokens > 0);
    return all;
  };
  EXPECT_EQ(written({.slots = 3, .cache_tokens = 44, .page_size = 4, .host_tokens = 80, .threads = 1}),
            written({.slots = 1, .threads = 1}));
}

// If there is one slot, the device stores one token for the next step.
TEST(Engine, RunsAheadWithASingleSlot) {
  Rows r;
  Tokens sequences[2];
  for (const bool ahead : {false, true}) {
    Engine engine(r.model(), {.slots = 1, .threads = 1, .ahead = ahead});
    for (const std::size_t size : {1, 9})
      engine.add(EngineCalls::into(sequences[ahead], {.prompt = Tokens(size, 2), .tokens = 5, .seed = size}));
    EngineCalls::run(engine);
  }
  EXPECT_EQ(sequences[0].size(), 10u);
  EXPECT_EQ(sequences[1], sequences[0]);
}

// Padding rows also read a token and a position, so both must exist in every model.
TEST(Engine, ServesModelsOfOneTokenAndOnePosition) {
  for (const std::int64_t context : {1, 3})
    for (const bool ahead : {false, true}) {
      nn::Params params(1);
      nn::ModelConfig c = config();
      c.vocabulary = 1, c.context = context;
      const nn::Model model(params, c);
      Engine engine(model, {.slots = 7, .page_size = 2, .threads = 1, .ahead = ahead});
      engine.prepare();
      std::vector<Tokens> got(5);
      for (std::size_t i = 0; i < got.size(); ++i)
        engine.add(EngineCalls::into(
            got[i], {.prompt = Tokens(1 + i % static_cast<std::size_t>(context), 0), .tokens = 1}));
      EngineCalls::run(engine);
      for (const Tokens& tokens : got) EXPECT_EQ(tokens, Tokens{0});
    }
}

TEST(Engine, CountsTheSecondsOfItsRuns) {
  Rows r;
  Engine engine(r.model(), {.threads = 1});
  const auto begin = std::chrono::steady_clock::now();
  Rows::add(engine, 3, 9, 6);
  double before = engine.run_seconds();
  EXPECT_EQ(before, 0);
  for (bool left = true; left;) {
    left = engine.step();
    EXPECT_GT(engine.run_seconds(), before);
    before = engine.run_seconds();
  }
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(before, all.count());
}

TEST(Engine, HasDefaults) {
  const Engine::Options o;
  EXPECT_EQ(o.slots, 16);
  EXPECT_EQ(o.cache_tokens, 0);
  EXPECT_EQ(o.page_size, 16);
  EXPECT_EQ(o.chunk, 256);
  EXPECT_EQ(o.host_tokens, 0);
  EXPECT_EQ(o.threads, 0);
  const Engine::Request request;
  EXPECT_EQ(request.tokens, 0);
  EXPECT_EQ(request.seed, 1u);
  EXPECT_FALSE(request.logits);
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.top_p, 1);
  const Engine::Search search;
  EXPECT_EQ(search.tokens, 0);
  EXPECT_EQ(search.beams, 4);
  const nn::Generator::Options g;
  EXPECT_EQ(g.threads, 0);
  EXPECT_TRUE(g.cache);
  const nn::Scheduler::Options s;
  EXPECT_EQ(s.pages, 1);
  EXPECT_EQ(s.page_size, 16);
  EXPECT_EQ(s.slots, 16);
  EXPECT_EQ(s.chunk, 256);
  EXPECT_EQ(s.group, 1);
  EXPECT_EQ(s.host_pages, 0);
}

TEST(RunOptions, OneThreadIsEnoughForFewProducts) {
  const nn::LanguageModel model{
      .parameters = {Parameter("a", Array(Shape{1024, 3}, f32)), Parameter("b", Array(Shape{1024}, f32))}};
  ASSERT_EQ(model.count(), 4096);
  EXPECT_EQ(nn::detail::threads_for(model, 1023, 0), 1);
  EXPECT_EQ(nn::detail::threads_for(model, 1024, 0), 0);  // 2^22 multiply-adds
  EXPECT_EQ(nn::detail::threads_for(model, 1, 0), 1);
  EXPECT_EQ(nn::detail::threads_for(model, 1, 3), 3);
  EXPECT_EQ(nn::detail::threads_for(model, 1025, 2), 2);
  for (const nn::Precision p : {nn::Precision::full, nn::Precision::tf32, nn::Precision::bf16}) {
    const CompileOptions options = nn::detail::options_for(model, 1024, 5, p);
    EXPECT_EQ(options.threads, 5);
    EXPECT_EQ(options.tf32, p == nn::Precision::tf32);
  }
}

// The copy of a value throws, as if there were no memory.
TEST(Numbered, AValueThatCannotBeStoredDoesNotCount) {
  struct Pointer {
    std::unique_ptr<int> value;
    bool throws = false;
    Pointer() = default;
    explicit Pointer(int x, bool throws) : value(std::make_unique<int>(x)), throws(throws) {}
    Pointer(Pointer&& other) : value(std::move(other.value)), throws(other.throws) {
      if (throws) throw std::bad_alloc();
    }
    int* get() const { return value.get(); }
    explicit operator bool() const { return value != nullptr; }
  };
  nn::detail::Numbered<Pointer> ours;
  EXPECT_THROW(ours.put(1, Pointer(5, true)), std::bad_alloc);
  EXPECT_TRUE(ours.empty());
  EXPECT_EQ(ours.find(1), nullptr);
  ours.put(1, Pointer(6, false));
  EXPECT_EQ(ours.size(), 1u);
  EXPECT_EQ(*ours.find(1), 6);
  EXPECT_TRUE(ours.erase(1));
  EXPECT_TRUE(ours.empty());
}

// Compares with a map.
TEST(Numbered, FindsValuesUntilTheyAreErased) {
  std::mt19937 random(1);
  nn::detail::Numbered<std::unique_ptr<int>> ours;
  std::map<std::uint64_t, int> expected;
  std::uint64_t last = 0;
  for (int n = 0; n < 2000; ++n) {
    const std::uint64_t any = last - std::min<std::uint64_t>(last, random() % 12);
    if (random() % 2 == 0) {
      last += 1 + random() % 4;
      ours.put(last, std::make_unique<int>(n));
      expected[last] = n;
    } else {
      EXPECT_EQ(ours.erase(any), expected.erase(any) == 1);
    }
    EXPECT_EQ(ours.size(), expected.size());
    EXPECT_EQ(ours.empty(), expected.empty());
    EXPECT_EQ(ours.find(0), nullptr);
    EXPECT_EQ(ours.find(last + 1), nullptr);
    for (std::uint64_t k = last - std::min<std::uint64_t>(last, 14); k <= last; ++k) {
      const auto found = expected.find(k);
      ASSERT_EQ(ours.find(k) != nullptr, found != expected.end()) << k;
      if (found == expected.end()) continue;
      EXPECT_EQ(*ours.find(k), found->second);
      EXPECT_EQ(ours.owner(k).get(), ours.find(k));
    }
    std::vector<int> all, list;
    ours.each([&](int value) { all.push_back(value); });
    for (const auto& [number, value] : expected) list.push_back(value);
    EXPECT_EQ(all, list);
  }
}

}  // namespace

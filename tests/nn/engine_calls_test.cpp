// Tests which calls of Engine are allowed at any time, and which are refused.
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include <tilegrad/ops/ops.h>
#include "tests/support/engine_calls.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using namespace tg::testing;

TEST_P(EngineCalls, ARefusedRequestReportsTheReasonAndOthersContinue) {
  const Tokens expected = written(drawn_text);
  Tokens got;
  const Engine::Handle sequence = engine.add(into(got, drawn_text));
  engine.step();
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<Engine::Request, std::string>> refused{
      {{}, "[engine] the prompt is empty"},
      {{.prompt = {1, 2, 29}}, "[engine] token 29 at position 2 of the prompt; the model has 29"},
      {{.prompt = {-1}}, "[engine] token -1 at position 0 of the prompt; the model has 29"},
      {{.prompt = Tokens(49, 1)},
       "[engine] a prompt of 49 tokens and 1 more exceed the model's context of 48"},
      {{.prompt = Tokens(40, 1), .tokens = 10}, "a prompt of 40 tokens and 10 more exceed"},
      {{.prompt = {1}, .tokens = huge}, "exceed the model's context"},
      {{.prompt = {1}, .tokens = -1}, "[engine] tokens is out of range: got -1"},
      {{.prompt = {1}, .sampling = {.temperature = -1}}, "[sample] temperature is out of range: got -1"},
      {{.prompt = {1}, .sampling = {.temperature = nan}}, "[sample] temperature is out of range: got nan"},
      {{.prompt = {1}, .sampling = {.top_k = -1}}, "[sample] top_k is out of range: got -1"},
      {{.prompt = {1}, .sampling = {.top_p = 1.5}}, "[sample] top_p is out of range: got 1.5"}};
  for (const auto& [request, message] : refused) {
    const std::string error = error_of([&] { engine.add(request); });
    EXPECT_NE(error.find(message), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    engine.step();
  }
  EXPECT_EQ(error_of([&] { engine.fork(99, 1); }), "[engine] there is no sequence 99 to fork");
  engine.cancel(99);
  EXPECT_EQ(engine.sequences(), 1u);
  run();
  EXPECT_EQ(got, expected);
  engine.cancel(sequence);  // the sequence has ended
  EXPECT_EQ(error_of([&] { engine.fork(sequence, 1); }),
            "[engine] there is no sequence " + std::to_string(sequence) + " to fork");
  // A request may have one token more than the context. The last token is generated, but the model does not
  // read it.
  EXPECT_EQ(written({.prompt = Tokens(40, 1), .tokens = 9}).size(), 9u);
  EXPECT_EQ(written({.prompt = Tokens(40, 1)}).size(), 9u);
  EXPECT_EQ(written({.prompt = Tokens(48, 1)}).size(), 1u);
}

TEST_P(EngineCalls, ASequenceLargerThanTheCacheIsRefused) {
  Engine small(model, {.cache_tokens = 15, .page_size = 4, .ahead = GetParam()});  // three pages
  EXPECT_NE(error_of([&] {
              small.add(Engine::Request{.prompt = {1, 2}, .tokens = 12});
            }).find("up to 13 tokens does not fit in a cache of 3 pages of 4"),
            std::string::npos);
  EXPECT_EQ(small.sequences(), 0u);
  EXPECT_FALSE(small.step());
  Tokens sequence;
  small.add(into(sequence, {.prompt = {1, 2}, .tokens = 11}));
  run(small);
  EXPECT_EQ(sequence.size(), 11u);
}

TEST_P(EngineCalls, OptionsOutOfRangeAreRefused) {
  constexpr std::int64_t huge = std::int64_t{1} << 62;
  for (const Engine::Options& o : std::vector<Engine::Options>{{.slots = 0},
                                                               {.slots = -1},
                                                               {.page_size = 0},
                                                               {.chunk = 0},
                                                               {.cache_tokens = -1},
                                                               {.host_tokens = -1},
                                                               {.cache_tokens = 15},
                                                               {.cache_tokens = huge},
                                                               {.page_size = huge},
                                                               {.slots = 3, .page_size = huge},
                                                               {.host_tokens = huge}})
    EXPECT_THROW(Engine(model, o), ShapeError) << o.slots << " " << o.cache_tokens << " " << o.page_size;
  EXPECT_NE(error_of([&] { Engine(nn::LanguageModel{.context = 4}, {}); }).find("it has no `features`"),
            std::string::npos);
  EXPECT_THROW(Engine(nn::LanguageModel{}, {}), Error);
}

TEST_P(EngineCalls, ALayerThatDoesNotReadTheCacheIsRefused) {
  const nn::LanguageModel forgetful{
      .features = [&](TensorArg tokens, const nn::CallArgs&) { return model.features(tokens); },
      .context = 8,
      .parameters = params.all()};
  const std::string error = error_of([&] { Engine(forgetful, {}); });
  EXPECT_NE(error.find("[engine]"), std::string::npos) << error;
  EXPECT_NE(error.find("reads no key-value cache: its layer has to use CallArgs::cache"), std::string::npos)
      << error;
}

TEST_P(EngineCalls, AnIdleEngineHasNothingToDo) {
  EXPECT_FALSE(engine.step());
  engine.run();
  engine.cancel(engine.add(Engine::Request{.prompt = {1}}));
  EXPECT_FALSE(engine.step());
  engine.forget();
  EXPECT_EQ(engine.sequences(), 0u);
  const double before = engine.run_seconds();
  engine.step();
  EXPECT_EQ(engine.run_seconds(), before);
  engine.add(Engine::Request{.prompt = {1}, .tokens = 2});
  run();
  EXPECT_GT(engine.run_seconds(), before);
}

TEST_P(EngineCalls, ACancelledSequenceIsAPrefixAndOthersAreUnchanged) {
  const std::vector<Engine::Request> list = several();
  std::vector<Tokens> whole;
  for (const auto& request : list) whole.push_back(written(request));
  for (std::size_t cancelled = 0; cancelled < list.size(); ++cancelled)
    for (int steps = 0; steps < 16; ++steps) {
      engine.forget();
      std::vector<Tokens> got(list.size());
      std::vector<Engine::Handle> handles;
      for (std::size_t i = 0; i < list.size(); ++i) handles.push_back(engine.add(into(got[i], list[i])));
      for (int n = 0; n < steps; ++n) engine.step();
      engine.cancel(handles[cancelled]);
      const std::size_t size = got[cancelled].size();
      run();
      EXPECT_EQ(got[cancelled].size(), size) << "it went on";
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (i == cancelled)
          got[i].insert(got[i].end(), whole[i].begin() + std::ssize(got[i]), whole[i].end());
        ASSERT_EQ(got[i], whole[i]) << "text " << i << ", " << cancelled << " cancelled after " << steps
                                    << " steps";
      }
    }
}

TEST_P(EngineCalls, AForkContinuesWithSeparateDraws) {
  const Tokens whole = written(drawn_text);
  for (int steps = 0; steps < 18; ++steps) {
    engine.forget();
    Tokens got, other;
    const Engine::Handle sequence = engine.add(into(got, drawn_text));
    for (int n = 0; n < steps; ++n) engine.step();
    Tokens so_far = drawn_text.prompt;
    so_far.insert(so_far.end(), got.begin(), got.end());
    engine.fork(sequence, 77, into(other, {}).report);
    // If the step that draws the original's next token has not started, the fork gets a slot immediately. It
    // shares the pages of the original.
    EXPECT_EQ(engine.scheduler().running(), steps == 0 ? 0u : GetParam() ? 1u : 2u) << steps << " steps";
    run();
    EXPECT_EQ(got, whole);
    EXPECT_EQ(other, drawn(so_far, 20 - steps, {}, 77, static_cast<std::uint64_t>(steps)))
        << steps << " steps";
    if (steps == 0) {
      Engine::Request same = drawn_text;
      same.seed = 77;
      EXPECT_EQ(other, written(same));
    }
  }
}

// A prompt has several continuations. There are too few slots or pages for all of them at the same time.
TEST_P(EngineCalls, WaitingForksMatchRequests) {
  Engine small(model, {.slots = 3, .cache_tokens = 40, .page_size = 4, .threads = 1, .ahead = GetParam()});
  std::vector<Tokens> got(6);
  const Engine::Handle first = small.add(into(got[0], drawn_text));
  for (std::uint64_t i = 1; i < got.size(); ++i) small.fork(first, i, into(got[i], {}).report);
  run(small);
  EXPECT_GT(small.scheduler().preemptions(), 0);
  for (std::uint64_t i = 0; i < got.size(); ++i) {
    Engine::Request request = drawn_text;
    if (i > 0) request.seed = i;
    EXPECT_EQ(got[i], written(request)) << "continuation " << i;
  }
}

// Sequences are added, forked and cancelled at random times, in report functions and between steps. The cache
// is too small for all sequences.
TEST_P(EngineCalls, SequencesAreUnchangedByAnyCalls) {
  struct Sequence {
    Engine::Handle handle = 0;
    Engine::Request request;
    std::uint64_t drawn = 0;  // number of tokens that the parent had drawn before the fork
    Tokens got = {};
    bool is_whole = true;
  };
  Engine small(model, {.slots = 3,
                       .cache_tokens = 48,
                       .page_size = 4,
                       .chunk = 7,
                       .host_tokens = 40,
                       .threads = 1,
                       .ahead = GetParam()});
  std::mt19937_64 random(1);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::size_t forks = 0, cancelled = 0;
  std::function<void()> call;
  const auto told = [&](Sequence& sequence) {
    return [&](const Engine::Token& t) {
      sequence.got.push_back(t.token);
      if (t.end != Engine::End::no) sequence.handle = 0;
      if (below(6) == 0) call();
      if (below(50) != 0) return true;
      sequence.handle = 0,
      sequence.is_whole = sequence.is_whole && std::ssize(sequence.got) == sequence.request.tokens;
      return false;
    };
  };
  call = [&] {
    Sequence* const old =
        sequences.empty()
            ? nullptr
            : sequences[sequences.size() - 1 - below(std::min<std::size_t>(sequences.size(), 6))].get();
    const std::size_t what = below(8);
    if (what < 3) {
      auto sequence = std::make_unique<Sequence>(Sequence{.request = several()[below(5)]});
      Engine::Request request = sequence->request;
      request.report = told(*sequence);
      sequence->handle = small.add(std::move(request));
      sequences.push_back(std::move(sequence));
    } else if (what < 6 && old && old->handle != 0) {
      auto sequence = std::make_unique<Sequence>(
          Sequence{.request = old->request, .drawn = old->drawn + old->got.size()});
      sequence->request.prompt.insert(sequence->request.prompt.end(), old->got.begin(), old->got.end());
      sequence->request.tokens -= std::ssize(old->got);
      sequence->request.seed = random();
      sequence->handle = small.fork(old->handle, sequence->request.seed, told(*sequence));
      sequences.push_back(std::move(sequence)), ++forks;
    } else if (what == 6 && old && old->handle != 0) {
      small.cancel(old->handle);
      old->handle = 0, old->is_whole = false, ++cancelled;
    } else if (what == 7 && below(4) == 0) {
      small.forget();
    }
  };
  for (int n = 0; n < 600; ++n) {
    if (sequences.size() < 200 && below(2) == 0) call();
    small.step();
    if (sequences.size() >= 200) break;
  }
  run(small);
  EXPECT_GE(sequences.size(), 100u);
  EXPECT_GT(forks, 20u);
  EXPECT_GT(cancelled, 10u);
  EXPECT_GT(small.scheduler().preemptions(), 20);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto& [handle, request, before, got, is_whole] = *sequences[i];
    Tokens expected = drawn(request.prompt, request.tokens, request.sampling, request.seed, before);
    if (!is_whole) expected.resize(std::min(expected.size(), got.size()));
    EXPECT_EQ(got, expected) << "text " << i;
  }
}

// If the engine runs ahead, the model has already read the last reported token.
TEST_P(EngineCalls, AStepStartsBeforeThePreviousTokensAreKnown) {
  const auto read = [&](Engine::Handle sequence) { return engine.scheduler().table(sequence).length(); };
  Tokens got;
  const Engine::Handle sequence = engine.add(into(got, drawn_text));
  for (std::int64_t n = 1; n < drawn_text.tokens; ++n) {
    engine.step();
    EXPECT_EQ(std::ssize(got), n);
    EXPECT_EQ(read(sequence), std::ssize(drawn_text.prompt) + n - (GetParam() ? 0 : 1));
  }
  // A beam search needs the logits of its beams on the host. So during a search, no step starts ahead.
  engine.cancel(sequence);
  const Engine::Handle search = engine.search({.prompt = drawn_text.prompt, .beams = 1});
  const Engine::Handle other = engine.add(drawn_text);
  for (std::int64_t n = 1; n < 4; ++n) {
    engine.step();
    EXPECT_EQ(read(other), std::ssize(drawn_text.prompt) + n - 1);
  }
  engine.cancel(search);
  run();
}

TEST(Engine, MatchesGeneratorWithACacheAndWithout) {
  for (const nn::Architecture& architecture :
       {nn::Architecture(), nn::Architecture(nn::Llama{.key_heads = 2}), nn::Architecture(nn::DeepSeek{})}) {
    nn::Params params(3);
    const nn::Model model(params, config(architecture));
    Engine engine(model, {.slots = 4, .page_size = 3, .chunk = 10, .threads = 1});
    nn::Generator cached(model, {.threads = 1}), whole(model, {.threads = 1, .cache = false});
    const auto list = several();
    std::vector<Tokens> got(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      got[i] = list[i].prompt;
      Engine::Request request = EngineCalls::into(got[i], list[i]);
      request.sampling = {.temperature = 0};
      engine.add(request);
    }
    EngineCalls::run(engine);
    for (std::size_t i = 0; i < list.size(); ++i)
      for (nn::Generator* by : {&cached, &whole}) {
        Tokens sequence = list[i].prompt;
        by->extend(sequence, list[i].tokens, {.temperature = 0}, 0);
        EXPECT_EQ(got[i], sequence) << architecture.name() << ", request " << i;
      }
  }
}

TEST(Engine, AllocatesItsPagesAtTheStart) {
  struct Kind {
    nn::Architecture architecture;
    std::size_t numbers;  // bytes per token and layer
  };
  for (const auto& [architecture, numbers] : {Kind{{}, 2 * 32}, Kind{nn::Llama{.key_heads = 2}, 2 * 2 * 8},
                                              Kind{nn::DeepSeek{.latent = 12, .rope_width = 4}, 12 + 4}}) {
    nn::Params params(1);
    const nn::Model model(params, config(architecture));
    for (const std::int64_t cache_tokens : {0, 100}) {
      Engine engine(model, {.slots = 3, .cache_tokens = cache_tokens, .page_size = 7, .threads = 1});
      const std::size_t pages = cache_tokens > 0 ? 14 : 3 * 7;
      EXPECT_EQ(engine.scheduler().pool().pages(), static_cast<std::int32_t>(pages));
      const std::size_t bytes = pages * 7 * numbers * sizeof(float);
      EXPECT_EQ(engine.cache().bytes(), bytes) << architecture.name();
      for (const auto& request : several()) engine.add(request);
      EngineCalls::run(engine);
      EXPECT_EQ(engine.cache().bytes(), bytes) << architecture.name();
    }
  }
}

TEST_P(EngineCalls, NewWeightsGiveTheSequencesOfANewEngine) {
  const Tokens before = written(drawn_text);
  Tokens running;
  engine.add(into(running, drawn_text));
  for (int n = 0; n < 5; ++n) engine.step();
  for (const Parameter& p : params.all()) {
    Array value = p.read();
    for (std::int64_t i = 0; i < value.numel(); ++i) value.data<float>()[i] *= 1.5f;
    Parameter(p).write(value);
  }
  engine.forget();
  const Tokens after = written(drawn_text);
  EXPECT_NE(before, after);
  Engine other(model, {.slots = 4, .page_size = 4, .chunk = 16, .threads = 1});
  Tokens expected;
  other.add(into(expected, drawn_text));
  run(other);
  EXPECT_EQ(after, expected);
  EXPECT_EQ(running.size(), 20u);
  EXPECT_EQ(Tokens(running.begin(), running.begin() + 5), Tokens(before.begin(), before.begin() + 5));
}

// A model of two tables, without attention. The embedding may have fewer tokens than the head.
struct Tables {
  nn::Params params{4};
  nn::Embedding tokens;
  nn::Linear head;
  explicit Tables(std::int64_t known)
      : tokens(nn::Path(params) / "tokens", known, 4, nn::Init::normal(1)),
        head(nn::Path(params) / "head", 4, 9, {.init = nn::Init::normal(1)}) {}
  nn::LanguageModel model() const {
    return {.features = [this](TensorArg x, const nn::CallArgs&) { return tokens(x); },
            .head = [this](TensorArg x) { return head(x); },
            .context = 32,
            .parameters = params.all()};
  }
};

// By default, the cache has room for one sequence of the context length for each slot.
TEST(Engine, DefaultCacheFitsSequencesOfTheContext) {
  const Tables tables(9);
  nn::LanguageModel model = tables.model();
  for (const std::int64_t context : {0, -1}) {
    model.context = context;
    EXPECT_EQ(error_of([&] { Engine(model, {.page_size = 4}); }),
              "[engine] a cache of 0 tokens in pages of 4, expected 1 to 2^31 - 1 in whole pages");
  }
  model.context = 5;
  EXPECT_EQ(Engine(model, {.slots = 3, .page_size = 4}).scheduler().pool().pages(), 3 * 2);
}

TEST(Engine, ACacheOfMoreThanTheLargestNumberOfTokensIsRefused) {
  const Tables tables(9);
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max(), third = most / 3;
  struct Case {
    std::int64_t context;
    Engine::Options options;
    std::int64_t pages;  // 0: the options are refused
    std::int64_t tokens = 0;
  };
  for (const auto& [context, options, pages, tokens] :
       {Case{third, {.slots = 3, .page_size = third + 1}, 0, 3 * third + 3},
        {most, {.slots = 1, .page_size = most + 1}, 0, most},
        {5, {.slots = 1, .page_size = most + 1}, 0, most},
        {5, {.slots = 2, .page_size = most}, 0, 2 * most},
        {third + 1, {.slots = 3, .page_size = most + 1}, 0, most},
        {5, {.cache_tokens = most + 1, .page_size = most / 2}, 0, most + 1},
        {5, {.cache_tokens = 9, .page_size = 5, .host_tokens = 5 * most + 4}, 1},
        {5, {.cache_tokens = 9, .page_size = 5, .host_tokens = 5 * most + 5}, 0, 9},
        {5, {.cache_tokens = 5, .page_size = 5}, 1},
        {5, {.cache_tokens = 4, .page_size = 5}, 0, 4}}) {
    nn::LanguageModel model = tables.model();
    model.context = context;
    std::int64_t got = 0;
    const std::string error =
        error_of([&, &o = options] { got = Engine(model, o).scheduler().pool().pages(); });
    EXPECT_EQ(got, pages) << error;
    if (pages == 0) {
      EXPECT_EQ(error, "[engine] a cache of " + std::to_string(tokens) + " tokens in pages of " +
                           std::to_string(options.page_size) + ", expected 1 to 2^31 - 1 in whole pages");
    }
  }
}

void an_error_of_a_run(bool ahead) {
  const Tables tables(8);
  const Engine::Request request{.prompt = {1, 2, 3, 4, 5}, .tokens = 6, .sampling = {.temperature = 0}};
  Tokens expected, got, other;
  Engine engine(tables.model(), {.slots = 4, .page_size = 4, .threads = 1, .ahead = ahead});
  EXPECT_EQ(engine.vocabulary(), 9);
  engine.add(EngineCalls::into(expected, request));
  EngineCalls::run(engine);
  const Engine::Handle first = engine.add(EngineCalls::into(got, request));
  engine.step();
  engine.fork(first, 1, EngineCalls::into(other, {}).report);
  const Engine::Handle wrong = engine.add(Engine::Request{.prompt = {8, 1}});
  // After an error, the tokens of the other sequences are read again first. So some steps do not contain the
  // wrong sequence.
  for (int n = 0, errors = 0; errors < 2; ++n) {
    ASSERT_LT(n, 5);
    const std::size_t before = got.size();
    const std::string error = error_of([&] { engine.step(); });
    if (error == "no error") continue;
    ++errors;
    EXPECT_NE(error.find("index 8 at position"), std::string::npos) << error;
    EXPECT_NE(error.find("engine_calls_test.cpp"), std::string::npos) << error;
    EXPECT_EQ(got.size(), before);
  }
  engine.cancel(wrong);
  EngineCalls::run(engine);
  EXPECT_EQ(got, expected);
  other.insert(other.begin(), got[0]);
  EXPECT_EQ(other, expected);
  EXPECT_EQ(engine.scheduler().pool().free(), engine.scheduler().pool().pages());
}

TEST(Engine, AnErrorOfARunDoesNotChangeOtherSequences) {
  for (const bool ahead : {false, true}) an_error_of_a_run(ahead);
}

void logits_that_are_no_numbers(bool ahead) {
  const Tables tables(9);
  Parameter table = *tables.params.find("tokens.weight");
  Array value = table.read();
  std::fill_n(value.data<float>() + 8 * 4, 4, std::numeric_limits<float>::quiet_NaN());
  table.write(value);
  const Engine::Request request{.prompt = {1, 2, 3}, .tokens = 6, .sampling = {.temperature = 0}};
  Engine engine(tables.model(), {.slots = 6, .page_size = 4, .threads = 1, .ahead = ahead});
  Tokens expected, got, none;
  engine.add(EngineCalls::into(expected, request));
  EngineCalls::run(engine);
  const Engine::Handle wrong = engine.add(EngineCalls::into(none, {.prompt = {1, 2, 8}}));
  const Engine::Handle search = engine.search({.prompt = {1, 8}, .beams = 2});
  engine.add(EngineCalls::into(got, request));
  const auto message = [](Engine::Handle handle, const std::string& why) {
    return "[engine] sequence " + std::to_string(handle) + " ends: " + why;
  };
  EXPECT_EQ(error_of([&] { engine.step(); }), message(wrong, "every logit is NaN"));
  EXPECT_EQ(error_of([&] { engine.step(); }), message(search, "[beam search] no token has a probability"));
  EXPECT_EQ(engine.sequences(), 1u);
  EngineCalls::run(engine);
  EXPECT_EQ(got, expected);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(engine.scheduler().pool().free(), engine.scheduler().pool().pages());
}

TEST(Engine, ASequenceWithNaNLogitsEndsAndOthersContinue) {
  for (const bool ahead : {false, true}) logits_that_are_no_numbers(ahead);
}

TEST_P(EngineCalls, ASearchIsRefusedCancelledAndReportedNextToSequences) {
  const std::vector<std::int32_t> prompt{3, 1, 4, 1, 5};
  EXPECT_NE(error_of([&] { engine.search({}); }).find("[engine] the prompt is empty"), std::string::npos);
  EXPECT_NE(error_of([&] { engine.search({.prompt = {29}}); }).find("token 29"), std::string::npos);
  EXPECT_NE(error_of([&] { engine.search({.prompt = prompt, .tokens = 45}); }).find("context of 48"),
            std::string::npos);
  for (const std::int64_t beams : {-1, 0, 5})
    EXPECT_NE(error_of([&] {
                engine.search({.prompt = prompt, .beams = beams});
              }).find("got " + std::to_string(beams) + ", expected a whole number from 1 to 4"),
              std::string::npos);
  std::vector<nn::Hypothesis> expected;
  const auto keep = [&](std::vector<nn::Hypothesis> found) { expected = std::move(found); };
  engine.search({.prompt = prompt, .tokens = 9, .beams = 3, .report = keep});
  run();
  ASSERT_EQ(expected.size(), 3u);
  engine.search({.prompt = prompt, .tokens = 3, .beams = 2});  // this request has no report function
  run();
  const Tokens whole = written(drawn_text);
  for (int steps = 0; steps < 10; ++steps) {
    engine.forget();
    Tokens got, after;
    std::vector<nn::Hypothesis> found;
    bool told = false;
    engine.add(into(got, drawn_text));
    const Engine::Handle cancelled = engine.search(
        {.prompt = prompt, .tokens = 30, .beams = 3, .report = [&](const auto&) { told = true; }});
    engine.search({.prompt = prompt, .tokens = 9, .beams = 3, .report = [&](std::vector<nn::Hypothesis> f) {
                     found = std::move(f);
                     engine.add(into(after, drawn_text));
                   }});
    for (int n = 0; n < steps; ++n) engine.step();
    EXPECT_THROW(engine.fork(cancelled, 1), Error);
    engine.cancel(cancelled);
    run();
    EXPECT_FALSE(told);
    EXPECT_EQ(got, whole) << steps << " steps";
    EXPECT_EQ(after, whole) << steps << " steps";
    ASSERT_EQ(found.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(found[i].tokens, expected[i].tokens) << steps << " steps";
  }
}

INSTANTIATE_TEST_SUITE_P(InStepAndAhead, EngineCalls, ::testing::Bool(),
                         [](const auto& ahead) { return std::string(ahead.param ? "Ahead" : "InStep"); });

}  // namespace

// Engine: what its callers may do at any time, and what it refuses.
#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>

#include <tilegrad/ops/ops.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using nn::Engine;
using Tokens = std::vector<std::int32_t>;
using tg::testing::error_of;

constexpr std::int64_t context = 48;

nn::ModelConfig config(const nn::Architecture& architecture = {}) {
  nn::ModelConfig c{.vocabulary = 29,
                    .context = context,
                    .layers = 1,
                    .heads = 4,
                    .width = 32,
                    .tied_head = false,
                    .std = 0.2};
  c.architecture = architecture;
  return c;
}

// With the parameter, a step is started before the tokens of the one before are known.
struct EngineCalls : ::testing::TestWithParam<bool> {
  nn::Params params{1};
  const nn::Model model{params, config()};
  Engine engine{model, {.seats = 4, .page_size = 4, .chunk = 16, .threads = 1, .ahead = GetParam()}};

  // Steps until no text is left, of which there are few.
  void run() { run(engine); }
  static void run(Engine& engine) {
    for (int n = 0; n < 2000; ++n)
      if (!engine.step()) {
        EXPECT_EQ(engine.texts(), 0u);
        EXPECT_EQ(engine.scheduler().pool().free(), engine.scheduler().pool().pages());
        return;
      }
    ADD_FAILURE() << engine.texts() << " texts do not end";
  }
  static Engine::Request into(Tokens& text, Engine::Request request) {
    request.report = [&text](const Engine::Token& t) {
      text.push_back(t.token);
      return true;
    };
    return request;
  }
  Tokens written(const Engine::Request& request) {
    Tokens text;
    engine.add(into(text, request));
    run();
    return text;
  }
  // The tokens after a text, the first of which is drawn by the seed's draw number `drawn`.
  Tokens drawn(Tokens text, std::int64_t count, const nn::Sampling& sampling, std::uint64_t seed,
               std::uint64_t drawn) {
    nn::Generator generator(model, {.threads = 1});
    Tokens more;
    for (std::int64_t n = 0; n < count; ++n) {
      more.push_back(nn::sample_token(generator.next(text), sampling, nn::sampling_draw(seed, drawn++)));
      text.push_back(more.back());
    }
    return more;
  }
};

const Engine::Request drawn_text{.prompt = {3, 1, 4, 1, 5}, .tokens = 20, .seed = 5};

// Of different lengths, some alike.
std::vector<Engine::Request> several() {
  return {{.prompt = {3, 1, 4, 1, 5}, .tokens = 9, .seed = 2},
          {.prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3}, .tokens = 7, .sampling = {.temperature = 0}},
          {.prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3}, .tokens = 12, .seed = 3},
          {.prompt = {7}, .tokens = 1, .seed = 4},
          {.prompt = Tokens(30, 8), .tokens = 11, .sampling = {.temperature = 2, .top_k = 9}, .seed = 5}};
}

TEST_P(EngineCalls, ARefusedRequestSaysWhyAndTheOthersGoOn) {
  const Tokens expected = written(drawn_text);
  Tokens got;
  const Engine::Handle text = engine.add(into(got, drawn_text));
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
      {{.prompt = {1}, .tokens = -1}, "[engine] got -1 tokens to write"},
      {{.prompt = {1}, .sampling = {.temperature = -1}}, "[sample] expected a temperature"},
      {{.prompt = {1}, .sampling = {.temperature = nan}}, "[sample] expected a temperature"},
      {{.prompt = {1}, .sampling = {.top_k = -1}}, "[sample] expected a temperature"},
      {{.prompt = {1}, .sampling = {.top_p = 1.5}}, "[sample] expected a temperature"}};
  for (const auto& [request, message] : refused) {
    const std::string error = error_of([&] { engine.add(request); });
    EXPECT_NE(error.find(message), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    engine.step();
  }
  EXPECT_EQ(error_of([&] { engine.fork(99, 1); }), "[engine] there is no text 99 to fork");
  engine.cancel(99);
  EXPECT_EQ(engine.texts(), 1u);
  run();
  EXPECT_EQ(got, expected);
  engine.cancel(text);  // it is over
  EXPECT_EQ(error_of([&] { engine.fork(text, 1); }),
            "[engine] there is no text " + std::to_string(text) + " to fork");
  // As many as there is room for: the last one is written, not read.
  EXPECT_EQ(written({.prompt = Tokens(40, 1), .tokens = 9}).size(), 9u);
  EXPECT_EQ(written({.prompt = Tokens(40, 1)}).size(), 9u);
  EXPECT_EQ(written({.prompt = Tokens(48, 1)}).size(), 1u);
}

TEST_P(EngineCalls, ATextThatTheWholeCacheHasNoRoomForIsRefused) {
  Engine small(model, {.cache_tokens = 15, .page_size = 4, .ahead = GetParam()});  // three pages
  EXPECT_NE(error_of([&] {
              small.add(Engine::Request{.prompt = {1, 2}, .tokens = 12});
            }).find("up to 13 tokens does not fit in a cache of 3 pages of 4"),
            std::string::npos);
  EXPECT_EQ(small.texts(), 0u);
  EXPECT_FALSE(small.step());
  Tokens text;
  small.add(into(text, {.prompt = {1, 2}, .tokens = 11}));
  run(small);
  EXPECT_EQ(text.size(), 11u);
}

TEST_P(EngineCalls, OptionsOutOfRangeAreRefused) {
  constexpr std::int64_t huge = std::int64_t{1} << 62;
  for (const Engine::Options& o : std::vector<Engine::Options>{{.seats = 0},
                                                               {.seats = -1},
                                                               {.page_size = 0},
                                                               {.chunk = 0},
                                                               {.cache_tokens = -1},
                                                               {.host_tokens = -1},
                                                               {.cache_tokens = 15},
                                                               {.cache_tokens = huge},
                                                               {.page_size = huge},
                                                               {.seats = 3, .page_size = huge},
                                                               {.host_tokens = huge}})
    EXPECT_THROW(Engine(model, o), ShapeError) << o.seats << " " << o.cache_tokens << " " << o.page_size;
  EXPECT_NE(error_of([&] { Engine(nn::LanguageModel{.context = 4}, {}); }).find("it has no `features`"),
            std::string::npos);
  EXPECT_THROW(Engine(nn::LanguageModel{}, {}), Error);
}

TEST_P(EngineCalls, ALayerThatReadsNoCacheIsRefused) {
  const nn::LanguageModel forgetful{
      .features = [&](TensorArg tokens, const nn::Call&) { return model.features(tokens); },
      .context = 8,
      .parameters = params.all()};
  const std::string error = error_of([&] { Engine(forgetful, {}); });
  EXPECT_NE(error.find("[engine]"), std::string::npos) << error;
  EXPECT_NE(error.find("reads no key-value cache: its layer has to use Call::cache"), std::string::npos)
      << error;
}

TEST_P(EngineCalls, WithoutTextsThereIsNothingToDo) {
  EXPECT_FALSE(engine.step());
  engine.run();
  engine.cancel(engine.add(Engine::Request{.prompt = {1}}));
  EXPECT_FALSE(engine.step());
  engine.forget();
  EXPECT_EQ(engine.texts(), 0u);
  const double before = engine.run_seconds();
  engine.step();
  EXPECT_EQ(engine.run_seconds(), before);
  engine.add(Engine::Request{.prompt = {1}, .tokens = 2});
  run();
  EXPECT_GT(engine.run_seconds(), before);
}

TEST_P(EngineCalls, ACancelledTextIsABeginningAndTheOthersAreUnchanged) {
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

TEST_P(EngineCalls, AForkGoesOnWithDrawsOfItsOwn) {
  const Tokens whole = written(drawn_text);
  for (int steps = 0; steps < 18; ++steps) {
    engine.forget();
    Tokens got, other;
    const Engine::Handle text = engine.add(into(got, drawn_text));
    for (int n = 0; n < steps; ++n) engine.step();
    Tokens so_far = drawn_text.prompt;
    so_far.insert(so_far.end(), got.begin(), got.end());
    engine.fork(text, 77, into(other, {}).report);
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

// Several continuations of a prompt, where there are neither seats nor pages for all at once.
TEST_P(EngineCalls, ForksThatHaveToWaitAreWrittenAsRequestsAre) {
  Engine small(model, {.seats = 3, .cache_tokens = 40, .page_size = 4, .threads = 1, .ahead = GetParam()});
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

TEST_P(EngineCalls, ATextEndsAtItsEndTokenItsCountOrWhenItsReportSaysSo) {
  const Tokens whole = written(drawn_text);
  const std::int32_t end = whole[7];
  const auto first = std::find(whole.begin(), whole.end(), end) + 1;
  Engine::Request request = drawn_text;
  request.end = end;
  const auto last = std::make_shared<Engine::End>(Engine::End::no);
  Tokens got;
  request.report = [&, last](const Engine::Token& t) {
    EXPECT_EQ(*last, Engine::End::no);
    EXPECT_EQ(t.logits.size(), request.logits ? 29u : 0u);
    *last = t.end;
    got.push_back(t.token);
    return true;
  };
  engine.add(request);
  run();
  EXPECT_EQ(got, Tokens(whole.begin(), first));
  EXPECT_EQ(*last, Engine::End::token);

  *last = Engine::End::no, request.end = 1000, got.clear();  // which is no token
  request.logits = true;
  engine.add(request);
  run();
  EXPECT_EQ(got, whole);
  EXPECT_EQ(*last, Engine::End::count);

  for (std::size_t wanted = 1; wanted <= 20; ++wanted) {
    got.clear();
    request.report = [&](const Engine::Token& t) {
      got.push_back(t.token);
      return got.size() < wanted;
    };
    engine.add(request);
    run();
    EXPECT_EQ(got, Tokens(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(wanted)));
  }
  engine.add(Engine::Request{.prompt = {1}, .tokens = 3});  // nobody is told
  run();
}

TEST_P(EngineCalls, AReportMayAddForkAndCancelTexts) {
  const std::vector<Engine::Request> list = several();
  std::vector<Tokens> whole, got(5);
  for (const auto& request : list) whole.push_back(written(request));
  Tokens fork, fork_of_last;
  std::vector<Engine::Handle> handles(5);
  Engine::Request first = list[0];
  first.report = [&](const Engine::Token& t) {
    got[0].push_back(t.token);
    if (got[0].size() == 1) handles[4] = engine.add(into(got[4], list[4]));
    if (got[0].size() == 2) engine.fork(t.text, 77, into(fork, {}).report);
    if (got[0].size() == 3) engine.cancel(handles[1]);
    // Its own end, after which what it has captured is still there.
    if (got[0].size() == 4) engine.cancel(t.text), got[0].push_back(-1);
    return true;
  };
  handles[0] = engine.add(first);
  for (const std::size_t i : {1, 2, 3}) handles[i] = engine.add(into(got[i], list[i]));
  run();
  EXPECT_EQ(got[0].back(), -1);
  got[0].pop_back();
  EXPECT_EQ(got[0], Tokens(whole[0].begin(), whole[0].begin() + 4));
  EXPECT_LT(got[1].size(), 4u);
  EXPECT_EQ(got[1], Tokens(whole[1].begin(), whole[1].begin() + std::ssize(got[1])));
  for (const std::size_t i : {2, 3, 4}) EXPECT_EQ(got[i], whole[i]) << i;
  Tokens text = list[0].prompt;
  text.insert(text.end(), whole[0].begin(), whole[0].begin() + 2);
  EXPECT_EQ(fork, drawn(text, 7, {}, 77, 2));
}

// Their next tokens are chosen in the same step, before or after the report.
TEST_P(EngineCalls, AReportMayForkAnyText) {
  const std::vector<Engine::Request> list = several();
  for (const std::size_t forked : {0, 1, 2})
    for (const std::size_t at : {1, 3}) {
      engine.forget();
      std::vector<Tokens> got(3);
      Tokens other, so_far;
      std::vector<Engine::Handle> handles;
      for (const std::size_t i : {0, 1, 2}) {
        Engine::Request request = into(got[i], list[i]);
        if (i == 1)
          request.report = [&, at, forked](const Engine::Token& t) {
            got[1].push_back(t.token);
            if (got[1].size() != at) return true;
            so_far = got[forked];
            engine.fork(handles[forked], 77, into(other, {}).report);
            return true;
          };
        handles.push_back(engine.add(request));
      }
      run();
      Tokens text = list[forked].prompt;
      text.insert(text.end(), so_far.begin(), so_far.end());
      EXPECT_EQ(other, drawn(text, list[forked].tokens - std::ssize(so_far), list[forked].sampling, 77,
                             so_far.size()))
          << "text " << forked << " at token " << at;
    }
}

TEST_P(EngineCalls, ATextWhoseLastTokenIsReportedIsOver) {
  int told = 0;
  engine.add(Engine::Request{.prompt = {1, 2, 3}, .tokens = 2, .report = [&](const Engine::Token& t) {
                               if (++told == 2) {
                                 EXPECT_EQ(t.end, Engine::End::count);
                                 EXPECT_NE(error_of([&] { engine.fork(t.text, 1); }).find("there is no text"),
                                           std::string::npos);
                                 engine.cancel(t.text);
                               }
                               return true;
                             }});
  run();
  EXPECT_EQ(told, 2);
}

TEST_P(EngineCalls, WhatAReportThrowsComesOutOfStepAndNothingIsLost) {
  const std::vector<Engine::Request> list = several();
  std::vector<Tokens> whole;
  for (const auto& request : list) whole.push_back(written(request));
  for (const std::size_t thrower : {0, 1, 2, 4}) {
    engine.forget();
    std::vector<Tokens> got(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      Engine::Request request = list[i];
      request.report = [&, i](const Engine::Token& t) {
        got[i].push_back(t.token);
        if (i == thrower && got[i].size() % 3 == 0) throw std::runtime_error("no more paper");
        return true;
      };
      engine.add(request);
    }
    int thrown = 0;
    bool left = true;
    for (int n = 0; n < 100 && left; ++n) try {
        left = engine.step();
      } catch (const std::runtime_error& e) {
        EXPECT_STREQ(e.what(), "no more paper");
        ++thrown;
      }
    EXPECT_FALSE(left);
    EXPECT_EQ(thrown, std::ssize(whole[thrower]) / 3);
    EXPECT_EQ(got, whole) << "text " << thrower;
    run();
  }
}

// Texts are added, forked and cancelled at any time, by reports and between steps, in a cache that is too
// small for them.
TEST_P(EngineCalls, TextsStayWhatTheyAreUnderAnyCalls) {
  struct Text {
    Engine::Handle handle = 0;
    Engine::Request request;
    std::uint64_t drawn = 0;  // by the text that it is a fork of
    Tokens got = {};
    bool is_whole = true;
  };
  Engine small(model, {.seats = 3,
                       .cache_tokens = 48,
                       .page_size = 4,
                       .chunk = 7,
                       .host_tokens = 40,
                       .threads = 1,
                       .ahead = GetParam()});
  std::mt19937_64 random(1);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<std::unique_ptr<Text>> texts;
  std::size_t forks = 0, cancelled = 0;
  std::function<void()> call;
  const auto told = [&](Text& text) {
    return [&](const Engine::Token& t) {
      text.got.push_back(t.token);
      if (t.end != Engine::End::no) text.handle = 0;
      if (below(6) == 0) call();
      if (below(50) != 0) return true;
      text.handle = 0, text.is_whole = text.is_whole && std::ssize(text.got) == text.request.tokens;
      return false;
    };
  };
  call = [&] {
    Text* const old = texts.empty()
                          ? nullptr
                          : texts[texts.size() - 1 - below(std::min<std::size_t>(texts.size(), 6))].get();
    const std::size_t what = below(8);
    if (what < 3) {
      auto text = std::make_unique<Text>(Text{.request = several()[below(5)]});
      Engine::Request request = text->request;
      request.report = told(*text);
      text->handle = small.add(std::move(request));
      texts.push_back(std::move(text));
    } else if (what < 6 && old && old->handle != 0) {
      auto text =
          std::make_unique<Text>(Text{.request = old->request, .drawn = old->drawn + old->got.size()});
      text->request.prompt.insert(text->request.prompt.end(), old->got.begin(), old->got.end());
      text->request.tokens -= std::ssize(old->got);
      text->request.seed = random();
      text->handle = small.fork(old->handle, text->request.seed, told(*text));
      texts.push_back(std::move(text)), ++forks;
    } else if (what == 6 && old && old->handle != 0) {
      small.cancel(old->handle);
      old->handle = 0, old->is_whole = false, ++cancelled;
    } else if (what == 7 && below(4) == 0) {
      small.forget();
    }
  };
  for (int n = 0; n < 600; ++n) {
    if (texts.size() < 200 && below(2) == 0) call();
    small.step();
    if (texts.size() >= 200) break;
  }
  run(small);
  EXPECT_GE(texts.size(), 100u);
  EXPECT_GT(forks, 20u);
  EXPECT_GT(cancelled, 10u);
  EXPECT_GT(small.scheduler().preemptions(), 20);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto& [handle, request, before, got, is_whole] = *texts[i];
    Tokens expected = drawn(request.prompt, request.tokens, request.sampling, request.seed, before);
    if (!is_whole) expected.resize(std::min(expected.size(), got.size()));
    EXPECT_EQ(got, expected) << "text " << i;
  }
}

// Ahead, the token that was reported last has been read already.
TEST_P(EngineCalls, AStepIsStartedBeforeTheTokensOfTheOneBeforeAreKnown) {
  const auto read = [&](Engine::Handle text) { return engine.scheduler().table(text).length(); };
  Tokens got;
  const Engine::Handle text = engine.add(into(got, drawn_text));
  for (std::int64_t n = 1; n < drawn_text.tokens; ++n) {
    engine.step();
    EXPECT_EQ(std::ssize(got), n);
    EXPECT_EQ(read(text), std::ssize(drawn_text.prompt) + n - (GetParam() ? 0 : 1));
  }
  // A search needs the logits of its beams on the host, so nothing is ahead of it.
  engine.cancel(text);
  const Engine::Handle search = engine.search({.prompt = drawn_text.prompt, .beams = 1});
  const Engine::Handle other = engine.add(drawn_text);
  for (std::int64_t n = 1; n < 4; ++n) {
    engine.step();
    EXPECT_EQ(read(other), std::ssize(drawn_text.prompt) + n - 1);
  }
  engine.cancel(search);
  run();
}

TEST_P(EngineCalls, StepIsNotForReports) {
  const Tokens whole = written(drawn_text);
  Tokens got;
  Engine::Request request = drawn_text;
  request.report = [&](const Engine::Token& t) {
    got.push_back(t.token);
    EXPECT_EQ(error_of([&] { engine.step(); }), "[engine] step() called by a report of step()");
    return true;
  };
  engine.add(request);
  run();
  EXPECT_EQ(got, whole);
}

TEST(Engine, WritesWhatGeneratorWritesWithACacheAndWithout) {
  for (const nn::Architecture& architecture :
       {nn::Architecture(), nn::Architecture(nn::Llama{.key_heads = 2}), nn::Architecture(nn::DeepSeek{})}) {
    nn::Params params(3);
    const nn::Model model(params, config(architecture));
    Engine engine(model, {.seats = 4, .page_size = 3, .chunk = 10, .threads = 1});
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
        Tokens text = list[i].prompt;
        by->extend(text, list[i].tokens, {.temperature = 0}, 0);
        EXPECT_EQ(got[i], text) << architecture.name() << ", request " << i;
      }
  }
}

TEST(Engine, HasTheMemoryOfItsPagesFromTheBeginning) {
  struct Kind {
    nn::Architecture architecture;
    std::size_t numbers;  // of a token, in a layer
  };
  for (const auto& [architecture, numbers] : {Kind{{}, 2 * 32}, Kind{nn::Llama{.key_heads = 2}, 2 * 2 * 8},
                                              Kind{nn::DeepSeek{.latent = 12, .rope_width = 4}, 12 + 4}}) {
    nn::Params params(1);
    const nn::Model model(params, config(architecture));
    for (const std::int64_t cache_tokens : {0, 100}) {
      Engine engine(model, {.seats = 3, .cache_tokens = cache_tokens, .page_size = 7, .threads = 1});
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

TEST_P(EngineCalls, AfterAChangeOfTheWeightsTextsAreThoseOfAnotherEngine) {
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
  Engine other(model, {.seats = 4, .page_size = 4, .chunk = 16, .threads = 1});
  Tokens expected;
  other.add(into(expected, drawn_text));
  run(other);
  EXPECT_EQ(after, expected);
  EXPECT_EQ(running.size(), 20u);
  EXPECT_EQ(Tokens(running.begin(), running.begin() + 5), Tokens(before.begin(), before.begin() + 5));
}

// A model of two tables and no attention: its embedding may know fewer tokens than its head.
struct Tables {
  nn::Params params{4};
  nn::Embedding tokens;
  nn::Linear head;
  explicit Tables(std::int64_t known)
      : tokens(nn::Path(params) / "tokens", known, 4, nn::Init::normal(1)),
        head(nn::Path(params) / "head", 4, 9, {.init = nn::Init::normal(1)}) {}
  nn::LanguageModel model() const {
    return {.features = [this](TensorArg x, const nn::Call&) { return tokens(x); },
            .head = [this](TensorArg x) { return head(x); },
            .context = 32,
            .parameters = params.all()};
  }
};

void an_error_of_a_run(bool ahead) {
  const Tables tables(8);
  const Engine::Request request{.prompt = {1, 2, 3, 4, 5}, .tokens = 6, .sampling = {.temperature = 0}};
  Tokens expected, got, other;
  Engine engine(tables.model(), {.seats = 4, .page_size = 4, .threads = 1, .ahead = ahead});
  EXPECT_EQ(engine.vocabulary(), 9);
  engine.add(EngineCalls::into(expected, request));
  EngineCalls::run(engine);
  const Engine::Handle first = engine.add(EngineCalls::into(got, request));
  engine.step();
  engine.fork(first, 1, EngineCalls::into(other, {}).report);
  const Engine::Handle wrong = engine.add(Engine::Request{.prompt = {8, 1}});
  // What is read again after an error is read before a text that came later: so that one is not in every
  // step.
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

TEST(Engine, AnErrorOfARunLeavesTheOtherTextsAsTheyWere) {
  for (const bool ahead : {false, true}) an_error_of_a_run(ahead);
}

void logits_that_are_no_numbers(bool ahead) {
  const Tables tables(9);
  Parameter table = *tables.params.find("tokens.weight");
  Array value = table.read();
  std::fill_n(value.data<float>() + 8 * 4, 4, std::numeric_limits<float>::quiet_NaN());
  table.write(value);
  const Engine::Request request{.prompt = {1, 2, 3}, .tokens = 6, .sampling = {.temperature = 0}};
  Engine engine(tables.model(), {.seats = 6, .page_size = 4, .threads = 1, .ahead = ahead});
  Tokens expected, got, none;
  engine.add(EngineCalls::into(expected, request));
  EngineCalls::run(engine);
  const Engine::Handle wrong = engine.add(EngineCalls::into(none, {.prompt = {1, 2, 8}}));
  const Engine::Handle search = engine.search({.prompt = {1, 8}, .beams = 2});
  engine.add(EngineCalls::into(got, request));
  const auto message = [](Engine::Handle handle, const std::string& why) {
    return "[engine] text " + std::to_string(handle) + " ends: " + why;
  };
  EXPECT_EQ(error_of([&] { engine.step(); }), message(wrong, "every logit is NaN"));
  EXPECT_EQ(error_of([&] { engine.step(); }), message(search, "[beam search] no token has a probability"));
  EXPECT_EQ(engine.texts(), 1u);
  EngineCalls::run(engine);
  EXPECT_EQ(got, expected);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(engine.scheduler().pool().free(), engine.scheduler().pool().pages());
}

TEST(Engine, ATextWhoseLogitsAreNoNumbersEndsAndTheOthersGoOn) {
  for (const bool ahead : {false, true}) logits_that_are_no_numbers(ahead);
}

TEST_P(EngineCalls, ASearchIsRefusedCancelledAndReportedBesideTexts) {
  const std::vector<std::int32_t> prompt{3, 1, 4, 1, 5};
  EXPECT_NE(error_of([&] { engine.search({}); }).find("[engine] the prompt is empty"), std::string::npos);
  EXPECT_NE(error_of([&] { engine.search({.prompt = {29}}); }).find("token 29"), std::string::npos);
  EXPECT_NE(error_of([&] { engine.search({.prompt = prompt, .tokens = 45}); }).find("context of 48"),
            std::string::npos);
  for (const std::int64_t beams : {-1, 0, 5})
    EXPECT_NE(error_of([&] {
                engine.search({.prompt = prompt, .beams = beams});
              }).find(std::to_string(beams) + " beams, expected 1 to 4"),
              std::string::npos);
  std::vector<nn::Hypothesis> expected;
  const auto keep = [&](std::vector<nn::Hypothesis> found) { expected = std::move(found); };
  engine.search({.prompt = prompt, .tokens = 9, .beams = 3, .report = keep});
  run();
  ASSERT_EQ(expected.size(), 3u);
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

// A small engine, requests for it, and the output of its sequences.
#pragma once

#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/models/model.h>

#include <gtest/gtest.h>

#include <tilegrad/ops/ops.h>

namespace tg::testing {

using nn::Engine;
using Tokens = std::vector<std::int32_t>;
inline constexpr std::int64_t context = 48;

inline nn::ModelConfig config(const nn::Architecture& architecture = {}) {
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

// The parameter is true if a step starts before the tokens of the previous step are known.
struct EngineCalls : ::testing::TestWithParam<bool> {
  nn::Params params{1};
  const nn::Model model{params, config()};
  Engine engine{model, {.slots = 4, .page_size = 4, .chunk = 16, .threads = 1, .ahead = GetParam()}};

  // Runs steps until all sequences have ended. Fails after too many steps.
  void run() { run(engine); }
  static void run(Engine& engine) {
    for (int n = 0; n < 2000; ++n)
      if (!engine.step()) {
        EXPECT_EQ(engine.sequences(), 0u);
        EXPECT_EQ(engine.scheduler().pool().free(), engine.scheduler().pool().pages());
        return;
      }
    ADD_FAILURE() << engine.sequences() << " sequences did not end";
  }
  static Engine::Request into(Tokens& sequence, Engine::Request request) {
    request.report = [&sequence](const Engine::Token& t) {
      sequence.push_back(t.token);
      return true;
    };
    return request;
  }
  Tokens written(const Engine::Request& request) {
    Tokens sequence;
    engine.add(into(sequence, request));
    run();
    return sequence;
  }
  // Returns the tokens that follow a sequence. The first token uses the seed's random number with index
  // `drawn`.
  Tokens drawn(Tokens sequence, std::int64_t count, const nn::Sampling& sampling, std::uint64_t seed,
               std::uint64_t drawn) {
    nn::Generator generator(model, {.threads = 1});
    Tokens more;
    for (std::int64_t n = 0; n < count; ++n) {
      more.push_back(nn::sample_token(generator.next(sequence), sampling, nn::sampling_draw(seed, drawn++)));
      sequence.push_back(more.back());
    }
    return more;
  }
};

inline const Engine::Request drawn_text{.prompt = {3, 1, 4, 1, 5}, .tokens = 20, .seed = 5};

// Returns requests of different lengths. Some of them have a common prefix.
inline std::vector<Engine::Request> several() {
  return {{.prompt = {3, 1, 4, 1, 5}, .tokens = 9, .seed = 2},
          {.prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3}, .tokens = 7, .sampling = {.temperature = 0}},
          {.prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3},
           .tokens = 12,
           .sampling = {.temperature = 1.5, .top_p = 0.8},
           .seed = 3},
          {.prompt = {7}, .tokens = 1, .seed = 4},
          {.prompt = Tokens(30, 8), .tokens = 11, .sampling = {.temperature = 2, .top_k = 9}, .seed = 5}};
}

}  // namespace tg::testing

// Requests for an Engine, models for these requests, and the results of serving them one by one.
#pragma once

#include <random>
#include <vector>

#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>

namespace tg::testing {

using Tokens = std::vector<std::int32_t>;

struct Kind {
  const char* name;
  nn::ModelConfig config;
};

inline std::vector<Kind> engine_kinds(std::int64_t width = 32) {
  const nn::ModelConfig base{.vocabulary = 29,
                             .context = 96,
                             .layers = 2,
                             .heads = 4,
                             .width = width,
                             .tied_head = false,
                             .std = 0.2};
  std::vector<Kind> list = {{"MHA", base}, {"GQA", base}, {"MLA", base}};
  list[1].config.architecture = nn::Llama{.key_heads = 2};
  list[2].config.architecture = nn::DeepSeek{};
  return list;
}

// The output of a request: the tokens, and the logits from which each token was chosen.
struct Written {
  Tokens tokens;
  std::vector<float> logits;
  bool operator==(const Written&) const = default;
};

inline nn::Engine::Request keeping(nn::Engine::Request request, Written& to) {
  request.logits = true;
  request.report = [&to](const nn::Engine::Token& t) {
    to.tokens.push_back(t.token);
    to.logits.insert(to.logits.end(), t.logits.begin(), t.logits.end());
    return true;
  };
  return request;
}

// Serves each request in a batch of one.
inline std::vector<Written> alone(const nn::Model& model, const std::vector<nn::Engine::Request>& list,
                                  nn::Precision precision = nn::Precision::full) {
  nn::Engine engine(model, {.slots = 1, .threads = 1, .precision = precision});
  std::vector<Written> sequences(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    engine.forget();
    engine.add(keeping(list[i], sequences[i]));
    engine.run();
  }
  return sequences;
}

// Returns requests of different lengths, with greedy and random sampling. Some of them have a common prefix.
inline std::vector<nn::Engine::Request> requests(int count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Tokens common;
  for (int i = 0; i < 40; ++i) common.push_back(static_cast<std::int32_t>(random() % 29));
  std::vector<nn::Engine::Request> list;
  for (int i = 0; i < count; ++i) {
    Tokens prompt(common.begin(),
                  common.begin() + static_cast<std::ptrdiff_t>(random() % 2 * (random() % 40)));
    for (std::uint64_t n = 1 + random() % 30; n > 0; --n)
      prompt.push_back(static_cast<std::int32_t>(random() % 29));
    list.push_back({.prompt = prompt,
                    .tokens = 1 + static_cast<std::int64_t>(random() % 20),
                    .sampling = {.temperature = i % 2 == 0 ? 0. : 1.},
                    .seed = random()});
  }
  return list;
}

// Serves the requests in one batch. Some requests join it later.
inline std::vector<Written> together(nn::Engine& engine, const std::vector<nn::Engine::Request>& list) {
  std::vector<Written> sequences(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    engine.add(keeping(list[i], sequences[i]));
    if (i % 3 == 0) engine.step();
  }
  engine.run();
  return sequences;
}

}  // namespace tg::testing

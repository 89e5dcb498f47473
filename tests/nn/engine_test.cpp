// Engine: texts of many requests against each of them alone, and against Generator.
#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>

#include <gtest/gtest.h>

#include <random>

namespace {

using namespace tg;
using Tokens = std::vector<std::int32_t>;

struct Kind {
  const char* name;
  nn::ModelConfig config;
};

std::vector<Kind> kinds() {
  const nn::ModelConfig base{
      .vocabulary = 29, .context = 96, .layers = 2, .heads = 4, .width = 32, .tied_head = false, .std = 0.2};
  std::vector<Kind> list = {{"MHA", base}, {"GQA", base}, {"MLA", base}};
  list[1].config.architecture = nn::Llama{.key_heads = 2};
  list[2].config.architecture = nn::DeepSeek{};
  return list;
}

// What a request became: its tokens, and the logits that each was chosen from.
struct Written {
  Tokens tokens;
  std::vector<float> logits;
  bool operator==(const Written&) const = default;
};

nn::Engine::Request keeping(nn::Engine::Request request, Written& to) {
  request.report = [&to](const nn::Engine::Token& t) {
    to.tokens.push_back(t.token);
    to.logits.insert(to.logits.end(), t.logits.begin(), t.logits.end());
    return true;
  };
  return request;
}

Written alone(const nn::Model& model, const nn::Engine::Request& request, nn::Engine::Options options = {}) {
  options.seats = 1;
  nn::Engine engine(model, options);
  Written text;
  engine.add(keeping(request, text));
  engine.run();
  return text;
}

// Requests of different lengths, some of which begin alike, greedy and drawn.
std::vector<nn::Engine::Request> requests(int count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Tokens common;
  for (int i = 0; i < 40; ++i) common.push_back(static_cast<std::int32_t>(random() % 29));
  std::vector<nn::Engine::Request> list;
  for (int i = 0; i < count; ++i) {
    Tokens prompt(common.begin(), common.begin() + static_cast<std::ptrdiff_t>(random() % 2 * (random() % 40)));
    for (std::uint64_t n = 1 + random() % 30; n > 0; --n) prompt.push_back(static_cast<std::int32_t>(random() % 29));
    list.push_back({.prompt = prompt,
                    .tokens = 1 + static_cast<std::int64_t>(random() % 20),
                    .sampling = {.temperature = i % 2 == 0 ? 0. : 1.},
                    .seed = random()});
  }
  return list;
}

TEST(Engine, WritesEachTextAsIfItWereAlone) {
  for (const Kind& kind : kinds()) {
    nn::Params params(1);
    const nn::Model model(params, kind.config);
    const auto list = requests(24, 7);
    std::vector<Written> expected;
    for (const auto& r : list) expected.push_back(alone(model, r));
    for (const nn::Engine::Options& options : {nn::Engine::Options{.seats = 8},
                                               {.seats = 3, .page_size = 5, .chunk = 7},
                                               {.seats = 24, .page_size = 64, .threads = 3},
                                               {.seats = 8, .cache_tokens = 160},
                                               {.seats = 8, .cache_tokens = 160, .host_tokens = 400},
                                               {.seats = 4, .page_size = 96}}) {
      nn::Engine engine(model, options);
      std::vector<Written> got(list.size());
      // Some join later.
      for (std::size_t i = 0; i < list.size(); ++i) {
        engine.add(keeping(list[i], got[i]));
        if (i % 3 == 0) engine.step();
      }
      engine.run();
      for (std::size_t i = 0; i < list.size(); ++i) {
        EXPECT_EQ(got[i].tokens, expected[i].tokens) << kind.name << ", request " << i;
        EXPECT_TRUE(got[i].logits == expected[i].logits) << kind.name << ", request " << i;
      }
      EXPECT_EQ(engine.texts(), 0u);
      EXPECT_EQ(engine.scheduler().pool().free(), engine.scheduler().pool().pages());
      if (options.cache_tokens > 0) {
        EXPECT_GT(engine.scheduler().preemptions(), 0);
      }
    }
  }
}

}  // namespace

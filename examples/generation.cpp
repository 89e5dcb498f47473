// Generates token by token: a small GPT memorizes a tongue twister in a few seconds and repeats it.
//
//   build/examples/generation
//
// The example generates greedily and by sampling, with and without a key-value cache, and within and beyond
// the context. Exits with status 0 if the rhyme is correct and all modes that must agree do so.
#include <cstdio>

#include <tilegrad/io/text/text.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/train/training.h>

using namespace tg;

int main() try {
  const std::string rhyme =
      "peter piper picked a peck of pickled peppers. how many pickled peppers did peter piper pick?\n";
  std::string text;
  for (int i = 0; i < 20; ++i) text += rhyme;
  const text::CharVocab vocab(text);
  const auto tokens = vocab.encode(text);

  constexpr std::int64_t batch = 16, context = 48, steps = 200;
  nn::Params params(/*seed=*/1);
  const nn::Model model(
      params, {.vocabulary = vocab.size(), .context = context, .layers = 2, .width = 32, .std = 0.08});
  const optim::AdamW optimizer(params.all(), {.weight_decay = 0.01});
  train::TrainingProgram training(model, optimizer, {.batch = batch, .threads = 1});
  const text::BatchSampler batches(tokens, batch, context, "rhyme");
  const optim::Schedule rate{.peak = 1e-2, .floor = 1e-3, .warmup = 20, .steps = steps};
  std::vector<std::int32_t> x(batch * context), y(x.size());
  float loss = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    batches.random(/*seed=*/1, static_cast<std::uint64_t>(step), x, y);
    loss = training.run(x, y, rate(step)).loss;
  }
  std::printf("loss %.4f after %lld steps\n", loss, static_cast<long long>(steps));

  // extend() reports each token when it is chosen. It appends the same tokens to the sequence.
  nn::Generator cached(model), whole(model, {.cache = false});
  const auto generate = [&](nn::Generator& by, std::int64_t count, const nn::Sampling& sampling,
                            std::uint64_t seed) {
    std::vector<std::int32_t> ids = vocab.encode("peter ");
    std::string streamed = "peter ";
    by.extend(ids, count, sampling, seed, [&](std::int32_t token) {
      streamed += vocab.decode(std::span(&token, 1));
      return true;  // false would end the text
    });
    return streamed == vocab.decode(ids) ? streamed : "the streamed text differs from the tokens";
  };

  const nn::Sampling likeliest{.temperature = 0}, hot{.temperature = 3}, one{.temperature = 3, .top_k = 1};
  const std::int64_t inside = context - 6, beyond = 150;  // beyond the context, old tokens are dropped
  const std::string greedy = generate(cached, inside, likeliest, 0),
                    longer = generate(cached, beyond, likeliest, 0);
  std::printf("likeliest: %s\nat temperature 3: %s\n", longer.c_str(),
              generate(cached, inside, hot, 7).c_str());

  bool good = loss < 0.2;
  const auto expect = [&](bool holds, const char* what) {
    if (!holds) std::printf("failed: %s\n", what);
    good = good && holds;
  };
  expect(text.starts_with(greedy), "the greedy text is the rhyme");
  expect(longer.starts_with(greedy), "a longer text begins like a shorter one");
  expect(generate(whole, inside, likeliest, 0) == greedy, "the text is the same without the cache");
  expect(generate(cached, inside, one, 3) == greedy, "with top_k = 1 the temperature has no effect");
  expect(generate(cached, inside, hot, 7) == generate(cached, inside, hot, 7),
         "the same seed gives the same text");
  expect(generate(cached, inside, hot, 7) != generate(cached, inside, hot, 8),
         "a different seed gives a different text");
  return good ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}

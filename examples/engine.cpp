// Engine: a small GPT memorizes a tongue twister and then continues many prompts in parallel. The cache is
// too small for all of them at the same time.
//    build/examples/engine
// Exits with status 0 if all greedy continuations are part of the rhyme.
#include <cstdio>

#include <tilegrad/io/text/text.h>
#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/train/training.h>

using namespace tg;

int main() try {
  std::string rhyme = "peter piper picked a peck of pickled peppers. how many peppers did peter piper pick? ";
  while (rhyme.size() < 2000) rhyme += rhyme;
  const text::CharVocab vocab(rhyme);
  const std::vector<std::int32_t> tokens = vocab.encode(rhyme);

  constexpr std::int64_t batch = 16, context = 48;
  nn::Params params(/*seed=*/1);
  const nn::Model model(params, {.vocabulary = vocab.size(), .context = context, .layers = 2, .width = 32});
  const optim::AdamW optimizer(params.all(), {.weight_decay = 0.01});
  train::TrainingProgram training(model, optimizer, {.batch = batch, .threads = 1});
  const text::BatchSampler batches(tokens, batch, context, "rhyme");
  std::vector<std::int32_t> x(batch * context), y(x.size());
  for (std::uint64_t step = 0; step < 200; ++step) {
    batches.random(/*seed=*/1, step, x, y);
    training.run(x, y, step < 150 ? 1e-2 : 2e-3);
  }

  nn::Engine engine(model, {.slots = 4, .cache_tokens = 96, .page_size = 8, .threads = 1});
  bool good = true;
  // Creates a callback that receives each generated token; returning false would end the sequence.
  const auto report = [&](std::string text, bool is_likeliest) {
    return [&, text, is_likeliest](const nn::Engine::Token& t) mutable {
      text += vocab.decode(std::span(&t.token, 1));
      if (t.end != nn::Engine::End::no) std::printf("%s\n", text.c_str());
      if (is_likeliest) good = good && rhyme.find(text) != std::string::npos;
      return true;
    };
  };
  const auto add = [&](const std::string& prompt, double temperature) {
    nn::Engine::Request request{.prompt = vocab.encode(prompt), .tokens = 25};
    request.sampling.temperature = temperature, request.report = report(prompt, temperature == 0);
    return engine.add(request);
  };
  for (const auto prompt : {"peter ", "how many peppers ", "a peck of ", "did ", "pickled peppers. h"})
    add(prompt, 0);
  engine.run();
  // Several continuations of one prompt share the pages that contain the prompt's tokens, but draw different
  // random numbers.
  const nn::Engine::Handle drawn = add("how many ", 2);
  for (const std::uint64_t seed : {2, 3, 4}) engine.fork(drawn, seed, report("how many ", false));
  engine.run();
  std::printf("%lld times a text had to wait\n", static_cast<long long>(engine.scheduler().preemptions()));
  return good ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}

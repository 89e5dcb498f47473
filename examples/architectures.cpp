// Trains models with grouped-query and latent attention on the same task. They learn to add numbers below 100
// and generate their answers with a key-value cache. examples/train_loop.cpp does the same with multi-head
// attention.
//    build/examples/architectures
// Exits with status 0 if every model answers more than 90 % of unseen sums correctly and generates the same
// tokens with and without its cache.
#include <cstdio>

#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/train/sums.h>
#include <tilegrad/train/training.h>

using namespace tg;

int main() try {
  constexpr std::int64_t digits = 2, batch = 64, context = train::Sums::tokens(digits), steps = 500,
                         asked = 100;
  const train::Sums sums(digits, batch, context);
  const nn::ModelConfig of_all{.vocabulary = sums.tokenizer().size(),
                               .context = context,
                               .layers = 2,
                               .heads = 4,
                               .width = 64,
                               .std = 0.06};
  nn::ModelConfig grouped = of_all, latent = of_all;
  grouped.architecture = nn::Llama{.key_heads = 2};
  latent.architecture = nn::DeepSeek{.latent = 24, .rope_width = 8};

  bool good = true;
  for (const nn::ModelConfig& config : {grouped, latent}) {
    nn::Params params(/*seed=*/1);
    const nn::Model model(params, config);
    const optim::AdamW optimizer(params.all(), {.weight_decay = 0.01});
    train::TrainingProgram training(model, optimizer, {.batch = batch});
    const optim::Schedule rate{.peak = 3e-3, .floor = 1e-4, .warmup = 30, .steps = steps};
    std::vector<std::int32_t> x(batch * context), y(x.size());
    for (std::int64_t step = 0; step < steps; ++step) {
      sums.random(1, static_cast<std::uint64_t>(step), 0, x, y);
      training.run(x, y, rate(step));
    }

    nn::Generator cached(model), whole(model, {.cache = false});
    std::int64_t right = 0, same = 0;
    for (std::int64_t i = 0; i < asked; ++i) {
      const auto [a, b] = sums.held_out_sum(i);
      std::vector<std::int32_t> text = sums.tokenizer().encode(sums.question(a, b)), again = text;
      cached.extend(text, digits + 1, {.temperature = 0}, 0);
      whole.extend(again, digits + 1, {.temperature = 0}, 0);
      same += text == again;
      right += sums.tokenizer().decode(text) + "\n" == sums.text(a, b);
    }
    std::printf("%-80s %lld of %lld correct, cache of %zu bytes\n", config.text().c_str(),
                static_cast<long long>(right), static_cast<long long>(asked), cached.cache().bytes());
    good = good && right > asked * 9 / 10 && same == asked;
  }
  return good ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}

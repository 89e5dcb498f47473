// A complete training loop: a small GPT learns to add numbers below 100, in 20 s on two cores.
// Usage: build/examples/train_loop [DIR for a checkpoint].
// Exits with status 0 if more than 99 % of unseen sums are answered correctly. trainer.cpp is shorter.
#include <cstdio>

#include <tilegrad/io/checkpoints/checkpoint_store.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/train/sums.h>
#include <tilegrad/train/training.h>

using namespace tg;

int main(int argc, char** argv) try {
  constexpr std::int64_t digits = 2, batch = 64, context = train::Sums::tokens(digits), steps = 800;
  const train::Sums sums(digits, batch, context);

  // Parameters live outside the graph; initial values are a function of (seed, name).
  nn::Params params(/*seed=*/1);
  const nn::Model model(
      params,
      {.vocabulary = sums.tokenizer().size(), .context = context, .layers = 2, .width = 64, .std = 0.06});
  const optim::AdamW optimizer(params.all(), {.weight_decay = 0.01});

  // One program computes forward, backward, clipping and update. The other evaluates the same parameters.
  const train::ProgramOptions options{.batch = batch, .predictions = true};
  train::TrainingProgram training(model, optimizer, options);
  train::EvaluationProgram evaluation(model, options);
  const optim::Schedule rate{.peak = 3e-3, .floor = 1e-4, .warmup = 30, .steps = steps};
  std::printf("%lld parameters\n", static_cast<long long>(params.count()));

  std::vector<std::int32_t> x(batch * context), y(x.size());
  for (std::int64_t step = 0; step < steps; ++step) {
    sums.random(/*seed=*/1, static_cast<std::uint64_t>(step), /*first_row=*/0, x, y);
    const auto result = training.run(x, y, rate(step));
    if (step % 100 == 99)
      std::printf("step %lld  loss %.4f  gradient norm %.3f\n", static_cast<long long>(step + 1), result.loss,
                  result.grad_norm);
  }

  std::int64_t right = 0, asked = 0;
  for (std::int64_t k = 0; k < 30; ++k, asked += batch) {  // from the held-out tenth of all sums
    sums.evaluation(k, x, y);
    const Array likeliest = evaluation.predictions(evaluation.start(x, y));
    right += sums.right_answers(y, {likeliest.data<std::int64_t>(), x.size()});
  }
  const double share = static_cast<double>(right) / static_cast<double>(asked);
  std::printf("%.2f %% of %lld unseen sums are correct\n", 100 * share, static_cast<long long>(asked));

  if (argc > 1) {
    io::CheckpointStore store(argv[1]);
    const std::vector<io::CheckpointFile> files{
        {"model.safetensors", params.all(), sums.tokenizer().metadata()},
        {"optimizer.safetensors", optimizer.state()}};
    store.save(steps, steps, files);
  }
  return share > 0.99 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}

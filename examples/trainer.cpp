// Trains on the text of a file with a Trainer, which writes checkpoints and metrics and can resume.
//
//   build/examples/trainer TEXT DIR [STEPS]
//
// A second call with more steps resumes the run in DIR. Exits with status 0 if the loss is lower than the
// loss of a model that knows only the frequencies of the characters.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <tilegrad/train/batches.h>
#include <tilegrad/train/trainer.h>

using namespace tg;

int main(int argc, char** argv) try {
  if (argc < 3) return std::fprintf(stderr, "usage: trainer TEXT DIR [STEPS]\n"), 2;
  const std::string text = text::load_text(argv[1]);
  const text::CharVocab vocab(text);
  const auto tokens = vocab.encode(text);
  constexpr std::int64_t batch = 8, context = 32;
  const train::TextBatches batches(tokens, batch, batch, context);

  nn::Params params(/*seed=*/1);
  const nn::Model model(
      params, {.vocabulary = vocab.size(), .context = context, .layers = 2, .width = 64, .std = 0.06});
  const optim::AdamW optimizer(params.all());
  io::CheckpointStore store(argv[2]);
  train::Trainer trainer(
      model, optimizer, batches,
      {.steps = argc > 3 ? std::atoll(argv[3]) : 300,
       .schedule = {.peak = 2e-3, .warmup = 20, .kind = optim::Schedule::Kind::constant},
       .program = {.batch = batch},
       .validate_every = 100},
      {.validated =
           [](const train::MetricsRow& row) {
             std::printf("step %lld  loss %.4f  validation %.4f\n", static_cast<long long>(row.step),
                         row.train_loss, row.val_loss);
           },
       .files =
           [&](const train::Trainer::State&) {
             return std::vector<io::CheckpointFile>{{"model.safetensors", params.all(), vocab.metadata()}};
           }},
      &store);
  if (store.has_checkpoint()) trainer.resume(io::Checkpoint(argv[2]));
  trainer.run();

  std::vector<double> counts(static_cast<std::size_t>(vocab.size()));
  for (const std::int32_t t : tokens) ++counts[static_cast<std::size_t>(t)];
  double entropy = 0;
  for (const double n : counts) entropy -= n / tokens.size() * std::log(n / tokens.size());
  std::printf("validation loss %.4f nats a character; by frequency only %.4f\n",
              trainer.rows().back().val_loss, entropy);
  return trainer.rows().back().val_loss < entropy ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}

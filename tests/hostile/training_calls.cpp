// Calls functions of train/: batches, metrics, the progress display and the Trainer.
#include <tilegrad/train/batches.h>
#include <tilegrad/train/examples.h>
#include <tilegrad/train/metrics.h>
#include <tilegrad/train/progress.h>
#include <tilegrad/train/sums.h>
#include <tilegrad/train/trainer.h>
#include "tests/hostile/files.h"

namespace tg::hostile {

namespace {

using I = std::int64_t;

// User-defined batches in which all ids are equal. The Trainer requests them in a separate thread, so this
// code draws no random numbers.
struct UserBatches final : train::Batches {
  std::int32_t id = 0;
  I count = 1, questions = 0;
  bool refuses = false;
  void training(std::uint64_t, I, Tokens x, Tokens y) const override {
    if (refuses) throw Error("[user] on purpose");
    std::ranges::fill(x, id), std::ranges::fill(y, id);
  }
  I validation_count() const override { return count; }
  void validation(I, I, Tokens x, Tokens y) const override { training(0, 0, x, y); }
  I answers() const override { return questions; }
};

// Draws tokens, which may be outside the vocabulary of the model below.
std::vector<train::Example> examples(World& w) {
  std::vector<train::Example> all(w.hostile() ? w.below(3) : 3 + w.below(4));
  for (train::Example& e : all) {
    e.tokens.resize(w.below(6));
    for (std::int32_t& t : e.tokens)
      t = w.hostile() ? Draw<std::int32_t>::of(w) : static_cast<std::int32_t>(w.below(4));
    e.given = w.hostile() ? Draw<std::uint64_t>::of(w) : w.below(3);
  }
  return all;
}

std::unique_ptr<train::Batches> batches(World& w, const std::vector<std::int32_t>& tokens) {
  if (w.chance(0.2))
    return std::make_unique<train::ExampleBatches>(examples(w), w.hostile() ? Draw<I>::of(w) : 2, 2, 3);
  if (w.chance(0.3)) return std::make_unique<train::TextBatches>(tokens, 2, 2, 3);
  auto all = std::make_unique<UserBatches>();
  if (w.hostile()) all->id = static_cast<std::int32_t>(Draw<I>::of(w));
  if (w.hostile()) all->count = Draw<I>::of(w);
  if (w.hostile()) all->questions = Draw<I>::of(w);
  all->refuses = w.hostile();
  return all;
}

I interval(World& w) {
  return count(w, 3, 1);
}

train::Trainer::Options options(World& w) {
  return {.steps = interval(w),
          .schedule = {.peak = Draw<double>::of(w), .warmup = Draw<I>::of(w), .steps = Draw<I>::of(w)},
          .seed = w.below(3),
          .program = {.batch = w.hostile() ? Draw<I>::of(w) : 2,
                      .threads = Draw<int>::of(w),
                      .plan_only = w.hostile(),
                      .predictions = w.chance(0.5),
                      .accumulate = w.hostile() ? Draw<I>::of(w) : 1},
          .validate_every = interval(w),
          .validation_batches = interval(w),
          .save_every = interval(w),
          .trap_nan = w.chance(0.3)};
}

// Trains a model for a few steps, and continues from its checkpoint. The model computes logits from each
// token separately.
void run_trainer(World& w) {
  nn::Params params(1);
  const nn::Embedding table(nn::Path(params) / "table", 4, 4);
  const nn::LanguageModel model{
      .features = [&](TensorArg ids, const nn::CallArgs& call) { return table(ids, call); },
      .context = w.hostile() ? Draw<I>::of(w) : 3,
      .parameters = params.all()};
  const optim::AdamW optimizer(params.all());
  const std::vector<std::int32_t> tokens(60, 1);
  const auto data = batches(w, tokens);
  w.trace += "answers " + std::to_string(data->answers()) + ", validation batches " +
             std::to_string(data->validation_count()) + "\n";
  data->right_answers(tokens, Draw<Array>::of(w));
  const std::string directory = "run-" + path(w);
  std::optional<io::CheckpointStore> store;
  if (w.chance(0.5)) store.emplace(directory);
  const std::string name = w.hostile() ? Draw<std::string>::of(w) : "model.safetensors";
  int asked = 0;
  const train::Trainer::Hooks hooks{
      .stop = [&] { return ++asked > 3; },
      .files = [&](const train::Trainer::State&) -> std::vector<io::CheckpointFile> {
        return {{name, params.all(), {}}};
      }};
  for (int part = 0; part < 2; ++part) {
    train::Trainer trainer(model, optimizer, *data, options(w), hooks, store ? &*store : nullptr);
    if (part == 1 && store && store->has_checkpoint()) {
      std::optional<train::Trainer::State> state;
      if (w.hostile()) state = {Draw<I>::of(w), Draw<I>::of(w), Draw<double>::of(w)};
      trainer.resume(io::Checkpoint(directory), state);
    }
    asked = 0;
    trainer.run();
    (void)trainer.validation_batches(w.chance(0.5));
    (void)trainer.last(), (void)trainer.seconds(), trainer.training().memory();
  }
}

}  // namespace

std::vector<Call> training_calls() {
  return {
      {"Trainer", run_trainer},
      {"batches",
       [](World& w) {
         const std::vector<std::int32_t> tokens = ids(w);
         const I rows = w.hostile() ? Draw<I>::of(w) : 2, context = w.hostile() ? Draw<I>::of(w) : 3;
         const train::TextBatches batches(tokens, rows, rows, context);
         std::vector<std::int32_t> x(w.hostile() ? w.below(9) : 6), y(w.hostile() ? w.below(9) : 6);
         batches.training(w.below(3), Draw<I>::of(w), x, y);
         batches.validation(count(w, 2), w.chance(0.5) ? batches.validation_count() : count(w, 3, 2), x, y);
       }},
      {"ExampleBatches",
       [](World& w) {
         const I rows = w.hostile() ? Draw<I>::of(w) : 2, context = w.hostile() ? Draw<I>::of(w) : 3;
         const train::ExampleBatches batches(examples(w), rows, rows, context);
         std::vector<std::int32_t> x(w.hostile() ? w.below(9) : 6), y(w.hostile() ? w.below(9) : 6);
         batches.training(w.below(3), Draw<I>::of(w), x, y);
         batches.validation(count(w, 2), w.chance(0.5) ? batches.validation_count() : count(w, 3, 2), x, y);
         (void)batches.held_out(), (void)batches.cut(), (void)batches.left_out(),
             (void)batches.examples().size();
       }},
      {"examples",
       [](World& w) {
         const text::ByteTokenizer bytes;
         const train::ExampleText text{Draw<std::string>::of(w), Draw<std::string>::of(w)};
         (void)train::encode_example(text, bytes,
                                     w.chance(0.5) ? std::optional(Draw<std::int32_t>::of(w)) : std::nullopt)
             .tokens.size();
         (void)train::read_examples(path(w)).size();
       }},
      {"BatchSampler",
       [](World& w) {
         const std::vector<std::int32_t> tokens = ids(w);
         const I rows = w.hostile() ? Draw<I>::of(w) : 2, context = w.hostile() ? Draw<I>::of(w) : 3;
         const text::BatchSampler sampler(tokens, rows, context, Draw<std::string>::of(w));
         std::vector<std::int32_t> x(w.hostile() ? w.below(9) : 6), y = x;
         sampler.random(Draw<std::uint64_t>::of(w), Draw<std::uint64_t>::of(w), Draw<I>::of(w), x, y);
         sampler.random(Draw<std::uint64_t>::of(w), Draw<std::uint64_t>::of(w), x, y);
         sampler.evaluation(count(w, 2), w.chance(0.5) ? sampler.evaluation_count() : count(w, 3, 2), x, y);
         (void)sampler.batch(), (void)sampler.context();
       }},
      {"sums",
       [](World& w) {
         const train::Sums sums(w.hostile() ? Draw<I>::of(w) : 1, w.hostile() ? Draw<I>::of(w) : 2,
                                w.hostile() ? Draw<I>::of(w) : 12);
         std::vector<std::int32_t> x(w.hostile() ? w.below(9) : 24), y = x;
         train::Sums::held_out(Draw<I>::of(w), Draw<I>::of(w));
         const auto [a, b] = sums.held_out_sum(Draw<I>::of(w));
         sums.tokenizer().encode(sums.text(a, b));
         sums.tokenizer().decode(ids(w));
         sums.random(0, w.below(9), w.hostile() ? Draw<I>::of(w) : 0, x, y);
         sums.evaluation(Draw<I>::of(w), x, y);
         sums.right_answers(y, std::vector<I>(w.hostile() ? w.below(30) : y.size(), Draw<I>::of(w)));
         sums.question(count(w, 9), count(w, 9));
         sums.text(count(w, 9), count(w, 9));
       }},
      {"metrics",
       [](World& w) {
         train::MetricsWriter file(path(w),
                                   w.one_of({io::OutputFile::Start::empty, io::OutputFile::Start::append}));
         file.write({.step = Draw<I>::of(w), .train_loss = Draw<float>::of(w)});
         if (w.chance(0.3)) file.sync();
         file.close();
         train::read_metrics(path(w));
         if (w.hostile()) file.write({});
         if (w.hostile()) file.sync();
         file.close();
       }},
      {"cut_metrics", [](World& w) { train::cut_metrics(path(w), Draw<I>::of(w)); }},
      {"to_json", [](World& w) { train::to_json({.step = Draw<I>::of(w), .lr = Draw<float>::of(w)}); }},
      {"Progress",
       [](World& w) {
         const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/dev/null", "w"),
                                                                    std::fclose);
         train::Progress progress(w.hostile() ? nullptr : file.get(), Draw<I>::of(w), Draw<I>::of(w),
                                  Draw<I>::of(w), Draw<double>::of(w));
         for (int n = 0; n < 3; ++n)
           progress.update(Draw<I>::of(w), Draw<double>::of(w), Draw<double>::of(w));
         progress.note(Draw<std::string>::of(w));
         progress.validation(Draw<double>::of(w));
         (void)progress.tokens_per_s();
       }},
  };
}

}  // namespace tg::hostile

// train: a character GPT on a text, from the command line.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <new>

#include "io/checkpoint.h"
#include "io/progress.h"
#include "io/text.h"
#include "nn/generate.h"
#include "nn/schedule.h"
#include "tools/args.h"
#include "tools/train_report.h"

namespace {

using namespace tg;

struct Options {
  std::string text, out = "out/train", backend = "cpu", dtype = "f32";
  GptConfig model;  // vocabulary: from the text
  std::int64_t batch = 12, steps = 2000, warmup = 100, seed = 1, threads = 0;
  double lr = 1e-3, min_lr = 1e-4;
  std::int64_t eval_every = 250, eval_batches = 20, sample = 400;
};

volatile std::sig_atomic_t stop_asked = 0;

// The first Ctrl-C asks for a stop after the step; a second one ends the process at once.
void ask_to_stop() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

Metadata description(const Options& o, const CharVocab& vocab, std::int64_t step) {
  std::string characters;
  for (std::int32_t id = 0; id < vocab.size(); ++id) characters += vocab.decode(std::span(&id, 1));
  const GptConfig& m = o.model;
  return {{"model", "gpt"},
          {"characters", characters},
          {"vocabulary", std::to_string(m.vocabulary)},
          {"context", std::to_string(m.context)},
          {"layers", std::to_string(m.layers)},
          {"heads", std::to_string(m.heads)},
          {"width", std::to_string(m.width)},
          {"bias", m.bias ? "true" : "false"},
          {"tied_head", m.tied_head ? "true" : "false"},
          {"step", std::to_string(step)}};
}

class Run {
 public:
  explicit Run(Options options)
      : o_(std::move(options)),
        text_(load_text(o_.text)),
        vocab_(text_),
        tokens_(vocab_.encode(text_)),
        split_(split_text(tokens_)),
        train_(split_.train, o_.batch, o_.model.context, "the text to train on (nine tenths)"),
        held_out_(split_.validation, o_.batch, o_.model.context, "the held-out text (the last tenth)"),
        x_(static_cast<std::size_t>(o_.batch * o_.model.context)),
        y_(x_.size()) {
    o_.model.vocabulary = vocab_.size();
    std::error_code error;
    std::filesystem::create_directories(o_.out, error);
    if (error) throw Error("[train] cannot make the directory " + o_.out + ": " + error.message());
  }

  int go() {
    const auto seed = static_cast<std::uint64_t>(o_.seed);
    const auto bytes = static_cast<double>(o_.model.parameters()) * sizeof(float);
    const Device device = Device::parse(o_.backend);
    want_memory(device, 3 * bytes, "the model with its optimizer");
    Params params(seed, f32, device);
    const Gpt model(params, o_.model);
    AdamW::Options adamw;
    if (precision() == Precision::f16) adamw.loss_scale = LossScale{};
    const AdamW optimizer(params.all(), adamw);
    const ProgramOptions programs{
        .batch = o_.batch, .threads = static_cast<int>(o_.threads), .precision = precision()};
    TrainingProgram training(model, optimizer, programs, seed);
    EvaluationProgram evaluation(model, programs);
    print_table(params, training.program().memory(), evaluation.program().memory());

    MetricsWriter metrics(o_.out + "/metrics.jsonl");
    const CosineSchedule schedule{o_.lr, o_.min_lr, o_.warmup, o_.steps};
    TrainingProgram::Result result{};
    double best = std::numeric_limits<double>::infinity(), seconds = 0;
    {
      Progress progress(stdout, 0, o_.steps, o_.batch * o_.model.context);
      for (std::int64_t step = 1; step <= o_.steps && !stop_asked; ++step) {
        const auto begin = std::chrono::steady_clock::now();
        train_.random(seed, static_cast<std::uint64_t>(step - 1), x_, y_);
        const double lr = schedule(step - 1);
        result = training.run(x_, y_, lr);
        seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        progress.update(step, result.loss, lr);
        MetricsRow row{.step = step,
                       .train_loss = result.loss,
                       .lr = static_cast<float>(lr),
                       .grad_norm = result.grad_norm,
                       .tokens_per_s = static_cast<float>(progress.tokens_per_s())};
        const bool last = step == o_.steps || stop_asked;
        if (last || step % o_.eval_every == 0) {
          row.val_loss = static_cast<float>(validate(evaluation, last));
          progress.validation(row.val_loss);
          if (row.val_loss < best) {
            best = row.val_loss;
            save(params, "best.safetensors", row);
          }
        }
        rows_.push_back(row);
        metrics.write(row);
      }
    }
    metrics.close();
    if (rows_.empty()) return 130;
    save(params, "model.safetensors", rows_.back());
    save_loss_curve(o_.out + "/loss.png", title(), rows_);
    report(seconds, result);
    if (stop_asked) return 130;
    print_sample(model);
    return 0;
  }

 private:
  void print_table(const Params& params, const MemoryReport& training, const MemoryReport& evaluation) const {
    const auto count = [](std::size_t n) { return grouped(static_cast<std::int64_t>(n)); };
    print_row("text", o_.text + ": " + count(tokens_.size()) + " characters, " +
                          std::to_string(vocab_.size()) + " distinct; " + count(split_.train.size()) +
                          " to train on, " + count(split_.validation.size()) + " held out");
    print_row("model", title() + ", weights from N(0, " + short_number(o_.model.std) + "²)" +
                           (o_.model.dropout > 0 ? ", dropout " + short_number(o_.model.dropout) : ""));
    print_row("training", grouped(o_.steps) + " steps of " + std::to_string(o_.batch) + " × " +
                              std::to_string(o_.model.context) + " tokens, lr " + short_number(o_.lr) +
                              " → " + short_number(o_.min_lr) + " after " + std::to_string(o_.warmup) +
                              " steps of warm-up, " + o_.dtype + ", seed " + std::to_string(o_.seed) +
                              (o_.threads > 0 ? ", threads " + std::to_string(o_.threads) : ""));
    print_parameters(params);
    const std::size_t peak = print_memory(params, training, evaluation);
    // Parameters and optimizer are in memory already.
    want_memory(params.device(), static_cast<double>(peak - training.parameters),
                "training beyond what is loaded");
    std::fflush(stdout);
  }

  Precision precision() const { return precision_named(o_.dtype); }

  std::string title() const {
    const GptConfig& m = o_.model;
    return "GPT: " + std::to_string(m.layers) + " layers, " + std::to_string(m.heads) + " heads, width " +
           std::to_string(m.width) + ", context " + std::to_string(m.context);
  }

  // The mean over fixed batches spread over the held-out text, at the end over all of it (up to 400 batches).
  double validate(EvaluationProgram& evaluation, bool whole) {
    const std::int64_t all = std::min<std::int64_t>(held_out_.evaluation_count(), 400);
    const std::int64_t count = whole ? all : std::min(all, o_.eval_batches);
    double total = 0;
    for (std::int64_t k = 0; k < count; ++k) {
      held_out_.evaluation(k, count, x_, y_);
      total += evaluation.run(x_, y_);
    }
    return total / static_cast<double>(count);
  }

  void save(const Params& params, const char* file, const MetricsRow& row) const {
    save_parameters(o_.out + "/" + file, params.all(), description(o_, vocab_, row.step));
  }

  void report(double seconds, const TrainingProgram::Result& result) const {
    const MetricsRow& last = rows_.back();
    char line[160];
    std::snprintf(line, sizeof line,
                  "%lld steps in %.1f s, %.2f ms each; train loss %.4f, validation loss %.4f",
                  static_cast<long long>(last.step), seconds, 1e3 * seconds / static_cast<double>(last.step),
                  last.train_loss, last.val_loss);
    print_row(stop_asked ? "stopped" : "done", line);
    if (result.skipped > 0)
      print_row("skipped", grouped(result.skipped) + " steps whose gradient was not finite");
    if (precision() == Precision::f16)
      print_row("loss scale", grouped(static_cast<std::int64_t>(result.loss_scale)) + "; " +
                                  grouped(result.overflowed) + " steps skipped because it was too large");
    print_row("files", o_.out + "/: model.safetensors, best.safetensors, metrics.jsonl, loss.png");
  }

  void print_sample(const Gpt& model) const {
    if (o_.sample == 0) return;
    Generator generator(model, static_cast<int>(o_.threads), precision());
    // Starts as the text goes on after a line break, if it has one.
    const auto& characters = vocab_.characters();
    const auto line_break = std::find(characters.begin(), characters.end(), U'\n');
    std::vector<std::int32_t> sample{
        line_break == characters.end() ? 0 : static_cast<std::int32_t>(line_break - characters.begin())};
    generator.extend(sample, o_.sample, 0.8, static_cast<std::uint64_t>(o_.seed));
    std::printf("sample\n%s\n", vocab_.decode(std::span(sample).subspan(1)).c_str());
  }

  Options o_;
  std::string text_;
  CharVocab vocab_;
  std::vector<std::int32_t> tokens_;
  TextSplit split_;
  BatchSampler train_, held_out_;
  std::vector<std::int32_t> x_, y_;  // a batch: [batch, context]
  std::vector<MetricsRow> rows_;
};

}  // namespace

int main(int argc, char** argv) {
  Options o;
  Args args("train", "Trains a character GPT on a text and shows what it learned.");
  args.option("text", "FILE", "UTF-8 text to learn; its last tenth is held out", o.text, {.required = true});
  args.option("layers", "N", "blocks", o.model.layers, {.min = 1, .max = 256});
  args.option("heads", "N", "attention heads; divides the width", o.model.heads, {.min = 1, .max = 4096});
  args.option("width", "N", "channels", o.model.width, {.min = 1, .max = 16384});
  args.option("context", "N", "tokens the model sees", o.model.context, {.min = 1, .max = 65536});
  args.option("batch", "N", "rows of tokens in a step", o.batch, {.min = 1, .max = 65536});
  args.option("steps", "N", "optimizer steps", o.steps, {.min = 1, .max = 1e9});
  args.option("lr", "X", "learning rate after warm-up", o.lr, {.min = 0, .max = 1e3});
  args.option("min-lr", "X", "learning rate at the end of the cosine", o.min_lr,
              {.min = 0, .max = 1e3, .shown = "a tenth of --lr"});
  args.option("warmup", "N", "steps of linear warm-up", o.warmup, {.min = 0, .max = 1e9});
  args.option("init-std", "X", "standard deviation of starting weights; 0.02 is GPT-2's, of width 768",
              o.model.std, {.min = 1e-6, .max = 10, .shown = "0.02·√(768/width)"});
  args.option("dropout", "P", "of embeddings, attention weights and block outputs", o.model.dropout,
              {.min = 0, .max = 0.99});
  args.option("seed", "N", "of weights, batches, dropout and sample", o.seed, {.min = 0});
  args.option("backend", "NAME", "where to train: cpu, cuda, or cuda:N for another GPU than the first",
              o.backend);
  args.option("dtype", "TYPE",
              "what forward and backward compute in, while weights and optimizer stay f32; tf32: f32 with"
              " products on a GPU's tensor cores, and exact f32 on the CPU",
              o.dtype, {.choices = {"f32", "tf32", "bf16", "f16"}});
  args.option("threads", "N", "threads; 0 takes TG_THREADS or all cores", o.threads, {.min = 0, .max = 1024});
  args.option("eval-every", "N", "steps between validations", o.eval_every, {.min = 1});
  args.option("eval-batches", "N", "batches of a validation; the last one takes the whole held-out text",
              o.eval_batches, {.min = 1, .max = 400});
  args.option("sample", "N", "characters to write at the end", o.sample, {.min = 0, .max = 1e6});
  args.option("out", "DIR", "where the files go; made if missing", o.out);
  args.example("train --text input.txt",
               "the 0.8 M model of 4 layers, 2000 steps: about half a minute on 2 cores");
  args.example(
      "train --text input.txt --layers 6 --heads 6 --width 384 --context 256 --batch 64 --steps 5000"
      " --dropout 0.2 --out out/big",
      "nanoGPT's 10 M configuration");
  if (const auto code = args.parse(argc, argv)) return *code;
  if (o.model.width % o.model.heads != 0)
    return args.fail("--width " + std::to_string(o.model.width) + " does not divide by --heads " +
                     std::to_string(o.model.heads));
  if (!args.given("min-lr")) o.min_lr = o.lr / 10;
  // Keeps the size of a layer's output what it is in GPT-2, whatever the width.
  if (!args.given("init-std")) o.model.std = 0.02 * std::sqrt(768.0 / static_cast<double>(o.model.width));
  if (o.min_lr > o.lr)
    return args.fail("--min-lr " + short_number(o.min_lr) + " is above --lr " + short_number(o.lr));
  ask_to_stop();
  try {
    return Run(std::move(o)).go();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "train: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "train: %s\n", e.what());
  }
  return 1;
}

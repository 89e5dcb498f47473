// train: trains a new language model, or fine-tunes one from a Hugging Face folder or a GGUF file, on a text
// or a task.
#include <array>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/ops/ceilings.h>
#include <tilegrad/train/progress.h>
#include <tilegrad/train/sums.h>
#include <tilegrad/train/trainer.h>
#include "core/os/signals.h"
#include "io/models/adapter_source.h"
#include "tools/memory_size.h"
#include "tools/opened_model.h"
#include "tools/output_files.h"
#include "tools/run_as_rank.h"
#include "tools/train/data.h"
#include "tools/train/options.h"
#include "tools/train/run_state.h"
#include "tools/train_report.h"
#include "train/prefetch.h"

namespace {

using namespace tg;

constexpr std::int64_t most_tokens = 1024;  // default of --context with --model, at most
constexpr const char* loss_curve_file = "loss.png";
constexpr const char* run_file = "run.safetensors";  // RunState and options, as metadata

class Run {
 public:
  // `args` has the options that a checkpoint saves. If --resume is set, the constructor opens the run in
  // `store`. `base` is the model of --model. A resumed run reads the model from its checkpoint instead. Only
  // rank 0 has a store and writes files.
  Run(TrainOptions options, const Args& args, std::shared_ptr<parallel::Group> group,
      std::unique_ptr<io::CheckpointStore> store, std::optional<BaseModel> base)
      : o_(std::move(options)),
        args_(args),
        group_(std::move(group)),
        store_(std::move(store)),
        base_(std::move(base)) {
    o_.data.batch = o_.batch, o_.data.step_rows = step_rows(), o_.data.context = o_.model.context;
    if (o_.resume) {
      open_run();
    } else {
      take_base();
      data_ = open_data(o_.data, std::nullopt);
      if (is_first()) store_ = std::make_unique<io::CheckpointStore>(o_.out);
      if (store_ && store_->has_checkpoint() && !o_.overwrite && o_.profile == 0)
        throw Error("[train] " + o_.out + " holds a run: --resume continues it, --overwrite replaces it");
    }
    if (store_)
      for (const char* name : {"metrics.jsonl", loss_curve_file}) {
        store_->require_own(name);
        require_not_input("train", o_.out + "/" + name,
                          {o_.data.text, o_.data.examples, o_.data.tokens, o_.base});
      }
    if (!base_) o_.model.vocabulary = data_->tokenizer().size();
    if (resumed_) check_same_model();
    state_.data_sum = data_->identity();
    expect_same_on_all(args_, state_.data_sum, group_->communicator());
  }

  int go() {
    const auto seed = static_cast<std::uint64_t>(o_.seed);
    const DType dtype = weights_dtype();
    const auto bytes = static_cast<double>(o_.model.parameters()) * static_cast<double>(size_of(dtype));
    check_memory(o_.device, has_lora() ? bytes : 3 * bytes, "the model with its optimizer");
    nn::Params params = base_ ? nn::Params::unset(dtype, o_.device) : nn::Params(seed, dtype, o_.device);
    nn::Model model = model_with_context(params, o_.model, o_.data.context);
    if (has_lora()) nn::add_lora(model, lora_options(), io::module_of(base_->family, base_->config));
    const auto scale =
        o_.precision() == nn::Precision::f16 ? std::optional(optim::LossScale{}) : std::nullopt;
    const auto made = make_optimizer(o_.learning, model.parameters(), scale, o_.precision(),
                                     o_.zero > 0 ? ranks() : nullptr);
    const optim::Optimizer& optimizer = *made;
    const train::ProgramOptions programs{.batch = o_.batch,
                                         .threads = o_.thread_count(),
                                         .precision = o_.precision(),
                                         .predictions = data_->answers() > 0,
                                         .accumulate = o_.learning.accumulate,
                                         .ranks = ranks(),
                                         .context_parallel = divides_tokens(),
                                         .hoist_collectives = o_.zero == 2,
                                         .recompute = o_.recompute,
                                         .memory_budget = o_.budget};
    const train::TrainingMemory memory = plan_memory(model, optimizer, programs);
    print_table(params, model, memory);
    check_room(memory, model, optimizer, programs);
    if (base_ && base_->weights) {
      base_->weights->load(params.all());
      expect_same_on_all(params.all(), group_->communicator());
    }
    std::optional<train::Progress> progress;
    std::optional<parallel::Group::Pause> pause;  // while this rank may make no progress for a long time
    const train::Trainer::Hooks hooks{
        .stop =
            [&] {
              pause.reset();
              return is_asked_to_stop();
            },
        .step =
            [&](train::MetricsRow& row) {
              group_->progress(row.step);
              if (row.step % o_.eval_every == 0 || row.step % o_.save_every == 0 || row.step == o_.steps)
                pause.emplace(group_->pause());
              progress->update(row.step, row.train_loss, row.lr);
              row.tokens_per_s = static_cast<float>(progress->tokens_per_s());
            },
        .validated =
            [&](const train::MetricsRow& row) {
              if (row.step == 0) print_row("before", "validation loss " + loss_text(row.val_loss));
              progress->validation(row.val_loss);
            },
        .files = [&](const train::Trainer::State& state) { return files(model, state); }};
    train::Trainer trainer(model, optimizer, *data_,
                           {.steps = o_.steps,
                            .schedule = schedule_of(o_.learning, o_.steps),
                            .seed = seed,
                            .program = programs,
                            .validate_every = o_.eval_every,
                            .validation_batches = o_.eval_batches,
                            .save_every = o_.save_every,
                            .validate_first = base_.has_value(),
                            .trap_nan = o_.trap_nan},
                           hooks, store_.get());
    if (o_.profile > 0) return print_profile(trainer.training());
    if (resumed_) {
      trainer.resume(*resumed_, train::Trainer::State{state_.step, state_.best_step, state_.best_loss});
      resumed_.reset();  // open files would keep their disk space
    }
    const std::int64_t first = state_.step;
    progress.emplace(stdout, first, o_.steps, step_rows() * o_.data.context);
    {
      const OrderlyStop orderly;
      trainer.run();
    }
    is_stopped_ = is_asked_to_stop();
    if (trainer.state().step < o_.steps) is_stopped_ = true;  // perhaps another rank received the signal
    progress.reset();
    if (!is_first() || trainer.state().step == 0) return is_stopped_ ? 130 : 0;
    store_->claim(loss_curve_file);
    save_loss_curve(o_.out + "/" + loss_curve_file, o_.model.text(), std::string(data_->tokenizer().unit()),
                    trainer.rows());
    report(trainer, first);
    if (is_stopped_) return 130;
    print_sample(model);
    return 0;
  }

 private:
  bool is_first() const { return group_->communicator().rank() == 0; }
  std::shared_ptr<Communicator> ranks() const {  // null if there is only one rank
    return group_->communicator().size() > 1 ? std::shared_ptr<Communicator>(group_, &group_->communicator())
                                             : nullptr;
  }
  bool divides_tokens() const { return o_.context_parallel > 1; }
  std::int64_t step_rows() const { return o_.batch * o_.learning.accumulate; }
  bool has_lora() const { return o_.lora.rank > 0; }
  nn::LoraOptions lora_options() const { return o_.lora.options(static_cast<std::uint64_t>(o_.seed)); }
  // The dtype of the parameters. It is f32 if they are trained. Weights that an adapter freezes have the
  // compute dtype.
  DType weights_dtype() const {
    if (!has_lora()) return f32;
    return o_.precision() == nn::Precision::bf16 ? bf16 : o_.precision() == nn::Precision::f16 ? f16 : f32;
  }

  // Reads the state of the run in the store, and opens its data.
  void open_run() {
    resumed_.emplace(o_.out);
    const io::SafeTensors file = resumed_->load(run_file);
    state_ = run_state(file.metadata, resumed_->directory() + "/" + run_file);
    if (state_.step > o_.steps)
      throw Error("[resume] the run in " + o_.out + " is at step " + std::to_string(state_.step) +
                  " already, past --steps " + std::to_string(o_.steps));
    check_same_step();
    const std::string model = resumed_->directory() + "/" + model_file;
    saved_model_ = resumed_->load(model_file);
    if (const auto step = saved_model_.metadata.find("step");
        step != saved_model_.metadata.end() && step->second != std::to_string(state_.step))
      throw FormatError(model + ": metadata has step '" + step->second + "', but the run is at step " +
                        std::to_string(state_.step));
    if (has_lora())
      base_ = base_at(io::saved_adapter_config(saved_model_.metadata, model).base);
    else if (!o_.base.empty())
      base_ = base_of_run(saved_model_.metadata, model);
    take_base();
    data_ = open_data(o_.data, SavedData{state_.data_sum, saved_model_.metadata, model});
  }

  // Replaces the configuration by the configuration of the base model. Only dropout and the length of a row
  // come from the options. Throws Error if the model cannot have the requested adapters.
  void take_base() {
    if (!base_) return;
    const double dropout = o_.model.dropout;
    o_.model = base_->config, o_.model.dropout = dropout;
    o_.data.base = &*base_;
    if (!has_lora()) return;
    nn::Params counted = nn::Params::counting();
    o_.model.architecture.make(counted, o_.model);
    nn::lora_modules(counted.linears(), lora_options(), io::module_of(base_->family, base_->config));
  }

  // Throws FormatError if the files of the checkpoint were not saved at the same step.
  void check_same_step() const {
    if (state_.step == resumed_->step() && state_.best_step == resumed_->best_step()) return;
    throw FormatError(resumed_->directory() + "/" + run_file + ": metadata has step " +
                      std::to_string(state_.step) + " and best_step " + std::to_string(state_.best_step) +
                      ", but manifest.json has " + std::to_string(resumed_->step()) + " and " +
                      std::to_string(resumed_->best_step()));
  }

  // Throws FormatError in two cases. The model in the metadata of the weights file differs from the model at
  // the start of the run, or it does not match the file's tensors.
  void check_same_model() {
    const std::string where = resumed_->directory() + "/" + model_file;
    for (const auto& [key, value] : io::to_metadata(o_.model)) {
      const auto found = saved_model_.metadata.find(key);
      if (found == saved_model_.metadata.end()) throw FormatError(where + ": metadata has no " + key);
      if (found->second != value)
        throw FormatError(where + ": metadata has " + key + " '" + found->second +
                          "', but the run was started with '" + value + "'");
    }
    if (!has_lora())
      io::model_config(saved_model_, where);  // tensors of an adapter are checked when they are read
    saved_model_ = {};
  }

  // The files of a checkpoint.
  std::vector<io::CheckpointFile> files(const nn::Model& model, const train::Trainer::State& state) const {
    const RunState run{state.step, state.best_step, state.best_loss, state_.data_sum};
    io::Metadata about = io::to_metadata(o_.model);
    about["step"] = std::to_string(state.step);
    about.merge(data_->tokenizer().metadata());
    if (base_) about.merge(nn::folder_metadata(base_->files));
    if (const nn::Lora* lora = model.lora())
      about[io::adapter_key] = io::peft_config_json({.options = lora->options,
                                                     .base = std::filesystem::absolute(o_.base).string(),
                                                     .fan_in_fan_out = base_->family == "gpt2"},
                                                    lora->modules);
    return {{model_file, has_lora() ? model.lora()->parameters() : model.parameters(), std::move(about)},
            {run_file, {}, to_metadata(run, args_)}};
  }

  std::string start_of_weights() const {
    if (base_) return o_.base;
    if (o_.model.initializer == nn::Initializer::gpt2) return "N(0, " + short_number(o_.model.std) + "²)";
    return "PyTorch's layers";
  }

  void print_table(const nn::Params& params, const nn::Model& model,
                   const train::TrainingMemory& memory) const {
    if (base_) base_->print(o_.base);
    print_row(data_->name(), data_->description());
    print_row("model", o_.model.text() + ", weights from " + start_of_weights() +
                           (o_.model.dropout > 0 ? ", dropout " + short_number(o_.model.dropout) : ""));
    print_row("training",
              counted(o_.steps, "step") + " of " +
                  (o_.learning.accumulate > 1 ? std::to_string(o_.learning.accumulate) + " × " : "") +
                  std::to_string(o_.batch) + " × " + std::to_string(o_.data.context) + " tokens, " +
                  description(o_.learning, o_.steps) + ", " + o_.dtype + ", seed " + std::to_string(o_.seed) +
                  (o_.threads > 0 ? ", threads " + std::to_string(o_.threads) : ""));
    if (const int n = group_->communicator().size(); n > 1)
      print_row(
          "ranks",
          std::to_string(n) +
              (parallel::world().has_several_hosts() ? " on several hosts, each " : " on this host, each ") +
              (divides_tokens() ? std::to_string(o_.data.context / n) + " of " +
                                      std::to_string(o_.data.context) + " tokens of each row"
                                : std::to_string(o_.learning.accumulate / n) + " of " +
                                      std::to_string(o_.learning.accumulate) + " batches of each step") +
              "; gradients are summed in a fixed tree order");
    if (resumed_)
      print_row("resumed",
                resumed_->directory() + ", after step " + grouped(state_.step) +
                    (state_.best_step > 0 ? "; best validation loss " + short_number(state_.best_loss) +
                                                " at step " + grouped(state_.best_step)
                                          : ""));
    print_parameters(params);
    if (const nn::Lora* lora = model.lora()) print_lora(*lora);
    std::size_t weights = 0;
    for (const Parameter& p : model.parameters()) weights += p.bytes();
    print_memory(weights, memory);
    if (o_.budget > 0) print_budget(o_.budget, memory.training, memory.loss_chunks, copy_rate());
    std::fflush(stdout);
  }

  // The memory bandwidth of the device for a copy, in bytes read and written per second.
  double copy_rate() const {
    Graph graph;
    const CompileOptions planned{.device = o_.device, .threads = o_.thread_count(), .plan_only = true};
    return measure_ceilings(compile(graph, {full(graph, {1}, 0)}, planned), {}).copy;
  }

  void print_lora(const nn::Lora& lora) const {
    std::int64_t trained = 0;
    for (const Parameter& p : lora.parameters()) trained += numel(p.shape());
    print_row("lora",
              "rank " + std::to_string(lora.options.rank) + ", alpha " + short_number(lora.options.alpha) +
                  (lora.options.dropout > 0 ? ", dropout " + short_number(lora.options.dropout) : "") +
                  ", on " + counted(std::ssize(lora.modules), "layer") + ": " + grouped(trained) +
                  " trained parameters in f32; the model's parameters are frozen in " +
                  std::string(name_of(weights_dtype())));
  }

  // Throws OutOfMemory if the remaining memory of training does not fit. The parameters and the optimizer
  // state are already allocated.
  void check_room(const train::TrainingMemory& memory, const nn::Model& model,
                  const optim::Optimizer& optimizer, train::ProgramOptions programs) const {
    const auto prepared = [&](std::int64_t b) {  // prefetched batches, if they use the device's memory
      const auto tokens = static_cast<std::size_t>(b * o_.learning.accumulate * o_.data.context);
      return o_.device.kind == Device::cpu_kind ? train::Prefetch::bytes(tokens) : 0;
    };
    check_batch(o_.device, o_.batch, [&](std::int64_t b) {
      programs.batch = b;
      const train::TrainingMemory planned = b == o_.batch ? memory : plan_memory(model, optimizer, programs);
      return planned.without_parameters() + prepared(b);
    });
  }

  // Runs steps on the first batch and prints their profile.
  int print_profile(train::TrainingProgram& training) {
    std::vector<std::int32_t> x(static_cast<std::size_t>(step_rows() * o_.data.context)), y(x.size());
    data_->training(static_cast<std::uint64_t>(o_.seed), 0, x, y);
    const Profile p =
        profile(training.program(), measure_ceilings(training.program()), static_cast<int>(o_.profile),
                [&] { return training.start(x, y, o_.learning.lr); });
    if (is_first()) std::printf("%s", profile_text(training.program(), p).c_str());
    return 0;
  }

  void report(const train::Trainer& trainer, std::int64_t first) const {
    const std::int64_t at_step = trainer.state().step, steps = at_step - first;
    const train::TrainingProgram::Result& result = trainer.last();
    double validation = train::MetricsRow::none;
    for (const train::MetricsRow& row : trainer.rows())
      if (!std::isnan(row.val_loss)) validation = row.val_loss;
    const std::string line =
        formatted("%s in %.1f s, %.2f ms each; train loss %.4f", counted(steps, "step").c_str(),
                  trainer.seconds(), steps > 0 ? 1e3 * trainer.seconds() / static_cast<double>(steps) : 0,
                  trainer.rows().back().train_loss);
    const std::string validated =
        std::isnan(validation) ? ", not validated yet" : ", validation loss " + loss_text(validation);
    const std::string at = is_stopped_ ? " (step " + std::to_string(at_step) + ": --resume continues)" : "";
    print_row(is_stopped_ ? "stopped" : "done", line + validated + at);
    if (trainer.state().best_step > 0)
      print_row("best", "validation loss " + loss_text(trainer.state().best_loss) + " at step " +
                            grouped(trainer.state().best_step));
    if (const std::int64_t n = data_->answers() * trainer.validation_batches(true); n > 0 && !is_stopped_)
      print_row("exact match",
                formatted("%.2f %% of ", 100 * static_cast<double>(trainer.rows().back().val_accuracy)) +
                    counted(n, "unseen answer"));
    if (result.skipped > 0)
      print_row("skipped", counted(result.skipped, "step") + " whose gradient was not finite");
    if (o_.precision() == nn::Precision::f16)
      print_row("loss scale", grouped(static_cast<std::int64_t>(result.loss_scale)) + "; " +
                                  counted(result.overflowed, "step") + " skipped because of overflow");
    const std::string best = trainer.state().best_step > 0 ? "best/model.safetensors, " : "";
    print_row("files", o_.out + "/: last/model.safetensors, " + best + "metrics.jsonl, loss.png");
  }

  void print_sample(const nn::Model& model) const {
    if (o_.sample == 0) return;
    nn::Generator generator(model, {.threads = o_.thread_count(), .precision = o_.precision()});
    const auto extend = [&](std::vector<std::int32_t>& tokens, std::int64_t count, double temperature) {
      generator.extend(tokens, count, {.temperature = temperature}, static_cast<std::uint64_t>(o_.seed));
    };
    std::printf("%s", data_->sample(o_.sample, extend).c_str());
  }

  TrainOptions o_;
  const Args& args_;
  std::shared_ptr<parallel::Group> group_;
  std::unique_ptr<io::CheckpointStore> store_;
  std::optional<io::Checkpoint> resumed_;
  std::optional<BaseModel> base_;
  io::SafeTensors saved_model_;  // the resumed weights, until check_same_model() has verified them
  RunState state_;
  std::unique_ptr<TrainData> data_;
  bool is_stopped_ = false;  // stopped before the last step
};

}  // namespace

int main(int argc, char** argv) {
  TrainOptions o;
  Args args("train",
            "Trains a language model on a text, on examples or on a generated task, and prints a sample of "
            "its output.");
  declare_options(args, o);
  return run_as_rank("train", [&](const auto& join) -> int {
    if (const auto code = args.parse(argc, argv)) return *code;
    check_usage(not_saveable(args));
    const std::shared_ptr<parallel::Group> group = join();
    const int ranks = group->communicator().size();
    const bool is_first = group->communicator().rank() == 0;
    if (!args.given("accumulate"))
      o.learning.accumulate =
          o.context_parallel > 1 ? 1 : ranks;  // if the run is resumed, the saved value replaces it
    std::unique_ptr<io::CheckpointStore> store;
    std::optional<BaseModel> base;
    if (args.given("model")) check_usage(not_with_model(args, o, {"context", "dropout"}));
    if (o.resume) {
      if (o.overwrite)
        throw UsageError("--resume continues a run, --overwrite replaces it: give only one of them");
      if (!std::filesystem::is_directory(o.out)) throw Error("[resume] there is no run in " + o.out);
      if (is_first) store = std::make_unique<io::CheckpointStore>(o.out);
      wait_for_all(group->communicator());  // the store may have repaired files that other ranks read
      const io::Checkpoint checkpoint(o.out);
      expect_same_on_all(checkpoint, o.out, group->communicator());
      take_options(args, checkpoint.load(run_file).metadata, o.out);
    } else {
      check_usage(settle_optimizer(args, o.learning, !o.base.empty()));
      if (!args.given("save-every")) o.save_every = o.eval_every;
      if (o.data.task == "add") {  // one sum per row
        if (!args.given("context")) o.model.context = train::Sums::tokens(o.data.digits);
        if (!args.given("batch")) o.batch = 64;
      }
      if (!o.base.empty()) {
        base = base_at(o.base);
        if (!args.given("context")) {
          o.model.context = std::min(most_tokens, base->config.context);
          if (!o.data.examples.empty()) {
            o.data.encoded =
                std::make_shared<std::vector<train::Example>>(encode_examples(o.data.examples, *base));
            o.model.context = std::min(o.model.context, longest_example(*o.data.encoded));
          }
        }
        if (o.model.context > base->config.context)
          throw UsageError("--context " + std::to_string(o.model.context) + " exceeds the model's " +
                           std::to_string(base->config.context));
      }
      // For every width, layer outputs then have the same scale as in GPT-2.
      if (!args.given("init-std")) o.model.std = 0.02 * std::sqrt(768.0 / static_cast<double>(o.model.width));
    }
    check_usage(contradiction(args, o.data));
    check_usage(mistake_in_lora(args, o.lora, !o.base.empty()));
    if (o.base.empty()) check_usage(take_model(args, o));
    take_device(o, own_gpu(o.backend, ranks));
    if (ranks > 1 && o.trap_nan) throw UsageError("--trap-nan is for one rank, not " + std::to_string(ranks));
    check_usage(mistake_in_context_parallel(o, ranks));
    check_usage(take_bytes("memory-budget", o.memory_budget, o.budget));
    os::ignore_signal(os::signals::closed_pipe);  // the run continues if the reader of its output exits
    return Run(o, args, group, std::move(store), std::move(base)).go();
  });
}

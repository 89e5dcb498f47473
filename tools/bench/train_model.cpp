// Reports a model's training step: its rate relative to the machine's peak rate, a profile, its memory, and a
// comparison with PyTorch.
#include <cmath>

#include <tilegrad/core/report/profile.h>
#include <tilegrad/core/run/cost.h>
#include <tilegrad/nn/models/model.h>
#include "tools/bench/measure.h"
#include "tools/bench/other_libraries.h"
#include "tools/bench/step_picture.h"
#include "tools/train_report.h"

namespace tg::bench {

namespace {

constexpr std::uint64_t weights_seed = 0;  // seed of the initial weights

// The FLOPs that a training step of a model needs, independent of how a program computes it. A forward pass
// multiplies each token by each weight once, which is 2 FLOPs. A backward pass needs twice as many FLOPs. The
// total is 6 FLOPs per weight and token [Kaplan et al., Scaling Laws for Neural Language Models, 2020, §2.1].
// The FLOPs of attention are added [Chowdhery et al., PaLM, 2022, appendix B]. Only the visible pairs of
// query and key are counted, which is half of the number in the paper. Recomputation is not counted.
struct ModelFlops {
  double tokens = 0;  // per step
  // of linear layers and the head (tied or not), but without embedding lookups, gains and biases
  double weights = 0;
  double attention = 0;  // FLOPs of a forward pass: 2·(d + dv) per head and pair
  double step() const { return 6 * weights * tokens + 3 * attention; }
  std::string formula() const {  // the formula with its numbers
    const auto whole = [](double x) { return grouped(std::llround(x)); };
    return "6 · " + whole(weights) + " weights · " + whole(tokens) + " tokens + 3 · " +
           short_number(attention * 1e-9) + " GFLOP of attention (causal)";
  }
};

// Measurements of a training step of this library.
struct MeasuredStep {
  std::int64_t parameters = 0;
  std::size_t weights = 0;  // bytes of the weights
  MemoryReport memory = {};
  std::int64_t loss_chunks = 1;
  ModelFlops flops = {};
  FirstSteps first = {};
  StepTimes times = {};
  std::vector<FamilyTime> families = {};  // sums of kernels that run one after the other
  StepPicture picture = {};
};

void check_room(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                train::ProgramOptions options) {
  options.plan_only = true;
  check_batch(model.device(), options.batch, [&](std::int64_t batch) {
    options.batch = batch;
    const MemoryReport m = train::TrainingProgram(model, optimizer, options).memory();
    return m.peak() - m.parameters;
  });
}

ModelFlops model_flops(const nn::LanguageModel& model, std::int64_t batch) {
  train::EvaluationProgram evaluation(model, {.batch = batch, .plan_only = true});
  ModelFlops f{.tokens = static_cast<double>(batch * model.context)};
  for (const Step& s : evaluation.program().steps()) {
    if (s.op->product) f.weights += cost_of(s).flops / (2 * f.tokens);
    if (attention_of(*s.op, s.attrs)) f.attention += cost_of(s).flops;
  }
  return f;
}

// Measures the model of settings.train, and frees its memory. Throws OutOfMemory if the batch does not fit.
MeasuredStep measure_step(const Settings& settings, const Machine& machine) {
  const TrainSettings& t = settings.train;
  const nn::ModelConfig& config = *t.model;
  const auto bytes = static_cast<double>(config.parameters()) * static_cast<double>(size_of(f32));
  check_memory(settings.device, 3 * bytes, "the model with its optimizer");
  nn::Params params(weights_seed, f32, settings.device);
  const nn::Model model(params, config);
  optim::AdamW::Options adamw;
  if (settings.dtype == f16) adamw.loss_scale = optim::LossScale{};
  const optim::AdamW optimizer(params.all(), adamw);
  const train::ProgramOptions options{.batch = t.batch,
                                      .threads = settings.threads,
                                      .precision = settings.precision(),
                                      .recompute = t.recompute,
                                      .memory_budget = t.budget};
  check_room(model, optimizer, options);
  train::TrainingProgram training(model, optimizer, options);
  MeasuredStep m{.parameters = params.count(),
                 .memory = training.memory(),
                 .loss_chunks = training.loss_chunks(),
                 .flops = model_flops(model, t.batch)};
  for (const Parameter& p : params.all()) m.weights += p.bytes();
  const TrainBatch data(t.batch, config);
  const auto start = [&] { return training.start(data.tokens, data.targets, bench_learning_rate); };
  const auto first = training.result(start());
  m.first = {first.loss, first.grad_norm, training.result(start()).loss};
  m.times = time_steps(training, data, settings.threads, settings, machine);
  // The profile runs for about as long as the timed steps.
  const int runs = std::clamp(static_cast<int>(settings.seconds / m.times.median), 3, 50);
  std::vector<double> seconds;
  for (const StepTime& s : profile(training.program(), {}, runs, start).steps) seconds.push_back(s.seconds);
  m.families = by_family(training.program().steps(), seconds);
  m.picture = step_picture(training.program(), seconds);
  return m;
}

std::string formatted(const char* format, auto... values) {
  char text[200];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string memory_text(std::size_t bytes) {
  return size_text(static_cast<double>(bytes));
}

class ModelReport {
 public:
  explicit ModelReport(Report& report)
      : s_(report.settings), config_(*s_.train.model), machine_(report.machine), report_(report) {}

  void run() {
    const MeasuredStep m = measure_step(s_, machine_);
    if (!s_.plot.empty()) draw_step(m.picture, description() + ": a training step").save_png(s_.plot);
    print(m);
    print_families(m);
    print_memory(m);
    if (s_.compare) compare(m);
  }

 private:
  std::string description() const {
    return config_.text() + ", batch " + grouped(s_.train.batch) + ", " + s_.dtype_name();
  }
  double tokens() const { return static_cast<double>(s_.train.batch * config_.context); }

  Row row(const std::string& name, const char* pass = "") const {
    return report_.row(
        name, joined({config_.layers, config_.heads, config_.width, config_.context, s_.train.batch}), pass);
  }
  Row timed(const std::string& name, double seconds) const {
    return row(name, "step").time(seconds).at(tokens() / seconds, "tokens/s");
  }
  void keep(const std::string& name, double rate, const std::string& unit) {
    report_.keep(row(name).at(rate, unit));
  }

  void print(const MeasuredStep& m) {
    const StepTimes& t = m.times;
    const double peak = s_.train.peak > 0 ? s_.train.peak : t.peak * 1e9, rate = m.flops.step() / t.best;
    const std::string of = s_.train.peak > 0 ? "the given peak" : machine_.peak_name + " rate";
    print_row("model", description() + "; vocabulary " + grouped(config_.vocabulary));
    print_row("parameters", grouped(m.parameters));
    print_row("step", formatted("%.3f ms the fastest, %.3f ms the median of %d: ", t.best * 1e3,
                                t.median * 1e3, t.runs) +
                          grouped(std::llround(tokens() / t.best)) + " tokens/s");
    print_row("model FLOP", formatted("%.4g T a step = ", m.flops.step() * 1e-12) + m.flops.formula());
    print_row("utilisation", formatted("%.1f %% of %.4g TFLOP/s, ", 100 * rate / peak, peak * 1e-12) + of);
    print_row("first steps", formatted("loss %.4f, then %.4f; gradient norm %.4f", m.first.loss,
                                       m.first.next_loss, m.first.grad_norm));
    report_.keep(timed("step", t.best).part(rate / peak, of));
    report_.keep(timed("step, median", t.median));
    keep("parameters", static_cast<double>(m.parameters), "numbers");
    keep("model FLOP", m.flops.step() * 1e-9, "GFLOP");
  }

  void print_families(const MeasuredStep& m) {
    double sum = 0;
    for (const FamilyTime& f : m.families) sum += f.seconds;
    std::printf("\n%-20s %10s %8s %8s\n", "time by family", "ms", "share", "kernels");
    for (std::size_t i = 0; i < m.families.size(); ++i) {
      const FamilyTime& f = m.families[i];
      if (f.steps == 0) continue;
      const char* name = name_of(static_cast<Family>(i));
      std::printf("%-20s %10.3f %6.1f %% %8d\n", name, f.seconds * 1e3, 100 * f.seconds / sum, f.steps);
      report_.keep(row(name).time(f.seconds).part(f.seconds / sum, "step"));
    }
    std::printf("%-20s %10.3f, one by one\n\n", "all", sum * 1e3);
  }

  void print_memory(const MeasuredStep& m) {
    const MemoryReport& r = m.memory;
    const std::size_t others = r.inputs + r.constants + r.results;
    print_row("peak memory", memory_text(r.peak()) + ": parameters " + memory_text(m.weights) +
                                 ", optimizer " + memory_text(r.parameters - m.weights) +
                                 ", activations and gradients " + memory_text(r.arena) + ", workspace " +
                                 memory_text(r.workspace) + ", inputs and results " + memory_text(others));
    if (s_.train.budget > 0) print_budget(s_.train.budget, r, m.loss_chunks, 1e9 * machine_.copy);
    const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    keep("peak memory", mib(r.peak()), "MiB");
    keep("parameters and optimizer", mib(r.parameters), "MiB");
    keep("activations and gradients", mib(r.arena), "MiB");
    keep("workspace", mib(r.workspace), "MiB");
  }

  void compare(const MeasuredStep& m) {
    std::fflush(stdout);  // because PyTorch takes a while
    TorchTraining torch(s_, weights_seed);
    std::printf("\n%s%s\n", torch.about().c_str(), torch.ready() ? "; from the same weights" : "");
    if (!torch.ready()) return;
    std::printf("%-30s %10s %10s %12s %10s %12s\n", "", "ms", "median", "tokens/s", "tilegrad",
                "peak memory");
    const auto line = [&](const std::string& name, double best, double median, double ratio,
                          const std::string& memory) {
      std::printf("%-30s %10.3f %10.3f %12s %10s %12s\n", name.c_str(), best * 1e3, median * 1e3,
                  grouped(std::llround(tokens() / best)).c_str(), number(ratio, "%.2f x").c_str(),
                  memory.c_str());
      std::fflush(stdout);
    };
    line("tilegrad", m.times.best, m.times.median, Row::none, memory_text(m.memory.peak()));
    for (const auto& [way, name] : {std::pair<const char*, std::string>{"eager", "PyTorch, eager"},
                                    {"compiled", "PyTorch, compiled"},
                                    {"graphs", "PyTorch, CUDA graphs"}}) {
      const TorchTraining::Step t = torch.step(way);
      if (!t.refusal.empty()) {
        std::printf("%-30s not measured: %s\n", name.c_str(), t.refusal.c_str());
        continue;
      }
      if (const std::string other = difference(t.first, m.first, s_.dtype_name()); !other.empty())
        throw Error("[train] " + name + ", does not compute the same model: " + other);
      line(name, t.best, t.median, t.best / m.times.best, std::isnan(t.bytes) ? "-" : size_text(t.bytes));
      report_.keep(timed(name, t.best).part(t.best / m.times.best, "tilegrad's time"));
      report_.keep(timed(name + ", median", t.median));
      if (!std::isnan(t.bytes)) keep(name + ", peak memory", t.bytes / (1 << 20), "MiB");
    }
  }

  const Settings& s_;
  const nn::ModelConfig& config_;
  const Machine& machine_;
  Report& report_;
};

}  // namespace

void report_model(Report& report) {
  ModelReport(report).run();
}

}  // namespace tg::bench

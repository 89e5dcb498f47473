#include "tools/bench/other_libraries.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/nn/models/model.h>
#include "core/os/process.h"
#include "core/os/signals.h"
#include "core/os/streams.h"
#include "tools/bench/measure.h"

namespace tg::bench {

namespace {

// The path of a script, or "" if it does not exist.
std::string path_of(const std::string& script) {
  const std::filesystem::path name = "tools/bench/" + script;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const auto& folder : {self.parent_path().parent_path().parent_path(), std::filesystem::path(".")})
    if (std::filesystem::exists(folder / name, error)) return (folder / name).string();
  return "";
}

// Parses `most` numbers of an answer. A missing number, or "-", becomes NaN.
std::vector<double> numbers_of(const std::string& answer, std::size_t most) {
  std::istringstream words(answer);
  std::vector<double> numbers(most, Row::none);
  std::string word;
  for (std::size_t i = 0; i < most && words >> word; ++i)
    if (word != "-") numbers[i] = std::strtod(word.c_str(), nullptr);
  return numbers;
}

// The initial weights in a temporary file for another process, with Hugging Face's tensor names.
class WeightsFile : public TemporaryPath {
 public:
  WeightsFile(const nn::ModelConfig& config, std::uint64_t seed) : TemporaryPath("bench-", ".safetensors") {
    nn::Params params(seed);
    const nn::Model model(params, config);
    std::vector<Array> arrays;
    arrays.reserve(params.all().size());
    io::TensorMap tensors;
    for (const Parameter& p : params.all()) {
      const Array& a = arrays.emplace_back(p.read());
      tensors[p.name()] = {a.dtype(),
                           {a.shape().begin(), a.shape().end()},
                           {a.raw(), static_cast<std::size_t>(a.numel()) * size_of(a.dtype())}};
    }
    io::save_safetensors(path(), tensors);
  }
};

std::vector<std::string> training_arguments(const Settings& settings, const std::string& weights) {
  std::vector<std::string> words{settings.device.text(),
                                 settings.dtype_name(),
                                 std::to_string(settings.threads),
                                 number(settings.seconds, "%g"),
                                 std::to_string(settings.train.batch),
                                 weights};
  for (const auto& [key, value] : io::to_metadata(*settings.train.model)) words.push_back(key + "=" + value);
  return words;
}

}  // namespace

PythonProcess::PythonProcess(std::string library, const std::string& script,
                             const std::vector<std::string>& arguments)
    : name_(std::move(library)), about_("python3 does not start") {
  const std::string path = path_of(script);
  if (path.empty()) {
    about_ = "missing tools/bench/" + script;
  } else if (start(path, arguments)) {
    const std::string first = line();
    ready_ = first.starts_with("ready ");
    if (ready_ || first.starts_with("none ")) about_ = first.substr(first.find(' ') + 1);
  }
}

PythonProcess::~PythonProcess() {
  if (to_) std::fclose(to_);  // closing its input ends the script
  if (from_) std::fclose(from_);
  if (pid_ > 0) os::reap(pid_);
}

bool PythonProcess::start(const std::string& script, const std::vector<std::string>& arguments) {
  // If the process has exited, reading its output detects that.
  os::ignore_signal(os::signals::closed_pipe);
  os::Pipe in, out;
  if (os::open_pipe(in) != 0) return false;
  if (os::open_pipe(out) != 0) {
    os::close_stream(in.reader), os::close_stream(in.writer);
    return false;
  }
  os::Command command{.words = {"python3", script},
                      .input = in.reader,
                      .output = out.writer,
                      .end_signal = os::signals::kill};  // the script may be busy when bench ends
  command.words.insert(command.words.end(), arguments.begin(), arguments.end());
  const bool is_started = os::start(command, pid_) == 0;
  os::close_stream(in.reader), os::close_stream(out.writer);
  to_ = os::file_of(in.writer, "w"), from_ = os::file_of(out.reader, "r");
  return is_started && to_ && from_;
}

std::string PythonProcess::line() {
  std::string s;
  for (int c; (c = std::fgetc(from_)) != EOF && c != '\n';) s += static_cast<char>(c);
  return s;
}

std::string PythonProcess::ask(const std::string& request) {
  if (!ready_) return "";
  std::fprintf(to_, "%s\n", request.c_str());
  std::fflush(to_);
  return line();
}

TorchAttention::TorchAttention(const Device& device)
    : PythonProcess("PyTorch", "torch_attention.py", {device.text()}) {
  std::printf("%s\n", about().c_str());
}

TorchAttention::Seconds TorchAttention::time(const AttentionCell& c, const std::string& what, int calls,
                                             const Settings& settings) {
  const std::vector<double> ms = numbers_of(
      ask(what + " " + settings.dtype_name() + (settings.attention.by_token ? " BLHd " : " BHLd ") +
          c.words() + (what == "graph" ? ",calls=" + std::to_string(calls) : "")),
      2);
  return {ms[0] * 1e-3, ms[1] * 1e-3};
}

double TorchAttention::time_linear(std::int64_t m, std::int64_t n, std::int64_t k, int calls,
                                   const Settings& settings) {
  const std::string sizes = "m=" + std::to_string(m) + ",n=" + std::to_string(n) + ",k=" + std::to_string(k) +
                            ",calls=" + std::to_string(calls);
  return numbers_of(ask("linear " + settings.dtype_name() + " - " + sizes), 1)[0] * 1e-3;
}

std::string difference(const FirstSteps& got, const FirstSteps& expected, const std::string& dtype) {
  const double part = dtype == "f32" ? 1e-4 : dtype == "tf32" ? 1e-3 : 1e-2;
  const std::tuple<const char*, double, double, double> numbers[] = {
      {"loss", got.loss, expected.loss, part},
      {"gradient norm", got.grad_norm, expected.grad_norm, 5 * part},
      {"loss of the second step", got.next_loss, expected.next_loss, part}};
  for (const auto& [name, a, b, most] : numbers)
    if (!(std::abs(a - b) <= most * std::abs(b)))
      return std::string(name) + number(a, " %.6g", " nan") + ", expected" + number(b, " %.6g", " nan");
  return "";
}

// The file is deleted when the process reports that it has read it.
TorchTraining::TorchTraining(const Settings& settings, std::uint64_t seed)
    : PythonProcess("PyTorch", "torch_train.py",
                    training_arguments(settings, WeightsFile(*settings.train.model, seed).path())) {}

TorchTraining::Step TorchTraining::step(const std::string& way) {
  const std::string answer = ask(way);
  const std::vector<double> n = numbers_of(answer, 6);
  if (std::isnan(n[0]) || std::ranges::count(answer, ' ') != 5)
    return {.refusal = answer.starts_with("- ") ? answer.substr(2) : "its process ended"};
  return {n[0] * 1e-3, n[1] * 1e-3, n[2], {n[3], n[4], n[5]}};
}

OtherDecoding::OtherDecoding(const char* name, const char* script, const Settings& settings,
                             const Sizes& sizes)
    : PythonProcess(name, script,
                    {settings.device.text(), settings.dtype_name(), joined(sizes, "x"),
                     std::to_string(settings.threads)}) {
  std::printf("%s\n", about().c_str());
}

double OtherDecoding::seconds_of_step(std::int64_t sequences, std::int64_t keys) {
  return numbers_of(ask("step " + std::to_string(sequences) + " " + std::to_string(keys)), 1)[0] * 1e-3;
}

OtherDecoding::Replay OtherDecoding::replay(std::int64_t slots, const std::vector<Arrival>& trace) {
  std::string request = "trace " + std::to_string(slots);
  for (const Arrival& a : trace) request += " " + std::to_string(a.prompt) + ":" + std::to_string(a.output);
  const std::vector<double> answer = numbers_of(ask(request), 2);
  return {answer[0], answer[1]};
}

std::list<OtherDecoding> other_decodings(const Settings& settings, const Sizes& sizes) {
  std::list<OtherDecoding> others;
  if (!settings.compare) return others;
  if (settings.on_cpu()) others.emplace_back("llama.cpp", "llama_decode.py", settings, sizes);
  others.emplace_back("PyTorch", "torch_decode.py", settings, sizes);
  others.remove_if([](const OtherDecoding& other) { return !other.ready(); });
  return others;
}

}  // namespace tg::bench

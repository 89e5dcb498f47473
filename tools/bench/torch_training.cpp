// PyTorch's training step of the same model.
#include "tools/bench/other_libraries.h"

#include <cmath>
#include <filesystem>
#include <sstream>

#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/nn/models/model.h>
#include "core/os/process.h"

namespace tg::bench {

namespace {

// The initial weights, under the names that Hugging Face's models have, for another process to open.
class WeightsFile {
 public:
  WeightsFile(const nn::ModelConfig& config, std::uint64_t seed)
      : path_((std::filesystem::temp_directory_path() /
               ("bench-" + std::to_string(os::process_id()) + ".safetensors"))
                  .string()) {
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
    io::save_safetensors(path_, tensors);
  }
  ~WeightsFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::string> arguments(const Settings& settings, const std::string& weights) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%g", settings.seconds);
  std::vector<std::string> words{settings.device.text(),
                                 settings.dtype_name(),
                                 std::to_string(settings.threads),
                                 seconds,
                                 std::to_string(settings.train.batch),
                                 weights};
  for (const auto& [key, value] : io::to_metadata(*settings.train.model)) words.push_back(key + "=" + value);
  return words;
}

// "-" is a number that there is none of.
double number(const std::string& word) {
  return word.empty() || word == "-" ? Row::none : std::strtod(word.c_str(), nullptr);
}

}  // namespace

std::string difference(const FirstSteps& got, const FirstSteps& expected, const std::string& dtype) {
  const double part = dtype == "f32" ? 1e-4 : dtype == "tf32" ? 1e-3 : 1e-2;
  const std::tuple<const char*, double, double, double> numbers[] = {
      {"loss", got.loss, expected.loss, part},
      {"gradient norm", got.grad_norm, expected.grad_norm, 5 * part},
      {"loss of the second step", got.next_loss, expected.next_loss, part}};
  for (const auto& [name, a, b, most] : numbers) {
    if (std::abs(a - b) <= most * std::abs(b)) continue;
    char text[120];
    std::snprintf(text, sizeof text, "%s %.6g, expected %.6g", name, a, b);
    return text;
  }
  return "";
}

// The file is gone once the process has it in its memory, and says so.
TorchTraining::TorchTraining(const Settings& settings, std::uint64_t seed)
    : python_("torch_train.py", arguments(settings, WeightsFile(*settings.train.model, seed).path())) {}

TorchTraining::Step TorchTraining::step(const std::string& way) {
  const std::string answer = python_.ask(way);
  std::istringstream words(answer);
  std::vector<double> n;
  for (std::string word; n.size() < 6 && words >> word;) n.push_back(number(word));
  if (n.size() == 6 && !std::isnan(n[0])) return {n[0] * 1e-3, n[1] * 1e-3, n[2], {n[3], n[4], n[5]}, ""};
  return {
      Row::none, Row::none, Row::none, {}, answer.starts_with("- ") ? answer.substr(2) : "its process ended"};
}

}  // namespace tg::bench

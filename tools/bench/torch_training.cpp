#include "tools/bench/torch_training.h"

#include <cmath>
#include <sstream>

#include <tilegrad/io/checkpoints/model_file.h>

namespace tg::bench {

namespace {

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

TorchTraining::TorchTraining(const Settings& settings, const std::string& weights)
    : python_("torch_train.py", arguments(settings, weights)) {}

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

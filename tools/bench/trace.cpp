#include "tools/bench/trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/base/random.h>

namespace tg::bench {

namespace {

constexpr std::int64_t shortest_prompt = 16, longest_prompt = 256, mean_output = 128;

// The standard library's generators are the same on all platforms, but its distributions are not.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : bits_(seed) {}
  double uniform() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }  // [0, 1)
  double exponential() { return -log_of_unit(1 - uniform()); }               // with mean 1
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(uniform() * static_cast<double>(n)); }

 private:
  std::mt19937_64 bits_;
};

// Parses the next number of the line and removes it from the line.
template <class T>
bool take(std::string_view& line, T& to) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), to);
  line.remove_prefix(static_cast<std::size_t>(stop - line.data()));
  return error == std::errc() && (line.empty() || line[0] == ' ' || line[0] == '\t');
}

}  // namespace

std::vector<Arrival> random_trace(const RandomTrace& options, std::int64_t context) {
  Draws draws(static_cast<std::uint64_t>(options.seed));
  std::vector<Arrival> trace;
  double seconds = 0;
  for (std::int64_t i = 0; i < options.requests; ++i) {
    const double gap = draws.exponential();
    if (options.rate > 0) seconds += gap / options.rate;
    const std::int64_t own = shortest_prompt + draws.below(longest_prompt - shortest_prompt + 1),
                       prompt = std::min(options.shared_prefix + own, context);
    const double output = std::ceil(static_cast<double>(mean_output) * draws.exponential());
    trace.push_back({seconds, prompt,
                     std::clamp<std::int64_t>(static_cast<std::int64_t>(output), 1, context - prompt + 1)});
  }
  return trace;
}

std::vector<Arrival> parse_trace(std::string_view text, const std::string& name, std::int64_t context) {
  std::vector<Arrival> trace;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
    if (line.empty()) continue;
    const std::string got(line);
    const auto refuse = [&](const std::string& expected) {
      throw FormatError("[trace] " + name + ":" + std::to_string(number) + " got '" + got + "', expected " +
                        expected);
    };
    Arrival a;
    if (!take(line, a.seconds) || !take(line, a.prompt) || !take(line, a.output) || !line.empty() ||
        !std::isfinite(a.seconds) || a.seconds < 0 || a.prompt < 1 || a.output < 1)
      refuse("arrival in seconds, prompt tokens and output tokens, as in '0.25 120 64'");
    if (!trace.empty() && a.seconds < trace.back().seconds)
      refuse("an arrival not before the previous line's");
    if (a.prompt > context || a.output - 1 > context - a.prompt)
      refuse("a prompt and an output that fit in the model's context of " + std::to_string(context));
    trace.push_back(a);
  }
  if (trace.empty()) throw FormatError("[trace] " + name + " has no requests");
  return trace;
}

std::vector<std::vector<std::int32_t>> random_prompts(const std::vector<Arrival>& trace,
                                                      std::int64_t shared_prefix, std::int64_t vocabulary,
                                                      std::int64_t seed) {
  std::vector<std::vector<std::int32_t>> prompts;
  const auto first = static_cast<std::uint64_t>(seed) << 32;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    Draws shared(first), own(first + 1 + i);
    auto& prompt = prompts.emplace_back();
    for (std::int64_t t = 0; t < trace[i].prompt; ++t)
      prompt.push_back(static_cast<std::int32_t>((t < shared_prefix ? shared : own).below(vocabulary)));
  }
  return prompts;
}

}  // namespace tg::bench

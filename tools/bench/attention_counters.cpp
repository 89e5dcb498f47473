#include "tools/bench/attention_counters.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace tg::bench {

namespace {

// The last field of a line, without quotes and the commas between thousands.
double last_number(std::string line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == '"')) line.pop_back();
  std::string digits = line.substr(line.rfind('"') + 1);
  std::erase(digits, ',');
  return std::strtod(digits.c_str(), nullptr);
}

std::string quoted(const std::string& s) {
  std::string q = "'";
  for (char c : s) q += c == '\'' ? "'\\''" : std::string(1, c);
  return q + "'";
}

}  // namespace

std::optional<Bytes> parse_counters(std::string_view csv) {
  Bytes sum;
  bool any = false;
  std::istringstream lines{std::string(csv)};
  for (std::string line; std::getline(lines, line);) {
    const bool read = line.find("\"dram__bytes_read.sum\"") != std::string::npos,
               written = line.find("\"dram__bytes_write.sum\"") != std::string::npos;
    if (!read && !written) continue;
    (read ? sum.read : sum.written) += last_number(line);
    any = true;
  }
  return any ? std::optional(sum) : std::nullopt;
}

std::optional<Bytes> counted(const AttentionCell& c, const char* once, const Settings& settings) {
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return {};
  // TG_STEPWISE: kernels one by one, not as a CUDA graph. Of the child's kernels ncu counts those of the run
  // that --once measures (attention_traffic_mode.cpp).
  const std::string command =
      "TG_STEPWISE=1 ncu --profile-from-start off --csv --print-units base "
      "--metrics dram__bytes_read.sum,dram__bytes_write.sum " +
      quoted(self) + " attention --backend " + settings.device.text() + " --dtype " + settings.dtype_name() +
      (settings.attention.by_token ? " --layout BLHd" : "") + " --kernels " +
      std::string(name_of(settings.attention.kernels)) + " --shape " + c.words() + " --once " + once +
      " 2>&1 </dev/null";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) return {};
  std::string output;
  for (int character; (character = std::fgetc(pipe)) != EOF;) output += static_cast<char>(character);
  return ::pclose(pipe) == 0 ? parse_counters(output) : std::nullopt;
}

}  // namespace tg::bench

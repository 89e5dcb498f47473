#include "tools/bench/measure.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include <tilegrad/io/files/json.h>
#include "tools/bench/machine.h"

namespace tg::bench {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

CompileOptions options_of(const Settings& settings, int threads) {
  return {.device = settings.device, .threads = threads, .tf32 = settings.tf32};
}

double time_of_run(Program& program, const Settings& settings) {
  if (settings.device.kind == Device::cpu_kind) return best_seconds(settings.seconds, [&] { program.run(); });
  std::vector<double> runs;
  best_seconds(settings.seconds, [&] {
    const std::vector<double> steps = program.profile();
    runs.push_back(std::accumulate(steps.begin(), steps.end(), 0.));
  });
  std::nth_element(runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2), runs.end());
  return runs[runs.size() / 2];
}

void set_rate(Row& row, double gflops, double peak, const Machine& machine) {
  const bool tera = gflops >= 1e4;
  row.rate = tera ? gflops * 1e-3 : gflops;
  row.unit = tera ? "TFLOP/s" : "GFLOP/s";
  row.share = gflops / peak;
  row.of = machine.peak_name;
}

namespace {

// Values by `draw`, of which there are at most a million: the rest repeats them.
template <class F>
Array filled(const Shape& shape, DType dtype, F draw) {
  Array a(shape, dtype);
  constexpr std::int64_t drawn = 1000003;  // a prime, so that no two rows begin alike
  for (std::int64_t i = 0; i < std::min(a.numel(), drawn); ++i) {
    const double u = draw();
    if (dtype == f32)
      a.data<float>()[i] = static_cast<float>(u);
    else
      a.set(i, is_float(dtype) ? u : std::floor(u));
  }
  const std::size_t size = size_of(dtype);
  for (std::int64_t i = drawn; i < a.numel(); i += drawn)
    std::memcpy(a.raw() + static_cast<std::size_t>(i) * size, a.raw(),
                static_cast<std::size_t>(std::min(drawn, a.numel() - i)) * size);
  return a;
}

}  // namespace

Array random_array(const Shape& shape, DType dtype, double low, double high) {
  std::uint32_t state = 1;  // a linear congruential generator: fast, and good enough for timing
  return filled(shape, dtype, [&] {
    state = state * 1664525u + 1013904223u;
    return low + (high - low) * static_cast<double>(state >> 8) / (1 << 24);
  });
}

Array normal_array(const Shape& shape, DType dtype, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<double> normal;
  return filled(shape, dtype, [&] { return normal(bits); });
}

std::string joined(std::span<const std::int64_t> sizes) {
  std::string s;
  for (std::int64_t n : sizes) s += (s.empty() ? "" : "×") + std::to_string(n);
  return s;
}

std::vector<std::int64_t> parse_shape(const std::string& text) {
  std::vector<std::int64_t> sizes;
  for (const char *at = text.data(), *end = at + text.size();; ++at) {
    std::int64_t n = 0;
    const auto [stop, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 1) return {};
    sizes.push_back(n);
    if (stop == end) return sizes;
    if (*stop != 'x') return {};
    at = stop;
  }
}

std::string column(const std::string& s, int width) {
  int characters = 0;
  for (char c : s) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return s + std::string(static_cast<std::size_t>(std::max(1, width - characters)), ' ');
}

namespace {

constexpr int name_width = 34, shape_width = 26;  // of nearly all, and a space between columns

std::string number(double x, const char* format) {
  char s[40];
  std::snprintf(s, sizeof s, format, x);
  return std::isnan(x) ? "" : s;
}

}  // namespace

Report::Report(const Machine& machine, const Settings& settings) : machine_(machine), settings_(settings) {
  if (settings.device.kind == Device::cpu_kind)
    std::printf("%s, %d cores, kernels for %s; on %d thread%s:\n", machine.model.c_str(), machine.cores,
                machine.isa.c_str(), settings.threads, settings.threads == 1 ? "" : "s");
  else
    std::printf("%s:\n", machine.model.c_str());
  std::printf("  %s %.1f GFLOP/s %s, %.1f f64, %.1f bf16", machine.peak_name.c_str(), machine.peak_f32,
              settings.tf32 ? "tf32" : "f32", machine.peak_f64, machine.peak_bf16);
  std::printf("; copy %.1f GB/s (read + written)\n\n", machine.copy);
}

void Report::head() const {
  std::printf("%s%s%s%s%8s %11s %10s %-10s %6s\n", column("name", name_width).c_str(),
              column("shape", shape_width).c_str(), column("dtype", 6).c_str(), column("pass", 10).c_str(),
              "threads", "ms", "rate", "unit", "share");
}

void Report::add(Row row) {
  std::printf(
      "%s%s%s%s%8d %11s %10s %-10s %6s%s%s\n", column(row.name, name_width).c_str(),
      column(row.shape, shape_width).c_str(), column(row.dtype, 6).c_str(), column(row.pass, 10).c_str(),
      row.threads, number(row.ms, row.ms < 0.1 ? "%.5f" : "%.3f").c_str(), number(row.rate, "%.4g").c_str(),
      row.unit.c_str(), number(row.share, "%.3f").c_str(), row.of.empty() ? "" : (" of " + row.of).c_str(),
      number(row.share_sgemm, ", %.3f of sgemm").c_str());
  std::fflush(stdout);
  rows_.push_back(std::move(row));
}

std::string Report::json() const {
  std::string s = "{\"machine\": {\"model\": " + io::json_string(machine_.model) +
                  ", \"cores\": " + std::to_string(machine_.cores) +
                  ", \"isa\": " + io::json_string(machine_.isa) +
                  ", \"threads\": " + std::to_string(settings_.threads) +
                  (settings_.ranks ? ", \"ranks\": " + std::to_string(settings_.ranks->size()) : "") +
                  ", \"peak_f32_gflops\": " + io::json_number(machine_.peak_f32) +
                  ", \"peak_f64_gflops\": " + io::json_number(machine_.peak_f64) +
                  ", \"peak_bf16_gflops\": " + io::json_number(machine_.peak_bf16) +
                  ", \"copy_gbytes\": " + io::json_number(machine_.copy) + "},\n \"rows\": [";
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const Row& r = rows_[i];
    s += std::string(i ? "," : "") + "\n  {\"name\": " + io::json_string(r.name) +
         ", \"shape\": " + io::json_string(r.shape) + ", \"dtype\": " + io::json_string(r.dtype) +
         ", \"pass\": " + io::json_string(r.pass) + ", \"threads\": " + std::to_string(r.threads) +
         ", \"ms\": " + io::json_number(r.ms) + ", \"rate\": " + io::json_number(r.rate) +
         ", \"unit\": " + io::json_string(r.unit) + ", \"share\": " + io::json_number(r.share) +
         ", \"of\": " + io::json_string(r.of) + ", \"share_sgemm\": " + io::json_number(r.share_sgemm) + "}";
  }
  return s + "\n]}\n";
}

}  // namespace tg::bench

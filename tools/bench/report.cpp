#include "tools/bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <variant>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>

namespace tg::bench {

namespace {

constexpr int name_width = 34, shape_width = 26;  // wide enough for most rows, including a space between
                                                  // columns

// The fields of a row in a file, in order.
struct Field {
  const char* name;
  std::variant<std::string Row::*, int Row::*, double Row::*> member;
};
const Field fields[] = {{"name", &Row::name},
                        {"shape", &Row::shape},
                        {"dtype", &Row::dtype},
                        {"pass", &Row::pass},
                        {"threads", &Row::threads},
                        {"ms", &Row::ms},
                        {"rate", &Row::rate},
                        {"unit", &Row::unit},
                        {"share", &Row::share},
                        {"of", &Row::of},
                        {"share_sgemm", &Row::share_sgemm}};

std::string json_value(const std::string& s) {
  return io::json_string(s);
}
std::string json_value(int n) {
  return std::to_string(n);
}
std::string json_value(double x) {
  return io::json_number(x);
}

void read_value(io::JsonReader& json, std::string& to) {
  to = json.string();
}
void read_value(io::JsonReader& json, int& to) {
  to = static_cast<int>(json.integer());
}
void read_value(io::JsonReader& json, double& to) {
  if (json.peek() == io::JsonReader::Kind::number)
    to = json.number();
  else
    json.null();
}

Row read_row(io::JsonReader& json) {
  Row row;
  json.begin_object();
  while (const auto key = json.next_key()) {
    const auto field = std::ranges::find(fields, *key, &Field::name);
    if (field == std::end(fields))
      json.skip();
    else
      std::visit([&](auto member) { read_value(json, row.*member); }, field->member);
  }
  return row;
}

}  // namespace

std::string joined(std::span<const std::int64_t> sizes, const char* by) {
  std::string s;
  for (std::int64_t n : sizes) s += (s.empty() ? "" : by) + std::to_string(n);
  return s;
}

std::string column(const std::string& s, int width) {
  int characters = 0;
  for (char c : s) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return s + std::string(static_cast<std::size_t>(std::max(1, width - characters)), ' ');
}

std::string number(double x, const char* format, const char* none) {
  char s[40];
  std::snprintf(s, sizeof s, format, x);
  return std::isnan(x) ? none : s;
}

nn::ModelConfig config_of(const nn::Architecture& architecture, std::span<const std::int64_t> sizes) {
  return {.architecture = architecture,
          .vocabulary = sizes[4],
          .context = sizes[3],
          .layers = sizes[0],
          .heads = sizes[1],
          .width = sizes[2]};
}

Report::Report(const Machine& of, const Settings& by) : machine(of), settings(by) {
  if (settings.on_cpu())
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

Row Report::row(std::string name, std::string shape, std::string pass, int threads) const {
  return {std::move(name), std::move(shape), settings.dtype_name(), std::move(pass),
          threads > 0 ? threads : settings.threads};
}

void Report::add(const Row& row) {
  std::printf(
      "%s%s%s%s%8d %11s %10s %-10s %6s%s%s\n", column(row.name, name_width).c_str(),
      column(row.shape, shape_width).c_str(), column(row.dtype, 6).c_str(), column(row.pass, 10).c_str(),
      row.threads, number(row.ms, row.ms < 0.1 ? "%.5f" : "%.3f").c_str(), number(row.rate, "%.4g").c_str(),
      row.unit.c_str(), number(row.share, "%.3f").c_str(), row.of.empty() ? "" : (" of " + row.of).c_str(),
      number(row.share_sgemm, ", %.3f of sgemm").c_str());
  std::fflush(stdout);
  keep(row);
}

std::string Report::json() const {
  std::string s = "{\"machine\": {\"model\": " + io::json_string(machine.model) +
                  ", \"cores\": " + std::to_string(machine.cores) +
                  ", \"isa\": " + io::json_string(machine.isa) +
                  ", \"threads\": " + std::to_string(settings.threads) +
                  (settings.ranks ? ", \"ranks\": " + std::to_string(settings.ranks->size()) : "");
  for (const auto& [name, rate] : {std::pair("peak_f32_gflops", machine.peak_f32),
                                   {"peak_f64_gflops", machine.peak_f64},
                                   {"peak_bf16_gflops", machine.peak_bf16},
                                   {"copy_gbytes", machine.copy}})
    s += std::string(", \"") + name + "\": " + io::json_number(rate);
  s += "},\n \"rows\": [";
  for (const Row& row : rows_) {
    s += &row == rows_.data() ? "\n  " : ",\n  ";
    for (const auto& [name, member] : fields)
      s += std::string(member == fields[0].member ? "{\"" : ", \"") + name +
           "\": " + std::visit([&](auto field) { return json_value(row.*field); }, member);
    s += "}";
  }
  return s + "\n]}\n";
}

SavedRows read_rows(const std::string& file) {
  SavedRows run;
  const std::string text = io::read_file(file, "bench");
  io::JsonReader json(text, "[bench] " + file);
  json.begin_object();
  while (const auto part = json.next_key()) {
    if (*part == "machine") {
      json.begin_object();
      while (const auto key = json.next_key()) {
        if (*key == "model")
          run.machine = json.string();
        else if (*key == "ranks")
          read_value(json, run.ranks);
        else
          json.skip();
      }
    } else if (*part == "rows") {
      json.begin_array();
      while (json.next_item()) run.rows.push_back(read_row(json));
    } else {
      json.skip();
    }
  }
  json.end();
  return run;
}

}  // namespace tg::bench

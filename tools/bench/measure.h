// Measures the best of many runs in a given time, and reports rows.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <tilegrad/core/compile/compile.h>
#include "tools/bench/settings.h"

namespace tg::bench {

// Numbers that do not apply to a row are NaN: blank in the table, null in JSON.
struct Row {
  static constexpr double none = std::numeric_limits<double>::quiet_NaN();
  std::string name, shape, dtype, pass;
  int threads = 1;
  double ms = none;
  double rate = none;
  std::string unit;  // of rate
  double share = none;
  std::string of;             // the reference of `share`
  double share_sgemm = none;  // of this library's own matrix product
};

// Calls f until `seconds` have passed, at least three times, and returns the seconds of the fastest call.
template <class F>
double best_seconds(double seconds, F&& f);

// Seconds on a clock that only goes forward.
double now();

// Options to compile the measured programs with.
CompileOptions options_of(const Settings& settings, int threads);

// Seconds of a run of the program, with its current inputs: on the CPU the fastest of many runs, on a GPU the
// median, by the GPU's clock.
double time_of_run(Program& program, const Settings& settings);

// Values for inputs: uniform in [low, high), or whole numbers of that range for integers; always the same.
Array random_array(const Shape& shape, DType dtype, double low = -1, double high = 1);

// Values drawn from N(0, 1); always the same for one seed.
Array normal_array(const Shape& shape, DType dtype, std::uint64_t seed);

std::string joined(std::span<const std::int64_t> sizes);         // "12×64×128"
std::vector<std::int64_t> parse_shape(const std::string& text);  // of "12x64x128"; {} if it is not a shape

// Padded with spaces to a width in characters, not bytes; at least one.
std::string column(const std::string& s, int width);

// Writes a rate of products into a row: GFLOP/s, from 10,000 on TFLOP/s, and its share of the peak.
struct Machine;
void set_rate(Row& row, double gflops, double peak, const Machine& machine);

// Prints the machine, then each row when it is measured, and collects them for the JSON file.
class Report {
 public:
  Report(const Machine& machine, const Settings& settings);

  bool selects(const std::string& name) const { return name.find(settings_.filter) != std::string::npos; }
  void head() const;  // of the table
  void add(Row row);
  void keep(Row row) { rows_.push_back(std::move(row)); }  // for the file only
  bool empty() const { return rows_.empty(); }
  // {"machine": {…}, "rows": [{…}, …]}; numbers that do not apply are null.
  std::string json() const;

 private:
  const Machine& machine_;
  const Settings& settings_;
  std::vector<Row> rows_;
};

template <class F>
double best_seconds(double seconds, F&& f) {
  double best = std::numeric_limits<double>::infinity();
  const double end = now() + seconds;
  for (int n = 0; n < 3 || now() < end; ++n) {
    const double start = now();
    f();
    best = std::min(best, now() - start);
  }
  return best;
}

}  // namespace tg::bench

// Rows, the report that prints and collects them, and one function for each mode of `bench`. All measurements
// use the public API (graph, compile, run), so users can get the same results.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tools/bench/machine.h"

namespace tg::bench {

// A row of results. Numbers that do not apply are NaN. They are blank in the table and null in JSON.
struct Row {
  static constexpr double none = std::numeric_limits<double>::quiet_NaN();
  std::string name, shape, dtype, pass;
  int threads = 1;
  double ms = none;
  double rate = none;
  std::string unit;  // unit of `rate`
  double share = none;
  std::string of;             // the reference of `share`
  double share_sgemm = none;  // share of the rate of tilegrad's GEMM

  Row& time(double seconds) { return ms = seconds * 1e3, *this; }
  Row& at(double its_rate, std::string of_unit) { return rate = its_rate, unit = std::move(of_unit), *this; }
  // Sets the rate of a GEMM and its share of a peak. The unit is GFLOP/s, or TFLOP/s for rates of at least
  // 10,000 GFLOP/s.
  Row& products(double gflops, double peak, const Machine& machine) {
    const bool tera = gflops >= 1e4;
    return at(tera ? gflops * 1e-3 : gflops, tera ? "TFLOP/s" : "GFLOP/s")
        .part(gflops / peak, machine.peak_name);
  }
  Row& part(double its_share, std::string whole) { return share = its_share, of = std::move(whole), *this; }
};

// Prints the machine, prints each row when it is measured, and collects the rows for the JSON file.
class Report {
 public:
  Report(const Machine& of, const Settings& by);

  const Machine& machine;
  const Settings& settings;

  bool selects(const std::string& name) const { return settings.selects(name); }
  void head() const;  // prints the head of the table
  // Creates a row with the dtype of the settings. `threads`: 0 for the threads of the settings.
  Row row(std::string name, std::string shape, std::string pass = "", int threads = 0) const;
  void add(const Row& row);
  void add_selected(const Row& row) {
    if (selects(row.name)) add(row);
  }
  void keep(const Row& row) { rows_.push_back(row); }  // adds a row to the file only
  bool empty() const { return rows_.empty(); }
  // Formats {"machine": {…}, "rows": [{…}, …]}. Numbers that do not apply are null.
  std::string json() const;

  // Returns the sizes of the first --shape, or `otherwise` if there is none.
  Sizes sizes(Sizes otherwise) const { return settings.shapes.empty() ? otherwise : settings.shapes[0]; }

 private:
  std::vector<Row> rows_;
};

// The rows and the machine in a file that Report::json wrote. read_rows() throws Error for other files.
struct SavedRows {
  std::string machine;
  int ranks = 0;  // 0: not a file of the mode ranks
  std::vector<Row> rows;
};
SavedRows read_rows(const std::string& file);

std::string joined(std::span<const std::int64_t> sizes, const char* by = "×");  // "12×64×128"
inline std::string joined(std::initializer_list<std::int64_t> sizes, const char* by = "×") {
  return joined(std::span(sizes.begin(), sizes.size()), by);
}
// Pads with spaces to a width in characters, not bytes. Adds at least one space.
std::string column(const std::string& s, int width);
// Formats a number with a printf format; returns "" or `none` if it is NaN.
std::string number(double x, const char* format, const char* none = "");

void run_gemm(Report& report);
void run_attention(Report& report);
void run_decode(Report& report);
void run_ops(Report& report);
void run_train(Report& report);
void report_model(Report& report);  // called by run_train
void run_lora(Report& report);
void run_overhead(Report& report);
void run_generate(Report& report);
void run_serve(Report& report);
void run_ranks(Report& report);
void run_load(Report& report);
void run_tokens(Report& report);
// These functions are called instead of a mode: for `bench attention --traffic` and `--once`, which return an
// exit code, and for `bench ranks --rows`.
int run_attention_traffic(const Settings& settings);
int run_attention_once(const Settings& settings);
void draw_scaling(const Settings& settings);

inline constexpr const char* all_alone = "separate ranks";  // reference for runs on all ranks together

// Measures and reports a 1024×1024×1024 f32 GEMM by tilegrad. Returns its share of the peak.
double sgemm(Report& report);

// The configuration of a model with these sizes: layers, heads, width, context and vocabulary.
nn::ModelConfig config_of(const nn::Architecture& architecture, std::span<const std::int64_t> sizes);

}  // namespace tg::bench

// Command line of bench: the options of all modes, and of single modes.
#pragma once

#include "tools/args.h"
#include "tools/bench/report.h"
#include "tools/model_options.h"

namespace tg::bench {

struct Mode {
  const char* name;
  void (*run)(Report&);
  std::size_t sizes;  // number of sizes in its --shape
};

struct CommandLine : ModelOptions {
  Args args;
  Settings settings;
  std::string mode, json, backend = "cpu";
  bool overwrite = false;

  explicit CommandLine(std::span<const Mode> modes);
  // Completes the settings after args.parse(). Returns a message if the options are wrong, otherwise "".
  std::string take();
  const Mode& chosen() const;
  // Whether ranks are measured. The ranks must be connected before the settings are completed.
  bool has_ranks() const { return mode == "ranks" && settings.train.rows.empty(); }

 private:
  std::span<const Mode> modes_;
  std::string dtype_ = "f32", suite_, layout_ = "BHLd", kernels_ = "best", cache_memory_, memory_budget_;
  std::vector<std::string> shapes_;
  std::int64_t threads_ = 0, vocabulary_ = 65;
  double peak_ = 0;  // TFLOP/s
  bool quick_ = false;

  void declare_common();
  void declare_attention();
  void declare_serve();
  void declare_train();
  void declare_examples();

  bool is_mode(std::span<const std::string> names) const { return std::ranges::count(names, mode) > 0; }
  std::vector<std::string> train_options();  // the options of a model and of its report
  // Returns the first of these options that is on the command line, as "--name", or "".
  std::string first_given(std::span<const std::string> names) const;
  std::string take_threads();
  std::string take_shapes();
  std::string take_attention();
  // Sets the cells of --shape or, if there is none, of the suite with this name.
  std::string take_cells(const std::string& name);
  std::string add_cells(std::span<const std::string> shapes);
  std::string take_train();
  // Sets the sizes of the model for the report that the option `report` requests.
  std::string take_model_shape(const std::string& report);
};

}  // namespace tg::bench

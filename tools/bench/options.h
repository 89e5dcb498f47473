// The options that only some modes of bench have. Each group declares its options and fills the settings.
#pragma once

#include "tools/args.h"
#include "tools/bench/settings.h"
#include "tools/model_options.h"

namespace tg::bench {

// The options of the mode attention, and the cells of other modes.
struct AttentionCommandLine {
  std::string suite, layout = "BHLd", kernels = "best", once;
  bool compare = false, traffic = false;

  void declare(Args& args);
  // Writes them into the settings, which know the device. Returns what is wrong with them, or "".
  std::string take(const Args& args, const std::string& mode, const std::vector<std::string>& shapes,
                   Settings& settings) const;

 private:
  // The cells of `shapes`, or if there are none the suite of that name.
  std::string take_cells(const std::vector<std::string>& shapes, const std::string& name,
                         Settings& settings) const;
  static std::string add_cells(const std::vector<std::string>& shapes, Settings& settings);
};

// Whether a --shape is that of a cell: words or four sizes.
bool is_cell(const std::string& shape);

// The options of the mode serve.
struct ServeCommandLine {
  ServeSettings settings;
  std::string cache_memory;

  void declare(Args& args);
  // Completes the settings. Returns what is wrong with the options, or "".
  std::string take(const Args& args, const std::string& mode);
};

// A size of GPT by its name (124M), or else the text itself.
std::string serve_shape(const std::string& text);

// The options of a model, which the modes train and ranks have.
struct TrainCommandLine : ModelOptions {
  std::int64_t vocabulary = 65;
  double peak = 0;  // TFLOP/s
  std::string memory_budget;
  TrainSettings settings;

  void declare(Args& args);
  // Completes the settings, with a model if there is an option of a model or of a report on one. Returns
  // what is wrong with the options, or "".
  std::string take(const Args& args, const std::string& mode, const std::vector<std::string>& shapes);

 private:
  std::string take_shape(const Args& args, const std::string& report, const std::vector<std::string>& shapes);
};

}  // namespace tg::bench

// The options that only the mode `attention` of bench has, and the cells of other modes.
#pragma once

#include "tools/args.h"
#include "tools/bench/measure.h"

namespace tg::bench {

// Whether a --shape is that of a cell: words or four sizes.
bool is_cell(const std::string& shape);

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

}  // namespace tg::bench

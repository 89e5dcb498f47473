// The options that only the mode `attention` of bench has.
#pragma once

#include "tools/args.h"
#include "tools/bench/measure.h"

namespace tg::bench {

struct AttentionCommandLine {
  std::string suite, layout = "BHLd", kernels = "best", png, once;
  bool compare = false, traffic = false;

  void declare(Args& args);
  // Writes them into the settings, which know the device. Returns what is wrong with them, or "".
  std::string take(const Args& args, const std::string& mode, const std::vector<std::string>& shapes,
                   Settings& settings) const;

 private:
  // The cells of `shapes`, or if there are none the suite of that name.
  std::string take_cells(const std::vector<std::string>& shapes, const std::string& name,
                         Settings& settings) const;
};

}  // namespace tg::bench

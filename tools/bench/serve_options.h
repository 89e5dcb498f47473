// The options that only the mode `serve` of bench has.
#pragma once

#include "tools/args.h"
#include "tools/bench/serve_settings.h"

namespace tg::bench {

struct ServeCommandLine {
  ServeSettings settings;
  std::string cache_memory;

  void declare(Args& args);
  // Completes the settings. Returns what is wrong with the options, or "".
  std::string take(const Args& args, const std::string& mode);
};

// A size of GPT by its name (124M), or else the text itself.
std::string serve_shape(const std::string& text);

}  // namespace tg::bench

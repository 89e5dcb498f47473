// PyTorch's attention and products beside this library's.
#include "tools/bench/other_libraries.h"

#include <cstdlib>
#include <sstream>

namespace tg::bench {

namespace {

double seconds_of(const std::string& ms) {
  return ms.empty() || ms == "-" ? Row::none : std::strtod(ms.c_str(), nullptr) * 1e-3;
}

}  // namespace

TorchProcess::TorchProcess(const Device& device) : python_("torch_attention.py", {device.text()}) {}

TorchProcess::Seconds TorchProcess::time(const AttentionCell& c, bool backward, const Settings& settings) {
  return ask(backward ? "backward" : "forward", settings.attention.by_token ? "BLHd" : "BHLd", c.words(),
             settings);
}

TorchProcess::Seconds TorchProcess::time_in_graph(const AttentionCell& c, int calls,
                                                  const Settings& settings) {
  return ask("graph", settings.attention.by_token ? "BLHd" : "BHLd",
             c.words() + ",calls=" + std::to_string(calls), settings);
}

double TorchProcess::time_linear(std::int64_t m, std::int64_t n, std::int64_t k, int calls,
                                 const Settings& settings) {
  const std::string sizes = "m=" + std::to_string(m) + ",n=" + std::to_string(n) + ",k=" + std::to_string(k) +
                            ",calls=" + std::to_string(calls);
  return ask("linear", "-", sizes, settings).cudnn;
}

TorchProcess::Seconds TorchProcess::ask(const char* what, const char* layout, const std::string& sizes,
                                        const Settings& settings) {
  std::istringstream answer(
      python_.ask(std::string(what) + " " + settings.dtype_name() + " " + layout + " " + sizes));
  std::string cudnn, flash;
  answer >> cudnn >> flash;
  return {seconds_of(cudnn), seconds_of(flash)};
}

}  // namespace tg::bench

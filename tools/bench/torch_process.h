// PyTorch's attention and products beside this library's, in a process of its own that measures a cell when
// it is asked to.
#pragma once

#include "tools/bench/measure.h"
#include "tools/bench/python_process.h"

namespace tg::bench {

class TorchProcess {
 public:
  struct Seconds {
    double cudnn = Row::none, flash = Row::none;  // NaN: not measured, or the backend refuses
  };

  explicit TorchProcess(const Device& device);

  bool ready() const { return python_.ready(); }
  const std::string& about() const { return python_.about(); }  // its versions, or why it is not ready
  Seconds time(const AttentionCell& c, bool backward, const Settings& settings);
  // The forward, of several calls in a CUDA graph, each with inputs of its own.
  Seconds time_in_graph(const AttentionCell& c, int calls, const Settings& settings);
  // A call of F.linear of x [m, k] and weights [n, k], also of several in a CUDA graph; NaN: not measured.
  double time_linear(std::int64_t m, std::int64_t n, std::int64_t k, int calls, const Settings& settings);

 private:
  Seconds ask(const char* what, const char* layout, const std::string& sizes, const Settings& settings);
  PythonProcess python_;
};

}  // namespace tg::bench

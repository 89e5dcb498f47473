// PyTorch beside this library, in a process of its own that measures a cell when it is asked to.
#pragma once

#include <cstdio>

#include "tools/bench/measure.h"

namespace tg::bench {

class TorchProcess {
 public:
  struct Seconds {
    double cudnn = Row::none, flash = Row::none;  // NaN: not measured, or the backend refuses
  };

  // Starts python3 with tools/bench/torch_attention.py of the source tree that this tool was built in, or of
  // the current folder.
  explicit TorchProcess(const Device& device);
  ~TorchProcess();
  TorchProcess(const TorchProcess&) = delete;
  TorchProcess& operator=(const TorchProcess&) = delete;

  bool ready() const { return ready_; }
  const std::string& about() const { return about_; }  // its versions, or why it is not ready
  Seconds time(const AttentionCell& c, bool backward, const Settings& settings);
  // The forward, of several calls in a CUDA graph, each with inputs of its own.
  Seconds time_in_graph(const AttentionCell& c, int calls, const Settings& settings);
  // F.linear of x [m, k] and weights [n, k]; NaN: not measured.
  double time_linear(std::int64_t m, std::int64_t n, std::int64_t k, const Settings& settings);

 private:
  Seconds ask(const char* what, const char* layout, const std::string& sizes, const Settings& settings);
  bool start(const std::string& script, const std::string& device);
  std::string line();  // of its output; "" at the end

  int pid_ = -1;
  std::FILE *to_ = nullptr, *from_ = nullptr;
  bool ready_ = false;
  std::string about_;
};

}  // namespace tg::bench

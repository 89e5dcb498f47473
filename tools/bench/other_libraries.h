// Runs other libraries for comparison, each in a separate process: PyTorch's attention, GEMMs and training
// steps, and decoding with PyTorch and llama.cpp.
#pragma once

#include <cstdio>
#include <list>
#include <sstream>
#include <string>
#include <vector>

#include "tools/bench/report.h"

namespace tg::bench {

// A process that runs a Python script of tools/bench and answers requests.
class PythonProcess {
 public:
  // Starts python3 with tools/bench/`script`. The file is in the source tree of this tool's build, or in the
  // current folder. The script's first line is "ready VERSIONS" or "none REASON".
  PythonProcess(std::string library, const std::string& script, const std::vector<std::string>& arguments);
  ~PythonProcess();
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  const std::string& name() const { return name_; }  // the library's name
  bool ready() const { return ready_; }
  // Returns the library's versions, or "no LIBRARY to compare with: " and the reason.
  std::string about() const { return (ready_ ? "" : "no " + name_ + " to compare with: ") + about_; }

 protected:
  // Sends a line and returns the answer, which is also one line. Returns "" if the process is not ready or
  // has exited.
  std::string ask(const std::string& request);

 private:
  bool start(const std::string& script, const std::vector<std::string>& arguments);
  std::string line();  // a line of its output; "" at the end

  int pid_ = -1;
  std::FILE *to_ = nullptr, *from_ = nullptr;
  bool ready_ = false;
  std::string name_, about_;
};

// PyTorch's attention and GEMMs, for comparison. Prints the versions, or why PyTorch is not available.
class TorchAttention : public PythonProcess {
 public:
  explicit TorchAttention(const Device& device);

  struct Seconds {
    double cudnn, flash;  // NaN: not measured, or not supported by the backend
  };
  // `what`: forward, backward, or "graph" for the forward pass of several calls with separate inputs in a
  // CUDA graph.
  Seconds time(const AttentionCell& c, const std::string& what, int calls, const Settings& settings);
  // The seconds per call of F.linear with x [m, k] and weights [n, k], for one or several calls in a CUDA
  // graph. NaN means not measured.
  double time_linear(std::int64_t m, std::int64_t n, std::int64_t k, int calls, const Settings& settings);
};

// The results of a model's first steps. They show whether two implementations compute the same.
struct FirstSteps {
  double loss = Row::none, grad_norm = Row::none, next_loss = Row::none;
};
// Describes the first value that differs by more than rounding in that dtype ("loss 4.1743, expected
// 4.1741"), or returns "".
std::string difference(const FirstSteps& got, const FirstSteps& expected, const std::string& dtype);

// PyTorch's training step of the same model, starting from the same weights.
class TorchTraining : public PythonProcess {
 public:
  // Uses the model of settings.train, with initial weights drawn with this seed.
  TorchTraining(const Settings& settings, std::uint64_t seed);

  struct Step {
    double best = Row::none, median = Row::none;  // seconds per step
    double bytes = Row::none;                     // peak memory of the GPU
    FirstSteps first = {};
    std::string refusal = {};  // why the step was not measured, or ""
  };
  Step step(const std::string& way);  // "eager", "compiled" or "graphs"
};

// Decoding of the same GPT by another library: PyTorch, or llama.cpp on the CPU.
class OtherDecoding : public PythonProcess {
 public:
  // `sizes`: the model's layers, heads, width, context and vocabulary.
  OtherDecoding(const char* name, const char* script, const Settings& settings, const Sizes& sizes);

  // The seconds of a step in which each sequence reads one token. Each sequence has `keys` keys, including
  // the token's own key. NaN means not measured.
  double seconds_of_step(std::int64_t sequences, std::int64_t keys);
  struct Replay {
    double seconds = Row::none;
    double steps = Row::none;
  };
  // Replays requests that are all present at the start, with at most `slots` of them in a step.
  Replay replay(std::int64_t slots, const std::vector<Arrival>& trace);
};

// Starts the libraries that are available for the device, and prints a line for each. Returns an empty list
// if --compare is not set.
std::list<OtherDecoding> other_decodings(const Settings& settings, const Sizes& sizes);

}  // namespace tg::bench

// Other libraries beside this one, each in a process of its own that measures what it is asked for: PyTorch's
// attention, products and training steps, and the decoding of PyTorch and llama.cpp.
#pragma once

#include <cstdio>
#include <list>
#include <sstream>
#include <string>
#include <vector>

#include "tools/bench/report.h"

namespace tg::bench {

// A Python script of tools/bench that answers requests.
class PythonProcess {
 public:
  // Starts python3 with tools/bench/`script` of the source tree that this tool was built in, or of the
  // current folder. The script's first line is "ready VERSIONS" or "none REASON".
  PythonProcess(std::string library, const std::string& script, const std::vector<std::string>& arguments);
  ~PythonProcess();
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  const std::string& name() const { return name_; }  // of the library
  bool ready() const { return ready_; }
  // Its versions, or "no LIBRARY to compare with: " and why it is not ready.
  std::string about() const { return (ready_ ? "" : "no " + name_ + " to compare with: ") + about_; }

 protected:
  // The answer to a line: a line; "" if it is not ready or has ended.
  std::string ask(const std::string& request);

 private:
  bool start(const std::string& script, const std::vector<std::string>& arguments);
  std::string line();  // of its output; "" at the end

  int pid_ = -1;
  std::FILE *to_ = nullptr, *from_ = nullptr;
  bool ready_ = false;
  std::string name_, about_;
};

// PyTorch's attention and products beside this library's. Prints its versions, or why it is not there.
class TorchAttention : public PythonProcess {
 public:
  explicit TorchAttention(const Device& device);

  struct Seconds {
    double cudnn, flash;  // NaN: not measured, or the backend refuses
  };
  // `what`: forward, backward, or "graph" for the forward of several calls in a CUDA graph, each with inputs
  // of its own.
  Seconds time(const AttentionCell& c, const std::string& what, int calls, const Settings& settings);
  // A call of F.linear of x [m, k] and weights [n, k], also of several in a CUDA graph; NaN: not measured.
  double time_linear(std::int64_t m, std::int64_t n, std::int64_t k, int calls, const Settings& settings);
};

// What a model says in its first steps, by which two implementations are known to be the same.
struct FirstSteps {
  double loss = Row::none, grad_norm = Row::none, next_loss = Row::none;
};
// What differs by more than rounding in that dtype ("loss 4.1743, expected 4.1741"), or "".
std::string difference(const FirstSteps& got, const FirstSteps& expected, const std::string& dtype);

// PyTorch's training step of the same model, from the same weights.
class TorchTraining : public PythonProcess {
 public:
  // Of settings.train, with the weights of that seed.
  TorchTraining(const Settings& settings, std::uint64_t seed);

  struct Step {
    double best = Row::none, median = Row::none;  // seconds
    double bytes = Row::none;                     // of the GPU's memory, at the peak
    FirstSteps first = {};
    std::string refusal = {};  // why it was not measured, or ""
  };
  Step step(const std::string& way);  // "eager", "compiled" or "graphs"
};

// Another library that decodes the same GPT: PyTorch, or llama.cpp on the CPU.
class OtherDecoding : public PythonProcess {
 public:
  // The model's layers, heads, width, context and vocabulary.
  OtherDecoding(const char* name, const char* script, const Settings& settings, const Sizes& sizes);

  // Seconds of a step in which each text reads one token, with so many keys, its own included; NaN: not
  // measured.
  double seconds_of_step(std::int64_t texts, std::int64_t keys);
  struct Replay {
    double seconds = Row::none;
    double steps = Row::none;
  };
  // Of requests that are all there at the beginning, at most `slots` of them in a step.
  Replay replay(std::int64_t slots, const std::vector<Arrival>& trace);
};

// Those that there are for the device, with a line printed for each; none unless the settings ask for them.
std::list<OtherDecoding> other_decodings(const Settings& settings, const Sizes& sizes);

}  // namespace tg::bench

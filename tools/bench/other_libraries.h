// Other libraries beside this one, each in a process of its own that measures what it is asked for: PyTorch's
// attention, products and training steps, and the decoding of PyTorch and llama.cpp.
#pragma once

#include <cstdio>
#include <list>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/nn/models/model_config.h>
#include "tools/bench/measure.h"

namespace tg::bench {

// A Python script of tools/bench that answers requests.
class PythonProcess {
 public:
  // Starts python3 with tools/bench/`script` of the source tree that this tool was built in, or of the
  // current folder. The script's first line is "ready VERSIONS" or "none REASON".
  PythonProcess(const std::string& script, const std::vector<std::string>& arguments);
  ~PythonProcess();
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  bool ready() const { return ready_; }
  const std::string& about() const { return about_; }  // its versions, or why it is not ready
  // The answer to a line: a line; "" if it is not ready or has ended.
  std::string ask(const std::string& request);

 private:
  bool start(const std::string& script, const std::vector<std::string>& arguments);
  std::string line();  // of its output; "" at the end

  int pid_ = -1;
  std::FILE *to_ = nullptr, *from_ = nullptr;
  bool ready_ = false;
  std::string about_;
};

// PyTorch's attention and products beside this library's.
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

// What a model says in its first steps, by which two implementations are known to be the same.
struct FirstSteps {
  double loss = Row::none, grad_norm = Row::none, next_loss = Row::none;
};
// What differs by more than rounding in that dtype ("loss 4.1743, expected 4.1741"), or "".
std::string difference(const FirstSteps& got, const FirstSteps& expected, const std::string& dtype);

// PyTorch's training step of the same model, from the same weights.
class TorchTraining {
 public:
  // Of settings.train, with the weights of that seed.
  TorchTraining(const Settings& settings, std::uint64_t seed);

  bool ready() const { return python_.ready(); }
  const std::string& about() const { return python_.about(); }  // its versions, or why it is not ready

  struct Step {
    double best, median;       // seconds
    double bytes = Row::none;  // of the GPU's memory, at the peak
    FirstSteps first;
    std::string refusal;  // why it was not measured, or ""
  };
  Step step(const std::string& way);  // "eager", "compiled" or "graphs"

 private:
  PythonProcess python_;
};

// Another library that decodes the same GPT: PyTorch, or llama.cpp on the CPU.
class OtherDecoding {
 public:
  // The model's layers, heads, width, context and vocabulary.
  OtherDecoding(std::string name, const std::string& script, const Settings& settings,
                std::span<const std::int64_t> sizes);

  const std::string& name() const { return name_; }
  bool ready() const { return python_.ready(); }
  const std::string& about() const { return python_.about(); }  // its versions, or why it is not ready

  // Seconds of a step in which each text reads one token, with so many keys, its own included; NaN: not
  // measured.
  double seconds_of_step(std::int64_t texts, std::int64_t keys);
  struct Replay {
    double seconds = Row::none;
    double steps = Row::none;
  };
  // Of requests that are all there at the beginning, at most `seats` of them in a step.
  Replay replay(std::int64_t seats, const std::vector<Arrival>& trace);

 private:
  std::string name_;
  PythonProcess python_;
};

// Those that there are for the device, with a line printed for each; none unless the settings ask for them.
std::list<OtherDecoding> other_decodings(const Settings& settings, std::span<const std::int64_t> sizes);

}  // namespace tg::bench

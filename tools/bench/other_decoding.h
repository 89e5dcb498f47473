// Other libraries that decode the same GPT beside this one: PyTorch, and llama.cpp on the CPU.
#pragma once

#include <list>

#include "tools/bench/measure.h"
#include "tools/bench/python_process.h"

namespace tg::bench {

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

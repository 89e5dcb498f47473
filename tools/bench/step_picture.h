// A training step as a picture: its kernels over time, in a lane of each family, above the memory in use.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/core/run/program.h>
#include <tilegrad/io/plots/image.h>
#include "tools/bench/families.h"

namespace tg::bench {

struct StepPicture {
  enum Phase { forward, backward, update };
  struct Kernel {
    double from, to;  // seconds since the step began, one kernel after the other
    Family family;
    Phase phase;
    std::size_t bytes;  // of the arena, in use meanwhile
  };
  std::vector<Kernel> kernels;
  std::size_t always = 0;  // bytes that are in use beside the arena's
};

// `seconds` of each step of the program.
StepPicture step_picture(const Program& program, std::span<const double> seconds);
plot::Image draw_step(const StepPicture& picture, const std::string& title);

}  // namespace tg::bench

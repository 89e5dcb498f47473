// The kernels of a training step: in which family each of them is, and a picture of them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/program.h>
#include <tilegrad/io/plots/image.h>

namespace tg::bench {

// The families of kernels that a training step consists of.
enum class Family { products, attention, norms, head, chains, casts, embedding, optimizer, rest };
inline constexpr std::size_t family_count = 9;

const char* name_of(Family family);
Family family_of(const Step& step);

struct FamilyTime {
  double seconds = 0;
  int steps = 0;
};
// By family, of the seconds of each step.
std::vector<FamilyTime> by_family(std::span<const Step> steps, std::span<const double> seconds);

// A training step as a picture: its kernels over time, in a lane of each family, above the memory in use.
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

// Groups the kernels of a training step into families, and draws a timeline of them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/program.h>
#include <tilegrad/io/plots/image.h>

namespace tg::bench {

// Families of kernels in a training step.
enum class Family { products, attention, norms, head, chains, casts, embedding, optimizer, rest };
inline constexpr std::size_t family_count = 9;

const char* name_of(Family family);
Family family_of(const Step& step);

struct FamilyTime {
  double seconds = 0;
  int steps = 0;
};
// Returns the seconds per family, summed over the steps.
std::vector<FamilyTime> by_family(std::span<const Step> steps, std::span<const double> seconds);

// A timeline of a training step: its kernels, with one lane for each family, above the memory in use.
struct StepPicture {
  enum Phase { forward, backward, update };
  struct Kernel {
    double from, to;  // since the step began; kernels run one after the other
    Family family;
    Phase phase;
    std::size_t bytes;  // bytes of the arena in use during the kernel
  };
  std::vector<Kernel> kernels;
  std::size_t always = 0;  // bytes in use in addition to the arena
};

// Builds the timeline from the `seconds` of each step of the program.
StepPicture step_picture(const Program& program, std::span<const double> seconds);
plot::Image draw_step(const StepPicture& picture, const std::string& title);

}  // namespace tg::bench

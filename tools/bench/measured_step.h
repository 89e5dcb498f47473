// What bench measures of a model's training step: the FLOPs that it needs, how long it takes, and which
// kernels it consists of. A picture shows these kernels.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/program.h>
#include <tilegrad/io/plots/image.h>
#include <tilegrad/nn/models/language_model.h>
#include "tools/bench/measure.h"
#include "tools/bench/other_libraries.h"

namespace tg::bench {

// The arithmetic that a training step of a model needs, however a program computes it.
// A forward pass multiplies each token by each weight once, 2 FLOPs, and a backward pass takes twice as many:
// 6 per weight and token [Kaplan et al., Scaling Laws for Neural Language Models, 2020, §2.1]. Attention
// comes on top [Chowdhery et al., PaLM, 2022, appendix B], here of the pairs of query and key that its mask
// leaves: half of theirs. What is computed a second time to save memory does not count.
struct ModelFlops {
  double tokens = 0;   // of a step
  double weights = 0;  // of linear layers and the head, tied or not; no lookups in embeddings, gains, biases
  double attention = 0;  // FLOPs of a forward pass: 2·(d + dv) for each head and pair
  double step() const { return 6 * weights * tokens + 3 * attention; }
  std::string formula() const;  // with its numbers
};
ModelFlops model_flops(const nn::LanguageModel& model, std::int64_t batch);

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

// A model's training step of this library's, measured.
struct MeasuredStep {
  std::int64_t parameters = 0;
  std::size_t weights = 0;  // bytes of these
  MemoryReport memory = {};
  std::int64_t loss_chunks = 1;
  ModelFlops flops = {};
  FirstSteps first = {};
  StepTimes times = {};
  std::vector<FamilyTime> families = {};  // of kernels one by one
  StepPicture picture = {};
};

// Of settings.train. Throws OutOfMemory if the batch does not fit. Nothing of the model remains in memory.
MeasuredStep measure_step(const Settings& settings, const Machine& machine);
inline constexpr std::uint64_t weights_seed = 0;  // of the initial weights

}  // namespace tg::bench

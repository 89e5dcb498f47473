// The families of kernels that a training step consists of.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/step.h>

namespace tg::bench {

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

}  // namespace tg::bench

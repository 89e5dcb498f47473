// What an optimizer's saved state cannot be.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>

namespace tg::train {

// Throws FormatError, beginning with `where`, unless `values` can be those of Optimizer::state() after
// `steps` steps of a run: all finite, second moments and counts not negative, and the counts of steps taken
// and left out add up.
void check_optimizer_state(const std::vector<Parameter>& state, std::span<const Array> values,
                           std::int64_t steps, const std::string& where);

}  // namespace tg::train

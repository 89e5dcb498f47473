// Checks the saved state of an optimizer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>

namespace tg::train {

// Throws FormatError, beginning with `where`, unless `values` can be the values of Optimizer::state() after
// `steps` steps. All must be finite, second moments and counts must not be negative, and the counts of
// performed and skipped steps must add up to `steps`.
void check_optimizer_state(const std::vector<Parameter>& state, std::span<const Array> values,
                           std::int64_t steps, const std::string& where);

}  // namespace tg::train

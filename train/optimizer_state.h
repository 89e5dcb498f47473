// Checks the saved state of an optimizer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>

namespace tg::train {

// Checks that `values` can be the values of Optimizer::state() after `steps` steps. Otherwise throws
// FormatError with a message that begins with `where`. All values must be finite, and second moments and
// counts must not be negative. The counts of performed and skipped steps must add up to `steps`.
void check_optimizer_state(const std::vector<Parameter>& state, std::span<const Array> values,
                           std::int64_t steps, const std::string& where);

}  // namespace tg::train

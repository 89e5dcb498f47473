// The numbers that every sampler accepts: the op `sample`, sample_token, Generator and Engine.
#pragma once

#include <tilegrad/core/base/range.h>

namespace tg::sampling_ranges {

inline constexpr Range temperature = Range::at_least(0), top_k = Range::whole_from(0),
                       top_p = Range::between(0, 1), draw = Range::from_below(0, 1);

}  // namespace tg::sampling_ranges

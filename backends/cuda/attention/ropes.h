// The ropes beside a call of attention that its kernel computes as well.
#pragma once

#include <memory>
#include <optional>

#include "backends/cuda/attention/short_heads.h"

namespace tg::cuda::attention {

struct RopesBeside {
  Ropes ropes;
  std::shared_ptr<const void> table;  // keeps theirs
};

// Those of a call that short heads' kernels compute: before a forward, or behind a backward. Nothing if they
// cannot: positions are given, q and k turn in other ways, or results would overwrite what blocks still read.
std::optional<RopesBeside> ropes_beside(std::span<const Step> steps, const Call& call);

}  // namespace tg::cuda::attention

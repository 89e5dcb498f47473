// Attributes of slices, concatenations and index ops, shared with their kernels.
#pragma once

#include "core/attrs.h"

namespace tg {

struct AxisAttrs {  // concat, index_select, index_add, gather, scatter_add, embedding: not negative
  std::int64_t axis;
  void fields(auto&& field) const { field("axis", axis); }
};

struct SliceAssignAttrs {  // start is given by the third input where there is one
  std::int64_t axis, start, step;
  void fields(auto&& field) const { field("axis", axis), field("start", start), field("step", step); }
};

struct SliceAtAttrs {
  std::int64_t axis, length;
  void fields(auto&& field) const { field("axis", axis), field("length", length); }
};

}  // namespace tg

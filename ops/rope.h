// The attributes of `rope`, for the op and its kernel.
#pragma once

#include <vector>

#include <tilegrad/core/graph/op.h>

namespace tg {

struct RopeAttrs {
  std::vector<double> frequencies;  // ω_i, one per pair; 2·size elements of a row are rotated
  bool interleaved;                 // pairs are (2i, 2i + 1); otherwise (i, i + size)
  bool inverse;                     // rotates by −angle
  std::int64_t start;               // position of the first row if there are no positions
  void fields(auto&& field) const {
    std::string text;
    for (double f : frequencies) text += (text.empty() ? "" : " ") + detail::attr_text(f);
    field("frequencies", text, text), field("interleaved", interleaved, false);
    field("inverse", inverse, false), field("start", start, 0);
  }
};

// The attributes of a node or step that computes rope; null for other ops.
const RopeAttrs* rope_of(const Op& op, const Attrs& attrs);

}  // namespace tg

// The tokens of a batch that a rank has where sequences are divided among ranks (nn::ContextParallel), and
// which targets of a batch count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/communicator.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/ops/ring_attention.h>

namespace tg::train {

class LocalTokens {
 public:
  // Of rows of `context` tokens; all of them without ranks. Throws ShapeError for a context that cannot be
  // divided.
  LocalTokens(const Communicator* ranks, std::int64_t context)
      : context_(context),
        ranks_(ranks ? ranks->size() : 1),
        rank_(ranks ? ranks->rank() : 0),
        positions_(ranks ? ring_positions(rank_, ranks_, context) : std::vector<std::int64_t>()) {}

  std::int64_t in_row() const { return context_ / ranks_; }
  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  // Those of whole rows, row by row. Throws ShapeError for others.
  std::vector<std::int32_t> of(std::span<const std::int32_t> rows) const {
    if (rows.size() % static_cast<std::size_t>(context_) != 0)
      throw ShapeError("[training] got " + std::to_string(rows.size()) + " tokens, expected rows of " +
                       std::to_string(context_));
    if (positions_.empty()) return {rows.begin(), rows.end()};
    std::vector<std::int32_t> own;
    own.reserve(rows.size() / static_cast<std::size_t>(ranks_));
    for (std::size_t row = 0; row < rows.size(); row += static_cast<std::size_t>(context_))
      for (const std::int64_t position : positions_)
        own.push_back(rows[row + static_cast<std::size_t>(position)]);
    return own;
  }

 private:
  std::int64_t context_;
  int ranks_, rank_;
  std::vector<std::int64_t> positions_;  // empty: all
};

// Targets that are not ignored, over which the loss of a batch is the mean.
inline std::int64_t count_targets(std::span<const std::int32_t> targets) {
  return std::ranges::count_if(targets,
                               [](std::int32_t t) { return t != CrossEntropyOptions{}.ignore_index; });
}

}  // namespace tg::train

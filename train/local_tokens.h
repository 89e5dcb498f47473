// Finds the tokens of a batch that belong to a rank if ranks split sequences (nn::ContextParallel). Also
// counts the targets that are not ignored.
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
  // For rows of `context` tokens. Without `ranks`, the rank has all tokens. Throws ShapeError for a context
  // that cannot be divided.
  LocalTokens(const Communicator* ranks, std::int64_t context)
      : context_(context),
        ranks_(ranks ? ranks->size() : 1),
        rank_(ranks ? ranks->rank() : 0),
        positions_(ranks ? ring_positions(rank_, ranks_, context) : std::vector<std::int64_t>()) {}

  // The rank's tokens per row.
  std::int64_t in_row() const { return context_ / ranks_; }
  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  // Returns the rank's tokens of full rows, row by row. Throws ShapeError if `rows` does not consist of full
  // rows.
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

// Returns the number of targets that are not ignored. A batch's loss is the mean over them.
inline std::int64_t count_targets(std::span<const std::int32_t> targets) {
  return std::ranges::count_if(targets,
                               [](std::int32_t t) { return t != CrossEntropyOptions{}.ignore_index; });
}

}  // namespace tg::train

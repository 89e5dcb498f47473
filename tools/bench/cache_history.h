// Records the owner of each part of a paged cache in each step, and draws the history.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include <tilegrad/io/plots/image.h>
#include <tilegrad/nn/generation/page_pool.h>

namespace tg::bench {

// A sequence that owns pages.
struct CachedSequence {
  std::int64_t request = 0;
  const nn::PageTable* table = nullptr;
  const std::vector<std::int32_t>* tokens = nullptr;
};

class CacheHistory {
 public:
  enum class State : std::uint8_t {
    free,
    reserved,  // allocated to a sequence, but without tokens
    used,
    shared,  // shared by several sequences
    found,   // the tokens were already in the cache when the sequence joined
  };
  struct Cell {
    std::int32_t request = -1;
    State state = State::free;
  };

  // Creates a row for every `unit` tokens of every page. If there are more than 2 · `most_columns` columns,
  // every second column is dropped, and later steps are recorded half as often.
  CacheHistory(const nn::PagePool& pool, std::int64_t unit, std::int64_t most_columns);

  void add(const std::vector<CachedSequence>& sequences);  // records a step

  std::int64_t rows() const { return rows_; }
  std::int64_t unit() const { return unit_; }
  std::int64_t steps() const { return steps_; }
  // The cell in step `step` or, if that was not recorded, in the last recorded step before it.
  const Cell& at(std::int64_t row, std::int64_t step) const;

 private:
  struct Text {
    std::int64_t last = -1;           // last step in which the sequence had pages
    std::vector<std::size_t> hashes;  // hashes of its tokens up to the end of each full page
    std::vector<bool> found;          // per full page: whether it was found in the cache
  };

  const nn::PagePool& pool_;
  std::int64_t unit_, units_, rows_, most_columns_;
  std::int64_t steps_ = 0, stride_ = 1;
  std::vector<std::vector<Cell>> columns_;
  std::vector<std::size_t> content_;  // per page: the hash of its tokens and all tokens before them
  std::unordered_map<std::int64_t, Text> sequences_;
};

// A chart of a cache over time: a column for each step, and a row for each page. The color identifies the
// sequence that owns the page.
struct CachePanel {
  std::vector<std::string> lines;  // two lines above the chart
  const CacheHistory* history;
};

// Draws the panels one below the other. All have the same scales, even if their numbers of steps and rows
// differ.
plot::Image draw_caches(const std::string& title, const std::vector<CachePanel>& panels);

}  // namespace tg::bench

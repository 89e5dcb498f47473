// Who has which part of a cache in pages, step by step, and the picture of it.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include <tilegrad/io/plots/image.h>
#include <tilegrad/nn/generation/page_pool.h>

namespace tg::bench {

// A text that has pages.
struct CachedText {
  std::int64_t request = 0;
  const nn::PageTable* table = nullptr;
  const std::vector<std::int32_t>* tokens = nullptr;
};

class CacheHistory {
 public:
  enum class State : std::uint8_t {
    free,
    reserved,  // a text has it, but no tokens in it
    used,
    shared,  // by several texts
    found,   // its tokens were there when the text joined
  };
  struct Cell {
    std::int32_t request = -1;
    State state = State::free;
  };

  // A row for every `unit` tokens of every page. Of more than 2 · `most_columns` steps every second is
  // forgotten, again and again.
  CacheHistory(const nn::PagePool& pool, std::int64_t unit, std::int64_t most_columns);

  void add(const std::vector<CachedText>& texts);  // a step

  std::int64_t rows() const { return rows_; }
  std::int64_t unit() const { return unit_; }
  std::int64_t steps() const { return steps_; }
  // In step `step`, or the one remembered before it.
  const Cell& at(std::int64_t row, std::int64_t step) const;

 private:
  struct Text {
    std::int64_t last = -1;           // step in which it had pages
    std::vector<std::size_t> hashes;  // of its tokens up to the end of each full page
    std::vector<bool> found;          // by full page
  };

  const nn::PagePool& pool_;
  std::int64_t unit_, units_, rows_, most_columns_;
  std::int64_t steps_ = 0, stride_ = 1;
  std::vector<std::vector<Cell>> columns_;
  std::vector<std::size_t> content_;  // by page: the hash of what it holds and all before it
  std::unordered_map<std::int64_t, Text> texts_;
};

// Caches over time, one next to the other: a column for each step, a row for each page, coloured by the text
// that has it.
struct CachePanel {
  std::vector<std::string> lines;  // two, above it
  const CacheHistory* history;
};

// The panels have one scale of steps and one of rows, and may have different numbers of both.
plot::Image draw_caches(const std::string& title, const std::vector<CachePanel>& panels);

}  // namespace tg::bench

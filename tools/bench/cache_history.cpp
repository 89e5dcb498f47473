#include "tools/bench/cache_history.h"

#include <algorithm>
#include <string_view>

namespace tg::bench {

CacheHistory::CacheHistory(const nn::PagePool& pool, std::int64_t unit, std::int64_t most_columns)
    : pool_(pool),
      unit_(std::min<std::int64_t>(unit, pool.page_size())),
      units_((pool.page_size() + unit_ - 1) / unit_),
      rows_(pool.pages() * units_),
      most_columns_(most_columns),
      content_(static_cast<std::size_t>(pool.pages()) + 1) {}

void CacheHistory::add(const std::vector<CachedSequence>& sequences) {
  std::vector<Cell> column(static_cast<std::size_t>(rows_));
  const std::int64_t size = pool_.page_size();
  for (const CachedSequence& t : sequences) {
    Text& known = sequences_[t.request];
    const auto& pages = t.table->pages();
    const auto full = static_cast<std::size_t>(t.table->length() / size);
    if (known.last != steps_ - 1) known.found.clear();  // it has just joined the batch
    known.last = steps_;
    for (std::size_t i = known.found.size(); i < full; ++i) {
      if (i == known.hashes.size()) {
        const auto tokens =
            std::span(*t.tokens).subspan(i * static_cast<std::size_t>(size), static_cast<std::size_t>(size));
        const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
        known.hashes.push_back(std::hash<std::string_view>()(bytes) ^
                               (i > 0 ? known.hashes[i - 1] * 0x9E3779B97F4A7C15u : 0));
      }
      std::size_t& content = content_[static_cast<std::size_t>(pages[i])];
      known.found.push_back(content == known.hashes[i]);
      content = known.hashes[i];
    }
    for (std::size_t i = 0; i < pages.size(); ++i)
      for (std::int64_t u = 0; u < units_; ++u) {
        Cell& cell = column[static_cast<std::size_t>((pages[i] - 1) * units_ + u)];
        cell.request = static_cast<std::int32_t>(t.request);
        cell.state = static_cast<std::int64_t>(i) * size + u * unit_ >= t.table->length() ? State::reserved
                     : pool_.holders(pages[i]) > 1                                        ? State::shared
                     : i < full && known.found[i]                                         ? State::found
                                                                                          : State::used;
      }
  }
  if (steps_++ % stride_ != 0) return;
  columns_.push_back(std::move(column));
  if (std::ssize(columns_) < 2 * most_columns_) return;
  for (std::size_t i = 0; 2 * i < columns_.size(); ++i) columns_[i] = std::move(columns_[2 * i]);
  columns_.resize((columns_.size() + 1) / 2);
  stride_ *= 2;
}

const CacheHistory::Cell& CacheHistory::at(std::int64_t row, std::int64_t step) const {
  const auto column = std::min(static_cast<std::size_t>(step / stride_), columns_.size() - 1);
  return columns_[column][static_cast<std::size_t>(row)];
}

}  // namespace tg::bench

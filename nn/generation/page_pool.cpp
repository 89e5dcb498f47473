#include <tilegrad/nn/generation/page_pool.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <tilegrad/core/base/error.h>

namespace tg::nn {

std::size_t PagePool::Hash::operator()(const View& v) const {
  const std::string_view bytes(reinterpret_cast<const char*>(v.tokens.data()), v.tokens.size_bytes());
  return (std::hash<std::string_view>()(bytes) ^ v.before * 0x9E3779B97F4A7C15u) & bits;
}
bool PagePool::Equal::operator()(const View& a, const View& b) const {
  return a.before == b.before && std::ranges::equal(a.tokens, b.tokens);
}

PagePool::PagePool(std::int32_t pages, std::int32_t page_size, std::size_t hash_bits)
    : page_size_(page_size), found_(0, Hash{hash_bits}) {
  if (pages <= 0 || page_size <= 0)
    throw ShapeError("PagePool takes positive sizes, got " + std::to_string(pages) + " pages of " +
                     std::to_string(page_size) + " tokens");
  pages_.resize(static_cast<std::size_t>(pages) + 1);
  for (std::int32_t n = 1; n <= pages; ++n) pages_[n].at = free_.insert(free_.end(), n);
}

std::int32_t PagePool::holders(std::int32_t n) const {
  if (n < 1 || n > pages())
    throw Error("PagePool::holders got page " + std::to_string(n) + " of 1 to " + std::to_string(pages()));
  return pages_[n].holders;
}

PageTable PagePool::open(std::span<const std::int32_t> text) {
  PageTable table(*this);
  const auto size = static_cast<std::size_t>(page_size_);
  for (std::size_t at = 0; at + size < text.size(); at += size) {
    const auto found = found_.find(View(table.full_, text.subspan(at, size)));
    if (found == found_.end()) break;
    hold(found->second.page);
    table.pages_.push_back(found->second.page);
    table.full_ = found->second.content;
    table.length_ += page_size_;
  }
  return table;
}

void PagePool::forget() {
  ++epoch_;
  found_.clear();
  for (Page& page : pages_) page.key = nullptr;
}

std::int32_t PagePool::take() {
  const std::int32_t n = free_.front();
  Page& page = pages_[n];
  if (page.key) found_.erase(found_.find(*page.key));
  page.key = nullptr;
  hold(n);
  return n;
}

void PagePool::hold(std::int32_t n) {
  if (pages_[n].holders++ == 0) free_.erase(pages_[n].at);
}

void PagePool::leave(std::int32_t n) {
  Page& page = pages_[n];
  if (--page.holders == 0) page.at = free_.insert(page.key ? free_.end() : free_.begin(), n);
}

// The number of what page n holds now. If another page holds the same, that one is found.
PagePool::Content PagePool::keep(std::int32_t n, const View& v) {
  const auto found = found_.find(v);
  if (found != found_.end()) return found->second.content;
  const auto entry =
      found_.emplace(Key{v.before, {v.tokens.begin(), v.tokens.end()}}, Found{++contents_, n}).first;
  pages_[n].key = &entry->first;
  return contents_;
}

PageTable::PageTable(PageTable&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      epoch_(other.epoch_),
      length_(other.length_),
      pages_(std::move(other.pages_)),
      full_(other.full_),
      rest_(std::move(other.rest_)) {}

PageTable& PageTable::operator=(PageTable&& other) noexcept {
  const PageTable left(std::move(*this));
  std::swap(pool_, other.pool_), std::swap(epoch_, other.epoch_), std::swap(length_, other.length_);
  std::swap(pages_, other.pages_), std::swap(full_, other.full_), std::swap(rest_, other.rest_);
  return *this;
}

// The last page first: a beginning is of use without what follows it, and not the other way round.
PageTable::~PageTable() {
  if (pool_)
    for (auto n = pages_.rbegin(); n != pages_.rend(); ++n) pool_->leave(*n);
}

std::int64_t PageTable::row(std::int64_t position) const {
  const std::int64_t size = pool_->page_size_;
  if (position < 0 || position >= std::ssize(pages_) * size)
    throw Error("PageTable::row got position " + std::to_string(position) + ", with pages for " +
                std::to_string(std::ssize(pages_) * size));
  return std::int64_t{pages_[position / size]} * size + position % size;
}

bool PageTable::reserve(std::int64_t count, std::vector<PageCopy>& copies) {
  if (count <= 0) return true;
  const std::int64_t size = pool_->page_size_, begun = length_ / size;
  if (count > (std::ssize(pages_) + pool_->free()) * size - length_) return false;
  const bool shared = length_ % size != 0 && pool_->holders(pages_[begun]) > 1;
  const std::int64_t all = (length_ + count + size - 1) / size,
                     more = std::max<std::int64_t>(all - std::ssize(pages_), 0);
  if (more + shared > pool_->free()) return false;
  if (shared) {
    const PageCopy copy{pages_[begun], pool_->take()};
    pool_->leave(copy.from);
    pages_[begun] = copy.to;
    copies.push_back(copy);
  }
  for (std::int64_t n = 0; n < more; ++n) pages_.push_back(pool_->take());
  return true;
}

void PageTable::append(std::span<const std::int32_t> tokens) {
  const std::int64_t size = pool_->page_size_;
  if (length_ + std::ssize(tokens) > std::ssize(pages_) * size)
    throw Error("PageTable::append got " + std::to_string(tokens.size()) + " tokens, with room for " +
                std::to_string(std::ssize(pages_) * size - length_));
  if (!tokens.empty() && length_ % size != 0 && pool_->holders(pages_[length_ / size]) > 1)
    throw Error("PageTable::append would write into a page that another text has too: reserve() first");
  for (const std::int32_t token : tokens) {
    rest_.push_back(token);
    if (++length_ % size != 0) continue;
    if (epoch_ == pool_->epoch_) full_ = pool_->keep(pages_[length_ / size - 1], {full_, rest_});
    rest_.clear();
  }
}

PageTable PageTable::fork() const {
  PageTable table(*pool_);
  const std::int64_t size = pool_->page_size_;
  table.epoch_ = epoch_, table.length_ = length_, table.full_ = full_, table.rest_ = rest_;
  table.pages_.assign(pages_.begin(), pages_.begin() + (length_ + size - 1) / size);
  for (const std::int32_t n : table.pages_) pool_->hold(n);
  return table;
}

}  // namespace tg::nn

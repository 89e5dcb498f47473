#include <tilegrad/nn/generation/page_pool.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/run/backend.h>

namespace tg::nn {

PagePool::PagePool(std::int32_t pages, std::int32_t page_size, std::size_t hash_bits)
    : page_size_(page_size), hash_bits_(hash_bits) {
  if (pages <= 0 || page_size <= 0)
    throw ShapeError("PagePool needs positive sizes, got " + std::to_string(pages) + " pages of " +
                     std::to_string(page_size) + " tokens");
  const auto count = static_cast<std::size_t>(pages) + 1, lists = std::bit_ceil(count),
             size = static_cast<std::size_t>(page_size);
  const double bytes = static_cast<double>(count) * (sizeof(Page) + 4. * static_cast<double>(size)) +
                       4. * static_cast<double>(lists);
  const auto refuse = [&] {
    throw OutOfMemory("PagePool: no memory to keep books on " + std::to_string(pages) + " pages of " +
                      std::to_string(page_size) +
                      " tokens: " + std::to_string(std::llround(bytes / 1024 / 1024)) + " MiB needed");
  };
  // Without this check, the system might promise more memory than it has and kill the process later.
  if (bytes > static_cast<double>(Backend::worth_asking) &&
      bytes > static_cast<double>(backend(Device::cpu()).available_bytes()))
    refuse();
  try {
    pages_.resize(count);
    tokens_.resize(count * size);
    lists_.resize(lists);
  } catch (const std::bad_alloc&) {
    refuse();
  } catch (const std::length_error&) {
    refuse();
  }
  for (std::int32_t n = 1; n <= pages; ++n) insert(n, 0);
}

std::int32_t PagePool::holders(std::int32_t n) const {
  if (n < 1 || n > pages())
    throw Error("PagePool::holders got page " + std::to_string(n) + " of 1 to " + std::to_string(pages()));
  return pages_[n].holders;
}

PageTable PagePool::open(std::span<const std::int32_t> sequence) {
  PageTable table(*this);
  const auto size = static_cast<std::size_t>(page_size_);
  for (std::size_t at = 0; at + size < sequence.size(); at += size) {
    const auto tokens = sequence.subspan(at, size);
    const std::int32_t n = find(hash_of(table.full_, tokens), table.full_, tokens);
    if (n == 0) break;
    hold(n);
    table.pages_.push_back(n);
    table.full_ = pages_[n].found;
    table.length_ += page_size_;
  }
  return table;
}

void PagePool::forget() {
  ++epoch_;
  std::ranges::fill(lists_, 0);
  for (Page& page : pages_) page.found = 0;
}

void PagePool::insert(std::int32_t n, std::int32_t before) {
  const std::int32_t other = std::exchange(pages_[before].before, n);
  pages_[other].after = n;
  pages_[n].before = other, pages_[n].after = before;
  ++free_;
}

std::int32_t PagePool::take() {
  const std::int32_t n = pages_[0].after;
  Page& page = pages_[n];
  if (page.found != 0) {
    std::int32_t* at = &list_of(page.hash);
    while (*at != n) at = &pages_[*at].next;
    *at = page.next;
    page.found = 0;
  }
  hold(n);
  return n;
}

void PagePool::hold(std::int32_t n) {
  Page& page = pages_[n];
  if (page.holders++ > 0) return;
  pages_[page.before].after = page.after, pages_[page.after].before = page.before;
  --free_;
}

void PagePool::leave(std::int32_t n) {
  if (--pages_[n].holders == 0) insert(n, pages_[n].found != 0 ? 0 : pages_[0].after);
}

std::span<std::int32_t> PagePool::tokens_of(std::int32_t n) {
  const auto size = static_cast<std::size_t>(page_size_);
  return std::span(tokens_).subspan(static_cast<std::size_t>(n) * size, size);
}

std::size_t PagePool::hash_of(Content before, std::span<const std::int32_t> tokens) const {
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return (std::hash<std::string_view>()(bytes) ^ before * 0x9E3779B97F4A7C15u) & hash_bits_;
}

std::int32_t PagePool::find(std::size_t hash, Content before, std::span<const std::int32_t> tokens) {
  std::int32_t n = list_of(hash);
  while (n != 0 && !(pages_[n].hash == hash && pages_[n].after_content == before &&
                     std::ranges::equal(tokens_of(n), tokens)))
    n = pages_[n].next;
  return n;
}

// Returns the number that identifies the content of page n. If another page has the same content, returns
// that page's number.
PagePool::Content PagePool::keep(std::int32_t n, Content before, std::span<const std::int32_t> tokens) {
  const std::size_t hash = hash_of(before, tokens);
  if (const std::int32_t other = find(hash, before, tokens); other != 0) return pages_[other].found;
  Page& page = pages_[n];
  page.after_content = before, page.hash = hash;
  std::ranges::copy(tokens, tokens_of(n).begin());
  page.next = std::exchange(list_of(hash), n);
  return page.found = ++contents_;
}

PageTable& PageTable::operator=(PageTable&& other) noexcept {
  if (this == &other) return *this;
  std::destroy_at(this);
  return *std::construct_at(this, std::move(other));
}

// Releases the last page first. A prefix is useful without the pages after it, but those pages are useless
// without the prefix.
PageTable::~PageTable() {
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
  const std::int64_t size = pool_->page_size_, begun = length_ / size,
                     room = std::ssize(pages_) * size - length_,
                     more = detail::pages_for(std::max<std::int64_t>(count - room, 0), size);
  const bool shared = length_ % size != 0 && pool_->holders(pages_[begun]) > 1;
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
    throw Error("PageTable::append would write into a page that another sequence has too: reserve() first");
  for (const std::int32_t token : tokens) {
    rest_.push_back(token);
    if (++length_ % size != 0) continue;
    if (epoch_ == pool_->epoch_) full_ = pool_->keep(pages_[length_ / size - 1], full_, rest_);
    rest_.clear();
  }
}

PageTable PageTable::fork() const {
  PageTable table(*pool_);
  const std::int64_t size = pool_->page_size_;
  table.epoch_ = epoch_, table.length_ = length_, table.full_ = full_, table.rest_ = rest_;
  table.pages_.assign(pages_.begin(), pages_.begin() + detail::pages_for(length_, size));
  for (const std::int32_t n : table.pages_) pool_->hold(n);
  return table;
}

}  // namespace tg::nn

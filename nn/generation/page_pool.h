// Page tables of a paged key-value cache [Stratos, PagedAttention]: host-side bookkeeping without tensors. A
// page stores the keys and values of consecutive tokens of a sequence. Sequences with a common prefix share
// pages and copy one only before they write to it (copy on write). Pages without a sequence keep their
// content until their memory is needed. A later sequence with the same prefix can use that content. The page
// that was released first is reused first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tg::nn {

namespace detail {

// Returns the number of pages for `tokens` tokens.
inline std::int64_t pages_for(std::int64_t tokens, std::int64_t page_size) {
  return tokens / page_size + (tokens % page_size != 0);
}

}  // namespace detail

class PageTable;

// The pages of a cache, and which of them are free.
class PagePool {
 public:
  // Creates pages 1 … `pages` of `page_size` tokens each. No sequence uses page 0, which stands for rows that
  // are not written. Throws ShapeError for sizes that are not positive, and OutOfMemory for too many pages
  // for the host. Tests use fewer hash_bits to make hashes collide. Collisions cost only time.
  PagePool(std::int32_t pages, std::int32_t page_size, std::size_t hash_bits = ~std::size_t{0});
  PagePool(const PagePool&) = delete;  // page tables point to it and must not outlive it
  PagePool& operator=(const PagePool&) = delete;

  // The number of pages.
  std::int32_t pages() const { return static_cast<std::int32_t>(pages_.size()) - 1; }
  // Tokens per page.
  std::int32_t page_size() const { return page_size_; }
  // The number of pages that no sequence uses. Some may still contain tokens that a later sequence can use.
  std::int32_t free() const { return free_; }
  // Returns the number of sequences that use page n. Throws Error unless 1 ≤ n ≤ pages().
  std::int32_t holders(std::int32_t n) const;

  // Returns a page table for a sequence. It contains the longest prefix of the sequence that is stored in
  // full pages of the pool. The prefix is at least one token shorter than the sequence, because the last
  // token must be read to continue it.
  PageTable open(std::span<const std::int32_t> sequence);
  // Call it after the weights have changed. Later calls of open() then find no older content.
  void forget();

 private:
  friend class PageTable;
  // Identifies all tokens up to the end of a full page; 0: no tokens.
  using Content = std::uint64_t;
  // Page 0 is the head of the circular list of free pages, in the order of reuse.
  struct Page {
    std::int32_t holders = 0;            // number of sequences that use it
    std::int32_t before = 0, after = 0;  // neighbors in the list of free pages
    Content found = 0;                   // identifies its content; 0: it cannot be found
    // The next fields are for a page that can be found. A search compares its tokens, not only their hash.
    Content after_content = 0;
    std::size_t hash = 0;
    std::int32_t next = 0;  // the next page of the same hash list; 0: none
  };

  void insert(std::int32_t n, std::int32_t before);  // puts page n into the free list
  std::int32_t take();  // removes a free page, which must exist, and discards its content
  void hold(std::int32_t n);
  void leave(std::int32_t n);
  std::span<std::int32_t> tokens_of(std::int32_t n);
  std::size_t hash_of(Content before, std::span<const std::int32_t> tokens) const;
  std::int32_t& list_of(std::size_t hash) { return lists_[hash & (lists_.size() - 1)]; }
  std::int32_t find(std::size_t hash, Content before, std::span<const std::int32_t> tokens);  // 0: none
  Content keep(std::int32_t n, Content before, std::span<const std::int32_t> tokens);

  std::int32_t page_size_, free_ = 0;
  std::vector<Page> pages_;
  std::vector<std::int32_t> tokens_;  // [pages + 1, page_size], of pages that can be found
  std::vector<std::int32_t> lists_;   // the first page of each hash list; their number is a power of two
  std::size_t hash_bits_;
  Content contents_ = 0;
  std::uint64_t epoch_ = 0;  // incremented by forget()
};

// Before a sequence's next tokens are written, the caller must copy page `from` to page `to`.
struct PageCopy {
  std::int32_t from, to;  // page numbers
};

// The pages of one sequence. The destructor releases them; runs that read or write them must have finished by
// then.
class PageTable {
 public:
  PageTable(PageTable&& other) noexcept = default;  // leaves `other` without pages
  // Releases the current pages.
  PageTable& operator=(PageTable&& other) noexcept;
  // Releases the pages.
  ~PageTable();

  // The number of tokens in the cache.
  std::int64_t length() const { return length_; }
  // The page numbers, in order: pages for the tokens in the cache and for reserved tokens.
  const std::vector<std::int32_t>& pages() const { return pages_; }
  // Tokens per page. Must not be called after a move.
  std::int32_t page_size() const { return pool_->page_size(); }
  // Returns the cache row of the token at a position: page number · page_size() + offset, with pages counted
  // from 0. Throws Error if the table has no page for it.
  std::int64_t row(std::int64_t position) const;

  // Reserves pages for `count` more tokens. If the first of them would be written to a page that another
  // sequence shares, the table gets a new page instead, and an entry is added to `copies`. Returns false,
  // without changing anything, if there are too few free pages.
  bool reserve(std::int64_t count, std::vector<PageCopy>& copies);
  // Records that the given next tokens are in the cache. Once their page is full, other sequences can find
  // it. Throws Error if there is no room, or if another sequence has started to share the page of the first
  // token since reserve().
  void append(std::span<const std::int32_t> tokens);
  // Returns a second table for the same tokens, which shares the pages.
  PageTable fork() const;

 private:
  friend class PagePool;
  explicit PageTable(PagePool& pool) : pool_(&pool), epoch_(pool.epoch_) {}

  PagePool* pool_;
  std::uint64_t epoch_;
  std::int64_t length_ = 0;
  std::vector<std::int32_t> pages_;
  PagePool::Content full_ = 0;      // identifies the content of the full pages
  std::vector<std::int32_t> rest_;  // the tokens after the full pages
};

}  // namespace tg::nn

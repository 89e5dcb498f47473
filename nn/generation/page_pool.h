// Which sequence has which pages of a paged cache [Stratos, PagedAttention]: bookkeeping on the host, no
// tensors. A page has room for the keys and values of some tokens, one after the other. Sequences that begin
// alike share pages, and copy one only when they are about to write into it. Pages that no sequence has any
// more keep what they hold, and are found again by the tokens in and before them, until their memory is
// needed: those left longest ago go first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tg::nn {

namespace detail {

// How many pages tokens take.
inline std::int64_t pages_for(std::int64_t tokens, std::int64_t page_size) {
  return tokens / page_size + (tokens % page_size != 0);
}

}  // namespace detail

class PageTable;

class PagePool {
 public:
  // Pages 1 … `pages` of `page_size` tokens each. Page 0 is no sequence's: for rows that are written nowhere.
  // Throws ShapeError for sizes that are not positive, OutOfMemory for more pages than the host can keep
  // books on. A test may leave fewer bits of hashes, so that they collide: that takes longer, and changes
  // nothing else.
  PagePool(std::int32_t pages, std::int32_t page_size, std::size_t hash_bits = ~std::size_t{0});
  PagePool(const PagePool&) = delete;  // tables point to it, and must not outlive it
  PagePool& operator=(const PagePool&) = delete;

  std::int32_t pages() const { return static_cast<std::int32_t>(pages_.size()) - 1; }
  std::int32_t page_size() const { return page_size_; }
  // Pages that no sequence has, some of which may hold what another sequence will find.
  std::int32_t free() const { return free_; }
  // How many sequences have page n. Throws Error unless 1 ≤ n ≤ pages().
  std::int32_t holders(std::int32_t n) const;

  // The table of a sequence, with the longest beginning of it that the pool holds in full pages, at least one
  // token shorter than the sequence: to continue it, its last token has to be read in any case.
  PageTable open(std::span<const std::int32_t> sequence);
  // After a change of the weights: from now on, nothing that was computed before is found.
  void forget();

 private:
  friend class PageTable;
  // What full pages hold, all tokens up to and with theirs, has a number; 0: no tokens.
  using Content = std::uint64_t;
  // Page 0 is the ring that holds the free pages: those to be taken first come first.
  struct Page {
    std::int32_t holders = 0;
    std::int32_t before = 0, after = 0;  // of a free one: the free ones next to it
    Content found = 0;                   // what it holds; 0: it is not found
    // Of a page that is found. Its tokens are compared, not only hashed.
    Content after_content = 0;
    std::size_t hash = 0;
    std::int32_t next = 0;  // the next one whose hash has the same list; 0: none
  };

  void insert(std::int32_t n, std::int32_t before);  // among the free ones
  std::int32_t take();  // a free page, which then holds nothing; there must be one
  void hold(std::int32_t n);
  void leave(std::int32_t n);
  std::span<std::int32_t> tokens_of(std::int32_t n);
  std::size_t hash_of(Content before, std::span<const std::int32_t> tokens) const;
  std::int32_t& list_of(std::size_t hash) { return lists_[hash & (lists_.size() - 1)]; }
  std::int32_t find(std::size_t hash, Content before, std::span<const std::int32_t> tokens);  // 0: none
  Content keep(std::int32_t n, Content before, std::span<const std::int32_t> tokens);

  std::int32_t page_size_, free_ = 0;
  std::vector<Page> pages_;
  std::vector<std::int32_t> tokens_;  // [pages + 1, page_size], of pages that are found
  std::vector<std::int32_t> lists_;   // of those, by hash: the first one; 2^n of them
  std::size_t hash_bits_;
  Content contents_ = 0;
  std::uint64_t epoch_ = 0;  // forget() begins another
};

// Before a sequence's next tokens are written, all of page `from` has to be copied to page `to`.
struct PageCopy {
  std::int32_t from, to;
};

// The pages of one sequence, which it leaves when the table is destroyed. A run that still reads or writes
// them must have ended by then.
class PageTable {
 public:
  PageTable(PageTable&& other) noexcept = default;  // leaves it without pages
  PageTable& operator=(PageTable&& other) noexcept;
  ~PageTable();

  // The tokens that are in the cache, and the pages that have room for them and for those reserved.
  std::int64_t length() const { return length_; }
  const std::vector<std::int32_t>& pages() const { return pages_; }
  std::int32_t page_size() const { return pool_->page_size(); }  // not of a table that was moved from
  // The row of the token at a position, of rows [pages of the pool + 1, page_size()]. Throws Error if there
  // is no page for it.
  std::int64_t row(std::int64_t position) const;

  // Makes room for `count` more tokens. Where the first of them would be written into a page that another
  // sequence has too, the table gets another page, and `copies` one more entry. Returns false, and changes
  // nothing, if there are not enough free pages.
  bool reserve(std::int64_t count, std::vector<PageCopy>& copies);
  // The next tokens, for which there is room, are now in the cache: their pages, once full, are found by
  // other sequences. Throws Error if there is no room, or if another sequence has got the page of the first
  // since reserve().
  void append(std::span<const std::int32_t> tokens);
  // The same sequence once more, which may continue differently.
  PageTable fork() const;

 private:
  friend class PagePool;
  explicit PageTable(PagePool& pool) : pool_(&pool), epoch_(pool.epoch_) {}

  PagePool* pool_;
  std::uint64_t epoch_;
  std::int64_t length_ = 0;
  std::vector<std::int32_t> pages_;
  PagePool::Content full_ = 0;      // what the full pages hold
  std::vector<std::int32_t> rest_;  // the tokens after them
};

}  // namespace tg::nn

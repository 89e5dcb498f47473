// Before each step, decides which sequences and which of their tokens a model reads next, and which cache
// pages they use. Runs on the host without tensors [Stratos, PagedAttention §2]. Sequences join and leave at
// any step. If pages run out, the sequence that joined last is preempted. It is recomputed when pages are
// free.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <tilegrad/nn/generation/page_pool.h>

namespace tg::nn {

namespace detail {

// A map from numbers to values, with lookup by index, because an engine looks up each sequence several times
// per step. Numbers are given in ascending order and never reused. P is a pointer that owns its value; null
// means no value. Memory: one pointer per number since the oldest number that has a value.
template <class P>
class Numbered {
 public:
  // `number` must be larger than all earlier ones.
  void put(std::uint64_t number, P value) {
    values_.resize(static_cast<std::size_t>(number - first_));
    values_.push_back(std::move(value));
    ++size_;
  }
  // Null if there is no value.
  auto* find(std::uint64_t number) const {
    return number >= first_ && number - first_ < values_.size()
               ? values_[static_cast<std::size_t>(number - first_)].get()
               : nullptr;
  }
  // The owning pointer of an existing value.
  const P& owner(std::uint64_t number) const { return values_[static_cast<std::size_t>(number - first_)]; }
  bool erase(std::uint64_t number) {
    if (!find(number)) return false;
    const P gone = std::move(values_[static_cast<std::size_t>(number - first_)]);  // destroyed last
    for (; !values_.empty() && !values_.front(); ++first_) values_.pop_front();
    --size_;
    return true;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  template <class F>
  void each(F f) const {
    for (const P& value : values_)
      if (value) f(*value);
  }

 private:
  std::deque<P> values_;  // starting at number first_
  std::uint64_t first_ = 1;
  std::size_t size_ = 0;
};

}  // namespace detail
// Schedules sequences of an engine.
class Scheduler {
 public:
  // Limits of a scheduler.
  struct Options {
    std::int32_t pages = 1, page_size = 16;  // of the PagePool
    std::int64_t slots = 16;                 // maximum number of sequences per step
    std::int64_t chunk = 256;                // maximum number of prompt tokens per step
    // Prompt tokens are read in groups of this size; a partial group counts as full.
    std::int64_t group = 1;
    std::int32_t host_pages = 0;  // maximum number of pages of preempted sequences that the caller stores
  };
  // Identifies a sequence; ids ascend and are never reused.
  using Id = std::uint64_t;

  // Throws ShapeError for sizes that are not positive (host_pages: negative).
  explicit Scheduler(const Options& options);

  // Adds a sequence that will have at most `most` tokens. Sequences are served in the order of their ids.
  // Throws Error for an empty sequence, for a sequence of more than `most` tokens, and for a sequence that is
  // too long for all pages together.
  Id add(std::vector<std::int32_t> sequence, std::int64_t most);
  // The position of a forked sequence in the waiting order.
  enum class ForkOrder {
    last,       // after the sequences that wait
    of_parent,  // may occupy a free slot before sequences that wait
  };
  // Adds a copy of a sequence with its known tokens. If it need not wait and a slot is free, it runs
  // immediately and shares its parent's pages. Otherwise it waits. Throws Error for an unknown id.
  Id fork(Id sequence, ForkOrder order = ForkOrder::last);
  // Adds a generated token. Throws Error if the sequence already has `most` tokens.
  void append(Id sequence, std::int32_t token);
  // Announces a token that a started run will generate and that append() will add later. Until then, the
  // sequence is planned as if it had the token, but it cannot join the batch. Throws the errors of append(),
  // and Error for a sequence with unread tokens.
  void expect(Id sequence);
  // Removes a sequence that has ended or was canceled. Its pages become free, but sequences with the same
  // prefix may still find them.
  void remove(Id sequence);

  // Tokens [begin, begin + count) of a sequence that are read in one step. The last one may be only expected.
  struct Part {
    Id sequence;                // the sequence
    std::int64_t begin, count;  // first token, and number of tokens
  };
  // Pages of a sequence, starting at its page index `first`. When a sequence rejoins, the caller's copy is
  // obsolete, even if `in` lists only some of its pages or none.
  struct Moved {
    Id sequence;                      // the sequence
    std::int64_t first;               // index into the sequence's pages
    std::vector<std::int32_t> pages;  // page numbers in the cache
  };
  // The work of a step, which the caller does before the next plan. It first copies the pages of `out` to the
  // host and the pages of `in` back. It then does `copies`, and finally reads the parts. Each sequence has at
  // most one part.
  struct Plan {
    std::vector<Moved> out, in;         // pages to the host, and from the host
    std::vector<PageCopy> copies;       // pages to copy within the cache
    std::vector<Part> single, several;  // parts of one token, and of several tokens
    // Whether no tokens are read.
    bool is_empty() const { return single.empty() && several.empty(); }
  };
  // Plans the next step. Each running sequence with a single unread token reads it. A sequence with several
  // unread tokens reads as many as the rest of the step's `chunk` allows. Then waiting sequences join if
  // there are slots and enough pages for all their tokens. None joins if a sequence has just been preempted.
  // A sequence without unread tokens is idle. It keeps its pages until others need them, and rejoins after it
  // has got a token. Valid until the next call.
  const Plan& plan();
  // Records that the tokens of a part are in the cache. Throws Error for a part that does not follow the
  // sequence's cached tokens, and for a part with an expected token.
  void done(const Part& part);
  // Marks the sequence's last token as unread, because its result was lost. The sequence expects no token any
  // more.
  void read_again(Id sequence);

  // The known tokens of a sequence. Throws Error for an unknown id.
  const std::vector<std::int32_t>& tokens(Id sequence) const { return at(sequence).tokens; }
  // Whether a sequence has pages. Throws Error for an unknown id.
  bool is_running(Id sequence) const { return at(sequence).table.has_value(); }
  // The page table of a running sequence. Throws Error for a sequence that waits.
  const PageTable& table(Id sequence) const;
  // The pages of the cache.
  const PagePool& pool() const { return pool_; }
  // Calls PagePool::forget() and discards copies on the host. Running sequences keep their pages.
  void forget();
  // Restarts all sequences after a failed plan: the content of the cache and of the caller's copies is lost.
  // All sequences wait and are recomputed from their first token.
  void start_again();

  // The number of sequences that wait.
  std::size_t waiting() const { return waiting_.size(); }
  // The number of sequences that have pages.
  std::size_t running() const { return running_.size(); }
  // The number of cached tokens of running sequences; tokens of shared pages count once per sequence.
  std::int64_t cached() const;
  // The capacity, in tokens, of all pages that sequences use.
  std::int64_t held() const { return std::int64_t{pool_.pages() - pool_.free()} * pool_.page_size(); }
  // The number of preemptions so far.
  std::int64_t preemptions() const { return preemptions_; }
  // The number of tokens so far that were already in the cache when their sequence joined.
  std::int64_t found() const { return found_; }

 private:
  struct Sequence {
    Id id;
    std::vector<std::int32_t> tokens;
    std::int64_t most;
    std::optional<PageTable> table = {};
    int preemptions = 0;
    std::int64_t read = 0;     // number of tokens that have been read at least once
    std::int64_t on_host = 0;  // number of its first tokens in pages that the caller stores
    int expected = 0;          // 1: one more token, which is not known yet
    bool is_old = false;       // it was read, at least in part, before forget()
    std::int64_t size() const { return std::ssize(tokens) + expected; }
    bool is_idle() const { return read == size(); }
  };
  using Sequences = std::map<Id, Sequence*>;

  const Sequence& at(Id sequence) const;
  Sequence& at(Id sequence) { return const_cast<Sequence&>(std::as_const(*this).at(sequence)); }
  std::int32_t pages_for(std::int64_t tokens) const;
  bool make_room(Sequence& sequence, std::int64_t count);
  void preempt(Sequence& sequence);
  bool join(Sequence& sequence);
  void read_on(Sequence& sequence);
  Sequence* next_waiting();
  void drop_from_host(Sequence& sequence);
  bool will_be_found(const Sequence& sequence) const;

  Options options_;
  PagePool pool_;
  detail::Numbered<std::unique_ptr<Sequence>> sequences_;
  Sequences running_, waiting_;
  Plan plan_;
  std::int64_t left_ = 0;  // rest of the plan's chunk
  Id next_ = 1;
  std::int32_t host_used_ = 0;
  std::int64_t preemptions_ = 0, found_ = 0;
};

}  // namespace tg::nn

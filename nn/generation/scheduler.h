// Which tokens of which sequences a model reads in its next step, and in which pages of the cache: decided
// anew before every step, on the host, without tensors [Stratos, PagedAttention §2]. Sequences join and leave
// at any step. Where pages run out, the sequence that came last gives its own back, and is read again when
// there is room.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <tilegrad/nn/generation/page_pool.h>

namespace tg::nn {

namespace detail {

// Sequences by their numbers, which are given in ascending order and never again: found by place, without a
// search, for an engine looks each of its sequences up several times in a step.
// P: a pointer that owns its value; null for numbers without one. Each number after the last that was erased
// before all others takes the memory of a pointer.
template <class P>
class Numbered {
 public:
  // `number` is larger than all before it.
  void put(std::uint64_t number, P value) {
    values_.resize(static_cast<std::size_t>(number - first_));
    values_.push_back(std::move(value));
    ++size_;
  }
  // Null if there is none.
  auto* find(std::uint64_t number) const {
    return number >= first_ && number - first_ < values_.size()
               ? values_[static_cast<std::size_t>(number - first_)].get()
               : nullptr;
  }
  // The owner of a value that is there.
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
  std::deque<P> values_;  // from number first_ on
  std::uint64_t first_ = 1;
  std::size_t size_ = 0;
};

}  // namespace detail
class Scheduler {
 public:
  struct Options {
    std::int32_t pages = 1, page_size = 16;  // of the PagePool
    std::int64_t slots = 16;                 // sequences that are read in the same step, at most
    std::int64_t chunk = 256;                // tokens of prompts that are read in a step, at most
    std::int64_t group = 1;                  // they are read in groups of so many, which count as full ones
    std::int32_t host_pages = 0;             // pages of sequences that had to leave, kept by the caller
  };
  using Id = std::uint64_t;

  // Throws ShapeError for sizes that are not positive (host_pages: negative).
  explicit Scheduler(const Options& options);

  // A sequence that will have at most `most` tokens. Sequences are served in the order of their numbers.
  // Throws Error for an empty sequence, one of more than `most` tokens, and one that does not fit even if it
  // has all pages.
  Id add(std::vector<std::int32_t> sequence, std::int64_t most);
  // The same sequence once more, as far as its tokens are known, which may continue differently. It comes
  // last. If its turn has come and there is a slot, it runs at once, and the two share their pages.
  enum class Turn {
    last,       // it comes after the sequences that wait
    of_parent,  // it is a part of what its parent is, and takes a free slot before them
  };
  Id fork(Id sequence, Turn turn = Turn::last);
  void append(Id sequence, std::int32_t token);  // throws Error if it has `most` tokens already
  // A run that has been started says how the sequence goes on, but not yet: append() will have that token.
  // Until then the sequence is planned as if it had the token, but does not join. Throws as append() does,
  // and for a sequence with tokens that have not been read.
  void expect(Id sequence);
  // It is over, or no longer wanted: its pages are free, though they may be found by sequences that begin
  // alike.
  void remove(Id sequence);

  // Tokens [begin, begin + count) of a sequence, to be read in a step. The last one may be expected.
  struct Part {
    Id sequence;
    std::int64_t begin, count;
  };
  // Pages of a sequence, from its page `first` on. What the caller has kept of a sequence is over when it
  // comes back, if only in part, or in no page at all.
  struct Moved {
    Id sequence;
    std::int64_t first;
    std::vector<std::int32_t> pages;
  };
  // To be done in this order, before the next plan: the pages of `out` are copied to the host, those of `in`
  // back; then `copies`; then the parts are read, of which each sequence has at most one. Those of the first
  // list have one token.
  struct Plan {
    std::vector<Moved> out, in;
    std::vector<PageCopy> copies;
    std::vector<Part> single, several;
    bool is_empty() const { return single.empty() && several.empty(); }
  };
  // Each sequence whose last token has not been read reads on: the one token, or the next `chunk` of them, if
  // that many may still be read in this step. Then sequences that wait join, as long as there are slots and
  // pages for all they have, and nobody has just had to leave. A sequence without another token to read is
  // idle: it keeps its pages until others need them, and joins again when it gets a token.
  const Plan& plan();
  // The tokens of a part of this plan are in the cache, for all that is done after this. Throws Error for a
  // part that does not follow what the sequence has there, and for one with a token that is only expected.
  void done(const Part& part);
  // What followed the last token of the sequence, which has been read, got lost: it is to be read again. No
  // token is expected any more.
  void read_again(Id sequence);

  const std::vector<std::int32_t>& tokens(Id sequence) const { return at(sequence).tokens; }
  bool is_running(Id sequence) const { return at(sequence).table.has_value(); }
  const PageTable& table(Id sequence) const;  // throws Error for a sequence that waits
  const PagePool& pool() const { return pool_; }
  void forget();  // PagePool::forget(); sequences that are being read keep what they have
  // What the cache and the caller hold is lost, as a plan could not be carried out: all sequences wait, to be
  // read again from their beginnings.
  void start_again();

  std::size_t waiting() const { return waiting_.size(); }
  std::size_t running() const { return running_.size(); }
  std::int64_t cached()
      const;  // tokens of all sequences in the cache, those of shared pages as often as shared
  std::int64_t held() const {  // room in pages that a sequence has
    return std::int64_t{pool_.pages() - pool_.free()} * pool_.page_size();
  }
  std::int64_t preemptions() const { return preemptions_; }
  std::int64_t found() const { return found_; }  // tokens that were in the cache when their sequence joined

 private:
  struct Sequence {
    Id id;
    std::vector<std::int32_t> tokens;
    std::int64_t most;
    std::optional<PageTable> table = {};
    int preemptions = 0;
    std::int64_t read = 0;     // so many of its tokens have been read, though they may have to be again
    std::int64_t on_host = 0;  // its first tokens are in pages that the caller keeps
    int expected = 0;          // 1: one more token, which is not known yet
    bool is_old = false;       // it was read, in part, before forget()
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
  std::int64_t left_ = 0;  // of the plan's chunk
  Id next_ = 1;
  std::int32_t host_used_ = 0;
  std::int64_t preemptions_ = 0, found_ = 0;
};

}  // namespace tg::nn

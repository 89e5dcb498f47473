// A reference implementation of Scheduler and PagePool. It follows the rules of scheduler.h and page_pool.h,
// but searches lists instead of keeping indexes. It determines which sequences run, and which pages are used,
// copied, moved and reused.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <tilegrad/nn/generation/scheduler.h>

namespace tg::testing {

class PlainPool {
 public:
  using Tokens = std::vector<std::int32_t>;
  PlainPool(std::int32_t pages, std::int32_t size) : size(size), pages_(static_cast<std::size_t>(pages) + 1) {
    for (std::int32_t n = 1; n <= pages; ++n) free.push_back(n);
  }

  // The pages of a sequence and their content.
  struct Table {
    Tokens pages = {}, rest = {};  // `rest`: the tokens after the full pages
    std::int64_t length = 0;
    std::uint64_t full = 0;  // identifies the content of the full pages
    int epoch = 0;
  };
  Table open(const Tokens& sequence) {
    Table t{.epoch = epoch_};
    while (t.length + size < std::ssize(sequence)) {
      const auto next = sequence.begin() + t.length;
      const std::int32_t n = find(t.full, Tokens(next, next + size));
      if (n == 0) break;
      hold(n);
      t.pages.push_back(n), t.full = pages_[n].content, t.length += size;
    }
    return t;
  }
  bool reserve(Table& t, std::int64_t count, std::vector<std::pair<int, int>>& copies) {
    if (count <= 0) return true;
    const bool is_shared = t.length % size != 0 && holders(t.pages[t.length / size]) > 1;
    const std::int64_t more =
        std::max<std::int64_t>((t.length + count + size - 1) / size - std::ssize(t.pages), 0);
    if (more + is_shared > std::ssize(free)) return false;
    if (is_shared) {
      std::int32_t& page = t.pages[t.length / size];
      copies.emplace_back(page, take());
      leave(page);
      page = copies.back().second;
    }
    for (std::int64_t n = 0; n < more; ++n) t.pages.push_back(take());
    return true;
  }
  void append(Table& t, const Tokens& tokens) {
    for (const std::int32_t token : tokens) {
      t.rest.push_back(token);
      if (++t.length % size != 0) continue;
      if (t.epoch == epoch_) t.full = keep(t.pages[t.length / size - 1], t.full, t.rest);
      t.rest.clear();
    }
  }
  Table fork(const Table& t) {
    Table copy = t;
    copy.pages.resize(static_cast<std::size_t>((t.length + size - 1) / size));
    for (const std::int32_t n : copy.pages) hold(n);
    return copy;
  }
  void close(Table& t) {
    for (; !t.pages.empty(); t.pages.pop_back()) leave(t.pages.back());
  }
  void forget() {
    ++epoch_;
    for (Page& p : pages_) p.content = 0;
  }
  int holders(std::int32_t n) const { return pages_[n].holders; }

  const std::int64_t size;
  Tokens free;  // free pages in the order of allocation

 private:
  struct Page {
    int holders = 0;
    std::uint64_t content = 0, before = 0;  // 0: the page cannot be found
    Tokens tokens = {};
  };
  std::int32_t find(std::uint64_t before, const Tokens& tokens) const {
    for (std::size_t n = 1; n < pages_.size(); ++n)
      if (pages_[n].content != 0 && pages_[n].before == before && pages_[n].tokens == tokens)
        return static_cast<std::int32_t>(n);
    return 0;
  }
  std::uint64_t keep(std::int32_t n, std::uint64_t before, const Tokens& tokens) {
    if (const std::int32_t other = find(before, tokens)) return pages_[other].content;
    pages_[n].before = before, pages_[n].tokens = tokens;
    return pages_[n].content = ++contents_;
  }
  std::int32_t take() {
    const std::int32_t n = free.front();
    pages_[n].content = 0;
    hold(n);
    return n;
  }
  void hold(std::int32_t n) {
    if (pages_[n].holders++ == 0) std::erase(free, n);
  }
  void leave(std::int32_t n) {  // pages that cannot be found again are allocated first
    if (--pages_[n].holders == 0) free.insert(pages_[n].content != 0 ? free.end() : free.begin(), n);
  }
  std::vector<Page> pages_;
  std::uint64_t contents_ = 0;
  int epoch_ = 0;
};

class PlainScheduler {
 public:
  using Tokens = PlainPool::Tokens;
  using Id = nn::Scheduler::Id;
  struct Sequence {
    Tokens tokens;
    std::int64_t most;
    bool runs = false, is_old = false;
    PlainPool::Table table = {};
    int preemptions = 0;
    std::int64_t read = 0, on_host = 0, expected = 0;
    std::int64_t size() const { return std::ssize(tokens) + expected; }
    bool is_idle() const { return read == size(); }
  };
  struct Plan {
    std::vector<std::tuple<Id, std::int64_t, Tokens>> out, in;
    std::vector<std::pair<int, int>> copies;
    std::vector<std::tuple<Id, std::int64_t, std::int64_t>> single, several;
    bool operator==(const Plan&) const = default;
  };

  explicit PlainScheduler(const nn::Scheduler::Options& o) : o_(o), pool(o.pages, o.page_size) {}

  Id add(const Tokens& tokens, std::int64_t most) {
    sequences.emplace(next_, Sequence{tokens, most});
    return next_++;
  }
  Id fork(Id from, nn::Scheduler::ForkOrder order) {
    bool is_waiting = false;
    for (const auto& [id, t] : sequences) is_waiting = is_waiting || (!t.runs && !t.is_idle());
    const bool fits = running() < o_.slots && (order == nn::Scheduler::ForkOrder::of_parent || !is_waiting);
    const Id id = add(sequences.at(from).tokens, sequences.at(from).most);
    Sequence &parent = sequences.at(from), &t = sequences.at(id);
    t.read = parent.read;
    if (parent.runs && fits) t.runs = true, t.table = pool.fork(parent.table), t.is_old = parent.is_old;
    return id;
  }
  void append(Id id, std::int32_t token) {
    sequences.at(id).tokens.push_back(token), sequences.at(id).expected = 0;
  }
  void expect(Id id) { sequences.at(id).expected = 1; }
  void read_again(Id id) {
    Sequence& t = sequences.at(id);
    t.expected = 0, t.read = std::min(t.read, t.size() - 1);
  }
  void remove(Id id) {
    stop(sequences.at(id));
    sequences.erase(id);
  }
  void done(Id id, std::int64_t begin, std::int64_t count) {
    Sequence& t = sequences.at(id);
    pool.append(t.table, Tokens(t.tokens.begin() + begin, t.tokens.begin() + begin + count));
    t.read = std::max(t.read, begin + count);
  }
  void forget() {
    pool.forget();
    for (auto& [id, t] : sequences) t.on_host = 0, t.is_old = t.runs;
  }
  void start_again() {
    forget();
    for (auto& [id, t] : sequences) stop(t);
  }

  Plan plan() {
    plan_ = {}, left_ = o_.chunk;
    const std::int64_t before = preemptions;
    for (auto& [id, t] : sequences)
      if (t.runs) read_on(id);
    if (preemptions > before && !is_empty()) return plan_;
    while (left_ > 0) {
      const auto next = std::ranges::find_if(
          sequences, [](const auto& t) { return !t.second.runs && !t.second.is_idle(); });
      if (next == sequences.end() || next->second.expected > 0) break;
      if (running() < o_.slots && join(next->first)) {
        read_on(next->first);
      } else if (is_empty() && running() > 0) {
        Id last = 0;
        for (const auto& [id, t] : sequences)
          if (t.runs) last = id;
        preempt(last);
      } else {
        break;
      }
    }
    return plan_;
  }

  std::int64_t running() const {
    return std::ranges::count_if(sequences, [](const auto& t) { return t.second.runs; });
  }
  std::int64_t cached() const {
    std::int64_t n = 0;
    for (const auto& [id, t] : sequences) n += t.runs ? t.table.length : 0;
    return n;
  }

  std::map<Id, Sequence> sequences;
  std::int64_t preemptions = 0, found = 0, spared_count = 0;

 private:
  bool is_empty() const { return plan_.single.empty() && plan_.several.empty(); }
  std::int64_t pages_of(std::int64_t tokens) const { return (tokens + o_.page_size - 1) / o_.page_size; }
  std::int64_t free_on_host() const {
    std::int64_t n = o_.host_pages;
    for (const auto& [id, t] : sequences) n -= pages_of(t.on_host);
    return n;
  }
  void stop(Sequence& t) {
    pool.close(t.table);
    t.table = {}, t.runs = t.is_old = false;
  }
  void preempt(Id id) {
    Sequence& t = sequences.at(id);
    const std::int64_t n = pages_of(t.table.length);
    if (n > 0 && !t.is_old && n <= free_on_host()) {
      plan_.out.emplace_back(id, 0, Tokens(t.table.pages.begin(), t.table.pages.begin() + n));
      t.on_host = t.table.length;
    }
    stop(t);
    ++t.preemptions, ++preemptions;
  }
  // Preempts the last sequence that was added after this sequence. If a sequence was already preempted three
  // times, preempts a different sequence if possible. If there is no later sequence, preempts this sequence.
  bool make_room(Id id, std::int64_t count) {
    while (!pool.reserve(sequences.at(id).table, count, plan_.copies)) {
      Id last = 0, spared = 0;
      for (const auto& [other, t] : sequences)
        if (other > id && t.runs) (t.preemptions < 3 ? last : spared) = other;
      const Id gone = last != 0 ? last : spared != 0 ? spared : id;
      spared_count += last != 0 && spared > last;
      preempt(gone);
      if (gone == id) return false;
    }
    return true;
  }
  void read_on(Id id) {
    Sequence& t = sequences.at(id);
    const std::int64_t begin = t.table.length, unread = t.size() - begin,
                       count = unread == 1 ? 1 : std::min(unread, left_);
    if (count == 0 || !make_room(id, count)) return;
    (unread == 1 ? plan_.single : plan_.several).emplace_back(id, begin, count);
    if (unread > 1) left_ = std::max<std::int64_t>(left_ - (count + o_.group - 1) / o_.group * o_.group, 0);
  }
  bool join(Id id) {
    Sequence& t = sequences.at(id);
    t.table = pool.open(t.tokens);
    const std::int64_t length = t.table.length, size = t.size();
    const std::int64_t reserved = running() == 0 ? 0 : o_.pages / 100;
    bool is_read_now = false;  // another sequence is reading its next page
    for (const auto& [other, begin, count] : plan_.several) {
      const Tokens& its = sequences.at(other).tokens;
      const std::int64_t end = length + o_.page_size;
      is_read_now = is_read_now || (end < size && begin < end && end <= begin + count &&
                                    std::equal(t.tokens.begin(), t.tokens.begin() + end, its.begin()));
    }
    if (pages_of(size) - pages_of(length) > std::ssize(pool.free) - reserved || is_read_now) {
      pool.close(t.table);
      t.table = {};
      return false;
    }
    found += length;
    if (t.on_host > 0) {
      const std::int64_t back = std::clamp(t.on_host, length, size - 1) - length;
      const std::int64_t first = std::ssize(t.table.pages);
      pool.reserve(t.table, back, plan_.copies);
      plan_.in.emplace_back(id, first, Tokens(t.table.pages.begin() + first, t.table.pages.end()));
      pool.append(t.table, Tokens(t.tokens.begin() + length, t.tokens.begin() + length + back));
    }
    t.on_host = 0, t.runs = true;
    return true;
  }

  nn::Scheduler::Options o_;
  Plan plan_;
  std::int64_t left_ = 0;
  Id next_ = 1;

 public:
  PlainPool pool;
};

}  // namespace tg::testing

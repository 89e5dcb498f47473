// Tests Scheduler without a model. The test follows plans to write and move the rows of a cache. Each row
// identifies its token and all previous tokens. A sequence must always find the rows that it has read. Every
// sequence must end. The newest sequences must be preempted first.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>

#include <tilegrad/nn/generation/scheduler.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using nn::Scheduler;
using Id = Scheduler::Id;
using Tokens = std::vector<std::int32_t>;
using tg::testing::error_of;

Tokens count_from(std::int32_t first, std::int64_t n) {
  Tokens tokens;
  for (std::int64_t i = 0; i < n; ++i) tokens.push_back(first + static_cast<std::int32_t>(i));
  return tokens;
}

// Describes a plan: the parts of prompts, then "|", then the single tokens.
std::string text_of(const Scheduler::Plan& plan) {
  std::string s;
  const auto add = [&](const std::vector<Scheduler::Part>& parts) {
    for (const auto& p : parts)
      s += std::to_string(p.sequence) + ":" + std::to_string(p.begin) + "+" + std::to_string(p.count) + " ";
  };
  add(plan.several);
  s += "| ";
  add(plan.single);
  s.pop_back();
  return s;
}

// Runs a step. If all tokens of a sequence have been read, one more token is added to it.
std::string step(Scheduler& scheduler) {
  const Scheduler::Plan& plan = scheduler.plan();
  for (const auto* parts : {&plan.several, &plan.single})
    for (const auto& p : *parts) {
      scheduler.done(p);
      if (p.begin + p.count == std::ssize(scheduler.tokens(p.sequence))) scheduler.append(p.sequence, 0);
    }
  return text_of(plan);
}

TEST(Scheduler, ReadsPromptsInChunksNextToGeneratingSequences) {
  Scheduler s({.pages = 20, .page_size = 2, .slots = 3, .chunk = 4});
  const Id a = s.add(count_from(1, 3), 9), b = s.add(count_from(10, 6), 9), c = s.add(count_from(20, 1), 9),
           d = s.add(count_from(30, 1), 9);
  EXPECT_EQ(s.waiting(), 4u);
  EXPECT_EQ(step(s), "1:0+3 2:0+1 |");
  EXPECT_EQ(step(s), "2:1+4 | 1:3+1");
  EXPECT_EQ(step(s), "| 1:4+1 2:5+1 3:0+1");
  EXPECT_EQ(step(s), "| 1:5+1 2:6+1 3:1+1");
  EXPECT_FALSE(s.is_running(d));
  s.remove(a);
  EXPECT_EQ(step(s), "| 2:7+1 3:2+1 4:0+1");
  EXPECT_EQ(s.cached(), 8 + 3 + 1);
  EXPECT_EQ(s.table(c).length(), 3);
  EXPECT_EQ(s.running(), 3u);
  s.remove(b), s.remove(c), s.remove(d);
  EXPECT_TRUE(s.plan().is_empty());
  EXPECT_EQ(s.pool().free(), 20);
}

TEST(Scheduler, GroupsOfAPromptCountAsFullOnesInAChunk) {
  Scheduler s({.pages = 20, .page_size = 2, .slots = 4, .chunk = 12, .group = 4});
  s.add(count_from(1, 5), 9), s.add(count_from(10, 7), 9), s.add(count_from(20, 2), 9);
  EXPECT_EQ(step(s), "1:0+5 2:0+4 |");
  EXPECT_EQ(step(s), "2:4+3 3:0+2 | 1:5+1");
  Scheduler uneven({.pages = 20, .page_size = 2, .slots = 4, .chunk = 10, .group = 4});
  uneven.add(count_from(1, 5), 9), uneven.add(count_from(10, 7), 9);
  EXPECT_EQ(step(uneven), "1:0+5 2:0+2 |");
}

TEST(Scheduler, AForkJoinsAfterWaitingSequencesUnlessItIsAPartOfItsParent) {
  Scheduler s({.pages = 20, .page_size = 2, .slots = 3, .chunk = 8});
  const Id a = s.add(count_from(1, 3), 9);
  EXPECT_EQ(step(s), "1:0+3 |");
  EXPECT_TRUE(s.is_running(s.fork(a)));  // sequence 2, because no sequence before it waits
  const Id waits = s.add(count_from(10, 2), 9);
  EXPECT_FALSE(s.is_running(s.fork(a)));
  EXPECT_TRUE(s.is_running(s.fork(a, Scheduler::ForkOrder::of_parent)));
  EXPECT_EQ(step(s), "| 1:3+1 2:3+1 5:3+1");
  s.remove(2);
  EXPECT_EQ(step(s), "3:0+2 | 1:4+1 5:4+1");
  EXPECT_TRUE(s.is_running(waits));
}

TEST(Scheduler, ASequenceIsReadWithAnUnknownTokenButDoesNotJoin) {
  Scheduler s({.pages = 3, .page_size = 2, .slots = 3, .chunk = 8});
  const Id a = s.add(count_from(1, 2), 5), b = s.add(count_from(10, 1), 5);
  EXPECT_NE(error_of([&] { s.expect(a); }).find("no token can be expected of sequence 1"), std::string::npos);
  EXPECT_EQ(text_of(s.plan()), "1:0+2 | 2:0+1");
  s.done({a, 0, 2}), s.done({b, 0, 1});
  s.expect(a), s.expect(b);
  EXPECT_NE(error_of([&] { s.expect(a); }).find("no token can be expected of sequence 1"), std::string::npos);
  EXPECT_EQ(text_of(s.plan()), "| 1:2+1 2:1+1");
  EXPECT_NE(error_of([&] { s.done({a, 2, 1}); }).find("do not follow"), std::string::npos);
  s.append(a, 3), s.append(b, 11);
  EXPECT_EQ(s.tokens(a), (Tokens{1, 2, 3}));
  s.done({a, 2, 1}), s.done({b, 1, 1});
  s.expect(a), s.expect(b);
  EXPECT_EQ(text_of(s.plan()), "| 1:3+1");  // b has been preempted
  EXPECT_FALSE(s.is_running(b));
  s.append(a, 4);
  s.done({a, 3, 1});
  s.remove(a);
  EXPECT_TRUE(s.plan().is_empty());  // there is room for the sequence, but its last token is not known
  s.append(b, 12);
  EXPECT_EQ(text_of(s.plan()), "| 2:2+1");  // its first page was found in the cache
  s.done({b, 2, 1});
  EXPECT_TRUE(s.plan().is_empty());
  s.read_again(b);  // the token after this page was lost
  s.start_again();
  EXPECT_EQ(text_of(s.plan()), "2:0+3 |");
}

TEST(Scheduler, ASequenceWaitsForAPageThatAnotherIsReading) {
  Scheduler s({.pages = 20, .page_size = 4, .slots = 8, .chunk = 100});
  s.add(count_from(1, 10), 20), s.add(count_from(1, 11), 20);
  EXPECT_EQ(step(s), "1:0+10 |");
  EXPECT_EQ(step(s), "2:8+3 | 1:10+1");
  EXPECT_EQ(s.found(), 8);
  EXPECT_EQ(s.pool().holders(s.table(2).pages()[1]), 2);
}

// In this step, the other sequence may read the complete page or only a part of it.
TEST(Scheduler, ASequenceWaitsForAPageOnlyIfItIsReadToItsEnd) {
  for (std::int32_t size = 2; size <= 9; ++size) {
    SCOPED_TRACE(size);
    Scheduler s({.pages = 20, .page_size = 4, .slots = 8, .chunk = 100});
    s.add(count_from(1, size), 20), s.add(count_from(1, 7), 20);
    const std::string first = "1:0+" + std::to_string(size);
    EXPECT_EQ(step(s), size < 4 ? first + " 2:0+7 |" : first + " |");
    EXPECT_EQ(s.is_running(2), size < 4);
    EXPECT_EQ(step(s).starts_with("2:4+3 "), size >= 4);
    EXPECT_EQ(s.found(), size < 4 ? 0 : 4);
  }
}

TEST(Scheduler, TheNewestIsPreemptedFirstUnlessPreemptedThreeTimes) {
  Scheduler s({.pages = 12, .page_size = 1, .slots = 6, .chunk = 100});
  const auto read = [&] {
    const Scheduler::Plan& plan = s.plan();
    for (const auto* parts : {&plan.several, &plan.single})
      for (const auto& p : *parts) s.done(p);
  };
  const auto append = [&](Id sequence, int count) {
    for (int n = 0; n < count; ++n) s.append(sequence, 0);
    read();
  };
  std::vector<Id> first;
  for (std::int32_t n = 0; n < 4; ++n) first.push_back(s.add({n}, 12));
  const Id b = s.add({10}, 12), c = s.add({11}, 12);
  read();
  for (int n = 0; n < 3; ++n) {
    append(first[n], 7);  // one token more than there are free pages
    EXPECT_FALSE(s.is_running(c));
    EXPECT_TRUE(s.is_running(b));
    s.remove(first[n]);
    append(c, 1);
    EXPECT_TRUE(s.is_running(c));
  }
  append(first[3], 7);
  EXPECT_TRUE(s.is_running(c));
  EXPECT_FALSE(s.is_running(b));
  append(first[3], 1);  // only one sequence can be preempted
  EXPECT_FALSE(s.is_running(c));
  EXPECT_EQ(s.preemptions(), 5);
}

// Otherwise, idle sequences would keep their pages while others wait for pages.
TEST(Scheduler, IdleSequencesMakeRoomIfAllAreIdle) {
  Scheduler s({.pages = 4, .page_size = 2, .slots = 2, .chunk = 100, .host_pages = 2});
  const Id a = s.add(count_from(1, 4), 8), b = s.add(count_from(11, 4), 8), c = s.add(count_from(21, 5), 8);
  const auto read = [&] {
    const Scheduler::Plan& plan = s.plan();
    for (const auto* parts : {&plan.several, &plan.single})
      for (const auto& p : *parts) s.done(p);
    return text_of(plan);
  };
  EXPECT_EQ(read(), "1:0+4 2:0+4 |");
  EXPECT_EQ(read(), "3:0+5 |");
  EXPECT_FALSE(s.is_running(a));
  EXPECT_FALSE(s.is_running(b));
  EXPECT_TRUE(s.plan().is_empty());
  EXPECT_TRUE(s.is_running(c)) << "no other sequence needs its pages";
  s.append(b, 15);
  EXPECT_EQ(read(), "| 2:4+1") << "it was on the host";
  EXPECT_FALSE(s.is_running(c));
  s.append(a, 5), s.append(c, 26);
  EXPECT_EQ(read(), "1:0+5 |");
  EXPECT_TRUE(s.is_running(a));
}

TEST(Scheduler, SomePagesStayFreeForRunningSequences) {
  Scheduler s({.pages = 200, .page_size = 1, .slots = 8, .chunk = 1000});
  s.add(count_from(0, 99), 150), s.add(count_from(1000, 100), 100), s.add(count_from(2000, 99), 150);
  EXPECT_EQ(step(s), "1:0+99 |");  // if the second joined, only one page would be free instead of two
  s.remove(2);
  EXPECT_EQ(step(s), "| 1:99+1");
  s.remove(1);
  EXPECT_EQ(step(s), "3:0+99 |");
}

TEST(Scheduler, RefusesRequestsThatCannotBeServed) {
  const auto message = [](Scheduler::Options o) { return error_of([&] { Scheduler s(o); }); };
  EXPECT_THROW(Scheduler({.pages = 0}), ShapeError);
  EXPECT_THROW(Scheduler({.page_size = 0}), ShapeError);
  EXPECT_THROW(Scheduler({.slots = 0}), ShapeError);
  EXPECT_NE(message({.slots = -1}).find("[scheduler] expected positive numbers of slots"), std::string::npos);
  EXPECT_NE(message({.chunk = 0}).find("got 16, 0 and 1"), std::string::npos);
  EXPECT_NE(message({.host_pages = -1}).find("-1 pages on the host"), std::string::npos);

  Scheduler s({.pages = 4, .page_size = 4, .slots = 1});
  EXPECT_NE(error_of([&] { s.add({}, 4); }).find("the sequence is empty"), std::string::npos);
  EXPECT_NE(error_of([&] {
              s.add({1, 2}, 1);
            }).find("2 tokens, which was to have 1 at most"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              s.add({1, 2}, 17);
            }).find("17 tokens does not fit in a cache of 4 pages of 4"),
            std::string::npos);
  EXPECT_NE(error_of([&] { s.add({1}, std::numeric_limits<std::int64_t>::max()); }).find("does not fit"),
            std::string::npos);
  EXPECT_EQ(s.waiting(), 0u);
  const Id a = s.add({1, 2}, 3), b = s.add({1}, 16);
  const std::string none = "there is no sequence 7";
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { s.fork(7); }, [&] { s.append(7, 1); }, [&] { s.expect(7); }, [&] { s.read_again(7); },
           [&] { s.remove(7); }, [&] { s.tokens(7); }, [&] { (void)s.is_running(7); }, [&] { s.table(7); },
           [&] {
             s.done({7, 0, 1});
           }})
    EXPECT_NE(error_of(call).find(none), std::string::npos);
  EXPECT_NE(error_of([&] { s.table(b); }).find("sequence 2 waits, and has no pages"), std::string::npos);
  EXPECT_EQ(text_of(s.plan()), "1:0+2 |");
  const std::int64_t last = std::numeric_limits<std::int64_t>::max();
  for (const Scheduler::Part& p :
       {Scheduler::Part{a, 1, 1}, {a, -1, 2}, {a, 0, 3}, {a, 0, -1}, {a, 0, last}, {b, 0, 1}})
    EXPECT_NE(error_of([&] { s.done(p); }).find("do not follow"), std::string::npos)
        << p.begin << "+" << p.count;
  s.done({a, 0, 2});
  s.append(a, 3);
  EXPECT_NE(error_of([&] { s.append(a, 4); }).find("sequence 1 has 3 tokens already"), std::string::npos);
  s.done({a, 2, 1});
  EXPECT_NE(error_of([&] { s.expect(a); }).find("which has read 3 of 3 tokens and may have 3"),
            std::string::npos);
  s.remove(a);
  EXPECT_NE(error_of([&] { s.remove(a); }).find("there is no sequence 1"), std::string::npos);
  EXPECT_EQ(text_of(s.plan()), "| 2:0+1");
}

TEST(Scheduler, TokensReadBeforeForgetAreNotKeptOnTheHost) {
  Scheduler s({.pages = 4, .page_size = 2, .slots = 2, .chunk = 100, .host_pages = 8});
  const Id a = s.add(count_from(1, 4), 8), b = s.add(count_from(11, 3), 8);
  EXPECT_EQ(step(s), "1:0+4 2:0+3 |");
  s.forget();
  const Scheduler::Plan& plan = s.plan();
  EXPECT_EQ(text_of(plan), "| 1:4+1");
  EXPECT_FALSE(s.is_running(b));
  EXPECT_TRUE(plan.out.empty()) << "it would be restored as if it had been read since";
  s.done({a, 4, 1});
  s.remove(a);
  EXPECT_EQ(step(s), "2:0+4 |");
  // Tokens that were read after forget() are kept.
  const Id c = s.add(count_from(21, 1), 8), d = s.fork(c);
  EXPECT_EQ(step(s), "| 2:4+1 3:0+1");
  s.remove(d);
  EXPECT_EQ(step(s), "| 2:5+1 3:1+1");
  EXPECT_EQ(step(s), "| 2:6+1");
  EXPECT_EQ(s.plan().out.size(), 0u);
  EXPECT_EQ(s.preemptions(), 2);
}

// Tests random sequences. A row of the cache is a number that identifies its token, all previous tokens, and
// the weights that computed it.
struct Row {
  std::uint64_t sequence = 0;
  int weights = 0;  // the oldest of the weights' versions on which the row depends
};

class Trace {
 public:
  explicit Trace(std::uint64_t seed)
      : random_(seed), options_(draw()), scheduler_(options_), cache_((options_.pages + 1) * size()) {}

  // Runs steps in which new sequences arrive. Then runs steps without arrivals until the last sequence has
  // ended.
  void run(int steps) {
    for (int n = 0; n < steps; ++n) {
      arrive();
      step();
      if (n % 8 == 0) check();
      if (::testing::Test::HasFailure()) return;
    }
    for (std::int64_t left = tokens_to_come(); scheduler_.running() + scheduler_.waiting() > 0; --left) {
      ASSERT_GT(left, 0) << "some sequence does not end";
      step();
      if (::testing::Test::HasFailure()) return;
    }
    check();
    ASSERT_EQ(scheduler_.pool().free(), options_.pages);
    ASSERT_EQ(scheduler_.preemptions(), preempted);
    ASSERT_TRUE(host_.empty());
    found += scheduler_.found();
  }
  std::string text() const {
    return std::to_string(options_.pages) + " pages of " + std::to_string(options_.page_size) + ", " +
           std::to_string(options_.slots) + " slots, chunks of " + std::to_string(options_.chunk) +
           ", groups of " + std::to_string(options_.group) + ", " + std::to_string(options_.host_pages) +
           " pages on the host";
  }
  std::int64_t steps = 0, found = 0, preempted = 0, spared = 0, returned = 0, out = 0, in = 0, copied = 0,
               forked = 0, cancelled = 0, ended = 0, failed = 0, forgotten = 0, lost = 0, planned_ahead = 0;

 private:
  struct Sequence {
    std::int64_t most;
    int preemptions = 0;
    int weights = 0;        // the weights' version when the sequence last joined
    std::int64_t read = 0;  // number of tokens when the sequence last joined
  };

  std::int32_t size() const { return options_.page_size; }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }
  bool chance(std::int64_t one_in) { return below(one_in) == 0; }
  Scheduler::Options draw() {
    Scheduler::Options o;
    o.page_size = static_cast<std::int32_t>(chance(2) ? 1 + below(4) : 1 + below(64));
    // The host has from one page to more pages than needed.
    o.pages = static_cast<std::int32_t>(1 + below(4 + 200 / o.page_size));
    o.slots = 1 + below(20);
    o.chunk = 1 + below(chance(2) ? 6 : 60);
    o.group = 1 + o.chunk % 4;
    o.host_pages = static_cast<std::int32_t>(chance(2) ? 0 : below(2 * o.pages));
    return o;
  }

  static std::uint64_t after(std::uint64_t before, std::int32_t token) {
    return (before + static_cast<std::uint64_t>(token) + 1) * 0x9E3779B97F4A7C15u + 1;
  }
  // Returns the number of tokens of a sequence. An expected token counts, too.
  std::int64_t tokens_of(Id id) const {
    return std::ssize(scheduler_.tokens(id)) + static_cast<std::int64_t>(expected_.contains(id));
  }
  // An upper bound of the remaining steps: each step reads at least one token of the first running sequence,
  // and may fail occasionally.
  std::int64_t tokens_to_come() const {
    std::int64_t n = 1000;
    for (const auto& [id, sequence] : sequences_) n += 4 * sequence.most;
    return n;
  }
  Id pick() {
    auto at = sequences_.begin();
    std::advance(at, below(std::ssize(sequences_)));
    return at->first;
  }

  // Few distinct tokens, so sequences often have common prefixes.
  void arrive() {
    const std::int64_t room = std::min<std::int64_t>(std::int64_t{options_.pages} * size(), 100);
    if (sequences_.size() < 30 && chance(4)) {
      const std::int64_t most = 1 + below(room);
      Tokens tokens(static_cast<std::size_t>(1 + below(chance(3) ? most : 1 + most / 4)));
      for (std::int32_t& t : tokens) t = chance(8);
      sequences_[scheduler_.add(tokens, most)] = {most};
    }
    if (!sequences_.empty() && sequences_.size() < 30 && chance(10)) {
      Id id = pick();
      for (int n = 0; n < 3 && !scheduler_.is_running(id); ++n) id = pick();
      const Id other =
          scheduler_.fork(id, chance(4) ? Scheduler::ForkOrder::last : Scheduler::ForkOrder::of_parent);
      EXPECT_EQ(scheduler_.tokens(other), scheduler_.tokens(id));
      EXPECT_GT(other, std::prev(sequences_.end())->first);
      sequences_[other] = {
          .most = sequences_[id].most, .weights = sequences_[id].weights, .read = sequences_[id].read};
      ++forked;
    }
    if (!sequences_.empty() && chance(40)) end(pick()), ++cancelled;
    if (!sequences_.empty() && chance(20)) {  // the caller knows the sequence's next token
      const Id id = pick();
      for (std::int64_t n = below(10); n > 0 && tokens_of(id) < sequences_[id].most; --n) append(id);
    }
    if (chance(200)) {
      scheduler_.forget();
      host_.clear();
      ++weights_, ++forgotten;
    }
  }
  void end(Id id) {
    scheduler_.remove(id);
    sequences_.erase(id), host_.erase(id), expected_.erase(id);
  }
  void append(Id id) {
    scheduler_.append(id, static_cast<std::int32_t>(chance(8)));
    expected_.erase(id);
  }
  // The row after this sequence's last token must be recomputed.
  void lose(Id id) {
    expected_.erase(id);
    scheduler_.read_again(id);
    sequences_[id].read = std::min(sequences_[id].read, tokens_of(id) - 1);
  }

  bool is_idle(Id id) { return sequences_[id].read == tokens_of(id); }
  // Gives new tokens to idle sequences, which have no tokens to read. Some of them stay idle until a later
  // step.
  void wake() {
    std::vector<Id> idle;
    for (const auto& [id, sequence] : sequences_)
      if (is_idle(id)) idle.push_back(id);
    for (const Id id : idle)
      if (idle.size() == sequences_.size() || chance(4)) {
        if (tokens_of(id) == sequences_[id].most)
          end(id), ++ended;
        else
          append(id);
      }
  }

  void step() {
    ++steps;
    wake();
    std::map<Id, std::int64_t> cached;  // cached tokens of each running sequence
    for (const auto& [id, sequence] : sequences_)
      if (scheduler_.is_running(id)) cached[id] = scheduler_.table(id).length();
    const Scheduler::Plan plan = scheduler_.plan();
    check_who_runs(plan, cached);
    if (chance(300)) {  // the model's call failed
      std::ranges::fill(cache_, Row{});
      host_.clear();
      for (const auto& [id, sequence] : sequences_)
        if (expected_.contains(id) || chance(10)) lose(id);
      scheduler_.start_again();
      ++lost;
      ASSERT_EQ(scheduler_.running(), 0u);
      ASSERT_EQ(scheduler_.pool().free(), options_.pages);
      return;
    }
    move(plan, cached);
    check_parts(plan);
    if (::testing::Test::HasFailure()) return;
    // The tokens of sequences that were planned ahead are now known. Some of these sequences end.
    for (const auto& p : plan.single) planned_ahead += expected_.contains(p.sequence);
    for (const Id id : std::set(expected_)) chance(50) ? end(id) : append(id);
    if (chance(50)) {
      ++failed;  // nothing was read
      return;
    }
    std::vector<Scheduler::Part> parts;
    for (const auto* list : {&plan.single, &plan.several})
      std::ranges::copy_if(*list, std::back_inserter(parts),
                           [&](const Scheduler::Part& p) { return sequences_.contains(p.sequence); });
    std::shuffle(parts.begin(), parts.end(), random_);
    std::set<std::int64_t> written;
    for (const Scheduler::Part& p : parts) {
      const nn::PageTable& table = scheduler_.table(p.sequence);
      Row row = p.begin == 0 ? Row{0, weights_} : cache_[table.row(p.begin - 1)];
      for (std::int64_t at = p.begin; at < p.begin + p.count; ++at) {
        row = {after(row.sequence, scheduler_.tokens(p.sequence)[at]), std::min(row.weights, weights_)};
        cache_[table.row(at)] = row;
        ASSERT_TRUE(written.insert(table.row(at)).second) << "a row is written for two sequences";
        ASSERT_EQ(scheduler_.pool().holders(table.pages()[at / size()]), 1) << "a shared page is written";
      }
    }
    std::shuffle(parts.begin(), parts.end(), random_);
    for (const Scheduler::Part& p : parts) {
      scheduler_.done(p);
      sequences_[p.sequence].read = std::max(sequences_[p.sequence].read, p.begin + p.count);
    }
    for (const Scheduler::Part& p : parts) go_on(p.sequence);
  }

  void go_on(Id id) {
    if (scheduler_.table(id).length() < tokens_of(id)) return;
    if (tokens_of(id) == sequences_[id].most || chance(150))
      end(id), ++ended;
    else if (ahead_ && !chance(10))
      scheduler_.expect(id), expected_.insert(id);
    else if (!chance(10))  // otherwise the caller is busy
      append(id);
  }

  void check_who_runs(const Scheduler::Plan& plan, const std::map<Id, std::int64_t>& cached) {
    std::set<Id> left, stayed, joined;
    Id first_waiting = ~Id{0};
    for (auto& [id, sequence] : sequences_) {
      const bool ran = cached.contains(id), runs = scheduler_.is_running(id);
      if (ran) (runs ? stayed : left).insert(id);
      if (!ran && runs) joined.insert(id), sequence.weights = weights_;
      if (!runs && !is_idle(id)) first_waiting = std::min(first_waiting, id);
    }
    ASSERT_LE(std::ssize(stayed) + std::ssize(joined), options_.slots);
    if (!joined.empty()) {
      ASSERT_LT(*joined.rbegin(), first_waiting) << "a sequence was overtaken";
    }
    // If a sequence was preempted, no sequence joins in this step. But if all remaining sequences are idle,
    // one of the preempted sequences may return.
    const auto busy = std::ranges::count_if(stayed, [&](Id id) { return !is_idle(id); });
    const std::int64_t back = scheduler_.preemptions() - preempted - std::ssize(left);
    if (back > 0) {
      ASSERT_EQ(busy, back);
      returned += back;
      for (const Id id : stayed)
        if (!is_idle(id)) ++sequences_[id].preemptions, ++preempted, sequences_[id].weights = weights_;
    } else if (!left.empty() && busy > 0) {
      ASSERT_TRUE(joined.empty());
    }
    for (const Id gone : left)
      for (const Id kept : stayed)
        if (kept > gone && !is_idle(gone)) {
          ASSERT_GE(sequences_[kept].preemptions, 3) << "text " << gone << " left, and " << kept << " stayed";
          ASSERT_LT(sequences_[gone].preemptions, 3);
          ++spared;
        }
    for (const Id gone : left) ++sequences_[gone].preemptions, ++preempted;
    for (const Id id : joined) ASSERT_FALSE(expected_.contains(id));
    if (plan.is_empty() && std::ranges::none_of(left, [&](Id id) { return expected_.contains(id); })) {
      for (const auto& [id, sequence] : sequences_) ASSERT_TRUE(is_idle(id)) << "all wait";
    }
  }

  void check_parts(const Scheduler::Plan& plan) {
    std::map<Id, std::int64_t> counts;
    std::int64_t of_prompts = 0, spent = 0;  // tokens of the chunk
    const auto check_part = [&](const Scheduler::Part& p) {
      ASSERT_TRUE(sequences_.contains(p.sequence));
      ASSERT_TRUE(scheduler_.is_running(p.sequence));
      ASSERT_EQ(p.begin, scheduler_.table(p.sequence).length()) << "it does not follow what is cached";
      ASSERT_GE(p.count, 1);
      ASSERT_LE(p.begin + p.count, tokens_of(p.sequence));
      ASSERT_TRUE(counts.emplace(p.sequence, p.count).second) << "two parts of a sequence";
    };
    for (const auto& p : plan.single) {
      check_part(p);
      ASSERT_EQ(p.begin + 1, tokens_of(p.sequence));
    }
    for (const auto& p : plan.several) {
      check_part(p), of_prompts += p.count;
      spent += (p.count + options_.group - 1) / options_.group * options_.group;
      ASSERT_FALSE(expected_.contains(p.sequence));
    }
    ASSERT_LE(of_prompts, options_.chunk);
    for (const auto& [id, sequence] : sequences_) {
      if (!scheduler_.is_running(id)) continue;
      const std::int64_t unread = tokens_of(id) - scheduler_.table(id).length();
      // A running sequence waits only if other sequences use the complete chunk.
      if (unread == 1) {
        ASSERT_TRUE(counts.contains(id));
      }
      if (unread > 1 && spent < options_.chunk) {
        ASSERT_EQ(counts[id], unread);
      }
      check_content(id);
    }
  }

  void move(const Scheduler::Plan& plan, std::map<Id, std::int64_t>& cached) {
    for (const auto& m : plan.out) {
      ASSERT_EQ(m.first, 0);
      ASSERT_EQ(std::ssize(m.pages), (cached[m.sequence] + size() - 1) / size());
      std::vector<Row>& rows = host_[m.sequence];
      rows.clear();
      for (const std::int32_t n : m.pages)
        rows.insert(rows.end(), &cache_[n * size()], &cache_[n * size()] + size());
      ++out;
    }
    std::int64_t on_host = 0;
    for (const auto& [id, rows] : host_) on_host += std::ssize(rows) / size();
    ASSERT_LE(on_host, options_.host_pages);
    std::set<std::int32_t> written;
    for (const auto& m : plan.in) {
      ASSERT_TRUE(scheduler_.is_running(m.sequence));
      const std::vector<Row>& rows = host_[m.sequence];
      ASSERT_TRUE(m.pages.empty() || (m.first + std::ssize(m.pages)) * size() <= std::ssize(rows));
      for (std::size_t i = 0; i < m.pages.size(); ++i) {
        ASSERT_TRUE(written.insert(m.pages[i]).second) << "a page is written for two sequences";
        std::copy_n(&rows[(m.first + i) * size()], size(), &cache_[m.pages[i] * size()]);
      }
      host_.erase(m.sequence);
      ++in;
    }
    for (const auto& [id, sequence] : sequences_)
      if (scheduler_.is_running(id)) {
        ASSERT_FALSE(host_.contains(id));
      }
    for (const auto& c : plan.copies) {
      ASSERT_TRUE(written.insert(c.to).second) << "a page is written for two sequences";
      ASSERT_EQ(scheduler_.pool().holders(c.to), 1) << "a shared page is written";
      std::copy_n(&cache_[c.from * size()], size(), &cache_[c.to * size()]);
      ++copied;
    }
  }

  // Checks that the cache contains the rows of the sequence's table. The version of their weights must not be
  // older than the sequence's version.
  void check_content(Id id) {
    const nn::PageTable& table = scheduler_.table(id);
    std::uint64_t sequence = 0;
    for (std::int64_t at = 0; at < table.length(); ++at) {
      const Row& row = cache_[table.row(at)];
      ASSERT_EQ(row.sequence, sequence = after(sequence, scheduler_.tokens(id)[at]))
          << "token " << at << " of sequence " << id;
      ASSERT_GE(row.weights, sequences_[id].weights) << "token " << at << " of sequence " << id;
    }
  }
  void check() {
    std::map<std::int32_t, int> holders;
    std::int64_t cached = 0;
    std::size_t running = 0;
    for (const auto& [id, sequence] : sequences_)
      if (scheduler_.is_running(id)) {
        check_content(id);
        for (const std::int32_t n : scheduler_.table(id).pages()) ++holders[n];
        cached += scheduler_.table(id).length();
        ++running;
      }
    ASSERT_EQ(scheduler_.cached(), cached);
    ASSERT_EQ(scheduler_.running(), running);
    ASSERT_EQ(scheduler_.waiting(), sequences_.size() - running);
    ASSERT_FALSE(holders.contains(0));
    ASSERT_EQ(scheduler_.pool().free(), options_.pages - std::ssize(holders));
    for (std::int32_t n = 1; n <= options_.pages; ++n) ASSERT_EQ(scheduler_.pool().holders(n), holders[n]);
  }

  std::mt19937_64 random_;
  Scheduler::Options options_;
  Scheduler scheduler_;
  std::vector<Row> cache_;
  std::map<Id, std::vector<Row>> host_;
  std::map<Id, Sequence> sequences_;
  std::set<Id> expected_;  // sequences that expect a token
  bool ahead_ = chance(2);
  int weights_ = 0;
};

TEST(Scheduler, StaysCorrectInTwentyThousandSteps) {
  Trace all(0);
  for (std::uint64_t seed = 1; all.steps < 20'000; ++seed) {
    Trace trace(seed);
    trace.run(250);
    ASSERT_FALSE(::testing::Test::HasFailure())
        << "trace " << seed << ", step " << trace.steps << ", " << trace.text();
    for (const auto count :
         {&Trace::steps, &Trace::found, &Trace::preempted, &Trace::spared, &Trace::returned, &Trace::out,
          &Trace::in, &Trace::copied, &Trace::forked, &Trace::cancelled, &Trace::ended, &Trace::failed,
          &Trace::forgotten, &Trace::lost, &Trace::planned_ahead})
      all.*count += trace.*count;
  }
  // Each of these cases must have occurred often.
  EXPECT_GT(all.found, 8'000);
  EXPECT_GT(all.preempted, 600);
  EXPECT_GT(all.spared, 2);
  EXPECT_GT(all.returned, 6);
  EXPECT_GT(all.out, 200);
  EXPECT_GT(all.in, 200);
  EXPECT_GT(all.copied, 40);
  EXPECT_GT(all.forked, 200);
  EXPECT_GT(all.cancelled, 100);
  EXPECT_GT(all.ended, 800);
  EXPECT_GT(all.failed, 200);
  EXPECT_GT(all.forgotten, 20);
  EXPECT_GT(all.lost, 20);
  EXPECT_GT(all.planned_ahead, 2'000);
}

}  // namespace

// Compares Scheduler and PagePool with plain code (tests/support/plain_scheduler.h), step by step on random
// calls. Plans, pages, counts and free pages must be equal.
#include "tests/support/plain_scheduler.h"

#include <gtest/gtest.h>

#include <random>

namespace {

using namespace tg;
using nn::Scheduler;
using tg::testing::PlainPool;
using tg::testing::PlainScheduler;
using Tokens = PlainPool::Tokens;
using Id = Scheduler::Id;

PlainScheduler::Plan plain(const Scheduler::Plan& plan) {
  PlainScheduler::Plan p;
  for (const auto& m : plan.out) p.out.emplace_back(m.sequence, m.first, m.pages);
  for (const auto& m : plan.in) p.in.emplace_back(m.sequence, m.first, m.pages);
  for (const auto& c : plan.copies) p.copies.emplace_back(c.from, c.to);
  for (const auto& s : plan.single) p.single.emplace_back(s.sequence, s.begin, s.count);
  for (const auto& s : plan.several) p.several.emplace_back(s.sequence, s.begin, s.count);
  return p;
}

class Both {
 public:
  explicit Both(unsigned seed) : random_(seed), options_(drawn()), ours_(options_), plain_(options_) {}
  explicit Both(const Scheduler::Options& o) : random_(1), options_(o), ours_(o), plain_(o) {}

  // Adds six sequences. The first three use all pages and end, one after the other. Each time, the last
  // sequence is preempted. Then the fourth uses all pages, and the sequence before the last is preempted
  // instead.
  void crowd() {
    std::vector<Id> all;
    for (std::int32_t n = 0; n < 6; ++n) all.push_back(add({n}, 12));
    const auto grow = [&](Id id, int tokens) {
      for (int n = 0; n < tokens; ++n) ours_.append(id, 0), plain_.append(id, 0);
      read();
    };
    read();
    for (std::size_t n = 0; n < 3; ++n) {
      grow(all[n], 7);
      ours_.remove(all[n]), plain_.remove(all[n]);
      grow(all[5], 1);
    }
    grow(all[3], 7);
    grow(all[3], 1);
    spared += plain_.spared_count;
  }

  void run() {
    const int steps = calls_ == 2 ? 100 : 200;
    for (int n = 0; n < steps && !::testing::Test::HasFailure(); ++n) {
      while (chance(calls_)) call();
      step();
      compare();
    }
    preempted += ours_.preemptions(), found += ours_.found();
  }
  std::string text() const {
    return std::to_string(options_.pages) + " pages of " + std::to_string(options_.page_size) + ", " +
           std::to_string(options_.slots) + " slots, chunk " + std::to_string(options_.chunk) + ", group " +
           std::to_string(options_.group) + ", " + std::to_string(options_.host_pages) + " on the host";
  }
  std::int64_t preempted = 0, found = 0, moved = 0, copied = 0, spared = 0;

 private:
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }
  bool chance(std::int64_t one_in) { return below(one_in) == 0; }
  Scheduler::Options drawn() {
    Scheduler::Options o;
    o.page_size = static_cast<std::int32_t>(1 + below(4));
    o.pages = static_cast<std::int32_t>(chance(8) ? 150 + below(100) : 2 + below(24));
    o.slots = 1 + below(6);
    o.chunk = 1 + below(20);
    o.group = 1 + below(4);
    o.host_pages = static_cast<std::int32_t>(chance(4) ? 0 : below(20));
    return o;
  }
  std::int64_t most() const { return std::int64_t{options_.pages} * options_.page_size; }
  Id add(const Tokens& tokens, std::int64_t limit) {
    const Id id = plain_.add(tokens, limit);
    EXPECT_EQ(ours_.add(tokens, limit), id);
    return id;
  }
  void read() {
    const PlainScheduler::Plan expected = plain_.plan();
    EXPECT_EQ(plain(ours_.plan()), expected);
    for (const auto* parts : {&expected.single, &expected.several})
      for (const auto& [id, begin, count] : *parts)
        ours_.done({id, begin, count}), plain_.done(id, begin, count);
    compare();
  }
  Id any() { return std::next(plain_.sequences.begin(), below(std::ssize(plain_.sequences)))->first; }

  void call() {
    const std::int64_t what = below(40);
    if (plain_.sequences.empty() || (what < 8 && plain_.sequences.size() < 12)) {
      const std::int64_t length = 1 + below(std::min<std::int64_t>(most(), 20));
      Tokens tokens(static_cast<std::size_t>(length));
      for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(chance(6));
      const std::int64_t limit = std::min(length + below(calls_ == 2 ? 12 : 60), most());
      add(tokens, limit);
    } else if (what < 13 && plain_.sequences.size() < 12) {
      const Id id = any();
      const auto order = chance(2) ? Scheduler::ForkOrder::last : Scheduler::ForkOrder::of_parent;
      ASSERT_EQ(ours_.fork(id, order), plain_.fork(id, order));
    } else if (what < 15 && calls_ == 2) {
      const Id id = any();
      ours_.remove(id), plain_.remove(id);
    } else if (what < 20) {
      const Id id = any();
      if (plain_.sequences.at(id).size() < plain_.sequences.at(id).most &&
          plain_.sequences.at(id).expected == 0)
        append(id);
    } else if (what < 22) {
      const Id id = any();
      ours_.read_again(id), plain_.read_again(id);
    } else if (what == 22) {
      ours_.forget(), plain_.forget();
    } else if (what == 23 && chance(4)) {
      ours_.start_again(), plain_.start_again();
    }
  }
  void append(Id id) {
    const auto token = static_cast<std::int32_t>(chance(6));
    ours_.append(id, token), plain_.append(id, token);
  }

  void step() {
    const PlainScheduler::Plan got = plain(ours_.plan()), expected = plain_.plan();
    ASSERT_EQ(got.out, expected.out);
    ASSERT_EQ(got.in, expected.in);
    ASSERT_EQ(got.copies, expected.copies);
    ASSERT_EQ(got.several, expected.several);
    ASSERT_EQ(got.single, expected.single);
    moved += std::ssize(got.in), copied += std::ssize(got.copies);
    compare();
    // The expected tokens are now known. A sequence may end at its token, and a step may fail.
    std::vector<Id> expecting;
    for (const auto& [id, t] : plain_.sequences)
      if (t.expected > 0) expecting.push_back(id);
    for (const Id id : expecting)
      if (chance(30))
        ours_.remove(id), plain_.remove(id);
      else
        append(id);
    if (chance(20)) return;
    for (const auto* parts : {&got.single, &got.several})
      for (const auto& [id, begin, count] : *parts) {
        if (!plain_.sequences.contains(id)) continue;
        ours_.done({id, begin, count}), plain_.done(id, begin, count);
        const PlainScheduler::Sequence& t = plain_.sequences.at(id);
        if (!t.is_idle()) continue;
        if (t.size() == t.most)
          ours_.remove(id), plain_.remove(id);
        else if (chance(2))
          append(id);
        else if (chance(2))
          ours_.expect(id), plain_.expect(id);
      }
  }

  void compare() {
    ASSERT_EQ(ours_.running(), static_cast<std::size_t>(plain_.running()));
    ASSERT_EQ(ours_.waiting(), plain_.sequences.size() - ours_.running());
    ASSERT_EQ(ours_.cached(), plain_.cached());
    ASSERT_EQ(ours_.preemptions(), plain_.preemptions);
    ASSERT_EQ(ours_.found(), plain_.found);
    ASSERT_EQ(ours_.pool().free(), std::ssize(plain_.pool.free));
    ASSERT_EQ(ours_.held(), (options_.pages - std::ssize(plain_.pool.free)) * options_.page_size);
    for (std::int32_t n = 1; n <= options_.pages; ++n)
      ASSERT_EQ(ours_.pool().holders(n), plain_.pool.holders(n));
    for (const auto& [id, t] : plain_.sequences) {
      ASSERT_EQ(ours_.is_running(id), t.runs);
      ASSERT_EQ(ours_.tokens(id), t.tokens);
      if (!t.runs) continue;
      ASSERT_EQ(ours_.table(id).pages(), t.table.pages);
      ASSERT_EQ(ours_.table(id).length(), t.table.length);
    }
  }

  std::mt19937_64 random_;
  Scheduler::Options options_;
  Scheduler ours_;
  PlainScheduler plain_;
  std::int64_t calls_ = 2 + below(3) * 5;  // if there are few calls, sequences live longer
};

TEST(PlainScheduler, PlansTheSameStepsInTheSamePages) {
  std::int64_t preempted = 0, found = 0, moved = 0, copied = 0;
  for (unsigned seed = 1; seed <= 150; ++seed) {
    Both both(seed);
    both.run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", " << both.text();
    preempted += both.preempted, found += both.found, moved += both.moved, copied += both.copied;
  }
  EXPECT_GT(preempted, 1000);
  EXPECT_GT(found, 5000);
  EXPECT_GT(moved, 150);
  EXPECT_GT(copied, 40);
}

TEST(PlainScheduler, SparesASequencePreemptedThreeTimes) {
  Both both({.pages = 12, .page_size = 1, .slots = 6, .chunk = 100});
  both.crowd();
  EXPECT_GT(both.spared, 0);
}

// Tests a pool without a scheduler. Tables are also moved, assigned and destroyed.
TEST(PlainPool, GivesTheSamePages) {
  std::mt19937 random(3);
  const auto below = [&](unsigned n) { return random() % n; };
  for (const auto& [pages, size, bits] :
       {std::tuple{1, 1, ~std::size_t{0}}, {7, 2, ~std::size_t{0}}, {30, 3, std::size_t{3}}}) {
    nn::PagePool pool(pages, size, bits);
    PlainPool plain(pages, size);
    std::vector<nn::PageTable> ours;
    std::vector<PlainPool::Table> theirs;
    for (int n = 0; n < 3000; ++n) {
      const unsigned what = below(10);
      const std::size_t i = ours.empty() ? 0 : below(static_cast<unsigned>(ours.size()));
      Tokens tokens(below(9));
      for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(below(2));
      if (ours.empty() || (what < 3 && ours.size() < 8)) {
        ours.push_back(pool.open(tokens)), theirs.push_back(plain.open(tokens));
      } else if (what == 3 && ours.size() < 8) {
        ours.push_back(ours[i].fork()), theirs.push_back(plain.fork(theirs[i]));
      } else if (what == 4) {
        plain.close(theirs[i]);
        ours.erase(ours.begin() + static_cast<std::ptrdiff_t>(i));
        theirs.erase(theirs.begin() + static_cast<std::ptrdiff_t>(i));
      } else if (what == 5) {  // the assignment frees the previous pages
        nn::PageTable other = pool.open(tokens);
        PlainPool::Table same = plain.open(tokens);
        ours[i] = std::move(other);
        std::swap(theirs[i], same);
        plain.close(same);
      } else if (what == 6 && below(20) == 0) {
        pool.forget(), plain.forget();
      } else {
        std::vector<nn::PageCopy> copies;
        std::vector<std::pair<int, int>> expected, got;
        const auto count = static_cast<std::int64_t>(tokens.size());
        const bool fits = ours[i].reserve(count, copies);
        ASSERT_EQ(fits, plain.reserve(theirs[i], count, expected));
        for (const nn::PageCopy& c : copies) got.emplace_back(c.from, c.to);
        ASSERT_EQ(got, expected);
        if (fits) ours[i].append(tokens), plain.append(theirs[i], tokens);
      }
      ASSERT_EQ(pool.free(), std::ssize(plain.free));
      for (std::size_t k = 0; k < ours.size(); ++k) {
        ASSERT_EQ(ours[k].pages(), theirs[k].pages) << n;
        ASSERT_EQ(ours[k].length(), theirs[k].length);
      }
      for (std::int32_t p = 1; p <= pages; ++p) ASSERT_EQ(pool.holders(p), plain.holders(p));
    }
  }
}

}  // namespace

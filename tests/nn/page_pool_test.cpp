// Tests PagePool with a memory that is written and copied as the pool directs. A sequence must always find
// its own content and use the required number of pages. No page may be lost.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

#include <tilegrad/nn/generation/page_pool.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using nn::PageCopy;
using nn::PagePool;
using nn::PageTable;
using Tokens = std::vector<std::int32_t>;
using tg::testing::error_of;

std::string pages_of(const PageTable& table) {
  std::string text;
  for (const std::int32_t n : table.pages()) text += (text.empty() ? "" : " ") + std::to_string(n);
  return text;
}

// Acts like a model: reads the part of a sequence that the pool has not found.
void read(PageTable& table, const Tokens& sequence) {
  const Tokens rest(sequence.begin() + table.length(), sequence.end());
  std::vector<PageCopy> copies;
  ASSERT_TRUE(table.reserve(std::ssize(rest), copies));
  EXPECT_TRUE(copies.empty());
  table.append(rest);
}

TEST(PagePool, ASequenceGetsPagesAsItGrows) {
  PagePool pool(4, 2);
  EXPECT_EQ(pool.pages(), 4);
  PageTable table = pool.open(Tokens{7, 8, 9});
  EXPECT_EQ(table.length(), 0);
  std::vector<PageCopy> copies;
  EXPECT_TRUE(table.reserve(3, copies));
  EXPECT_EQ(pages_of(table), "1 2");
  table.append(Tokens{7, 8, 9});
  EXPECT_EQ(table.row(0), 2);
  EXPECT_EQ(table.row(1), 3);
  EXPECT_EQ(table.row(2), 4);
  EXPECT_TRUE(table.reserve(1, copies));  // there is room
  EXPECT_EQ(pages_of(table), "1 2");
  EXPECT_EQ(pool.free(), 2);
  EXPECT_FALSE(table.reserve(6, copies));  // 9 tokens need 5 pages
  EXPECT_FALSE(table.reserve(std::numeric_limits<std::int64_t>::max(), copies));
  EXPECT_EQ(pages_of(table), "1 2");
  EXPECT_TRUE(table.reserve(5, copies));
  EXPECT_EQ(pool.free(), 0);
  EXPECT_TRUE(copies.empty());
}

TEST(PagePool, SequencesWithACommonPrefixShareFullPages) {
  PagePool pool(8, 2);
  PageTable a = pool.open({});
  read(a, {1, 2, 3, 4, 5});
  PageTable b = pool.open(Tokens{1, 2, 3, 4, 6});
  EXPECT_EQ(b.length(), 4);
  EXPECT_EQ(pages_of(b), "1 2");
  EXPECT_EQ(pool.holders(1), 2);
  EXPECT_EQ(pool.holders(3), 1);
  // If the same tokens follow different tokens, they are stored in a different page. The last token of a
  // sequence must always be read, even if it is in the cache.
  EXPECT_EQ(pool.open(Tokens{3, 4, 3, 4, 5}).length(), 0);
  EXPECT_EQ(pool.open(Tokens{1, 2, 3, 4}).length(), 2);
}

TEST(PagePool, ASharedPageIsCopiedBeforeItIsWritten) {
  PagePool pool(4, 4);
  PageTable a = pool.open({});
  read(a, {1, 2, 3, 4, 5});
  PageTable b = a.fork();
  EXPECT_EQ(pages_of(b), "1 2");
  std::vector<PageCopy> copies;
  EXPECT_NE(error_of([&] { b.append(Tokens{6}); }).find("reserve() first"), std::string::npos);
  EXPECT_TRUE(b.reserve(1, copies));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, 2);
  EXPECT_EQ(copies[0].to, 3);
  EXPECT_EQ(pages_of(b), "1 3");
  EXPECT_TRUE(a.reserve(1, copies));  // now a is the only owner of page 2
  EXPECT_EQ(copies.size(), 1u);
  a.append(Tokens{6}), b.append(Tokens{7});
  EXPECT_NE(error_of([&] { a.append(Tokens{8, 9, 10}); }).find("room for 2"), std::string::npos);
}

TEST(PagePool, TablesAreMoved) {
  PagePool pool(6, 2);
  PageTable a = pool.open({}), b = pool.open({});
  read(a, {1, 2, 3}), read(b, {4});
  PageTable& same = a;
  a = std::move(same);
  EXPECT_EQ(pages_of(a), "1 2");
  a = std::move(b);
  EXPECT_EQ(pages_of(a), "3");
  EXPECT_EQ(a.length(), 1);
  EXPECT_EQ(pool.free(), 5);
  EXPECT_TRUE(b.pages().empty());  // NOLINT(bugprone-use-after-move)
  b = pool.open(Tokens{1, 2, 3});
  EXPECT_EQ(pages_of(b), "1");
}

// Full pages are never written again, whether they are shared or not.
TEST(PagePool, ASharedPageIsNotWritten) {
  for (std::int64_t fill = 1; fill <= 8; ++fill) {
    PagePool pool(6, 4);
    PageTable a = pool.open({});
    std::vector<PageCopy> copies;
    ASSERT_TRUE(a.reserve(fill + 4, copies));  // makes room in unshared pages
    a.append(Tokens(static_cast<std::size_t>(fill), 1));
    PageTable b = a.fork();
    const std::string error = error_of([&] { a.append(Tokens{2}); });
    EXPECT_EQ(
        error,
        fill % 4 == 0
            ? "no error"
            : "PageTable::append would write into a page that another sequence has too: reserve() first");
    EXPECT_EQ(error_of([&] { a.append({}); }), "no error");
  }
}

TEST(PagePool, KeepsFreedPagesUntilTheirMemoryIsNeeded) {
  PagePool pool(3, 2);
  {
    PageTable a = pool.open({});
    read(a, {1, 2, 3, 4, 5});
  }
  EXPECT_EQ(pool.free(), 3);
  EXPECT_EQ(pool.open(Tokens{1, 2, 3, 4, 5}).length(), 4);
  std::vector<PageCopy> copies;
  PageTable b = pool.open(Tokens{9});
  EXPECT_TRUE(b.reserve(3, copies));  // first the partial page, then the last pages of the freed sequence
  EXPECT_EQ(pool.open(Tokens{1, 2, 3, 4, 5}).length(), 2);
  pool.forget();
  EXPECT_EQ(pool.open(Tokens{1, 2, 3, 4, 5}).length(), 0);
  b.append(Tokens{1, 2, 3});  // this sequence started before forget()
  EXPECT_EQ(pool.open(Tokens{1, 2, 3}).length(), 0);
}

TEST(PagePool, RefusesSizesThatAreNotPositive) {
  EXPECT_NE(error_of([] { PagePool(0, 16); }).find("0 pages of 16 tokens"), std::string::npos);
  EXPECT_NE(error_of([] { PagePool(4, 0); }).find("4 pages of 0 tokens"), std::string::npos);
  PagePool pool(4, 2);
  EXPECT_EQ(pool.holders(1), 0);
  EXPECT_EQ(pool.holders(4), 0);
  for (const std::int32_t n : {-1, 0, 5})
    EXPECT_EQ(error_of([&] { (void)pool.holders(n); }),
              "PagePool::holders got page " + std::to_string(n) + " of 1 to 4");
  PageTable table = pool.open({});
  std::vector<PageCopy> copies;
  ASSERT_TRUE(table.reserve(3, copies));
  EXPECT_EQ(table.row(3), 5);
  for (const std::int64_t at : {-1, 4})
    EXPECT_EQ(error_of([&] { (void)table.row(at); }),
              "PageTable::row got position " + std::to_string(at) + ", with pages for 4");
}

// Each page needs 48 bytes plus 4 bytes for each of its tokens. A list needs 4 bytes, and the number of lists
// is the next power of two.
TEST(PagePool, OversizedPoolIsRefusedWithItsSize) {
  EXPECT_EQ(error_of([] { PagePool(1 << 30, 1 << 20); }),
            "PagePool: no memory to keep books on 1073741824 pages of 1048576 tokens: 4295024644 MiB needed");
}

// Tests random sequences. In the memory, each row identifies its token and all previous tokens, because keys
// and values depend on all of them.
class RandomSequences {
 public:
  explicit RandomSequences(std::uint32_t seed, std::size_t hash_bits = ~std::size_t{0})
      : random_(seed), pool_(pages, page_size, hash_bits) {}

  void step() {
    const std::uint32_t what = random_() % 16;
    if (sequences_.empty() || what < 2)
      open();
    else if (what == 2)
      fork();
    else if (what == 3 || sequences_.size() > 12)
      sequences_.erase(sequences_.begin() + pick());
    else
      extend(sequences_[pick()]);
  }
  void check() {
    std::map<std::int32_t, int> holders;
    for (const Sequence& t : sequences_) {
      ASSERT_EQ(t.table.length(), std::ssize(t.tokens));
      std::uint64_t before = 0;
      for (std::int64_t i = 0; i < std::ssize(t.tokens); ++i)
        ASSERT_EQ(memory_[t.table.row(i)], before = after(before, t.tokens[i])) << "token " << i;
      for (const std::int32_t n : t.table.pages()) ++holders[n];
    }
    ASSERT_EQ(holders.count(0), 0u);
    ASSERT_EQ(pool_.free(), pool_.pages() - std::ssize(holders));
    for (std::int32_t n = 1; n <= pool_.pages(); ++n) ASSERT_EQ(pool_.holders(n), holders[n]) << "page " << n;
  }
  void end() {
    sequences_.clear();
    ASSERT_EQ(pool_.free(), pool_.pages());
  }
  std::int64_t found = 0, copied = 0, refused = 0;

 private:
  struct Sequence {
    PageTable table;
    Tokens tokens;
  };
  static constexpr std::int32_t pages = 40, page_size = 4;

  static std::uint64_t after(std::uint64_t before, std::int32_t token) {
    return (before + static_cast<std::uint64_t>(token) + 1) * 0x9E3779B97F4A7C15u + 1;
  }
  std::size_t pick() { return random_() % sequences_.size(); }
  // There are few distinct tokens, so sequences often have common prefixes.
  Tokens some(std::uint32_t most) {
    Tokens tokens(random_() % most + 1);
    for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(random_() % 2);
    return tokens;
  }
  void open() {
    Tokens tokens = some(24);
    Sequence sequence{pool_.open(tokens), {}};
    found += sequence.table.length();
    ASSERT_LT(sequence.table.length(), std::ssize(tokens));
    sequence.tokens.assign(tokens.begin(), tokens.begin() + sequence.table.length());
    const Tokens rest(tokens.begin() + sequence.table.length(), tokens.end());
    sequences_.push_back(std::move(sequence));
    write(sequences_.back(), rest);
  }
  void fork() {
    const std::size_t n = pick();
    sequences_.push_back({sequences_[n].table.fork(), sequences_[n].tokens});
  }
  void extend(Sequence& sequence) { write(sequence, some(3)); }
  void write(Sequence& sequence, const Tokens& tokens) {
    std::vector<PageCopy> copies;
    const std::string before = pages_of(sequence.table);
    const std::int32_t free = pool_.free();
    if (!sequence.table.reserve(std::ssize(tokens), copies)) {
      ++refused;
      ASSERT_EQ(pages_of(sequence.table), before);
      ASSERT_EQ(pool_.free(), free);
      ASSERT_TRUE(copies.empty());
      return;
    }
    copied += std::ssize(copies);
    for (const PageCopy& c : copies)
      std::copy_n(&memory_[c.from * page_size], page_size, &memory_[c.to * page_size]);
    for (const std::int32_t token : tokens) {
      const std::int64_t at = std::ssize(sequence.tokens);
      const std::uint64_t previous = at == 0 ? 0 : memory_[sequence.table.row(at - 1)];
      ASSERT_EQ(pool_.holders(sequence.table.pages()[at / page_size]), 1) << "a shared page is written";
      memory_[sequence.table.row(at)] = after(previous, token);
      sequence.tokens.push_back(token);
    }
    sequence.table.append(tokens);
  }

  std::mt19937 random_;
  PagePool pool_;
  std::vector<std::uint64_t> memory_ = std::vector<std::uint64_t>((pages + 1) * page_size);
  std::vector<Sequence> sequences_;
};

void run(RandomSequences& sequences, int steps) {
  for (int n = 0; n < steps; ++n) {
    sequences.step();
    if (n % 100 == 0) sequences.check();
    if (::testing::Test::HasFatalFailure()) FAIL() << "step " << n;
  }
  sequences.end();
  // Each of these cases must have occurred often.
  EXPECT_GT(sequences.found, steps / 100);
  EXPECT_GT(sequences.copied, steps / 100);
  EXPECT_GT(sequences.refused, steps / 100);
}
TEST(PagePool, StaysCorrectInTwoHundredThousandSteps) {
  RandomSequences sequences(1);
  run(sequences, 200'000);
}
TEST(PagePool, HashCollisionsAreHarmless) {
  RandomSequences sequences(2, 1);
  run(sequences, 100'000);
}

}  // namespace

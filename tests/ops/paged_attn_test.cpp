// Compares paged_attn with its definition and its decomposition, for all options. A row's result must be
// bitwise independent of all other rows.
#include "tests/support/option_pairs.h"
#include "tests/support/paged_problem.h"

namespace tg {

auto fields_of(const PagedAttentionOptions& o) {
  const auto& [scale, window_left, softcap, sink, score, mask] = o;
  return std::tie(scale, window_left, softcap, sink, score, mask);
}

}  // namespace tg

namespace {

using namespace tg;
using namespace tg::testing;

// The number of keys in a range, as in backends/cpu/kernels/attention/decode.cpp for head size ≤ 64.
constexpr std::int64_t range = 512;

void expect_decomposition(const PagedCall& c) {
  const PagedCall::Result own = c.run(), plain = c.run({}, true);
  const double size = rounding(c.dtype) + (c.dtype == f64 ? 1e-12 : 1e-5);
  EXPECT_TRUE(close(doubles(own.o), doubles(plain.o), 4 * size));
  for (std::int64_t i = 0; i < own.lse.numel(); ++i) {
    const double a = own.lse.at(i), b = plain.lse.at(i);
    EXPECT_TRUE(a == b || std::abs(a - b) < 1e-5) << a << ", " << b;
  }
}

struct Option {
  const char* name;
  void (*set)(PagedCall&);
};
const Option options[] = {
    {"none", [](PagedCall&) {}},
    {"scale", [](PagedCall& c) { c.options.scale = 0.7; }},
    {"window", [](PagedCall& c) { c.options.window_left = 5; }},
    {"softcap", [](PagedCall& c) { c.options.softcap = 1.5; }},
    {"sink", [](PagedCall& c) { c.sink = true; }},
    {"score function",
     [](PagedCall& c) {
       c.options.score = [](const ScoreAt& x) {
         return 2 * tanh(x.score * (1 + x.h / 4)) - (x.i - x.t) / 16;
       };
       c.score = [](double x, std::int64_t, std::int64_t h, std::int64_t i, std::int64_t t) {
         return 2 * std::tanh(x * (1 + static_cast<double>(h) / 4)) - static_cast<double>(i - t) / 16;
       };
     }},
    {"mask function",
     [](PagedCall& c) {
       c.options.mask = [](const ScoreAt& x) { return not_equal(remainder(x.i - x.t + x.b, 3), 1); };
       c.mask = [](std::int64_t b, std::int64_t i, std::int64_t t) { return (i - t + b) % 3 != 1; };
     }},
    {"values in keys", [](PagedCall& c) { c.v_in_k = true, c.d = 11, c.Hk = 1; }},
    {"bf16", [](PagedCall& c) { c.dtype = bf16; }},
    {"f16", [](PagedCall& c) { c.dtype = f16; }},
    {"f64", [](PagedCall& c) { c.dtype = f64; }},
};

TEST(PagedAttn, OptionsAgreeWithTheDefinitionInAllPairs) {
  for (const Option& a : options)
    for (const Option& b : options)
      for (const std::int64_t L : {1, 3, 20}) {
        SCOPED_TRACE(::testing::Message() << a.name << " and " << b.name << ", queries " << L);
        PagedCall c{.L = L, .sequences = {0, 1, 2}, .lengths = {7, 40, 2}, .room = 1};
        a.set(c), b.set(c);
        expect_defined(c);
        expect_decomposition(c);
        if (HasFatalFailure()) return;
      }
}

TEST(PagedAttn, OptionsTableSetsEachField) {
  Graph g;
  const Tensor sink = g.input("sink", {1});
  expect_each_field_is_set(std::size(options), [&](std::size_t i) {
    PagedCall c;
    options[i].set(c);
    if (c.sink) c.options.sink = sink;
    return c.options;
  });
}

TEST(PagedAttn, TwoCallsOfAGraphMatchTheDefinition) {
  each_pair(std::size(options), [](std::size_t a, std::size_t b) {
    SCOPED_TRACE(::testing::Message() << options[a].name << " beside " << options[b].name);
    PagedCall first{.L = 3, .sequences = {0, 1, 2}, .lengths = {7, 40, 2}},
        second{.page = 5, .L = 2, .sequences = {4, 0}, .lengths = {11, 23}, .room = 1};
    options[a].set(first), options[b].set(second);
    Graph g;
    std::vector<Feed> feeds;
    const AttentionResult x = first.record(g, feeds, " of the first").r,
                          y = second.record(g, feeds, " of the second").r;
    const std::vector<Array> got = eval({x.o, x.lse, y.o, y.lse}, feeds, {.threads = 1, .verify = true});
    expect_defined(first, {got[0], got[1], {}});
    expect_defined(second, {got[2], got[3], {}});
  });
}

TEST(PagedAttn, AcceptsPagesOfAnySizeAndLengthsAtTheEdgesOfRanges) {
  for (const std::int64_t page : {1, 3, 16, 64})
    for (const DType t : float_dtypes) {
      SCOPED_TRACE(::testing::Message() << "page " << page << ", " << name_of(t));
      PagedCall c{.H = 3, .Hk = 1, .page = page, .dtype = t};
      c.sequences = {0, 1, 2, 3, 4, 2, 1};
      c.lengths = {0, 1, range - 1, range, range + 1, range - 1, 1};  // two sequences occur twice
      expect_defined(c);
      c.L = 9;
      expect_defined(c);
      if (HasFatalFailure()) return;
    }
}

TEST(PagedAttn, AcceptsHeadsOfAnySizeAndNumber) {
  for (const DType t : {f32, bf16})
    for (const auto& [d, dv] : {std::pair{1, 1}, {40, 7}, {80, 96}, {192, 128}, {576, 512}})
      for (const auto& [H, Hk, L] : {std::tuple{1, 1, 1}, {5, 1, 30}, {80, 1, 2}, {4, 4, 70}}) {
        SCOPED_TRACE(::testing::Message() << d << " " << dv << " " << H << " " << Hk << " " << L);
        PagedCall c{
            .H = H, .Hk = Hk, .d = d, .dv = dv, .dtype = t, .L = L, .sequences = {0}, .lengths = {75}};
        c.options.scale = 0.2;
        expect_defined(c);
        if (HasFatalFailure()) return;
      }
}

// If there is room for several ranges, groups of rows share the positions of keys. The rows of a group still
// see different keys.
TEST(PagedAttn, GroupsOfRowsSeeTheirOwnKeys) {
  for (const DType t : {f32, bf16})
    for (const auto& [H, L] : {std::pair{64, 2}, {80, 2}, {32, 4}, {70, 8}})
      for (const std::int64_t length : {L, 75, 129})
        for (const int threads : {1, 3}) {
          SCOPED_TRACE(::testing::Message() << H << " heads, " << L << " queries, " << length << " keys");
          PagedCall c{.H = H,
                      .Hk = 1,
                      .dtype = t,
                      .L = L,
                      .sequences = {0, 1},
                      .lengths = {length, length},
                      .room = 40};
          expect_defined(c, {.threads = threads});
          if (HasFatalFailure()) return;
        }
}

bool same(const PagedCall::Result& a, const PagedCall::Result& b) {
  return a.o.same_bits(b.o) && a.lse.same_bits(b.lse);
}

// Tests calls whose rows have several blocks or several groups, or are converted.
std::vector<PagedCall> shapes() {
  return {{.H = 4, .Hk = 2, .d = 64, .dv = 48},
          {.H = 6, .Hk = 1, .d = 40, .dv = 24, .dtype = bf16, .sink = true},
          {.H = 12, .Hk = 1, .d = 72, .dv = 64, .dtype = f16, .v_in_k = true},
          {.H = 2, .Hk = 2, .d = 16, .dv = 16, .dtype = f64, .options = {.window_left = 100}}};
}

TEST(PagedAttn, ARowMatchesBitwiseInAnyBatch) {
  for (PagedCall all : shapes())
    for (const std::int64_t L : {1, 3, 20}) {
      all.L = L, all.sequences = {3, 0, 1, 2}, all.lengths = {range + 70, 5, range, 0};
      const PagedCall::Result together = all.run();
      for (std::size_t b = 0; b < all.sequences.size(); ++b) {
        PagedCall one = all;
        one.sequences = {all.sequences[b]}, one.lengths = {all.lengths[b]}, one.order = 7;
        const PagedCall::Result alone = one.run();
        EXPECT_EQ(rows(alone.o, 0, 0, L), rows(together.o, static_cast<std::int64_t>(b), 0, L));
        EXPECT_EQ(rows(alone.lse, 0, 0, L), rows(together.lse, static_cast<std::int64_t>(b), 0, L));
      }
    }
}

TEST(PagedAttn, APromptMatchesBitwiseInPartsOfAnySize) {
  constexpr std::int64_t length = range + 70;
  for (PagedCall c : shapes()) {
    c.L = length, c.lengths = {length};
    const PagedCall::Result whole = c.run();
    for (const std::int64_t part : {1, 7, 64}) {
      for (std::int64_t end = part == 1 ? length - 3 : part; end <= length; end += part) {
        c.L = part, c.lengths = {end};
        const PagedCall::Result some = c.run();
        ASSERT_EQ(rows(some.o, 0, 0, part), rows(whole.o, 0, end - part, part)) << part << " to " << end;
        ASSERT_EQ(rows(some.lse, 0, 0, part), rows(whole.lse, 0, end - part, part));
      }
    }
  }
}

TEST(PagedAttn, ResultsDependNeitherOnPagesNorOnThreads) {
  for (PagedCall c : shapes())
    for (const std::int64_t L : {2, 33}) {
      c.L = L, c.sequences = {0, 1}, c.lengths = {range + 1, 77};
      const PagedCall::Result first = c.run({.threads = 1, .verify = true});
      for (const std::int64_t page : {1, 3, 64, 1000}) {
        PagedCall other = c;
        other.page = page, other.order = 5, other.room = page == 3 ? 40 : 0;
        EXPECT_TRUE(same(first, other.run({.threads = 1}))) << "page " << page;
      }
      for (const int threads : {2, 5}) EXPECT_TRUE(same(first, c.run({.threads = threads}))) << threads;
    }
}

// In the decomposition, flash_attn computes few queries from contiguous memory.
TEST(PagedAttn, MatchesDecodingWithoutPagesBitwise) {
  for (PagedCall c : shapes()) {
    c.L = 4, c.sequences = {0, 1, 2}, c.lengths = {range + 70, 3, 0};
    EXPECT_TRUE(same(c.run(), c.run({}, true)));
  }
}

// A key or value that only later queries see is NaN. Earlier queries must not change. Queries whose window
// begins after this key must not change either.
TEST(PagedAttn, AQueryIsIndependentOfKeysThatItDoesNotSee) {
  struct Case {
    std::int64_t T, L, H, d;
    DType dtype;
    std::int64_t window;
  };
  for (const Case c : {Case{40, 40, 2, 4, f32, -1},
                       {40, 40, 2, 4, f32, 9},
                       {150, 70, 1, 40, bf16, -1},
                       {150, 70, 4, 40, f16, 30},
                       {70, 8, 2, 64, bf16, 5},
                       {40, 40, 2, 4, f64, -1},
                       {600, 5, 2, 64, f32, 3}})
    for (const bool in_values : {false, true}) {
      Graph g;
      const Tensor q = g.input("q", {1, c.H, c.L, c.d}, c.dtype), k = g.input("k", {2, c.T, 1, c.d}, c.dtype),
                   v = g.input("v", {2, c.T, 1, c.d}, c.dtype),
                   table = g.constant(Array::of<std::int32_t>({1, 1}, {1})),
                   lengths = g.constant(Array::of<std::int32_t>({1}, {static_cast<std::int32_t>(c.T)}));
      const AttentionResult r = paged_attn(q, k, v, table, lengths, {.window_left = c.window});
      Array aq(q.shape(), c.dtype), ak(k.shape(), c.dtype), av(v.shape(), c.dtype);
      for (std::int64_t e = 0; e < aq.numel(); ++e) aq.set(e, std::sin(static_cast<double>(e)));
      for (std::int64_t e = 0; e < ak.numel(); ++e)
        ak.set(e, std::cos(static_cast<double>(e))), av.set(e, std::cos(static_cast<double>(3 * e)));
      Program p = compile(g, {r.o, r.lse});
      p.feed({q, aq}), p.feed({k, ak}), p.feed({v, av});
      p.run();
      const Array whole = p.fetch(r.o), whole_lse = p.fetch(r.lse);
      const std::int64_t first = c.T - c.L;  // the first query's own key
      for (const std::int64_t bad : {first + 1, first + c.L / 2, c.T - 1}) {
        Array with = (in_values ? av : ak).copy();
        for (std::int64_t e = 0; e < c.d; ++e)
          with.set((c.T + bad) * c.d + e, std::numeric_limits<double>::quiet_NaN());
        p.feed({in_values ? v : k, with});
        p.run();
        const Array some = p.fetch(r.o), some_lse = p.fetch(r.lse);
        for (std::int64_t row = 0; row < c.H * c.L; ++row) {
          const std::int64_t own = first + row % c.L;
          const bool sees = bad <= own && (c.window < 0 || bad >= own - c.window);
          EXPECT_EQ(std::isnan(some_lse.at(row)), sees && !in_values) << own << ", NaN at " << bad;
          for (std::int64_t e = row * c.d; e < (row + 1) * c.d; ++e) {
            if (sees) {
              EXPECT_TRUE(std::isnan(some.at(e))) << own << ", NaN at " << bad;
            } else {
              ASSERT_EQ(some.at(e), whole.at(e))
                  << name_of(c.dtype) << " query " << own << ", NaN at " << bad;
              ASSERT_EQ(some_lse.at(row), whole_lse.at(row)) << own << ", NaN at " << bad;
            }
          }
        }
      }
    }
}

TEST(PagedAttn, RefusesTablesAndLengthsThatLeaveThePool) {
  Graph g;
  const Tensor q = g.input("q", {2, 1, 1, 4}), k = g.input("k", {3, 4, 1, 4}),
               table = g.input("table", {2, 2}, i32), lengths = g.input("lengths", {2}, i32);
  Program p = compile(g, {paged_attn(q, k, k, table, lengths).o}, {.threads = 2});
  const std::vector<float> ones(8, 1.f), pool(48, 1.f);
  const auto run = [&](std::vector<std::int32_t> pages, std::vector<std::int32_t> n) {
    p.run({{q, ones}, {k, pool}, {table, pages}, {lengths, n}});
  };
  run({2, 0, 1, 2}, {4, 8});
  run({2, 99, 0, -7}, {4, 0});  // no sequence has keys there
  expect_error<Error>(
      [&] {
        run({2, 3, 1, 2}, {5, 8});
      },
      {"[paged_attn] index 3 at position 1 is out of range: expected 0 to 2 "});
  expect_error<Error>(
      [&] {
        run({2, 1, -1, 2}, {5, 1});
      },
      {"[paged_attn] index -1 at position 2 is out of range: expected 0 to 2 "});
  expect_error<Error>(
      [&] {
        run({2, 1, 1, 2}, {9, 1});
      },
      {"[paged_attn] index 9 at position 0 is out of range: expected 0 to 8 "});
  expect_error<Error>(
      [&] {
        run({2, 1, 1, 2}, {1, -1});
      },
      {"[paged_attn] index -1 at position 1 is out of range: expected 0 to 8 "});
  run({2, 0, 1, 2}, {4, 8});
}

TEST(PagedAttn, ErrorsNameMismatchedOperands) {
  Graph g;
  const Tensor q = g.input("q", {2, 4, 3, 8}, f32), k = g.input("k", {5, 16, 2, 8}, f32),
               v = g.input("v", {5, 16, 2, 6}, f32), table = g.input("table", {2, 4}, i32),
               n = g.input("n", {2}, i32);
  EXPECT_EQ(paged_attn(q, k, v, table, n).o.shape(), (Shape{2, 4, 3, 6}));
  EXPECT_EQ(paged_attn(q, k, v, table, n).lse.shape(), (Shape{2, 4, 3}));
  const auto refused = [](std::initializer_list<std::string> parts, auto&&... arguments) {
    expect_error<Error>([&] { paged_attn(arguments...); }, parts);
  };
  refused({"[paged_attn]", "needs q [B, H, L, d], k [P, page, Hk, d]"}, q, view(k, {80, 2, 8}), v, table, n);
  refused({"q and k differ in head size"}, q, v, v, table, n);
  refused({"v is [4, 16, 2, 6], expected k's pages [5, 16, 2]"}, q, k, slice(v, 0, 0, 4), table, n);
  refused({"4 query heads are not a multiple of 3"}, q, expand(slice(k, 2, 0, 1), {5, 16, 3, 8}),
          expand(slice(v, 2, 0, 1), {5, 16, 3, 6}), table, n);
  refused({"at least 1 token"}, q, slice(k, 1, 0, 0), slice(v, 1, 0, 0), table, n);
  refused({"q, k and v differ in dtype"}, q, cast(k, bf16), v, table, n);
  refused({"must be i32"}, q, k, v, cast(table, i64), n);
  refused({"must be i32"}, q, k, v, table, cast(n, i64));
  refused({"table is [1, 4], expected [2, pages of a sequence]"}, q, k, v, slice(table, 0, 0, 1), n);
  refused({"lengths is [1], expected [2]"}, q, k, v, table, slice(n, 0, 0, 1));
  refused({"sink is [3], expected [4]"}, q, k, v, table, n,
          PagedAttentionOptions{.sink = g.input("sink", {3}, f32)});
  refused({"scale is out of range: got nan"}, q, k, v, table, n,
          PagedAttentionOptions{.scale = std::nan("")});
  refused({"softcap"}, q, k, v, table, n, PagedAttentionOptions{.softcap = -1});
  refused({"window_left"}, q, k, v, table, n, PagedAttentionOptions{.window_left = -2});
  // Kernels count the keys of a sequence in 32 bits. So pages of 16 tokens allow at most 2^31 - 16 keys.
  const std::int64_t most = INT32_MAX / 16;
  EXPECT_EQ(paged_attn(q, k, v, g.input("table", {2, most}, i32), n).o.shape(), (Shape{2, 4, 3, 6}));
  refused({"must be below 2^31"}, q, k, v, g.input("table", {2, most + 1}, i32), n);
  const Tensor o = paged_attn(q, k, v, table, n).o;
  expect_error<GradientError>([&] { gradients(sum(o), {q}); }, {"a cache is for evaluation"});
}

}  // namespace

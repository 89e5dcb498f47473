// Compares paged_attn on a GPU with its definition. A row's result must be bitwise independent of all other
// rows. Skipped if there is no GPU.
#include "backends/cuda/cuda.h"
#include "tests/support/paged_problem.h"

namespace tg {
namespace {

using namespace testing;

class CudaPagedAttn : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

const CompileOptions on_gpu{.device = Device::cuda(), .verify = true};
// Options for results that are compared with a different program. `verify` is not set, because it would run
// each program twice.
const CompileOptions once{.device = Device::cuda()};

TEST_F(CudaPagedAttn, MatchesItsDefinition) {
  for (const DType t : float_dtypes)
    for (const std::int64_t page : {1, 3, 16, 64})
      for (const bool sink : {false, true}) {
        PagedCall c{.H = 4, .Hk = 2, .d = 12, .dv = 8, .page = page, .dtype = t, .sink = sink};
        c.v_in_k = page == 16, c.L = page == 3 ? 5 : 2;
        c.sequences = {0, 1, 2, 1, 3}, c.lengths = {63, 64, 65, 64, 0}, c.room = 1;
        if (sink) c.options = {.scale = 0.3, .window_left = 40, .softcap = 3};
        expect_defined(c, on_gpu);
        if (HasFatalFailure()) return;
      }
}

// Extracts L queries of the first sequence, starting at query `first`. Makes a batch of one with `page` keys
// in each page.
struct PartOfSequence {
  std::int64_t first, L, page;
};
// Expects bitwise identical results for these queries in a batch of one and in the whole batch. `room` is the
// spare room of the pool for the batch of one.
void expect_alone_as_together(const PagedCall& all, const std::vector<PartOfSequence>& parts,
                              std::int64_t room) {
  const PagedCall::Result together = all.run(on_gpu);
  PagedCall one = all;
  one.order = 3, one.room = room, one.sequences = {0};
  for (const auto& [first, L, page] : parts) {
    one.L = L, one.lengths = {all.lengths[0] - all.L + first + L}, one.page = page;
    const PagedCall::Result alone = one.run(once);
    EXPECT_EQ(rows(alone.o, 0, 0, L), rows(together.o, 0, first, L)) << first;
    EXPECT_EQ(rows(alone.lse, 0, 0, L), rows(together.lse, 0, first, L)) << first;
  }
}

// Divides the same queries differently, in a different batch and in other pages.
TEST_F(CudaPagedAttn, ARowMatchesBitwiseInAnyBatch) {
  for (const DType t : {f32, bf16}) {
    PagedCall all{.H = 2, .Hk = 1, .d = 16, .dv = 16, .page = 16, .dtype = t, .sink = true, .L = 70};
    all.sequences = {0, 1}, all.lengths = {130, 70}, all.options.window_left = 80;
    expect_alone_as_together(all, {{0, 64, 5}, {3, 1, 5}, {64, 6, 5}, {69, 1, 5}}, 4);
  }
}

// Decoding accepts rows that are aligned to 16 bytes and not too long.
TEST_F(CudaPagedAttn, IsDecodedWithAnyNumberOfQueries) {
  const auto choice = [](PagedCall c) {
    const std::string all = c.run(once).choice;
    return all.substr(all.find(", ") + 2);  // after the architecture
  };
  for (const DType t : {bf16, f16})
    for (const std::int64_t size : {8, 64, 128, 256})
      for (const std::int64_t L : {1, 3, 40})
        EXPECT_EQ(choice({.d = size, .dv = size, .dtype = t, .L = L}), "tensor cores, decoding, paged cache");
  for (const std::int64_t size : {4, 64, 128, 256})
    for (const std::int64_t L : {1, 3, 40})
      EXPECT_EQ(choice({.d = size, .dv = size, .L = L}), "multiply-adds, decoding, paged cache");
  EXPECT_EQ(choice({.d = 6, .dv = 4}), "plain multiply-adds");
  EXPECT_EQ(choice({.d = 260, .dv = 8}), "plain multiply-adds");
  EXPECT_EQ(choice({.d = 64, .dv = 64, .dtype = f64}), "plain multiply-adds");
  EXPECT_EQ(choice({.d = 12, .dv = 8, .dtype = bf16}), "plain multiply-adds");
  EXPECT_EQ(choice({.d = 264, .dv = 8, .dtype = bf16}), "plain multiply-adds");
}

// The number of keys in the first range. decoding.cpp uses the same number. Ranges that begin at key 1024 or
// later have 1024 keys.
std::int64_t first_range(std::int64_t d) {
  return d <= 64 ? 1024 : d <= 128 ? 512 : 256;
}

TEST_F(CudaPagedAttn, DecodingMatchesTheDefinition) {
  const std::pair<const char*, void (*)(PagedCall&)> options[] = {
      {"none", [](PagedCall&) {}},
      {"scale and sink", [](PagedCall& c) { c.options.scale = 0.3, c.sink = true; }},
      {"negative scale", [](PagedCall& c) { c.options.scale = -0.2; }},
      {"window", [](PagedCall& c) { c.options.window_left = 40; }},
      {"narrow window and softcap", [](PagedCall& c) { c.options = {.window_left = 3, .softcap = 2}; }},
      {"values in keys", [](PagedCall& c) { c.v_in_k = true, c.dv = c.d / 2; }},
  };
  struct Heads {
    std::int64_t H, Hk, d, dv, page, L;
  };
  for (const Heads& n : {Heads{4, 2, 64, 64, 16, 1},
                         {3, 1, 128, 128, 1, 4},
                         {5, 1, 96, 40, 3, 7},
                         {20, 1, 8, 128, 64, 2},
                         {2, 2, 72, 64, 16, 20},
                         {2, 1, 16, 8, 7, 33},
                         {4, 2, 256, 256, 16, 3},
                         {3, 1, 40, 192, 9, 1}})
    for (const auto& [name, set] : options) {
      PagedCall c{.H = n.H, .Hk = n.Hk, .d = n.d, .dv = n.dv, .page = n.page, .L = n.L};
      c.sequences = {0, 1, 2, 1, 3}, c.lengths = {63, 130, 65, 128, 0}, c.room = 1;
      set(c);
      for (const DType t : {n.page == 3 ? f16 : bf16, f32}) {
        SCOPED_TRACE(::testing::Message()
                     << name << ", heads of " << n.d << ", queries " << n.L << ", " << name_of(t));
        c.dtype = t;
        expect_defined(c, on_gpu, t != f32);
        if (HasFatalFailure()) return;
      }
    }
}

TEST_F(CudaPagedAttn, DecodesLengthsAroundRanges) {
  for (const std::int64_t L : {1, 3})
    for (const std::int64_t d : {16, 72, 136}) {
      const std::int64_t border = first_range(d);
      const std::int64_t dv = d > 128 ? 200 : 8;  // columns for two warps
      PagedCall c{.H = 2, .Hk = 1, .d = d, .dv = dv, .dtype = bf16, .sink = d == 16, .L = L};
      c.sequences = {0, 1, 2, 3, 4, 2},
      c.lengths = {border - 1, border, border + 1, 2 * border + 1, 1, border - 1};
      c.page = L == 1 ? 16 : 5;
      for (const DType t : {bf16, f32}) {
        c.dtype = t;
        expect_defined(c, on_gpu, t != f32);
        if (HasFatalFailure()) return;
      }
    }
}

// Decodes a sequence in one call, in parts, and token by token. The batch also contains other sequences. The
// pages are different or larger.
TEST_F(CudaPagedAttn, ADecodedRowMatchesBitwiseInAnyBatch) {
  struct Heads {
    std::int64_t H, Hk, d, dv;
    bool v_in_k;
    DType dtype = bf16;
  };
  for (const Heads& n : {Heads{4, 2, 72, 72, false},
                         {6, 1, 16, 24, false},
                         {20, 1, 80, 16, true},
                         {5, 1, 144, 24, false},
                         {6, 1, 16, 24, false, f32},
                         {20, 1, 80, 16, true, f32},
                         {5, 1, 144, 24, false, f32}})
    for (const bool window : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << n.H << " heads of " << n.d << ", " << name_of(n.dtype) << (window ? ", window" : ""));
      const std::int64_t length = first_range(n.d) + 20, L = 50;
      PagedCall all{
          .H = n.H, .Hk = n.Hk, .d = n.d, .dv = n.dv, .page = 16, .dtype = n.dtype, .sink = true, .L = L};
      all.v_in_k = n.v_in_k, all.sequences = {0, 1, 2}, all.lengths = {length, 70, 30};
      if (window) all.options.window_left = 300, all.options.softcap = 5;  // more than the streams hold
      const PagedCall::Result together = all.run(on_gpu);
      PagedCall one = all;
      one.order = 3;
      const auto compare = [&](std::size_t sequence, std::int64_t first, std::int64_t count) {
        one.sequences = {all.sequences[sequence]}, one.L = count,
        one.lengths = {all.lengths[sequence] - L + first + count};
        const PagedCall::Result alone = one.run(once);
        const auto b = static_cast<std::int64_t>(sequence);
        EXPECT_EQ(rows(alone.o, 0, 0, count), rows(together.o, b, first, count)) << sequence << ": " << first;
        EXPECT_EQ(rows(alone.lse, 0, 0, count), rows(together.lse, b, first, count))
            << sequence << ": " << first;
      };
      one.page = 5, one.room = 300;
      for (const std::int64_t first : {0, 7, 29, 30, 31, 49}) compare(0, first, 1);
      compare(1, 20, 1), compare(2, 20, 1);
      one.page = 64, one.room = 1;
      compare(0, 0, L), compare(2, 10, 40);
      one.page = 1, one.room = 0;
      for (std::int64_t first = 3; first + 7 <= L; first += 13) compare(0, first, 7);
    }
}

// With many sequences, one warp computes each short sequence. A GPU has two short sequences for each
// multiprocessor. The emulator needs fewer.
#ifndef TG_CROWD
#define TG_CROWD 330
#endif
TEST_F(CudaPagedAttn, AShortSequenceMatchesBitwiseInALargeBatch) {
  for (const auto& [d, t] : {std::pair{16, bf16}, {80, bf16}, {136, bf16}, {16, f32}, {80, f32}, {136, f32}})
    for (const std::int64_t window : {-1, 40}) {
      SCOPED_TRACE(::testing::Message() << "heads of " << d << ", window " << window << ", " << name_of(t));
      PagedCall all{.H = 2, .Hk = 1, .d = d, .dv = 8, .page = 5, .dtype = t, .sink = window > 0};
      all.options.window_left = window, all.sequences.clear(), all.lengths.clear();
      for (int b = 0; b < TG_CROWD; ++b) {
        constexpr std::int64_t borders[] = {0, 1, 15, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 300, 600};
        all.sequences.push_back(b);
        all.lengths.push_back(b < 15 ? borders[b] : b % 7 == 0 ? 200 + b : 1 + b * 5 % 30);
      }
      const PagedCall::Result together = all.run(on_gpu);
      PagedCall one = all;
      one.page = 16, one.order = 3;
      for (std::size_t b = 0; b < TG_CROWD; b += b < 20 ? 1 : 29) {
        one.sequences = {all.sequences[b]}, one.lengths = {all.lengths[b]};
        const PagedCall::Result alone = one.run(once);
        const auto nth = static_cast<std::int64_t>(b);
        EXPECT_EQ(rows(alone.o, 0, 0, 1), rows(together.o, nth, 0, 1)) << b;
        EXPECT_EQ(rows(alone.lse, 0, 0, 1), rows(together.lse, nth, 0, 1)) << b;
      }
      expect_defined(all, on_gpu, t != f32);
    }
}

// The operands are latents. In latents, the first columns of the keys are the values. These keys are too wide
// for the registers of a warp.
TEST_F(CudaPagedAttn, DecodingOfLatentsMatchesTheDefinition) {
  PagedCall c{.H = 5, .Hk = 1, .d = 576, .dv = 512, .page = 16, .dtype = bf16, .v_in_k = true, .L = 4};
  c.sequences = {0, 1, 2, 3}, c.lengths = {63, 65, 0, 2}, c.room = 1;
  const std::string choice = c.run(once).choice;
  EXPECT_TRUE(choice.ends_with("tensor cores, decoding, paged cache")) << choice;
  expect_defined(c, on_gpu, true);
  c.H = 20, c.L = 1, c.page = 3, c.sink = true, c.options.window_left = 20;
  expect_defined(c, on_gpu, true);
  c.H = 2, c.Hk = 2, c.d = 264, c.dv = 72, c.dtype = f16, c.options = {.scale = -0.1, .softcap = 2};
  c.sequences = {0}, c.lengths = {1090};
  expect_defined(c, on_gpu, true);
}

TEST_F(CudaPagedAttn, ARowOfLatentsMatchesBitwiseInAnyBatch) {
  for (const std::int64_t window : {-1, 150}) {
    PagedCall all{
        .H = 5, .Hk = 1, .d = 280, .dv = 24, .page = 16, .dtype = bf16, .sink = true, .v_in_k = true};
    all.L = 40, all.sequences = {0, 1}, all.lengths = {1040, 70}, all.options.window_left = window;
    expect_alone_as_together(all, {{0, 1, 5}, {23, 1, 5}, {24, 1, 5}, {39, 1, 5}, {3, 7, 5}, {17, 20, 5}},
                             300);
  }
}

bool has_wgmma() {
  Graph g;
  const Tensor x = g.input("x", {1, 2, 80, 64}, bf16);  // too long for the kernels of short sequences
  const Program p = compile(g, {flash_attn(x, x, x).o}, {.device = Device::cuda()});
  return p.choice(0).find("wgmma") != std::string::npos;
}

// On Hopper, wgmma computes 16 or more heads. Exactly 16 heads have a separate kernel. Ranges have 1024 keys
// for up to 32 heads, otherwise 2048.
TEST_F(CudaPagedAttn, DecodingOfLatentsOfManyHeadsMatchesTheDefinition) {
  for (const auto& [heads, page] : {std::pair<std::int64_t, std::int64_t>{128, 16},
                                    {128, 64},
                                    {128, 24},
                                    {128, 3},
                                    {16, 16},
                                    {16, 64},
                                    {16, 24},
                                    {16, 3}}) {
    SCOPED_TRACE(::testing::Message() << heads << " heads, pages of " << page);
    PagedCall c{.H = heads, .Hk = 1, .d = 576, .dv = 512, .page = page, .dtype = bf16, .v_in_k = true};
    c.sequences = {0, 1, 2, 3, 4}, c.lengths = {63, 130, 0, 1, 64}, c.room = 1;
    if (heads == 16) c.lengths[0] = 8 * 64 - 1;
    if (page == 16) c.L = 2, c.sink = true;
    const std::string choice = c.run(once).choice;
    EXPECT_TRUE(choice.ends_with("decoding, paged cache")) << choice;
    EXPECT_EQ(choice.find("wgmma") != std::string::npos, has_wgmma()) << choice;
    expect_defined(c, on_gpu, true);
    if (HasFatalFailure()) return;
  }
  struct Heads {
    std::int64_t H, Hk, d, dv, page, length;
  };
  for (const Heads& n : {Heads{64, 1, 264, 8, 64, 2 * 2048 + 70},
                         {40, 2, 280, 24, 16, 1024},
                         {40, 2, 280, 24, 16, 1025},
                         {96, 1, 264, 16, 32, 2047},
                         {16, 1, 320, 8, 64, 2 * 1024 + 70},
                         {16, 1, 264, 8, 64, 1024 + 70},
                         {32, 2, 576, 512, 16, 1025},
                         {72, 1, 264, 8, 100, 2049}})
    for (const bool capped : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << n.H << " heads, " << n.length << " keys" << (capped ? ", cap" : ""));
      PagedCall c{.H = n.H, .Hk = n.Hk, .d = n.d, .dv = n.dv, .page = n.page, .dtype = f16, .v_in_k = true};
      c.sequences = {0, 1}, c.lengths = {n.length, 70}, c.room = 2, c.L = capped ? 2 : 1;
      if (capped) c.options = {.scale = -0.1, .window_left = 1000, .softcap = 2}, c.sink = true;
      expect_defined(c, on_gpu, true);
      if (HasFatalFailure()) return;
    }
}

// For 16 heads, one block computes several sequences and ranges one after another. Each of them reuses the
// block's buffer of queries.
TEST_F(CudaPagedAttn, DecodingOfLatentsOfFewHeadsMatchesTheDefinition) {
  for (const auto& [name, o] : {std::pair<const char*, PagedAttentionOptions>{"none", {}},
                                {"softcap", {.softcap = 2}},
                                {"a negative scale", {.scale = -0.1}}}) {
    SCOPED_TRACE(name);
    PagedCall c{
        .H = 16, .Hk = 1, .d = 320, .dv = 64, .page = 64, .dtype = bf16, .options = o, .v_in_k = true};
    c.sequences = {0, 1, 2, 3}, c.lengths = {70, 130, 1, 0};
    const std::string choice = c.run(once).choice;
    EXPECT_EQ(choice.find("wgmma") != std::string::npos, has_wgmma()) << choice;
    expect_defined(c, on_gpu, true);
  }
}

// Kernels begin while the previous step runs. They wait for the end of this step before they read its
// results.
TEST_F(CudaPagedAttn, ReadsKeysAndPositionsThatAStepComputes) {
  struct Heads {
    std::int64_t H, d, dv;
    DType dtype;
  };
  for (const Heads& n : {Heads{4, 64, 64, bf16},
                         {4, 64, 64, f32},
                         {4, 136, 8, bf16},
                         {2, 6, 4, f32},
                         {5, 264, 8, bf16},
                         {16, 320, 8, bf16},
                         {40, 264, 8, f16}})
    for (const std::int64_t page : {16, 3})
      for (const bool keys : {true, false}) {
        SCOPED_TRACE(::testing::Message() << n.H << " heads of " << n.d << ", pages of " << page << ", "
                                          << (keys ? "keys" : "places"));
        PagedCall c{.H = n.H, .Hk = 1, .d = n.d, .dv = n.dv, .page = page, .dtype = n.dtype};
        c.v_in_k = n.d > 256, c.sequences = {0, 1, 2}, c.lengths = {70, 1, 64};
        c.computed_keys = keys, c.computed_places = !keys;
        expect_defined(c, once, n.dtype != f32);
        if (HasFatalFailure()) return;
      }
}

TEST_F(CudaPagedAttn, ARowOfLatentsOfManyHeadsMatchesBitwiseInAnyBatch) {
  for (const auto& [heads, window] :
       {std::pair<std::int64_t, std::int64_t>{72, -1}, {72, 150}, {16, -1}, {16, 150}}) {
    SCOPED_TRACE(::testing::Message() << heads << " heads, window " << window);
    const std::int64_t d = heads == 16 ? 320 : 280;  // the kernel for 16 heads reads blocks of 64 numbers
    PagedCall all{
        .H = heads, .Hk = 1, .d = d, .dv = 24, .page = 16, .dtype = bf16, .sink = true, .v_in_k = true};
    all.L = 12, all.sequences = {0, 1}, all.lengths = {2055, 70}, all.options.window_left = window;
    expect_alone_as_together(all, {{0, 1, 5}, {4, 1, 64}, {5, 1, 16}, {11, 1, 128}, {3, 7, 24}}, 20);
  }
}

// One launch's table is too small for the tiles of rows. The memory for results is too small for the ranges.
TEST_F(CudaPagedAttn, DecodesManyQueriesInSeveralLaunches) {
  PagedCall all{.H = 16, .Hk = 1, .d = 8, .dv = 8, .page = 64, .dtype = bf16, .L = 1040};
  all.lengths = {1060}, all.options.window_left = 5;
  const PagedCall::Result together = all.run(on_gpu);
  PagedCall one = all;
  one.L = 1, one.page = 16;
  for (const std::int64_t i : {0, 1, 1001, 1023, 1024, 1039}) {
    one.lengths = {20 + i + 1};
    const PagedCall::Result alone = one.run(once);
    EXPECT_EQ(rows(alone.o, 0, 0, 1), rows(together.o, 0, i, 1)) << i;
    EXPECT_EQ(rows(alone.lse, 0, 0, 1), rows(together.lse, 0, i, 1)) << i;
  }
  expect_defined(all, on_gpu, true);
}

// Three kernels must refuse such tables and lengths: the checking kernel, the decoding kernels and the latent
// kernel.
TEST_F(CudaPagedAttn, RefusesTablesAndLengthsThatLeaveThePool) {
  struct Kernels {
    DType dtype;
    std::int64_t d, dv;
  };
  for (const Kernels& kernels :
       {Kernels{f32, 6, 4}, {f32, 4, 4}, {bf16, 8, 8}, {bf16, 144, 8}, {f16, 264, 8}}) {
    SCOPED_TRACE(kernels.d);
    for (const std::int64_t B : {2, 70}) {  // fewer or more numbers than threads of a block
      Graph g;
      const std::int64_t d = kernels.d;
      const Tensor q = g.input("q", {B, 1, 1, d}, kernels.dtype),
                   k = g.input("k", {3, 4, 1, d}, kernels.dtype), table = g.input("table", {B, 2}, i32),
                   lengths = g.input("lengths", {B}, i32);
      const Tensor o = paged_attn(q, k, slice(k, 3, 0, kernels.dv), table, lengths).o;
      const Array ones = Array::of({B, 1, 1, d}, Vector(std::size_t(B * d), 1)).to(kernels.dtype),
                  pool = Array::of({3, 4, 1, d}, Vector(std::size_t(12 * d), 1)).to(kernels.dtype);
      const auto run = [&](std::vector<std::int32_t> pages, std::vector<std::int32_t> n) {
        pages.insert(pages.begin(), std::size_t(2 * B - 4), 1);  // the last two sequences
        n.insert(n.begin(), std::size_t(B - 2), 8);
        eval(o, {{q, ones}, {k, pool}, {table, pages}, {lengths, n}}, {.device = Device::cuda()});
      };
      run({2, 99, 0, -7}, {4, 0});  // no sequence has keys there
      const auto refused = [&](std::vector<std::int32_t> pages, std::vector<std::int32_t> n, int index,
                               std::int64_t position) {
        expect_error<Error>([&] { run(pages, n); },
                            {"paged_attn", "index " + std::to_string(index) + " at position " +
                                               std::to_string(position) + " is out of range"});
      };
      refused({2, 3, 1, 2}, {5, 8}, 3, 2 * B - 3);
      refused({2, 1, -1, 2}, {5, 1}, -1, 2 * B - 2);
      refused({2, 1, 1, 7}, {0, 8}, 7, 2 * B - 1);
      refused({2, 1, 1, 2}, {9, 1}, 9, B - 2);
      refused({2, 5, 6, 7}, {8, 8}, 5, 2 * B - 3);  // the first error is reported
    }
  }
}

}  // namespace
}  // namespace tg

// Tests decoding steps that write rows of keys and values to a cache and then read the cache in attention. On
// a GPU, one kernel does both. The result and the cache must be bitwise identical to the result and cache
// from two programs. Skipped if there is no GPU.
#include "backends/cuda/cuda.h"
#include "tests/support/normal_array.h"
#include "tests/support/op_testing.h"

namespace tg {
namespace {

using namespace testing;
using Numbers = std::vector<std::int32_t>;

class CudaAddedRows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

// A graph and the values of its inputs.
struct Inputs {
  Graph g;
  std::vector<Feed> feeds;

  Tensor operator()(const char* name, const Array& a) {
    const Tensor x = g.input(name, a.shape(), a.dtype());
    feeds.emplace_back(x, a);
    return x;
  }
};

struct Sequences {
  std::int64_t H = 4, Hk = 2, d = 64, dv = 64, page = 16, pages = 6, pool = 32;
  DType dtype = bf16;
  Numbers lengths, rows;  // length and new token's cache row of each sequence
  Numbers table = {};     // empty if the cache is not paged
  std::int64_t window = -1;
  bool of_heads = false;                // the new rows are stored as [Hk, B, d]
  bool flat_k = false, flat_v = false;  // the last axis of a cache contains all heads

  std::int64_t B() const { return std::ssize(lengths); }

  struct Result {
    Array o, k, v;
    std::string choice;  // description of index_assign's kernel
  };
  // If `at_once` is true, uses one program. Otherwise uses one program that adds the rows and one that reads
  // the cache.
  Result run(bool at_once) const {
    const Parameter k("k", normal(of_row(flat_k, d), dtype, 1), Device::cuda()),
        v("v", normal(of_row(flat_v, dv), dtype, 2), Device::cuda());
    Inputs adding, reading;
    const std::vector<Tensor> held = index_assign_each(
        {adding.g.param(k), adding.g.param(v)}, 0, adding("rows", Array::of({B(), 1}, rows)),
        {made(adding, "k", d, flat_k), made(adding, "v", dv, flat_v)});
    const Tensor o = at_once ? attention(adding, held[0], held[1])
                             : attention(reading, reading.g.param(k), reading.g.param(v));
    Result got;
    const auto run = [&](Inputs& in, const std::vector<Assign>& assign, bool reads) {
      const std::vector<Tensor> fetched = reads ? std::vector<Tensor>{o} : std::vector<Tensor>{};
      Program p = compile(in.g, fetched, {.assign = assign, .device = Device::cuda()});
      for (const Feed& f : in.feeds) p.feed(f);
      p.run();
      if (reads) got.o = p.fetch(o);
      for (std::size_t s = 0; s < p.steps().size(); ++s)
        if (p.steps()[s].op->name == "index_assign") got.choice = p.choice(s);
      (void)k.read();  // throws if the run failed
    };
    run(adding, {{k, held[0]}, {v, held[1]}}, at_once);
    if (!at_once) run(reading, {}, true);
    got.k = k.read(), got.v = v.read();
    return got;
  }

 private:
  Shape of_row(bool flat, std::int64_t size) const {
    return flat ? Shape{pool * page, 1, Hk * size} : Shape{pool * page, Hk, size};
  }
  // The shape is [B, 1, Hk, size] or [B, 1, 1, Hk·size]. A step computes the tensor.
  Tensor made(Inputs& in, const char* name, std::int64_t size, bool flat) const {
    const Array a = normal(of_heads ? Shape{Hk, B(), size} : Shape{B(), Hk, size}, dtype, 3);
    const Tensor x = in(name, a) * 2;
    if (flat) return x.view({B(), 1, 1, Hk * size});
    return (of_heads ? x.transpose(0, 1) : x).unsqueeze(1);
  }
  Tensor attention(Inputs& in, const Tensor& k, const Tensor& v) const {
    const Tensor q = in("q", normal({B(), H, 1, d}, dtype, 5)), n = in("lengths", Array::of(lengths)),
                 in_pages_k = view(k, {pool, page, Hk, d}), in_pages_v = view(v, {pool, page, Hk, dv});
    if (table.empty())
      return flash_attn(q, transpose(in_pages_k, 1, 2), transpose(in_pages_v, 1, 2),
                        {.causal = true, .window_left = window, .kv_lengths = n})
          .o;
    return paged_attn(q, in_pages_k, in_pages_v, in("table", Array::of({B(), pages}, table)), n,
                      {.window_left = window})
        .o;
  }
};

void expect_at_once_as_apart(const Sequences& sequences, bool one_kernel) {
  const Sequences::Result one = sequences.run(true), two = sequences.run(false);
  EXPECT_EQ(one.choice == "done by the next step", one_kernel) << one.choice;
  const auto compare = [](const Array& a, const Array& b, const char* what) {
    std::int64_t at = 0;
    while (at < a.numel() && a.at(at) == b.at(at)) ++at;
    EXPECT_EQ(at, a.numel()) << what << ": " << (at < a.numel() ? b.at(at) : 0);
  };
  compare(one.o, two.o, "o"), compare(one.k, two.k, "k"), compare(one.v, two.v, "v");
}

// The five sequences have six pages each, pages 0 … 29 of the pool. `rows` are the positions of their last
// tokens.
Sequences in_pages(std::int64_t page) {
  Sequences t{.page = page};
  t.lengths = {1, 33, static_cast<std::int32_t>(5 * page), static_cast<std::int32_t>(5 * page + 1), 17};
  for (std::int32_t n = 0; n < 30; ++n) t.table.push_back((7 * n + 3) % 30);
  for (std::size_t b = 0; b < 5; ++b) {
    const auto last = static_cast<std::size_t>(t.lengths[b] - 1), size = static_cast<std::size_t>(page);
    t.rows.push_back(static_cast<std::int32_t>(t.table[6 * b + last / size] * page) +
                     static_cast<std::int32_t>(last % size));
  }
  return t;
}

bool is_hopper() {
  Graph g;
  const Tensor x = g.input("x", {1, 2, 80, 64}, bf16);
  const Program p = compile(g, {flash_attn(x, x, x).o}, {.device = Device::cuda()});
  return p.choice(0).find("wgmma") != std::string::npos;
}
// Returns whether one kernel writes and reads the cache. Its blocks need as much shared memory as a Hopper
// GPU has.
bool by_one_kernel() {
  const bool is = in_pages(16).run(true).choice == "done by the next step";
  EXPECT_TRUE(is || !is_hopper());
  return is;
}

TEST_F(CudaAddedRows, AreReadWhileTheyAreWritten) {
  const bool one_kernel = by_one_kernel();
  for (const std::int64_t page : {16, 64, 8, 48})
    for (const auto& [d, dv] : {std::pair{64, 64}, {128, 128}, {72, 40}, {16, 96}})
      for (const bool of_heads : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "pages of " << page << ", heads of " << d << " and " << dv);
        Sequences t = in_pages(page);
        t.d = d, t.dv = dv, t.of_heads = of_heads, t.dtype = of_heads ? f16 : bf16;
        expect_at_once_as_apart(t, page != 48 && one_kernel);
        t.window = 20;
        expect_at_once_as_apart(t, page != 48 && one_kernel);
      }
}

// For a single sequence, only one row is written.
TEST_F(CudaAddedRows, OneSequenceIsReadWhileItIsWritten) {
  const bool one_kernel = by_one_kernel();
  for (const std::int32_t length : {1, 17, 33, 96})
    for (const bool in_one_piece : {false, true}) {
      SCOPED_TRACE(::testing::Message() << length << " keys" << (in_one_piece ? " in one piece" : ""));
      Sequences t{.lengths = {length}, .rows = {length - 1}};
      if (in_one_piece)
        t.page = 96, t.pool = 1;
      else
        t.table = {0, 1, 2, 3, 4, 5};
      expect_at_once_as_apart(t, one_kernel);
    }
}

// Row indices may have any value. A sequence may have no row. Two sequences may have the same row. A row may
// belong to a different sequence.
TEST_F(CudaAddedRows, MayGoAnywhere) {
  const bool one_kernel = by_one_kernel();
  Sequences t = in_pages(16);
  t.rows[1] = -1;
  expect_at_once_as_apart(t, one_kernel);
  t.rows[1] = t.rows[3], t.rows[0] = t.rows[2];
  expect_at_once_as_apart(t, one_kernel);
  t.rows = {t.table[6] * 16 + 3, t.table[6] * 16 + 1, t.table[13] * 16, t.table[13] * 16 + 15, 31 * 16};
  expect_at_once_as_apart(t, one_kernel);
  t.lengths = {0, 33, 0, 80, 1};
  expect_at_once_as_apart(t, one_kernel);
}

TEST_F(CudaAddedRows, ManyAndLongSequencesAgree) {
  const bool one_kernel = by_one_kernel();
  Sequences t{.H = 2, .Hk = 2, .pages = 150, .pool = 70 * 150};
  for (std::int32_t b = 0; b < 70; ++b) {
    t.lengths.push_back(b % 9 == 0 ? 2301 : 1 + 5 * b);
    for (std::int32_t n = 0; n < 150; ++n) t.table.push_back((b * 150 + n) % (70 * 150));
    t.rows.push_back(b * 150 * 16 + t.lengths.back() - 1);
  }
  expect_at_once_as_apart(t, one_kernel);
}

TEST_F(CudaAddedRows, ContiguousCacheAgrees) {
  const bool one_kernel = by_one_kernel();
  for (const std::int64_t room : {96, 1200, 50}) {
    Sequences t{.page = room, .pool = 5, .lengths = {1, 33, 50, 20, 17}, .rows = {}};
    for (std::int32_t b = 0; b < 5; ++b)
      t.rows.push_back(b * static_cast<std::int32_t>(room) + t.lengths[static_cast<std::size_t>(b)] - 1);
    if (room == 1200) t.lengths[2] = 1200, t.rows[2] = 3 * 1200 - 1;
    expect_at_once_as_apart(t, one_kernel);
    t.window = 10, t.rows[4] = -1;
    expect_at_once_as_apart(t, one_kernel);
  }
}

// The kernel gets the heads of the new rows from the shapes of both caches. So both caches need a head axis.
TEST_F(CudaAddedRows, CacheWithoutAHeadAxisUsesASeparateKernel) {
  const bool one_kernel = by_one_kernel();
  for (const bool flat_k : {false, true})
    for (const bool flat_v : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "flat " << flat_k << " and " << flat_v);
      Sequences t = in_pages(16);
      t.flat_k = flat_k, t.flat_v = flat_v;
      expect_at_once_as_apart(t, one_kernel && !flat_k && !flat_v);
    }
}

// index_assign reports the same error.
TEST_F(CudaAddedRows, BeyondTheCacheAreRefused) {
  Sequences t = in_pages(16);
  for (const std::int32_t row : {32 * 16, -2}) {
    t.rows[3] = row;
    try {
      t.run(true);
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("index_assign"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tg

// Tests ring attention. The calls must see each pair of a query and a key exactly once. On several ranks,
// results and gradients must equal flash_attn on the complete sequence.
#include "tests/support/ranks.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <tilegrad/tilegrad.h>

#include "ops/ring_schedule.h"

namespace {

using namespace tg;

// Counts how often each query (first) sees each key (second). Both are positions in the complete sequence.
using Pairs = std::map<std::pair<std::int64_t, std::int64_t>, int>;

void count_pairs(Pairs& pairs, const detail::RingCall& c, int rank, const std::vector<std::int64_t>& queries,
                 const std::vector<std::int64_t>& keys) {
  const std::int64_t there = c.visible.empty() ? c.keys : c.visible[static_cast<std::size_t>(rank)];
  for (std::int64_t i = 0; i < c.queries; ++i)
    for (std::int64_t t = 0; t < there; ++t)
      if ((c.left < 0 || t >= i - c.left) && (c.right < 0 || t <= i + c.right))
        ++pairs[{queries[static_cast<std::size_t>(c.query + i)], keys[static_cast<std::size_t>(c.key + t)]}];
}

// On some rank, rows of the call must see keys. Each bound of the call must exclude a pair on some rank.
void expect_needed(const detail::RingCall& c, std::int64_t piece, const std::string& what) {
  ASSERT_TRUE(c.queries > 0 && c.keys > 0) << what;
  ASSERT_TRUE(c.query >= 0 && c.query + c.queries <= 2 * piece) << what;
  ASSERT_TRUE(c.key >= 0 && c.key + c.keys <= 2 * piece) << what;
  ASSERT_TRUE(c.left < c.keys - 1 && c.right < c.keys - 1) << what;
  if (c.visible.empty()) return;
  ASSERT_TRUE(std::ranges::any_of(c.visible, [&](std::int64_t n) { return n < c.keys; })) << what;
  ASSERT_TRUE(std::ranges::any_of(c.visible, [&](std::int64_t n) { return n > 0; })) << what;
}

TEST(RingSchedule, EachVisiblePairIsSeenOnce) {
  std::size_t made = 0;
  for (int ranks : {2, 3, 4, 5})
    for (std::int64_t piece : {1, 3, 4})
      for (std::int64_t left : {-1, 0, 1, 2, 3, 4, 5, 9, 14, 100})
        for (std::int64_t right : {-1, 0, 2, 7}) {
          const std::string what = std::to_string(ranks) + " ranks, pieces of " + std::to_string(piece) +
                                   ", left " + std::to_string(left) + ", right " + std::to_string(right);
          const std::int64_t length = 2 * piece * ranks;
          const auto steps = detail::ring_schedule(ranks, piece, {left, right});
          Pairs seen;
          for (int rank = 0; rank < ranks; ++rank) {
            const std::vector<std::int64_t> queries = ring_positions(rank, ranks, length);
            for (const detail::RingStep& step : steps)
              for (const detail::RingCall& c : step.calls) {
                expect_needed(c, piece, what);
                // flash_attn aligns queries with the last key. So a call with bounds needs equally many keys
                // and queries, or no keys.
                const std::int64_t there =
                    c.visible.empty() ? c.keys : c.visible[static_cast<std::size_t>(rank)];
                ASSERT_TRUE((c.left < 0 && c.right < 0) ||
                            (c.keys == c.queries && (there == 0 || there == c.keys)))
                    << what;
                count_pairs(seen, c, rank, queries,
                            ring_positions((rank + ranks - step.shift) % ranks, ranks, length));
              }
          }
          Pairs expected;
          for (std::int64_t i = 0; i < length; ++i)
            for (std::int64_t t = 0; t < length; ++t)
              if ((left < 0 || t >= i - left) && (right < 0 || t <= i + right)) expected[{i, t}] = 1;
          ASSERT_TRUE(seen == expected) << what;
          for (const detail::RingStep& step : steps) made += step.calls.size();
        }
  EXPECT_EQ(made, 4470u);  // this number changes if calls are joined or split differently
}

// A merge must start with a finite ξ.
TEST(RingSchedule, TheFirstCallOfAQueryHasItsOwnKey) {
  for (std::int64_t left : {-1, 0, 2, 9})
    for (std::int64_t right : {-1, 0, 2, 9}) {
      const auto steps = detail::ring_schedule(4, 3, {left, right});
      ASSERT_EQ(steps[0].shift, 0);
      for (std::int64_t row = 0; row < 6; ++row) {
        const auto first = std::ranges::find_if(steps[0].calls, [&](const detail::RingCall& c) {
          return c.query <= row && row < c.query + c.queries;
        });
        ASSERT_NE(first, steps[0].calls.end());
        const std::int64_t there =
            first->visible.empty() ? first->keys : *std::ranges::min_element(first->visible);
        EXPECT_TRUE(first->key <= row && row < first->key + there) << row;
      }
    }
}

TEST(RingSchedule, ACausalMaskDividesTheWorkEvenly) {
  for (int ranks : {2, 3, 8}) {
    const auto steps = detail::ring_schedule(ranks, 4, {-1, 0});
    EXPECT_EQ(std::ssize(steps), ranks);
    EXPECT_EQ(steps[0].calls.size(), 1u);
    for (const detail::RingStep& step : steps) {
      EXPECT_LE(step.calls.size(), 2u);
      std::vector<std::int64_t> pairs;
      for (int rank = 0; rank < ranks; ++rank) {
        std::int64_t n = 0;
        for (const detail::RingCall& c : step.calls)
          n += c.queries * (c.visible.empty() ? c.keys : c.visible[static_cast<std::size_t>(rank)]);
        pairs.push_back(n);
      }
      EXPECT_EQ(std::ranges::count(pairs, pairs[0]), ranks) << "step " << step.shift;
    }
  }
}

// Unneeded hops are omitted. Calls that are identical on all ranks become one call.
TEST(RingSchedule, StepsAndCallsAreFew) {
  const auto shifts = [](const detail::RingMask& mask) {
    std::vector<int> all;
    for (const detail::RingStep& step : detail::ring_schedule(8, 16, mask)) all.push_back(step.shift);
    return all;
  };
  EXPECT_EQ(shifts({10, 0}), (std::vector{0, 1, 7}));  // the previous piece, to the left or to the right
  EXPECT_EQ(shifts({20, 0}), (std::vector{0, 1, 2, 6, 7}));
  EXPECT_EQ(shifts({0, 0}), (std::vector{0}));
  for (const detail::RingStep& step : detail::ring_schedule(4, 16, {}))
    EXPECT_EQ(step.calls, (std::vector{detail::RingCall{.queries = 32, .keys = 32}}));
}

TEST(RingPositions, ThePiecesOfARank) {
  EXPECT_EQ(ring_positions(1, 2, 8), (std::vector<std::int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(ring_positions(0, 2, 8), (std::vector<std::int64_t>{0, 1, 6, 7}));
  EXPECT_EQ(ring_positions(0, 1, 3), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_THROW(ring_positions(0, 2, 6), ShapeError);
  EXPECT_THROW(ring_positions(2, 2, 8), Error);
}

// A call on views of [B, L, heads, d]. `d` and `dv` are as in flash_attn.
struct Case {
  std::string name;
  std::int64_t B = 1, H = 2, Hk = 2, length = 24, d = 4, dv = 4;
  AttentionOptions options = {.causal = true};
  bool values_are_keys = false;
  bool with_lse = true;  // the loss also reads ξ
  bool rounded = false;  // multiples of 1/4: products are exact, and some scores of a row are equal
};

double number(std::int64_t i, double start) {
  return std::sin(start + 0.37 * static_cast<double>(i) + 0.01 * static_cast<double>(i % 7));
}

Array numbers(const Shape& shape, double start, DType dtype = f64, bool rounded = false) {
  Array a(shape, dtype);
  const HostView view{dtype, shape, a.raw()};
  for (std::int64_t i = 0; i < numel(shape); ++i)
    view.set(i, rounded ? std::round(4 * number(i, start)) / 4 : number(i, start));
  return a;
}

// Computes o, ξ, z_q, z_k and z_v for the rank's tokens at `positions`. `attend` is the attention function.
template <class Attend>
std::vector<Tensor> recorded(Graph& g, const Case& c, DType dtype, const Tensor& positions, Attend attend) {
  const auto own = [&](const Array& all) {
    const Tensor x = g.constant(all);
    return positions.defined() ? index_select(x, 1, positions) : x;
  };
  const auto heads = [](const Tensor& x) { return transpose(x, 1, 2); };
  const Tensor q = own(numbers({c.B, c.length, c.H, c.d}, 1, dtype, c.rounded)),
               k = own(numbers({c.B, c.length, c.Hk, c.d}, 2, dtype, c.rounded)),
               v = c.values_are_keys ? slice(k, 3, 0, c.dv)
                                     : own(numbers({c.B, c.length, c.Hk, c.dv}, 3, dtype));
  const auto [o, lse] = attend(heads(q), heads(k), heads(v));
  const Tensor merged = transpose(o, 1, 2);
  EXPECT_EQ(merged.view({c.B, q.size(1), c.H * c.dv}).rank(), 3);  // throws if it is not a view
  Tensor loss = sum(cast(merged, compute_type(dtype)) *
                    cast(own(numbers({c.B, c.length, c.H, c.dv}, 4, dtype)), compute_type(dtype)));
  if (c.with_lse)
    loss = loss + sum(transpose(lse, 1, 2) *
                      cast(own(numbers({c.B, c.length, c.H}, 5, dtype)), compute_type(dtype)));
  const std::vector<Tensor> z = gradients(loss, {q, k, v});
  return {merged, transpose(lse, 1, 2), z[0], z[1], z[2]};
}

constexpr const char* names[] = {"o", "lse", "z_q", "z_k", "z_v"};

// The largest allowed difference, for numbers of about 1.
double difference(const Array& ring, const Array& whole, const std::vector<std::int64_t>& positions) {
  const std::int64_t L = std::ssize(positions), batch = ring.shape()[0], row = ring.numel() / batch / L,
                     length = whole.numel() / batch / row;
  double most = 0;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t i = 0; i < L; ++i)
      for (std::int64_t e = 0; e < row; ++e) {
        const double a = ring.at((b * L + i) * row + e),
                     w = whole.at((b * length + positions[static_cast<std::size_t>(i)]) * row + e);
        most = std::isfinite(a) ? std::max(most, std::abs(a - w) / (1 + std::abs(w))) : INFINITY;
      }
  return most;
}

std::vector<Array> on_ranks(const Case& c, Communicator& ranks, DType dtype) {
  Graph g;
  const Tensor positions = ring_positions(g, ranks.size(), c.length);
  const std::vector<Tensor> y =
      recorded(g, c, dtype, positions, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
        return ring_attention(q, k, v, ranks.size(), c.options);
      });
  return eval(y, {}, {.threads = 1, .ranks = {std::shared_ptr<void>(), &ranks}});
}

void compare(const Case& c, Communicator& ranks, DType dtype, double tolerance) {
  const std::vector<Array> ring = on_ranks(c, ranks, dtype);
  Graph g;
  const std::vector<Array> whole = eval(recorded(g, c, dtype == f64 ? f64 : f32, {},
                                                 [&](const Tensor& q, const Tensor& k, const Tensor& v) {
                                                   return flash_attn(q, k, v, c.options);
                                                 }),
                                        {}, {.threads = 1});
  const auto positions = ring_positions(ranks.rank(), ranks.size(), c.length);
  for (std::size_t i = 0; i < ring.size(); ++i)
    EXPECT_LT(difference(ring[i], whole[i], positions), tolerance)
        << c.name << ", " << names[i] << ", rank " << ranks.rank() << " of " << ranks.size();
}

std::vector<Case> cases() {
  std::vector<Case> all{
      {.name = "causal"},
      {.name = "not causal", .options = {}},
      {.name = "one token a piece", .length = 8},
      {.name = "batch, grouped heads", .B = 3, .H = 4},
      {.name = "one key head, wider values", .H = 3, .Hk = 1, .dv = 6},
      {.name = "latent: values are columns of keys",
       .H = 4,
       .Hk = 1,
       .d = 6,
       .dv = 4,
       .values_are_keys = true},
      {.name = "scale, softcap", .options = {.scale = 0.8, .causal = true, .softcap = 1.5}},
      {.name = "top-left", .options = {.causal = true, .alignment = AttentionOptions::top_left}},
      {.name = "ξ not read", .with_lse = false}};
  for (const std::int64_t left : {0, 1, 2, 3, 5, 6, 11, 17, 50})
    all.push_back({.name = "causal window " + std::to_string(left),
                   .H = 4,
                   .options = {.causal = true, .window_left = left}});
  all.push_back({.name = "window of both sides", .B = 2, .options = {.window_left = 4, .window_right = 8}});
  all.push_back({.name = "window to the right", .options = {.window_right = 2}});
  all.push_back({.name = "window to the left, softcap", .B = 2, .options = {.window_left = 7, .softcap = 2}});
  return all;
}

class RingAttention : public ::testing::TestWithParam<int> {};

TEST_P(RingAttention, MatchesFlashAttnOfTheFullSequence) {
  run_ranks(
      GetParam(),
      [](Communicator& ranks) {
        for (const Case& c : cases()) compare(c, ranks, f64, 1e-13);
      },
      120);
}

// The ξ of these rows is so large that adding log π or a partial result's weight would not change it.
// Gradients of q and k, and errors in them, are 2^14 times larger than usual.
TEST_P(RingAttention, LargeScoresMatchFlashAttn) {
  run_ranks(
      GetParam(),
      [](Communicator& ranks) {
        for (const double scale : {16384., -16384.})
          for (const bool causal : {true, false}) {
            const Case c{.name = "large scores",
                         .H = 4,
                         .options = {.scale = scale, .causal = causal},
                         .rounded = true};
            compare(c, ranks, f64, 1e-10);
            compare(c, ranks, f32, 0.05);
          }
      },
      120);
}

// Each part of o and of the gradients is rounded to bf16. The sums are rounded once more.
TEST_P(RingAttention, SixteenBitTypesMatchToTheirRounding) {
  run_ranks(
      GetParam(),
      [](Communicator& ranks) {
        compare({.name = "f32", .H = 4}, ranks, f32, 3e-6);
        compare({.name = "bf16", .H = 4}, ranks, bf16, 0.03);
      },
      120);
}

TEST_P(RingAttention, TwoRunsMatchBitwise) {
  run_ranks(GetParam(), [](Communicator& ranks) {
    const Case c{.name = "bits", .H = 4};
    const std::vector<Array> a = on_ranks(c, ranks, bf16), b = on_ranks(c, ranks, bf16);
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].same_bits(b[i])) << names[i];
  });
}

INSTANTIATE_TEST_SUITE_P(OnRanks, RingAttention, ::testing::Values(2, 4));

// If a segment is recomputed, the keys circulate a second time.
TEST(RingAttentionGraph, CanBeRecomputed) {
  run_ranks(2, [](Communicator& ranks) {
    const Case c{.name = "checkpoint", .with_lse = false};
    const auto run = [&](bool again) {
      Graph g;
      const Tensor positions = ring_positions(g, 2, c.length);
      return eval(recorded(g, c, f64, positions,
                           [&](const Tensor& q, const Tensor& k, const Tensor& v) -> AttentionResult {
                             const auto f = [&](const std::vector<Tensor>& x) {
                               const AttentionResult r = ring_attention(x[0] * 1.5, x[1], x[2], 2, c.options);
                               return std::vector{r.o, r.lse};
                             };
                             const auto r = again ? checkpoint(f, {q, k, v}) : f({q, k, v});
                             return {r[0], r[1]};
                           }),
                  {}, {.threads = 1, .ranks = {std::shared_ptr<void>(), &ranks}});
    };
    const std::vector<Array> once = run(false), again = run(true);
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(once[i].same_bits(again[i])) << names[i];
  });
}

// No tensor has the size of the complete sequence, and each hop is one step.
TEST(RingAttentionGraph, AProgramNeedsMemoryOnlyForTheShareOfItsRank) {
  run_ranks(4, [](Communicator& ranks) {
    const Case c{.name = "share", .length = 16};  // tokens of the rank
    Graph g;
    const std::vector<Tensor> y =
        recorded(g, c, f64, {}, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
          return ring_attention(q, k, v, 4, c.options);
        });
    const Program program = compile(g, y, {.threads = 1, .ranks = {std::shared_ptr<void>(), &ranks}});
    std::map<std::string, int> steps;
    for (const Step& s : program.steps()) {
      if (s.op) ++steps[s.op->name];
      for (const Arg& x : s.out) EXPECT_LE(numel(x.layout.shape), c.length * c.H * c.d);
    }
    EXPECT_EQ(steps["flash_attn"], 1 + 3 * 2);  // a causal square, then two halves for each other rank
    EXPECT_EQ(steps["flash_attn_backward"], 1 + 3 * 2);
    EXPECT_EQ(steps["ppermute"], 3 + 3 + 1);
  });
}

TEST(RingAttentionGraph, AWindowOfTheFullSequenceHasNoEffect) {
  const auto calls = [](std::int64_t left) {
    Graph g;
    const Tensor q = g.input("q", {1, 2, 8, 4});
    ring_attention(q, q, q, 2, {.causal = true, .window_left = left});
    return std::ranges::count_if(g.nodes(),
                                 [](const Node& n) { return std::string_view(n.op->name) == "flash_attn"; });
  };
  for (const std::int64_t left : {std::int64_t{15}, std::int64_t{16}, INT64_MAX})
    EXPECT_EQ(calls(left), calls(-1)) << left;
  EXPECT_GT(calls(14), calls(-1));
}

TEST(RingAttentionGraph, OneRankUsesFlashAttn) {
  Graph g;
  const Tensor q = g.input("q", {1, 2, 5, 4});
  const auto [o, lse] = ring_attention(q, q, q, 1, {.causal = true});
  EXPECT_EQ(g.node_of(o.id()).op->name, "flash_attn");
}

TEST(RingAttentionGraph, InvalidCallsAreRefused) {
  Graph g;
  const Tensor q = g.input("q", {1, 2, 6, 4}), bias = g.input("b", {6, 6}), odd = g.input("o", {1, 2, 5, 4}),
               flat = g.input("f", {6, 4}), longer = g.input("l", {1, 2, 8, 4});
  const auto refusal = [&](const Tensor& x, const Tensor& y, int ranks, const AttentionOptions& o) {
    try {
      ring_attention(x, y, y, ranks, o);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find("[ring_attention] " + part), std::string::npos) << text;
  };
  has(refusal(q, q, 0, {}), "the number of ranks is 0, expected 1 to 64");
  has(refusal(q, q, 65, {}), "the number of ranks is 65, expected 1 to 64");
  has(refusal(q, q, 2, {.dropout = 0.1}), "dropout is not supported on several ranks");
  has(refusal(q, q, 2, {.bias = bias}),
      "bias, sink, cu_seqlens and kv_lengths are not supported on several ranks");
  has(refusal(q, q, 2, {.window_left = -2}), "window_left is out of range: got -2");
  EXPECT_NE(refusal(q, q, 2, {.alignment = AttentionOptions::top_left})
                .find("[ring_attention/flash_attn] top-left alignment needs causal = true"),
            std::string::npos);
  has(refusal(odd, odd, 2, {}), "the rank has 5 tokens, expected an even number of at least 2");
  has(refusal(flat, flat, 2, {}), "needs q [B, H, L, d], k [B, Hk, L, d] and v [B, Hk, L, dv]; got");
  has(refusal(q, longer, 2, {}), "q, k and v differ in length");
}

}  // namespace

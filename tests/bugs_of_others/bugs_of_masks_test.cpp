// Runs the examples of bug reports about the keys that a query sees: masks, windows, lengths, and rows that
// see no keys.
#include <limits>

#include <tilegrad/nn/layers/attention.h>
#include "tests/support/attention_case.h"
#include "tests/support/paged_problem.h"

namespace {

using namespace tg;
using namespace tg::testing;

constexpr double inf = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();

// A bias of [1, 1, L, T] that hides nothing.
reference::AttentionOptions seen(reference::Index L, reference::Index T) {
  return {.bias = Vector(static_cast<std::size_t>(L * T), 0.0), .bias_shape = {1, 1, L, T}};
}
void hide_row(reference::AttentionOptions& o, reference::Index i) {
  const reference::Index T = o.bias_shape[3];
  std::fill_n(o.bias.begin() + i * T, T, -inf);
}

// https://github.com/pytorch/pytorch/issues/41508
// If all keys of a query were masked, gradients became NaN. The query's gradient must be 0. The query must
// contribute nothing to other gradients.
TEST(BugsOfOthersMasks, FullyMaskedRowsHaveZeroGradients) {
  AttentionCase c({1, 2, 2, 10, 12, 4, 4}, seen(10, 12));
  hide_row(c.o, 3);
  const Attended got = c.run();
  expect_same(got, c.expected());
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t e = 0; e < 4; ++e) EXPECT_EQ(got.z_q[(h * 10 + 3) * 4 + e], 0);
}

// https://github.com/pytorch/pytorch/issues/103963
// If a row of a boolean mask had no true entry, the result was NaN. The row of the result must be 0.
TEST(BugsOfOthersMasks, BooleanRowWithoutATrueEntryIsZero) {
  AttentionCase c({1, 1, 1, 9, 11, 3, 5}, seen(9, 11));
  hide_row(c.o, 0), hide_row(c.o, 8);
  c.boolean_mask = true;
  const Attended got = c.run();
  for (std::size_t e = 0; e < 5; ++e) {
    EXPECT_EQ(got.o[e], 0);
    EXPECT_EQ(got.o[8 * 5 + e], 0);
  }
  EXPECT_EQ(got.lse[0], -inf);
  EXPECT_TRUE(close(got.o, c.expected().o));
}

// https://github.com/ml-explore/mlx/pull/2608
// If all keys of a single new query were hidden, the result was NaN. The row of the result must be 0.
TEST(BugsOfOthersMasks, RowOfASequenceWithoutKeysIsZero) {
  const AttentionCase c({2, 2, 1, 1, 6, 4, 4}, {.kv_lengths = {6, 0}});
  const Attended got = c.run();
  EXPECT_TRUE(close(got.o, c.expected().o));
  for (std::size_t e = 8; e < 16; ++e) EXPECT_EQ(got.o[e], 0);
}

// https://github.com/robertknight/rten/pull/1321
// If query heads shared key heads, and all keys of a row were masked, the row became NaN. It must be 0 for
// every head.
TEST(BugsOfOthersMasks, FullyMaskedRowsOfSharedKeyHeadsAreZero) {
  AttentionCase c({1, 4, 2, 3, 5, 4, 4}, seen(3, 5));
  hide_row(c.o, 1);
  const Attended got = c.run();
  for (std::size_t h = 0; h < 4; ++h)
    for (std::size_t e = 0; e < 4; ++e) EXPECT_EQ(got.o[(h * 3 + 1) * 4 + e], 0);
  EXPECT_TRUE(close(got.o, c.expected().o));
}

// https://github.com/tracel-ai/burn/pull/4697
// A causal mask and a mask of left padding together leave the first queries without keys. The rows of these
// queries must be 0. Other queries must see the keys that neither mask hides.
TEST(BugsOfOthersMasks, CausalAndPaddingMasksHoldTogether) {
  AttentionCase c({1, 1, 1, 10, 10, 4, 4},
                  {.causal = true, .bias = Vector(10, 0.0), .bias_shape = {1, 1, 1, 10}});
  c.o.bias[0] = c.o.bias[1] = -inf;
  c.boolean_mask = true;
  const Attended got = c.run();
  for (std::size_t e = 0; e < 8; ++e) EXPECT_EQ(got.o[e], 0);
  EXPECT_TRUE(close(got.o, c.expected().o));
  for (std::size_t e = 0; e < 4; ++e)
    EXPECT_NEAR(got.o[2 * 4 + e], c.v[2 * 4 + e], 1e-15);  // this query sees only its own key
}

// https://github.com/pytorch/pytorch/issues/109517
// A mask can add the lowest finite number of the type to all scores of a row. Each sum is then rounded to
// this number, so the result must be the mean of all values.
TEST(BugsOfOthersMasks, RowOfLowestFiniteNumbersIsTheMean) {
  AttentionCase c({1, 1, 1, 2, 5, 4, 1}, seen(2, 5), f32);
  std::fill_n(c.o.bias.begin(), 5, static_cast<double>(std::numeric_limits<float>::lowest()));
  c.v = {
      1, 2, 3, 4, 5,
  };
  const Attended got = c.run();
  EXPECT_NEAR(got.o[0], 3, 1e-6);
  EXPECT_NEAR(got.o[1], c.expected().o[1], 1e-6);
}

// https://github.com/Dao-AILab/flash-attention/issues/1012
// If −1e9 was added to every score, gradients of values were computed with weights of 1. Five equal scores
// must have weights 1/5, even if they are very low.
TEST(BugsOfOthersMasks, FiniteMaskOfAWholeRowKeepsWeightsOfOneFifth) {
  AttentionCase c({1, 1, 1, 1, 5, 2, 1}, {.bias = Vector(5, -1e9), .bias_shape = {1, 1, 1, 5}}, f32);
  c.q = {1, 1}, c.k = Vector(10, 0.5), c.v = {1, 2, 3, 4, 5}, c.z_o = {1};
  const Attended got = c.run();
  EXPECT_NEAR(got.o[0], 3, 1e-6);
  for (const double z : got.z_v) EXPECT_NEAR(z, 0.2, 1e-6);
}

// https://github.com/flashinfer-ai/flashinfer/issues/4267
// The running maximum began at −5e4. Results were wrong if all scores of a row were lower. Only the
// differences of scores must matter.
TEST(BugsOfOthersMasks, RunningMaximumBeginsBelowAllScores) {
  AttentionCase c({1, 1, 1, 1, 4, 1, 1}, {.scale = 1}, f32);
  c.q = {-1000}, c.k = Vector(4, 100), c.v = {1, 2, 3, 6};
  const Attended got = c.run();
  EXPECT_NEAR(got.o[0], 3, 1e-6);
  EXPECT_NEAR(got.lse[0], -1e5 + std::log(4.0), 1e-2);
}

// https://github.com/pytorch/pytorch/issues/101967
// NaN in masked keys and values reached the output. Unseen keys and values must have no effect.
TEST(BugsOfOthersMasks, NanInUnseenKeysAndValuesHasNoEffect) {
  const AttentionCase clean({1, 2, 1, 12, 20, 4, 4}, {.kv_lengths = {13}});
  AttentionCase dirty = clean;
  for (std::size_t e = 13 * 4; e < 20 * 4; ++e) dirty.k[e] = dirty.v[e] = nan;
  const Attended a = clean.run(), b = dirty.run();
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.z_q, b.z_q);
  for (const double x : b.o) EXPECT_TRUE(std::isfinite(x));
}

// https://github.com/huggingface/transformers/issues/39408
// A sliding window of w tokens had one key too many. The window includes the query's own key. So a key that
// is w positions before the query must be hidden.
TEST(BugsOfOthersMasks, SlidingWindowCountsTheOwnKey) {
  nn::Params params(1, f64);
  const nn::GroupedAttention attention(nn::Path(params) / "attn", 8, 2, {.window = 3});
  Graph g;
  const Given x = given(g, {1, 7, 8});
  const Tensor y = attention(x.tensor, {.mode = nn::Mode::evaluate});
  const Vector z = doubles(eval(gradients(sum(slice(y, 1, 5, 6)), {x.tensor})[0], {x.feed()}));
  for (std::size_t t = 0; t < 7; ++t) {
    double size = 0;
    for (std::size_t e = 0; e < 8; ++e) size += std::abs(z[t * 8 + e]);
    EXPECT_EQ(size > 0, t >= 3 && t <= 5) << "token " << t;
  }
}

// https://github.com/Dao-AILab/flash-attention/issues/1133
// A causal window that covers all earlier keys differed from plain causal attention.
TEST(BugsOfOthersMasks, WindowOverAllEarlierKeysIsCausal) {
  const AttentionCase plain({1, 2, 2, 12, 12, 4, 4}, {.causal = true});
  AttentionCase window = plain;
  window.o = {.window_left = 11, .window_right = 0};
  expect_same(window.run(), plain.expected());
}

// https://github.com/Dao-AILab/flash-attention/issues/1778
// With more queries than keys, a causal mask was not aligned as documented. It is aligned at the bottom
// right: the last query sees the last key, and the first queries see none.
TEST(BugsOfOthersMasks, CausalWithMoreQueriesThanKeysHidesAllFromTheFirst) {
  const AttentionCase c({1, 1, 1, 12, 8, 4, 4}, {.causal = true});
  expect_oracle(c);
  const Attended got = c.run();
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(got.lse[i] == -inf, i < 4) << i;
}

// https://github.com/Dao-AILab/flash-attention/issues/402
// https://github.com/Dao-AILab/flash-attention/issues/282
// There can be more keys than queries, for example after a prefix. Query i saw only i + 1 keys. It must see i
// + 1 + T − L keys.
TEST(BugsOfOthersMasks, CausalAfterAPrefixSeesThePrefix) {
  const AttentionCase c({1, 1, 1, 9, 14, 4, 4}, {.causal = true});
  expect_oracle(c);
  AttentionCase last = c;  // a call with only the last query sees the same keys
  last.n.L = 1;
  last.q.assign(c.q.end() - 4, c.q.end()), last.z_o.assign(4, 0.0);
  const Vector all = c.run().o;
  EXPECT_TRUE(close(last.run().o, Vector(all.end() - 4, all.end())));
}

// https://github.com/gittensor-ai-lab/sparkinfer/issues/3
// Queries at the end of a longer sequence were masked as if the first of them were at position 0. This hid
// the cached keys.
TEST(BugsOfOthersMasks, ChunkAtTheEndOfASequenceSeesEarlierKeys) {
  const AttentionCase c({1, 2, 1, 3, 11, 4, 4}, {.causal = true});
  EXPECT_TRUE(close(c.run().o, c.expected().o));
}

// https://github.com/ml-explore/mlx/pull/2836
// https://github.com/ml-explore/mlx/pull/2967
// If the numbers of queries and keys differ, a causal mask may be aligned at the top left: query i sees keys
// 0 … i.
TEST(BugsOfOthersMasks, TopLeftAlignmentIsHonoured) {
  AttentionCase c({1, 1, 1, 9, 14, 4, 4}, {.causal = true, .top_left = true});
  expect_oracle(c);
  const Attended got = c.run();
  for (std::size_t e = 0; e < 4; ++e) EXPECT_NEAR(got.o[e], c.v[e], 1e-15);
}

// https://github.com/tlc-pack/libflash_attn/pull/11
// A causal call with a window wider than the sequence lost its causal mask.
TEST(BugsOfOthersMasks, CausalWindowWiderThanTheSequenceHidesLaterKeys) {
  const AttentionCase c({1, 2, 1, 10, 10, 4, 4}, {.causal = true, .window_left = 50});
  expect_oracle(c);
  const Attended got = c.run();
  for (std::size_t e = 0; e < 4; ++e) EXPECT_NEAR(got.o[e], c.v[e], 1e-15);
}

// https://github.com/Dao-AILab/flash-attention/issues/1537
// Empty sequences among packed sequences gave wrong results. Empty sequences have no rows, and each other
// sequence must see only its own keys.
TEST(BugsOfOthersMasks, EmptySequencesAmongPackedOnesChangeNothing) {
  expect_oracle(AttentionCase({1, 2, 1, 12, 12, 4, 4}, {.cu_q = {0, 5, 5, 5, 12}, .cu_k = {0, 5, 5, 5, 12}}));
}

// https://github.com/Dao-AILab/flash-attention/issues/2562
// https://github.com/Dao-AILab/flash-attention/pull/2568
// Keys of a sequence without queries had uninitialized gradients. These gradients must be 0.
TEST(BugsOfOthersMasks, KeysWithoutQueriesHaveZeroGradients) {
  const AttentionCase c({1, 2, 2, 6, 9, 4, 4}, {.cu_q = {0, 6, 6}, .cu_k = {0, 5, 9}});
  const Attended got = c.run();
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t e = 5 * 4; e < 9 * 4; ++e) {
      EXPECT_EQ(got.z_k[h * 36 + e], 0);
      EXPECT_EQ(got.z_v[h * 36 + e], 0);
    }
  expect_same(got, c.expected());
}

// https://github.com/vllm-project/vllm/pull/936
// https://github.com/ROCm/aiter/pull/5401
// NaN in unfilled slots of a page reached the output as 0·NaN.
TEST(BugsOfOthersMasks, UnfilledSlotsOfAPageMayHoldNan) {
  expect_defined(PagedCall{.page = 16, .sequences = {0, 1}, .lengths = {5, 21}});
}

// https://github.com/flashinfer-ai/flashinfer/issues/941
// Values can be the first columns of keys. In this case, stale NaN in a page made the whole output NaN.
TEST(BugsOfOthersMasks, UnfilledSlotsOfKeysThatAreValuesMayHoldNan) {
  PagedCall c{.H = 4, .Hk = 1, .d = 12, .dv = 8, .page = 8, .L = 3, .sequences = {0}, .lengths = {11}};
  c.v_in_k = true;
  expect_defined(c);
}

// https://github.com/deepbeepmeep/Wan2GP/pull/1628
// A mask hid scores by adding −∞, so a hidden NaN stayed NaN. Hidden scores must be set to −∞ instead.
TEST(BugsOfOthersMasks, HiddenScoresAreSetNotAddedTo) {
  const AttentionCase clean({1, 1, 1, 2, 6, 4, 4}, {.causal = true, .top_left = true});
  AttentionCase dirty = clean;
  for (std::size_t e = 0; e < 4; ++e) dirty.k[4 + e] = nan;  // key 1, which the first query does not see
  const Vector a = clean.run().o, b = dirty.run().o;
  EXPECT_EQ(Vector(a.begin(), a.begin() + 4), Vector(b.begin(), b.begin() + 4));
}

// https://github.com/meta-pytorch/MSLK/pull/263
// https://github.com/ROCm/aiter/pull/3742
// A backward pass ignored the window of the forward pass. Keys outside of the window must have no gradient.
TEST(BugsOfOthersMasks, BackwardKeepsTheWindow) {
  expect_oracle(AttentionCase({1, 2, 2, 14, 14, 4, 4}, {.window_left = 3, .window_right = 0}));
}

}  // namespace

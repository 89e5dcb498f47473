// Compares attention with the definition in f64. Covers all pairs of options. Covers every option at sizes
// one below, at and one above the size of each tile.
#define TG_ISA baseline
#include "tests/support/attention_trial.h"

namespace tg::cpu {
namespace {

struct Switch {
  const char* name;
  void (*set)(Trial&);
};

// Options for a trial with B = 1, L = 70 and T = 200.
const std::int32_t lengths[] = {193, 71};
const std::int32_t packed_q[] = {0, 30, 30, 66, 69}, packed_k[] = {0, 35, 40, 170, 199};
const Switch switches[] = {
    {"causal", [](Trial& s) { s.x.causal = true; }},
    {"top-left causal", [](Trial& s) { s.x.causal = s.x.top_left = true; }},
    {"left window", [](Trial& s) { s.x.window_left = 40; }},
    {"right window", [](Trial& s) { s.x.window_right = 7; }},
    {"lengths", [](Trial& s) { s.x.B = 2, s.x.lengths = lengths; }},
    {"packed", [](Trial& s) { s.x.cu_q = packed_q, s.x.cu_k = packed_k, s.x.segments = 4; }},
    {"bias", [](Trial& s) { s.bias = 15; }},
    {"key bias", [](Trial& s) { s.bias = 1, s.bias_infinite = 0.2; }},
    {"softcap", [](Trial& s) { s.x.softcap = 1.5; }},
    {"sink", [](Trial& s) { s.sink = true; }},
    {"dropout", [](Trial& s) { drop(s, 0.3); }},
    {"gradient of the log-sum", [](Trial& s) { s.z_lse = true; }},
    {"rows first", [](Trial& s) { s.rows_first = true; }},
    {"a key head for each", [](Trial& s) { s.x.Hk = s.x.H; }},
    {"f64", [](Trial& s) { s.x.type = DType::f64; }},
    {"bf16", [](Trial& s) { s.x.type = DType::bf16; }},
};

TEST(AttentionOptions, AgreeWithTheDefinitionInAllPairs) {
  for (const Switch& a : switches)
    for (const Switch* b = &a + 1; b != std::end(switches); ++b) {
      Trial s = shape(1, 2, 1, 70, 200, 8, 8);
      a.set(s), b->set(s);
      if (s.x.lengths && s.x.cu_q) continue;  // flash_attn refuses this pair
      SCOPED_TRACE(std::string(a.name) + " and " + b->name);
      check(s);
      if (HasFatalFailure()) return;
    }
}

// The options of each triple together determine the visible keys.
TEST(AttentionOptions, MaskTriplesAgreeWithTheDefinition) {
  for (const bool causal : {false, true})
    for (const bool top_left : {false, true})
      for (const int left : {-1, 0, 40})
        for (const int right : {-1, 0, 7})
          for (const bool packed : {false, true}) {
            if (top_left && !causal) continue;
            SCOPED_TRACE(testing::Message() << "causal " << causal << ", top-left " << top_left << ", window "
                                            << left << " " << right << (packed ? ", packed" : ", lengths"));
            Trial s = shape(packed ? 1 : 2, 1, 1, 70, 200, 8, 8);
            s.x.causal = causal, s.x.top_left = top_left;
            s.x.window_left = left, s.x.window_right = right;
            if (packed) {
              s.x.cu_q = packed_q, s.x.cu_k = packed_k, s.x.segments = 4;
            } else {
              s.x.lengths = lengths;
            }
            check(s);
            if (HasFatalFailure()) return;
          }
}

// Sizes are one below, at and one above the tiles. The forward's tiles have 64 queries and 128 keys. The
// backward's tiles have 96 and 192.
constexpr int query_edges[] = {1, 63, 64, 65, 95, 96, 97};
constexpr std::int32_t key_edges[] = {1, 127, 128, 129, 191, 192, 193, 255, 256, 257, 383, 384, 385};

TEST(AttentionSizes, NextToEveryTileAgreeWithTheDefinition) {
  for (const int L : query_edges)
    for (const int T : key_edges) {
      SCOPED_TRACE(testing::Message() << L << " queries, " << T << " keys");
      check(shape(1, 1, 1, L, T, 8, 8));
      if (HasFatalFailure()) return;
    }
}

// In a 16-bit type, the backward processes up to 256 keys as one block. It then needs no second pass for z_Q.
TEST(AttentionSizes, SingleKeyBlocksOf16BitTypesAgreeWithTheDefinition) {
  for (const DType t : {DType::bf16, DType::f16})
    for (const int L : {1, 95, 97, 200})
      for (const int T : {191, 193, 255, 256, 257}) {
        SCOPED_TRACE(testing::Message() << L << " queries, " << T << " keys");
        check(shape(1, 2, 1, L, T, 8, 8, t));
        check(with(shape(1, 2, 1, L, T, 16, 8, t),
                   [](Trial& s) { s.x.causal = true, s.bias = 15, s.z_lse = true; }));
        if (HasFatalFailure()) return;
      }
}

// The last visible key is the last valid key, or it is at the end of a diagonal or window.
TEST(AttentionSizes, KeysThatEndNextToEveryTileAgreeWithTheDefinition) {
  const int entries = static_cast<int>(std::size(key_edges));
  for (const int L : {1, 97})
    for (const bool causal : {false, true})
      for (const int right : {-1, 0, 1}) {
        SCOPED_TRACE(testing::Message() << L << " queries, causal " << causal << ", right " << right);
        check(with(shape(entries, 1, 1, L, 400, 8, 8), [&](Trial& s) {
          s.x.lengths = key_edges, s.x.causal = causal, s.x.window_right = right;
        }));
        if (HasFatalFailure()) return;
      }
}

// The first visible key is at the start of a packed sequence or of a window.
TEST(AttentionSizes, KeysThatBeginNextToEveryTileAgreeWithTheDefinition) {
  for (const std::int32_t edge : key_edges) {
    const std::int32_t q[] = {0, 30, 70}, k[] = {0, edge, 400};
    SCOPED_TRACE(testing::Message() << "keys from " << edge);
    check(
        with(shape(1, 1, 1, 70, 400, 8, 8), [&](Trial& s) { s.x.cu_q = q, s.x.cu_k = k, s.x.segments = 2; }));
    check(with(shape(1, 1, 1, 3, 400, 8, 8), [&](Trial& s) { s.x.window_left = 397 - edge; }));
    if (HasFatalFailure()) return;
  }
}

// L = T, as in self-attention. The visible keys of each query begin and end near the edges of tiles.
TEST(AttentionSizes, SquaresNextToEveryTileAgreeWithTheDefinition) {
  for (const int n : {63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193, 383, 384, 385})
    for (const int left : {-1, 64}) {
      SCOPED_TRACE(testing::Message() << n << " with window " << left);
      check(with(shape(1, 1, 1, n, n, 8, 8), [&](Trial& s) { s.x.causal = true, s.x.window_left = left; }));
      if (HasFatalFailure()) return;
    }
}

// In turn, each key has a logit far above all others. The maximum of a column must be found at any position.
TEST(AttentionOptions, OneLargeLogitIsFoundAtEveryKey) {
  check(
      with(shape(1, 1, 1, 400, 400, 8, 8, DType::f64), [](Trial& s) { s.bias = 3, s.bias_diagonal = 1000; }));
}

}  // namespace
}  // namespace tg::cpu

// Compares the fused attention kernels of every instruction set with the definition in f64. Covers forward
// and backward, every option, ragged shapes and every float type.
#define TG_ISA baseline
#include "tests/support/attention_trial.h"

namespace tg::cpu {
namespace {

TEST(AttentionKernel, AgreesWithTheDefinitionOnRaggedShapes) {
  check(shape(1, 1, 1, 1, 1, 1, 1));
  check(shape(2, 2, 2, 64, 64, 32, 32));
  check(shape(1, 2, 2, 65, 63, 16, 16));
  check(shape(1, 1, 1, 130, 300, 20, 33));
  check(shape(1, 1, 1, 7, 550, 64, 5));
  check(shape(2, 1, 1, 200, 3, 3, 65));
}

TEST(AttentionKernel, AcceptsEveryFloatType) {
  for (const DType t : {DType::f64, DType::bf16, DType::f16}) {
    check(shape(1, 2, 1, 70, 90, 24, 40, t));
    check(with(shape(1, 1, 1, 70, 300, 17, 9, t), [](Trial& s) { s.x.causal = true, s.rows_first = true; }));
  }
}

// GEMMs use AMX tiles if the processor has them. They also run on a model of tiles.
TEST(AttentionKernel, MultipliesBf16WithEveryOption) {
  const auto bf16 = [](int B, int H, int Hk, int L, int T, int d, int dv) {
    return shape(B, H, Hk, L, T, d, dv, DType::bf16);
  };
  check(bf16(2, 2, 2, 64, 64, 32, 32));
  check(bf16(1, 2, 2, 65, 63, 16, 16));
  check(bf16(1, 1, 1, 130, 300, 20, 33));  // two blocks of keys, and a separate pass for z_Q
  check(bf16(1, 1, 1, 200, 17, 3, 65));
  check(bf16(1, 6, 2, 70, 70, 48, 16));
  check(bf16(1, 4, 1, 20, 40, 16, 16));  // tiles are not used for adjacent heads
  for (const auto& [L, T] : {std::pair{100, 100}, {70, 150}, {150, 70}, {300, 300}})
    check(with(bf16(1, 2, 1, L, T, 64, 64), [](Trial& s) { s.x.causal = true, s.rows_first = true; }));
  check(with(bf16(1, 1, 1, 150, 290, 40, 16), [](Trial& s) { s.x.window_left = 30, s.x.window_right = 3; }));
  check(with(bf16(1, 2, 2, 70, 90, 16, 16), [](Trial& s) { s.bias = 15, s.bias_infinite = 0.9; }));
  check(
      with(bf16(1, 2, 1, 70, 90, 16, 32), [](Trial& s) { s.x.softcap = 2, s.sink = true, s.z_lse = true; }));
  check(with(bf16(1, 2, 2, 70, 90, 16, 16), [](Trial& s) { drop(s, 0.3); }));
}

TEST(AttentionKernel, ReadsTransposedViewsInPlace) {
  check(with(shape(2, 4, 2, 80, 80, 32, 16), [](Trial& s) { s.rows_first = true; }));
  check(with(shape(1, 64, 64, 20, 30, 16, 16),
             [](Trial& s) { s.rows_first = true; }));  // rows are 4096 bytes apart
}

TEST(AttentionKernel, SharesKeyHeadsAmongQueryHeads) {
  check(shape(2, 6, 2, 70, 70, 16, 16));
  check(shape(1, 8, 1, 1, 100, 16, 16));  // decoding: heads are adjacent in memory
  check(shape(1, 40, 2, 5, 100, 16, 24));
}

TEST(AttentionKernel, MasksCausally) {
  for (const bool top_left : {false, true})
    for (const auto& [L, T] : {std::pair{100, 100}, {70, 150}, {150, 70}, {300, 300}, {1, 9}})
      check(
          with(shape(1, 2, 1, L, T, 16, 16), [&](Trial& s) { s.x.causal = true, s.x.top_left = top_left; }));
}

TEST(AttentionKernel, MasksByAWindow) {
  for (const auto& [left, right] : {std::pair{10, 0}, {0, 0}, {-1, 5}, {40, 40}, {300, -1}})
    check(with(shape(1, 1, 1, 150, 170, 16, 16),
               [&](Trial& s) { s.x.window_left = left, s.x.window_right = right; }));
  check(with(shape(1, 2, 2, 600, 600, 16, 16), [](Trial& s) { s.x.causal = true, s.x.window_left = 30; }));
  // There are more batch entries than tiles of queries.
  for (const DType t : {DType::f32, DType::bf16})
    check(
        with(shape(3, 1, 1, 100, 100, 16, 16, t), [](Trial& s) { s.x.causal = true, s.x.window_left = 10; }));
}

TEST(AttentionKernel, AddsABiasOfAnyBroadcastAndReducesItsGradient) {
  for (int kept = 0; kept < 16; ++kept)
    check(with(shape(2, 2, 1, 70, 90, 16, 16), [&](Trial& s) { s.bias = kept; }));
  check(with(shape(1, 2, 2, 150, 300, 16, 16), [](Trial& s) { s.bias = 5, s.x.causal = true; }));
  check(with(shape(1, 2, 2, 70, 90, 16, 16), [](Trial& s) { s.bias = 15, s.bias_infinite = 0.9; }));
  check(with(shape(1, 2, 2, 20, 3, 16, 16),
             [](Trial& s) { s.bias = 15, s.bias_infinite = 0.9; }));  // complete rows are −∞
  check(with(shape(1, 2, 2, 70, 90, 16, 16, DType::bf16), [](Trial& s) { s.bias = 7; }));
  check(with(shape(1, 6, 1, 3, 90, 16, 16), [](Trial& s) { s.bias = 15; }));
}

TEST(AttentionKernel, CapsScoresSoftly) {
  check(with(shape(1, 2, 1, 70, 300, 16, 16), [](Trial& s) { s.x.softcap = 1.5; }));
  check(with(shape(1, 2, 1, 70, 90, 16, 16),
             [](Trial& s) { s.x.softcap = 1.5, s.bias = 15, s.x.causal = true; }));
}

TEST(AttentionKernel, CountsASinkInTheDenominator) {
  check(with(shape(2, 4, 2, 70, 300, 16, 16), [](Trial& s) { s.sink = true; }));
  check(with(shape(1, 4, 2, 90, 40, 16, 16),
             [](Trial& s) { s.sink = true, s.x.causal = true, s.z_lse = true; }));
}

TEST(AttentionKernel, DifferentiatesTheLogSum) {
  check(with(shape(1, 2, 1, 70, 300, 16, 16), [](Trial& s) { s.z_lse = true; }));
  check(with(shape(1, 2, 1, 90, 40, 16, 16), [](Trial& s) { s.z_lse = true, s.x.causal = true; }));
}

TEST(AttentionKernel, SeparatesPackedSequences) {
  const std::int32_t q[] = {0, 30, 30, 31, 150, 170}, k[] = {0, 30, 45, 45, 200, 310};
  for (const bool causal : {false, true})
    check(with(shape(1, 2, 1, 175, 315, 16, 16),
               [&](Trial& s) { s.x.cu_q = q, s.x.cu_k = k, s.x.segments = 5, s.x.causal = causal; }));
  check(with(shape(1, 2, 1, 175, 315, 16, 16), [&](Trial& s) {
    s.x.cu_q = q, s.x.cu_k = k, s.x.segments = 5, s.x.window_left = 20, s.x.window_right = 3;
  }));
}

TEST(AttentionKernel, ReadsOnlyTheValidKeysOfEachRow) {
  const std::int32_t narrow[] = {0, 1, 300, 77};
  const std::int64_t wide[] = {0, 1, 300, 77};
  for (const bool causal : {false, true}) {
    check(
        with(shape(4, 2, 1, 20, 300, 16, 16), [&](Trial& s) { s.x.lengths = narrow, s.x.causal = causal; }));
    check(with(shape(4, 2, 1, 1, 300, 16, 16),
               [&](Trial& s) { s.x.lengths = wide, s.x.lengths_are_i64 = true, s.x.causal = causal; }));
    // Each batch entry has two tiles of queries.
    for (const DType t : {DType::f32, DType::bf16})
      check(with(shape(4, 1, 1, 100, 300, 16, 16, t),
                 [&](Trial& s) { s.x.lengths = narrow, s.x.causal = causal; }));
  }
}

TEST(AttentionKernel, DropsTheSameElementsForwardAndBackward) {
  for (const DType t : {DType::f32, DType::f64})
    check(with(shape(2, 4, 2, 70, 303, 16, 16, t), [](Trial& s) { drop(s, 0.3); }));
  check(with(shape(1, 4, 2, 70, 70, 16, 16), [](Trial& s) {
    drop(s, 0.5), s.x.causal = true, s.x.window_left = 33, s.bias = 7, s.sink = true, s.z_lse = true;
  }));
}

TEST(AttentionKernel, EmptyOperandsGiveZero) {
  check(shape(1, 2, 1, 5, 0, 16, 16));
  check(shape(1, 2, 1, 0, 5, 16, 16));
  check(shape(0, 2, 1, 5, 5, 16, 16));
  check(with(shape(1, 2, 1, 5, 0, 16, 16), [](Trial& s) { s.sink = true; }));
}

TEST(AttentionKernel, NeedsNoMemoryProportionalToTheScores) {
  Trial s = shape(1, 1, 1, 32768, 32768, 64, 64);
  for (const Isa& isa : isas())
    for (const int threads : {1, 2}) {
      const Scratch f = isa.forward->scratch(s.x), b = isa.backward->scratch(s.x);
      const std::size_t forward = f.shared + static_cast<std::size_t>(threads) * f.per_thread;
      const std::size_t backward = b.shared + static_cast<std::size_t>(threads) * b.per_thread;
      EXPECT_LT(std::max(forward, backward), 4u << 20) << isa.name;
    }
}

}  // namespace
}  // namespace tg::cpu

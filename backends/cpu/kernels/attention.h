// Fused attention on raw pointers and strides, forward and backward (FlashAttention-2, 004 §D). The graph's
// flash_attn op calls it.
//
//   a = cap·tanh(scale·q·k / cap) + bias      (no cap: scale·q·k + bias), −∞ outside the mask
//   P = exp(a − ξ),  ξ = log(Σ_j exp(a_j) + exp(sink)),  O = (P ⊛ D)·V,  D the dropout factors 0 or 1/(1 − p)
//
// A row that attends nothing has O = 0, ξ = −∞ (ξ = sink with a sink) and zero gradients.
#pragma once

#include "backends/cpu/kernels/gemm.h"

namespace tg::cpu {

struct Attention {
  // [B, heads, rows, size] with a contiguous last axis; strides in elements.
  struct Operand {
    void* data = nullptr;
    std::int64_t batch = 0, head = 0, row = 0;
  };
  // Broadcast to [B, H, L, T]: stride 0 where the axis is broadcast.
  struct Bias {
    void* data = nullptr;
    std::int64_t batch = 0, head = 0, row = 0, col = 0;
  };

  DType type = DType::f32;  // of every operand but ξ and z_ξ, which are f64 for f64 and else f32
  std::int64_t B = 0, H = 0, Hk = 0, L = 0, T = 0, d = 0,
               dv = 0;  // H a multiple of Hk; head h reads key head h / (H/Hk)
  Operand q, k, v, o;   // [B, H, L, d], [B, Hk, T, d], [B, Hk, T, dv], [B, H, L, dv]
  void* lse = nullptr;  // ξ [B, H, L], contiguous

  double scale = 1;
  bool causal = false, top_left = false;  // bottom-right alignment unless top_left
  std::int64_t window_left = -1,
               window_right = -1;  // keys p − left … p + right of the bottom-right position p; -1: no end
  Bias bias;                       // absent when data is null
  double softcap = 0;              // 0: none
  const void* sink = nullptr;      // [H]
  const std::int32_t* cu_q = nullptr;  // [segments + 1] with B = 1: segment s owns queries cu_q[s] …
  const std::int32_t* cu_k = nullptr;  // cu_q[s+1]-1 and keys cu_k[s] … cu_k[s+1]-1, masked on its own
  std::int64_t segments = 0;
  const void* kv_lengths = nullptr;    // [B], valid keys of each batch row (clamped to 0 … T)
  DType kv_lengths_type = DType::i32;  // or i64
  double dropout = 0;                  // words of core/rng.h attention_counter under dropout_key
  std::uint64_t dropout_key = 0;

  // Backward only: o and lse are read. z_lse and z_sink may be null; z_bias.data too.
  Operand z_o, z_q, z_k, z_v;
  const void* z_lse = nullptr;  // [B, H, L]
  Bias z_bias;                  // stride 0 where the bias was broadcast: summed over that axis
  void* z_sink = nullptr;       // [H]
};

namespace TG_ISA {

// Sizes depend on shapes, types, options and the number of threads, never on what pointers hold.
ScratchSize attention_forward_scratch(const Attention& x, int threads);
ScratchSize attention_backward_scratch(const Attention& x, int threads);

// Every thread of the team calls it; a barrier must follow before the outputs are read. The same bits for any
// number of threads. Shared memory of the backward is O(B·H·L); scratch of a thread is a fixed number of
// tiles.
void attention_forward(const Attention& x, Worker& worker);
void attention_backward(const Attention& x, Worker& worker);

// Their tiles and what they copy, in words: Kernel::choice.
void attention_forward_choice(const Attention& x, char* text, std::size_t size);
void attention_backward_choice(const Attention& x, char* text, std::size_t size);

}  // namespace TG_ISA
}  // namespace tg::cpu

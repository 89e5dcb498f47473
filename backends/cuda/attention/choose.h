// How a call is computed and in how much workspace: decided on the host, without a GPU.
#pragma once

#include <optional>
#include <string>

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention {

// By plain multiply-adds for anything; the others on tensor cores: f32 as f16 terms, heads to 128, heads
// beyond, and a backward in one pass instead of two.
enum class Path { plain, f32, narrow, wide, one_pass };

struct Choice {
  AttentionCall x;
  Path path;
  Workspace work;                      // of a backward
  std::optional<SplitOperands> split;  // for Path::f32

  // In workspace from `base` on, which is null where only its size is asked for.
  explicit Choice(const Call& call, std::byte* base = nullptr);
  Choice(const AttentionCall& x, bool backward, const Gpu& gpu, std::byte* base = nullptr);
  std::size_t bytes() const { return work.bytes + (split ? split->bytes : 0); }
  std::string in_words() const;
};

// Whether rows begin at multiples of 16 bytes, `piece` elements.
bool in_pieces(const AttentionCall::Operand& a, int piece);

}  // namespace tg::cuda::attention

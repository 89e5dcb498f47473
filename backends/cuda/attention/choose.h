// Which kernels run a call, in how much workspace, and that in words: decided on the host, without a GPU.
#pragma once

#include <string>

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention {

// By plain multiply-adds for anything; the others on tensor cores: f32 as f16 terms, heads to 128, heads
// beyond, and a backward in one pass instead of two.
enum class Path { plain, f32, narrow, wide, one_pass };

AttentionCall call_of(const Call& call);

Path forward_path(const AttentionCall& x, const Gpu& gpu);
Path backward_path(const AttentionCall& x, const Gpu& gpu);

// Workspace::walkers of one pass; 0 where it does not fit, or two passes are faster.
int one_pass_walkers(const AttentionCall& x, const Gpu& gpu);
Workspace workspace_of(const AttentionCall& x, const Gpu& gpu, std::byte* base);

std::size_t forward_bytes(const AttentionCall& x, const Gpu& gpu);
std::size_t backward_bytes(const AttentionCall& x, const Gpu& gpu);

std::string in_words(Path path, const AttentionCall& x);

// Whether rows begin at multiples of 16 bytes, `piece` elements.
bool in_pieces(const AttentionCall::Operand& a, int piece);

}  // namespace tg::cuda::attention

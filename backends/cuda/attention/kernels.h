// Which kernel computes a call, and in how much workspace: chosen on the host, without a GPU.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention {

// Kernels of one family compute the same kind of call.
enum class KernelFamily { plain, f32, narrow, wide, one_pass, hopper, decoding, latents, short_heads };

// Only the forwards of Hopper and of decoding read `work`; `powers` is null unless operands are split.
using Launch = void(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers* powers);

// The same with RoPE, which the kernel computes as well (ropes.h).
struct Ropes;
using LaunchWithRopes = void(const Stream& s, const AttentionCall& x, const Workspace& work,
                             const Ropes& ropes);

// A call, and what the conditions of kernels read.
struct Candidate {
  const AttentionCall& x;
  bool backward;
  const Gpu& gpu;
  bool batch_invariant;                     // CompileOptions has it
  const char *on_tensor_cores, *on_hopper;  // why these kernels cannot compute it; null if they can

  Candidate(const AttentionCall& x, bool backward, const Gpu& gpu, bool batch_invariant);
};

// Whether Hopper's own kernels may be used for the call, if they can compute it.
bool may_be_on_hopper(const Candidate&);

// A row of the table of kernels (kernel_table.cpp).
struct AttentionKernel {
  KernelFamily family;
  bool backward;
  const char* description;  // in the log, and what inspect prints
  const char* condition;    // when it is chosen, in words, if no earlier row is
  bool (*accepts)(const Candidate&);
  Workspace (*workspace)(const AttentionCall& x, const Gpu& gpu, std::byte* base);  // null: none
  Launch* launch;
  LaunchWithRopes* launch_with_ropes = nullptr;  // null: the kernel rotates nothing
};

// All rows, in the order in which they are tried; the last one of each direction accepts every call.
std::span<const AttentionKernel> attention_kernels();

struct Choice {
  AttentionCall x;
  const AttentionKernel* kernel;
  const char* reason = nullptr;        // on Hopper, why its own kernels are not used
  Workspace work;                      // of a backward
  std::optional<SplitOperands> split;  // of f32 on tensor cores

  // With workspace at `base`; null to compute its size only. Throws DeviceError, with the reason, if the
  // kernels that the call asks for cannot compute it. batch_invariant: CompileOptions has it.
  Choice(const AttentionCall& x, bool backward, const Gpu& gpu, std::byte* base = nullptr,
         bool batch_invariant = false);
  std::size_t bytes() const { return work.bytes + (split ? split->bytes : 0); }
  // The call with the operands that kernels multiply, and the powers of two that scale them.
  AttentionCall operands() const;
  const Powers* powers() const { return split ? split->powers : nullptr; }
  KernelFamily family() const { return kernel->family; }
  bool decodes() const { return family() == KernelFamily::decoding || family() == KernelFamily::latents; }
  std::string describe() const;
};

// Of a call of flash_attn or flash_attn_backward, and of one of paged_attn.
Choice choice_of(const Call& call, std::byte* base = nullptr);
Choice paged_choice(const Call& call, std::byte* base = nullptr);

// What an index_assign adds to the cache in the step before, if the kernel of a choice can do it: of
// decoding, one row for each text.
std::optional<AttentionCall::Added> added_before(const Choice& c, const Call& call, const Step& assign);

// Whether rows begin at multiples of 16 bytes, `piece` elements.
bool in_pieces(const AttentionCall::TensorView& a, int piece);

// f32 operands as f16 terms, in split_terms.cu.
void launch_split(const Stream& s, const AttentionCall& x, const SplitOperands& split);
// z_bias and z_sink, in bias_gradient.cu.
void launch_bias_and_sink(const Stream& s, const AttentionCall& x, const Workspace& work);

// The parts of launch_decoding in decoding_f32.cu, decoding_split_kv_sm80.cu and decoding_latent_sm80.cu.
void launch_f32_decoding(const Stream& s, const AttentionCall& x, const Workspace& work);
void launch_decoding_split_kv(const Stream& s, const AttentionCall& x, const Workspace& work);
void launch_latent_decoding(const Stream& s, const AttentionCall& x, const Workspace& work);
// That of launch_latents_sm90 in decoding_latent_16_sm90.cu: of decoding::takes_few_heads().
void launch_few_latents_sm90(const Stream& s, const AttentionCall& x, const Workspace& work);

// Compute the bases of far rows (far_rows.cuh), and their gradients, which are added to those of all other
// rows; `ropes` rotates them. In plain.cu.
void launch_normalize(const Stream& s, const AttentionCall& x, const Workspace& work);
void launch_far_gradients(const Stream& s, const AttentionCall& x, const Workspace& work, const Ropes& ropes);

// Results of parts of the keys become O and ξ, in merge_sm90.cu.
void launch_merge(const Stream& s, const AttentionCall& x, const Workspace& work, bool by_scores);

// All others.
// What the backward starts from: u, ξ and the keys of each tile of queries. In row_stats.cu.
Launch launch_row_stats;
Launch launch_plain_forward, launch_plain_backward;  // plain.cu
Launch launch_forward;                               // forward_sm80.cu
Launch launch_forward_sm90;                          // forward_sm90.cu
Launch launch_decoding;                              // decoding_sm80.cu
Launch launch_latents_sm90;                          // decoding_latent_sm90.cu
Launch launch_backward_sm90;                         // backward_sm90.cu, with u and all that it starts from
LaunchWithRopes launch_turned_backward_sm90;         // there, too: of calls that takes_ropes() accepts
// In short_heads_sm80.cu. The backward computes u as well.
LaunchWithRopes launch_short_forward, launch_short_backward;
Launch launch_two_passes;  // backward_two_passes_sm80.cu
Launch launch_one_pass;    // backward_one_pass_sm80.cu, wide heads in two passes too

}  // namespace tg::cuda::attention

// Selects the kernel of an attention call and computes its workspace. Runs on the host and needs no GPU.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention {

// Families of kernels. All kernels of one family compute the same kinds of calls.
enum class KernelFamily { plain, f32, narrow, wide, one_pass, hopper, decoding, latents, short_heads };

// Launches a kernel. Among the forward kernels, only Hopper's kernels and the decoding kernels read `work`.
// `powers` is null unless f32 operands are split into f16.
using Launch = void(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers* powers);

// Launches a kernel that also applies RoPE.
struct Ropes;
using LaunchWithRopes = void(const Stream& s, const AttentionCall& x, const Workspace& work,
                             const Ropes& ropes);

// A call with the properties that the table's conditions read.
struct Candidate {
  const AttentionCall& x;
  bool backward;
  const Gpu& gpu;
  bool batch_invariant;                     // CompileOptions::batch_invariant
  const char *on_tensor_cores, *on_hopper;  // why these kernels cannot compute the call; null if they can

  Candidate(const AttentionCall& x, bool backward, const Gpu& gpu, bool batch_invariant);
};

// Whether the call's options and the GPU permit Hopper's wgmma kernels. `on_hopper` has the reason if these
// kernels cannot compute the call.
bool may_be_on_hopper(const Candidate&);

// A row of the table of kernels (kernel_table.cpp).
struct AttentionKernel {
  KernelFamily family;
  bool backward;
  const char* description;  // printed in the log and by inspect
  const char* condition;    // when it is chosen if no earlier row is; documentation only
  bool (*accepts)(const Candidate&);
  Workspace (*workspace)(const AttentionCall& x, const Gpu& gpu, std::byte* base);  // null: none
  Launch* launch;
  LaunchWithRopes* launch_with_ropes = nullptr;  // null: the kernel applies no RoPE
};

// All rows, in the order in which they are tried. The last row of each direction accepts every call.
std::span<const AttentionKernel> attention_kernels();

// The selected kernel of a call, with its workspace.
struct Choice {
  AttentionCall x;
  const AttentionKernel* kernel;
  const char* reason = nullptr;        // why the wgmma kernels are not used on Hopper
  Workspace work;                      // workspace of the kernel
  std::optional<SplitOperands> split;  // only for f32 on tensor cores

  // Places the workspace at `base`; null only computes its size. Throws DeviceError with the reason if
  // AttentionOptions::kernels requests kernels that cannot compute the call. `batch_invariant` is
  // CompileOptions::batch_invariant.
  Choice(const AttentionCall& x, bool backward, const Gpu& gpu, std::byte* base = nullptr,
         bool batch_invariant = false);
  std::size_t bytes() const { return work.bytes + (split ? split->bytes : 0); }
  // The call with the operands that the kernels multiply. If they are split, powers() returns their scaling
  // exponents.
  AttentionCall operands() const;
  const Powers* powers() const { return split ? split->powers : nullptr; }
  KernelFamily family() const { return kernel->family; }
  bool decodes() const { return family() == KernelFamily::decoding || family() == KernelFamily::latents; }
  std::string describe() const;
};

// Chooses the kernel of a flash_attn or flash_attn_backward call. paged_choice() does the same for
// paged_attn.
Choice choice_of(const Call& call, std::byte* base = nullptr);
Choice paged_choice(const Call& call, std::byte* base = nullptr);

// The rows that an index_assign in the previous step appends to the cache. nullopt if the chosen kernel
// cannot append them. Only decoding kernels can do so, and each sequence must have one row.
std::optional<AttentionCall::Added> added_before(const Choice& c, const Call& call, const Step& assign);

// Whether the data and all strides of `a` are aligned to 16 bytes. `piece` is the number of elements in 16
// bytes.
bool in_pieces(const AttentionCall::TensorView& a, int piece);

// Splits f32 operands into f16; in split_to_f16.cu.
void launch_split(const Stream& s, const AttentionCall& x, const SplitOperands& split);
// Computes z_bias and z_sink; in bias_gradient.cu.
void launch_bias_and_sink(const Stream& s, const AttentionCall& x, const Workspace& work);

// launch_decoding() calls one of these. They are in decoding_f32.cu, decoding_split_kv_sm80.cu and
// decoding_latent_sm80.cu.
void launch_f32_decoding(const Stream& s, const AttentionCall& x, const Workspace& work);
void launch_decoding_split_kv(const Stream& s, const AttentionCall& x, const Workspace& work);
void launch_latent_decoding(const Stream& s, const AttentionCall& x, const Workspace& work);
// launch_latents_sm90() calls it if decoding::takes_few_heads(); in decoding_latent_16_sm90.cu.
void launch_few_latents_sm90(const Stream& s, const AttentionCall& x, const Workspace& work);

// Recompute the softmax bases of far rows (far_rows.cuh), then the gradients of these rows. These gradients
// are added to the gradients of all other rows. `ropes` is applied to the gradients. In plain.cu.
void launch_normalize(const Stream& s, const AttentionCall& x, const Workspace& work);
void launch_far_gradients(const Stream& s, const AttentionCall& x, const Workspace& work, const Ropes& ropes);

// Merges the results over parts of the keys into O and ξ; in merge_sm90.cu.
void launch_merge(const Stream& s, const AttentionCall& x, const Workspace& work, bool by_scores);

// All other kernels. launch_row_stats prepares the backward: u, ξ and the visible keys of each query tile; in
// row_stats.cu.
Launch launch_row_stats;
Launch launch_plain_forward, launch_plain_backward;  // plain.cu
Launch launch_forward;                               // forward_sm80.cu
Launch launch_forward_sm90;                          // forward_sm90.cu
Launch launch_decoding;                              // decoding_sm80.cu
Launch launch_latents_sm90;                          // decoding_latent_sm90.cu
Launch launch_backward_sm90;                         // backward_sm90.cu; also computes u, ξ and visible keys
LaunchWithRopes launch_rotated_backward_sm90;        // backward_sm90.cu: calls that computes_ropes() accepts
// In short_heads_sm80.cu. The backward also computes u.
LaunchWithRopes launch_short_forward, launch_short_backward;
Launch launch_two_passes;  // backward_two_passes_sm80.cu
Launch launch_one_pass;    // backward_one_pass_sm80.cu: also wide heads in two passes

}  // namespace tg::cuda::attention

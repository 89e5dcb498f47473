// The views of inspect, as text and plots. They show:
// - attention: the maps of a model on a text, the memory of attention, and the elements that it reads from
//   main memory
// - memory: the size of each layer, the memory plan of a program, and the key-value cache
// - training: the losses of several runs
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/core/run/program.h>
#include <tilegrad/io/plots/heat_map.h>
#include <tilegrad/io/plots/png_plot.h>
#include <tilegrad/nn/models/language_model.h>
#include <tilegrad/ops/flash_attn.h>
#include <tilegrad/train/metrics.h>
#include "tools/cache_memory.h"

namespace tg {

// Plots the attention maps of a model on a text, with one row of heads per layer. `tokens`: the string of
// each of the L tokens.
plot::HeatMaps attention_picture(const std::vector<nn::AttentionMap>& maps,
                                 const std::vector<std::string>& tokens, const std::string& title);

// The string of a token in a plot. A space is shown as ·, a line break as \n, and an invisible character by
// its code, such as \x07.
std::string visible_token(const std::string& token);

// A call of attention. Its memory is compared for flash_attn and for attention that stores the score matrix.
// q has the shape [batch, heads, L, width]. k has key_heads heads. v has key_heads heads and value_width
// columns.
struct AttentionCall {
  std::int64_t batch = 1, heads = 1, key_heads = 1, width = 32, value_width = 32;
  DType dtype = f32;
  bool causal = true;
  std::string text() const;  // such as "batch 12, 4 heads of size 32, f32"
};

// The call of the first flash_attn in a program. Throws Error if there is none.
AttentionCall attention_of(const Program& program);

// The peak memory in bytes (MemoryReport::peak) of a program that computes attention over `length` tokens and
// the gradients of q, k and v. It includes all inputs, results and workspace.
std::size_t attention_peak(const AttentionCall& call, std::int64_t length, bool fused,
                           Device device = Device::cpu(), int threads = 0);

struct AttentionPeaks {
  std::int64_t length;
  std::size_t fused, materialised;  // bytes
};
// For lengths 256, 512, …, 65536.
std::vector<AttentionPeaks> attention_peaks(const AttentionCall& call, Device device, int threads);

plot::Plot attention_memory_plot(const AttentionCall& call, const std::vector<AttentionPeaks>& peaks);
std::string attention_memory_text(const std::vector<AttentionPeaks>& peaks);  // a table

// Number of elements that attention reads from main memory, for one head of T tokens and head size d. The
// device has fast memory (a cache, or the shared memory of a CUDA block) for M elements. The model is
// [Stratos, Efficient Attention §1.3]. It is valid for T > d and 4d ≤ M < Td.
struct ReadModel {
  std::int64_t T = 4096, d = 64, M = 49152;
  std::string mistake() const;  // the condition that does not hold, or "" if both hold

  // Reads of FlashAttention with chunks of Λ keys [Stratos, Efficient Attention §1.1]. The outer loop reads K
  // and V once. The inner loop reads Q and O once for each of ⌈T/Λ⌉ chunks. The total is 2Td + 2Td·⌈T/Λ⌉,
  // which is O(Td + T²d/Λ) [Stratos, Efficient Attention §1.3].
  double fused(std::int64_t chunk) const;
  // Reads of standard attention. The T × T matrix of probabilities dominates: O(T²) [Stratos, Efficient
  // Attention §1.3].
  double materialised() const;
  // The largest Λ ≤ T for which the queries, keys, values and results of a chunk fit: ⌊M/4d⌋ [Stratos,
  // Efficient Attention §1.3]. It is optimal, because larger chunks need fewer reads.
  std::int64_t best_chunk() const;
};

struct ReadsRow {
  std::int64_t chunk;
  double reads;
  bool fits;
};
// Reads for chunks of 8, 16, 32, … T keys and for the best chunk, in ascending order of the chunk size.
std::vector<ReadsRow> reads_by_chunk(const ReadModel& model);

plot::Plot reads_plot(const ReadModel& model);
std::string reads_text(const ReadModel& model);  // a table

// The size of one layer of a model.
struct LayerSize {
  std::string layer;  // "transformer.h.0", "transformer.wte"
  std::int64_t count = 0;
  std::size_t bytes = 0;
};

// Returns the sizes in the order in which the layers were created.
std::vector<LayerSize> sizes_by_layer(const std::vector<Parameter>& parameters);

// Table with the elements, the bytes and the share of all elements for each layer, and a row for the total.
std::string sizes_text(const std::vector<LayerSize>& sizes);

// The step with the most live bytes in the arena (the first if several are equal), or 0 without buffers.
struct FullestStep {
  int step = 0;
  std::size_t bytes = 0;
};
FullestStep fullest_step(const Program& program);

// Plots a program's memory plan. Each buffer of the arena is a rectangle of its lifetime (x) and addresses
// (y). The x axis shows steps: step n extends from n to n + 1. The y axis shows MiB from the start of the
// arena. The color shows the part of the model (model_parts in tools/train_report.h) whose step first writes
// the buffer. The title begins with `name`.
plot::Plot plan_plot(const Program& program, const std::string& name);

// Table of the cache size of one token. Each row shows the elements in each tensor of a layer and their
// bytes. The last row is the total.
std::string cache_text(const std::vector<CacheRow>& token);

// The number of sequences that fit into a memory size, for several sequence lengths. Either the full context
// is reserved for each sequence, or the cache is paged [Stratos, PagedAttention].
struct CacheFit {
  std::int64_t page = 0;            // tokens per page; 0: contiguous, with the full context reserved for each
                                    // sequence
  std::int64_t tokens = 0;          // capacity in tokens
  std::vector<std::int64_t> texts;  // number of sequences, for each of the lengths
};

// Returns the numbers for a contiguous cache and for each page size. One page of a pool is reserved and does
// not belong to a sequence.
std::vector<CacheFit> cache_fits(double bytes, std::int64_t bytes_of_token, std::int64_t context,
                                 const std::vector<std::int64_t>& pages,
                                 const std::vector<std::int64_t>& lengths);
std::string fits_text(const std::vector<CacheFit>& fits, const std::vector<std::int64_t>& lengths);

struct NamedRun {
  std::string name;
  std::vector<train::MetricsRow> rows;  // not empty
};

// Reads the metrics.jsonl that train wrote to the directory. The name of the directory becomes the run's
// name. Throws Error if there is no such file or it contains no step, and FormatError if a line is not a
// valid row.
NamedRun read_run(const std::string& directory);

// Plots each run in two colors. The first color shows the training loss (faint) and its smoothed mean, the
// second color the validation loss with markers.
plot::Plot curves_plot(const std::vector<NamedRun>& runs);

// One line per run: steps, the final smoothed training loss, and the best validation loss.
std::string runs_text(const std::vector<NamedRun>& runs);

}  // namespace tg

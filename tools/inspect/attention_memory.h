// The memory that attention needs as texts get longer: flash_attn compared with attention that keeps its
// matrix in memory.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/core/run/program.h>
#include <tilegrad/io/plots/png_plot.h>
#include <tilegrad/ops/flash_attn.h>

namespace tg {

// One call of attention: q [batch, heads, L, width], k the same with key_heads, v with key_heads and
// value_width.
struct AttentionCall {
  std::int64_t batch = 1, heads = 1, key_heads = 1, width = 32, value_width = 32;
  DType dtype = f32;
  bool causal = true;
  std::string text() const;  // "batch 12, 4 heads of 32, f32"
};

// The call of the first flash_attn of a program; Error if there is none.
AttentionCall attention_of(const Program& program);

// The peak, by the plan (MemoryReport::peak), of a program that computes attention over `length` tokens and
// the gradients of its q, k and v: all inputs, results and workspace. Bytes.
std::size_t attention_peak(const AttentionCall& call, std::int64_t length, bool fused,
                           Device device = Device::cpu(), int threads = 0);

struct AttentionPeaks {
  std::int64_t length;
  std::size_t fused, materialised;  // bytes
};
// For lengths from 256 to 65536, each twice the one before.
std::vector<AttentionPeaks> attention_peaks(const AttentionCall& call, Device device, int threads);

plot::Plot attention_memory_plot(const AttentionCall& call, const std::vector<AttentionPeaks>& peaks);
std::string attention_memory_text(const std::vector<AttentionPeaks>& peaks);  // a table

}  // namespace tg

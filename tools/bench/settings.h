// The settings that bench reads from its command line: those of single modes, and those of all.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/nn/models/model_config.h>
#include "tools/bench/attention_cell.h"
#include "tools/bench/trace.h"
#include "tools/cache_memory.h"

namespace tg::bench {

using Sizes = std::vector<std::int64_t>;

// The settings of the mode attention.
struct AttentionSettings {
  std::vector<AttentionCell> cells;  // to measure
  bool whole_suite = false;          // the cells are those that the device measures by default
  bool by_token = false;             // q, k and v are [B, L, H, d] in memory, as a projection leaves them
  bool traffic = false;              // count bytes of memory instead of rates
  AttentionKernels kernels = AttentionKernels::best;
  std::string once;  // only run this program of each cell, once, for a profiler
};

// The settings of the mode serve.
struct ServeSettings {
  RandomTrace random;           // the trace, unless there is a file of one
  std::string trace;            // the file
  CacheMemory cache;            // 0: of 16 contexts
  std::int64_t page_size = 16;  // tokens, of the cache in pages
  std::int64_t slots = 128;     // texts in a step, at most
  bool in_step = false;         // no step is started before the tokens of the one before are known
};

// The settings of the modes train and ranks.
struct TrainSettings {
  std::optional<nn::ModelConfig> model;  // to report on a step of it; none: rows of a GPT by --shape
  std::int64_t batch = 12;
  bool recompute = false;
  std::size_t budget = 0;         // bytes that a step may have; 0: any
  double peak = 0;                // FLOP/s that utilisation is a share of; 0: as measured
  std::vector<std::string> rows;  // files of earlier runs of the mode ranks, to draw
};

struct Settings {
  Device device;
  DType dtype = f32;          // of attention, ops and training
  bool tf32 = false;          // as in CompileOptions
  int threads = 1;            // of the CPU
  double seconds = 0.3;       // minimum time to measure a row
  bool compare = false;       // measure PyTorch, and what else there is, too
  std::string filter;         // rows to measure: those whose name contains it
  std::vector<Sizes> shapes;  // instead of a mode's own; meaning depends on the mode
  std::string plot;           // also draw a picture into this file
  AttentionSettings attention;
  ServeSettings serve;
  TrainSettings train;
  std::shared_ptr<Communicator> ranks;  // of the mode ranks
  std::string text;                     // a file for the mode tokens, instead of a made-up text
  std::size_t copy_bytes = std::size_t{256} << 20;

  bool on_cpu() const { return device.kind == Device::cpu_kind; }
  bool is_quick() const { return seconds == 0; }  // measures nothing
  bool selects(const std::string& name) const { return name.find(filter) != std::string::npos; }
  // "bf16", …; "tf32" for f32 with rounded products.
  std::string dtype_name() const { return tf32 ? "tf32" : std::string(name_of(dtype)); }
  nn::Precision precision() const { return nn::precision_named(dtype_name()); }
  CompileOptions compile_options(int on_threads) const {
    return {.device = device, .threads = on_threads, .tf32 = tf32};
  }
  CompileOptions compile_options() const { return compile_options(threads); }
};

}  // namespace tg::bench

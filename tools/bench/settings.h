// Settings of bench from its command line, for single modes and for all modes.
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

// Settings of the mode attention.
struct AttentionSettings {
  std::vector<AttentionCell> cells;  // cells to measure
  bool whole_suite = false;          // the cells are the device's default cells
  bool by_token = false;             // q, k and v are stored as [B, L, H, d], as a projection produces them
  bool traffic = false;              // count memory traffic instead of measuring rates
  AttentionKernels kernels = AttentionKernels::best;
  std::string once;  // if not empty, run only this program of each cell, once, under a profiler
};

// Settings of the mode serve.
struct ServeSettings {
  RandomTrace random;           // used if there is no trace file
  std::string trace;            // trace file
  CacheMemory cache;            // 0: 16 full contexts
  std::int64_t page_size = 16;  // tokens per page of the paged cache
  std::int64_t slots = 128;     // maximum number of sequences in a step
  bool in_step = false;         // start each step only when the tokens of the previous step are known
};

// Settings of the modes train and ranks.
struct TrainSettings {
  std::optional<nn::ModelConfig> model;  // model whose step is measured; none: measure a GPT for each --shape
  std::int64_t batch = 12;
  bool recompute = false;
  std::size_t budget = 0;         // bytes for a step; 0: no limit
  double peak = 0;                // peak rate in FLOP/s for the utilization; 0: measured
  std::vector<std::string> rows;  // files of earlier runs of the mode ranks, to draw
};

struct Settings {
  Device device;
  DType dtype = f32;          // dtype of attention, ops and training
  bool tf32 = false;          // as in CompileOptions
  int threads = 1;            // CPU threads
  double seconds = 0.3;       // minimum time to measure a row
  bool compare = false;       // also measure PyTorch and other libraries
  std::string filter;         // measure only rows whose name contains it
  std::vector<Sizes> shapes;  // replace the default sizes of a mode, which also defines their meaning
  std::string plot;           // file for a picture
  AttentionSettings attention;
  ServeSettings serve;
  TrainSettings train;
  std::shared_ptr<Communicator> ranks;  // communicator for the mode ranks
  std::string text;                     // file for the mode tokens, instead of a generated text
  std::size_t copy_bytes = std::size_t{256} << 20;

  bool on_cpu() const { return device.kind == Device::cpu_kind; }
  bool is_quick() const { return seconds == 0; }  // a quick run without a meaningful measurement
  bool selects(const std::string& name) const { return name.find(filter) != std::string::npos; }
  // "bf16", …; "tf32" if TF32 is enabled.
  std::string dtype_name() const { return tf32 ? "tf32" : std::string(name_of(dtype)); }
  nn::Precision precision() const { return nn::precision_named(dtype_name()); }
  CompileOptions compile_options(int on_threads) const {
    return {.device = device, .threads = on_threads, .tf32 = tf32};
  }
  CompileOptions compile_options() const { return compile_options(threads); }
};

}  // namespace tg::bench

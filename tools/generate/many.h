// Options of generate, and its parallel mode: the prompts of a file, several samples for each prompt, beam
// search.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tilegrad/nn/generation/engine.h>
#include "tools/cache_memory.h"
#include "tools/common_options.h"
#include "tools/opened_model.h"

namespace tg {

struct GenerateOptions : DeviceOptions {
  std::string model, adapter, prompt = "\n", prompts, cache_memory, weights = "f32", cache_type;
  std::vector<std::string> stops;
  std::int64_t context = 0, seed = 1;
  std::int64_t max_tokens = 0;  // per sequence; 0: until the context is full
  std::int64_t samples = 1;     // per prompt: the first is sampled with `seed`, the next with seed + 1, …
  std::int64_t beams = 0;       // beam search instead of sampling; 0: none
  std::int64_t slots = 16;      // maximum number of sequences generated in parallel
  nn::Sampling sampling{.temperature = 0.8};
  bool slide = false, no_cache = false;
  std::optional<CacheMemory> cache_size;  // parsed from `cache_memory`; default: a full context for each slot

  std::optional<DType> cache_dtype() const {
    return cache_type.empty() ? std::nullopt : std::optional(dtype_named(cache_type));
  }
};

// Writes to standard output and flushes it. Throws Error if that fails.
void write_text(const std::string& s);

// Generates all sequences. Writes each sequence to standard output as soon as it and all earlier sequences
// are complete. The heading of a sequence contains the numbers of prompt and sample, or the beam and its
// log-probability. If a prompt cannot be continued, a line on standard error reports it. The last line on
// standard error reports the speed. Returns the number of prompts that could not be continued. Throws Error
// if the file of prompts has no lines, or contains a backslash that is not followed by n or a backslash.
int write_many(const nn::LanguageModel& model, const OpenedModel& opened, const GenerateOptions& o);

}  // namespace tg

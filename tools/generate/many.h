// The options of generate, and its many texts at once: the prompts of a file, several samples of each.
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
  std::int64_t max_tokens = 0;  // of each text; 0: as many as fit in the context
  std::int64_t samples = 1;     // of each prompt: the first is drawn with `seed`, the next with seed + 1, …
  std::int64_t beams = 0;       // instead of samples: the likeliest texts that a beam search finds; 0: none
  std::int64_t slots = 16;      // texts at once
  nn::Sampling sampling{.temperature = 0.8};
  bool slide = false, no_cache = false;
  std::optional<CacheMemory> cache_size;  // of `cache_memory`; default: a whole context for each slot

  std::optional<DType> cache_dtype() const {
    return cache_type.empty() ? std::nullopt : std::optional(dtype_named(cache_type));
  }
};

// Writes to standard output, without waiting for more; throws Error if that fails.
void write_text(const std::string& s);

// Writes to standard output a line with the numbers of prompt and sample, or of the beam and the logarithm of
// its probability, and the text, for each as soon as it and those before it are complete; and to standard
// error, at the end, how fast that was. A text that cannot be written is a line on standard error. Returns
// how many of those there were. Throws Error for a file of prompts that has no lines, or in which neither n
// nor a backslash follows a backslash.
int write_many(const nn::LanguageModel& model, const OpenedModel& opened, const GenerateOptions& o);

}  // namespace tg

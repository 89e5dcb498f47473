// generate's many texts at once: the prompts of a file, several samples of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/nn/generation/engine.h>
#include "tools/cache_memory.h"

namespace tg {

struct ManyTexts {
  std::vector<std::string> prompts;
  std::int64_t tokens = 0;   // of each text; 0: as many as fit in the context
  std::int64_t samples = 1;  // of each prompt: the first is drawn with `seed`, the next with seed + 1, …
  std::int64_t beams = 0;    // instead of samples: the likeliest texts that a beam search finds; 0: none
  std::int64_t seats = 16;   // texts at once
  std::optional<CacheMemory> cache_memory = {};  // default: a whole context for each seat
  std::vector<std::string> stops;
  std::vector<std::int64_t> end_tokens = {};  // any of them ends a text
  nn::Sampling sampling = {};
  std::uint64_t seed = 1;
  int threads = 0;
  nn::Precision precision = nn::Precision::full;
  std::optional<DType> cache_dtype = {};
};

// A prompt for each line of a file; in a line \n stands for a line break and \\ for a backslash. Throws Error
// for a file without lines and for another character after a backslash.
std::vector<std::string> read_prompts(const std::string& path);

// Writes to standard output a line with the numbers of prompt and sample, or of the beam and the logarithm of
// its probability, and the text, for each as soon as it and those before it are complete; and to standard
// error, at the end, how fast that was. A text that cannot be written is a line on standard error. Returns
// how many of those there were.
int write_many(const nn::LanguageModel& model, const text::Tokenizer& tokenizer, const ManyTexts& o);

}  // namespace tg

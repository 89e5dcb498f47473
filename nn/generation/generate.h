// Generator: generates a sequence from a model token by token.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/nn/generation/sampling.h>
#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/models/language_model.h>

namespace tg::nn {

// Generates one sequence at a time. While a sequence fits into the model's context, a KvCache stores the keys
// and values of all tokens so far. The prompt is then read in a few runs, and each further token needs a run
// over one token. A longer sequence is truncated to its last `context` tokens. Each further token then needs
// a run over all these tokens, because their positions have changed.
class Generator {
 public:
  // Options of a generator.
  struct Options {
    int threads = 0;  // 0: all cores of the machine; one for single tokens of a small model
    Precision precision = Precision::full;  // of layers; see Autocast
    std::optional<DType> cache_dtype = {};  // of cached keys and values; default: the computed dtype
    // False: every token needs a run over all tokens before it; same output, but slower.
    bool cache = true;
  };
  // Accepts a Model or any other LanguageModel. Parameters are read at every run. With a cache, layers that
  // combine tokens must read earlier tokens from the call's cache. Throws Error for a flash_attn that does
  // not use the cache. Errors of the model's runs name the source line of this call.
  Generator(LanguageModel model, const Options& options,
            const std::source_location& where = std::source_location::current());
  // As above, with default options.
  explicit Generator(LanguageModel model, const std::source_location& where = std::source_location::current())
      : Generator(std::move(model), Options{}, where) {}

  // Returns the logits [vocabulary] of the token that follows the sequence. The sequence must have at least
  // one token. The result is valid until the next call. A common prefix with the previous sequence is not
  // recomputed. Call forget() after the weights change.
  std::span<const float> next(std::span<const std::int32_t> sequence);
  // Discards the cached keys and values.
  void forget() { cached_.clear(); }

  // Appends up to `count` tokens to a sequence and calls report() for each. If report() returns false, the
  // sequence ends. Calls forget() first. Equal seeds give equal sequences. Throws Error for a negative count,
  // and for a sampling option out of range. The sequence is then unchanged.
  void extend(std::vector<std::int32_t>& sequence, std::int64_t count, const Sampling& sampling,
              std::uint64_t seed, const std::function<bool(std::int32_t)>& report = {});

  // The cache of keys and values.
  const KvCache& cache() const { return cache_; }

 private:
  struct Run;  // a program for some number of tokens

  void read(std::span<const std::int32_t> tokens);  // appends them to the cache
  void read_window(std::span<const std::int32_t> sequence);

  LanguageModel model_;
  Options options_;
  std::source_location where_;
  KvCache cache_;
  std::vector<std::int32_t> cached_;  // the tokens in the cache
  // By number of tokens; 0: a full window, without a cache.
  std::map<std::int64_t, std::shared_ptr<Run>> runs_;
  Array logits_;  // f32 [1, 1, vocabulary]
};

}  // namespace tg::nn

// Sequence from a model, token by token.
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

// While a sequence fits in the model's context, a KvCache keeps the keys and values of the tokens read so
// far: the prompt is read in a few runs, and each further token is a run over one token. A longer sequence is
// cut to its last `context` tokens. As that moves every token to another position, each further token is then
// a run over all of them.
class Generator {
 public:
  struct Options {
    int threads = 0;  // 0: all of the machine's; one for single tokens of a small model
    Precision precision = Precision::full;
    std::optional<DType> cache_dtype = {};  // of keys and values in the cache; default: as they are computed
    bool cache = true;  // false: every token is a run over all tokens before it; the same sequence, slower
  };
  // For a Model or any other LanguageModel. Its parameters are read at every run. With a cache, a layer whose
  // rows depend on earlier ones must read them from the call's cache; throws Error for a flash_attn that does
  // not. Errors of the model's runs name the line of this call.
  Generator(LanguageModel model, const Options& options,
            const std::source_location& where = std::source_location::current());
  explicit Generator(LanguageModel model, const std::source_location& where = std::source_location::current())
      : Generator(std::move(model), Options{}, where) {}

  // Logits [vocabulary] of the token after a sequence of at least one token; valid until the next call. The
  // beginning that the sequence shares with the previous one is not read again; call forget() after the
  // weights change.
  std::span<const float> next(std::span<const std::int32_t> sequence);
  void forget() { cached_.clear(); }

  // Forgets earlier sequences, appends up to `count` tokens and reports each as it is chosen; false from
  // report() ends the sequence there. Equal seeds give equal sequences. Throws Error for a negative count and
  // a sampling with numbers out of range, before it changes anything.
  void extend(std::vector<std::int32_t>& sequence, std::int64_t count, const Sampling& sampling,
              std::uint64_t seed, const std::function<bool(std::int32_t)>& report = {});

  const KvCache& cache() const { return cache_; }

 private:
  struct Run;  // a program for some number of tokens

  void read(std::span<const std::int32_t> tokens);  // appends them to the cache
  void read_window(std::span<const std::int32_t> sequence);

  LanguageModel model_;
  Options options_;
  std::source_location where_;
  KvCache cache_;
  std::vector<std::int32_t> cached_;                   // the tokens it holds
  std::map<std::int64_t, std::shared_ptr<Run>> runs_;  // by number of tokens; 0: a whole window, no cache
  Array logits_;                                       // f32 [1, 1, vocabulary]
};

}  // namespace tg::nn

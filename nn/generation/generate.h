// Text from a model, token by token.
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

// While a text fits in the model's context, keys and values of what was read stay in a KvCache: the prompt is
// read in a few runs and each further token is a run over one. A text that has grown longer is cut to its
// last `context` tokens, and as that moves every token to another position, each further token is a run over
// all.
class Generator {
 public:
  struct Options {
    int threads = 0;  // 0 takes what the machine has, one for single tokens of a small model
    Precision precision = Precision::full;
    bool cache = true;  // false: every token is a run over all tokens before it; the same text, later
  };
  // Of a Model or any other LanguageModel. Its parameters are read at every run. With a cache, a layer whose
  // rows depend on earlier ones must take them from the call's cache; Error for a flash_attn that does not.
  Generator(LanguageModel model, const Options& options);
  explicit Generator(LanguageModel model) : Generator(std::move(model), Options{}) {}

  // Logits [vocabulary] of the token after a text of at least one token; good until the next call. What the
  // text has in common with the one before is not read again: after a change of weights, forget() that.
  std::span<const float> next(std::span<const std::int32_t> text);
  void forget() { cached_.clear(); }

  // Appends `count` tokens, each reported as it comes, having forgotten what was read before; equal seeds
  // give equal texts.
  void extend(std::vector<std::int32_t>& text, std::int64_t count, const Sampling& sampling,
              std::uint64_t seed, const std::function<void(std::int32_t)>& report = {});

  const KvCache& cache() const { return cache_; }

 private:
  struct Run;  // a program for some number of tokens

  void read(std::span<const std::int32_t> tokens);  // into the cache, after what is there
  void read_window(std::span<const std::int32_t> text);

  LanguageModel model_;
  Options options_;
  KvCache cache_;
  std::vector<std::int32_t> cached_;                   // the tokens it holds
  std::map<std::int64_t, std::shared_ptr<Run>> runs_;  // by number of tokens; 0: a whole window, no cache
  Array logits_;                                       // f32 [1, 1, vocabulary]
};

}  // namespace tg::nn

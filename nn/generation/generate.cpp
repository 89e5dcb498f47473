#include <tilegrad/nn/generation/generate.h>

#include <algorithm>
#include <bit>

#include <tilegrad/core/base/range.h>
#include <tilegrad/ops/ops.h>
#include "nn/generation/programs.h"

namespace tg::nn {

// A run that computes logits. With a cache, it reads `length` tokens that follow the cached tokens and
// returns the logits of the last token. Without a cache, it reads a window and returns the logits of token
// `last`.
struct Generator::Run {
  Graph graph;
  Tensor tokens, last, logits;       // i32 [1, length], i32 [1], f32 [1, 1, vocabulary]
  std::unique_ptr<CacheCall> cache;  // null without a cache
  Program program;

  Run(const LanguageModel& model, std::int64_t length, KvCache* into, const Options& o,
      const std::source_location& where)
      : tokens(graph.input("tokens", {1, length}, i32, where)),
        program(build(model, length, into, o, where)) {}

  Program build(const LanguageModel& model, std::int64_t length, KvCache* into, const Options& o,
                const std::source_location& where) {
    if (into) cache = std::make_unique<CacheCall>(graph, *into, length);
    {
      const Autocast autocast(graph, o.precision);
      Tensor x = model.features_of({tokens, where}, {.cache = cache.get()});
      if (cache) {
        x = slice(x, 1, length - 1, length);
      } else {
        last = graph.input("last", {1}, i32);
        x = slice_at(x, 1, last, 1);
      }
      logits = cast(model.head_of({x, where}), f32);
    }
    if (cache) detail::check_cached_attention(graph, "generate");
    CompileOptions options = detail::options_for(model, length, o.threads, o.precision);
    if (cache) options.assign = cache->assign();
    return compile(graph, {logits}, options);
  }
};

Generator::Generator(LanguageModel model, const Options& options, const std::source_location& where)
    : model_(std::move(model)),
      options_(options),
      where_(where),
      cache_(1, model_.context, model_.device(), options.cache_dtype) {
  if (options.cache)
    runs_[1] = std::make_shared<Run>(model_, 1, &cache_, options, where);  // creates the cache's tensors
}

void Generator::read(std::span<const std::int32_t> tokens) {
  while (!tokens.empty()) {
    // The lengths of runs are powers of two, so that only a few programs are needed for all sequences.
    const std::size_t length = std::bit_floor(tokens.size());
    std::shared_ptr<Run>& run = runs_[static_cast<std::int64_t>(length)];
    if (!run)
      run = std::make_shared<Run>(model_, static_cast<std::int64_t>(length), &cache_, options_, where_);
    const auto piece = tokens.first(length);
    const Tensor& cached = run->cache->cached();
    if (run->program.reads(cached))
      run->program.feed({cached, cached_.size()});  // a model without state does not read it
    run->program.run({{run->tokens, piece}});
    cached_.insert(cached_.end(), piece.begin(), piece.end());
    tokens = tokens.subspan(length);
    if (tokens.empty()) logits_ = run->program.fetch(run->logits);
  }
}

void Generator::read_window(std::span<const std::int32_t> sequence) {
  const std::int64_t context = model_.context;
  std::shared_ptr<Run>& run = runs_[0];
  if (!run) run = std::make_shared<Run>(model_, context, nullptr, options_, where_);
  // Positions after the last token are padding. The causal mask hides them from earlier positions.
  std::vector<std::int32_t> window(static_cast<std::size_t>(context));
  const std::size_t used = std::min(window.size(), sequence.size());
  std::copy(sequence.end() - static_cast<std::ptrdiff_t>(used), sequence.end(), window.begin());
  run->program.run({{run->tokens, window}, {run->last, used - 1}});
  logits_ = run->program.fetch(run->logits);
}

std::span<const float> Generator::next(std::span<const std::int32_t> sequence) {
  if (sequence.empty()) throw Error("[generate] the sequence to continue is empty");
  if (!options_.cache || static_cast<std::int64_t>(sequence.size()) > cache_.page_size()) {
    read_window(sequence);
  } else {
    const auto common = std::mismatch(cached_.begin(), cached_.end(), sequence.begin(), sequence.end()).first;
    // If all tokens are cached, the last one is read again for its logits.
    const auto kept = std::min<std::ptrdiff_t>(common - cached_.begin(), std::ssize(sequence) - 1);
    cached_.resize(static_cast<std::size_t>(kept));
    read(sequence.subspan(static_cast<std::size_t>(kept)));
  }
  return {logits_.data<float>(), static_cast<std::size_t>(logits_.numel())};
}

void Generator::extend(std::vector<std::int32_t>& sequence, std::int64_t count, const Sampling& sampling,
                       std::uint64_t seed, const std::function<bool(std::int32_t)>& report) {
  check_sampling(sampling);
  check_options("generate", {{"count", count, Range::whole_from(0)}});
  forget();
  for (std::int64_t k = 0; k < count; ++k) {
    sequence.push_back(
        sample_token(next(sequence), sampling, sampling_draw(seed, static_cast<std::uint64_t>(k))));
    if (report && !report(sequence.back())) return;
  }
}

}  // namespace tg::nn

// What Generator and Engine have in common when they compile a model's runs.
#pragma once

#include <string>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/models/language_model.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn::detail {

// Attention after a cache reads its rows, of which a length says how many there are.
inline void check_cached_attention(const Graph& graph, const std::string& who) {
  for (const Node& n : graph.nodes())
    if (const AttentionAttrs* a = attention_of(*n.op, n.attrs); a && !a->has_lengths)
      throw Error("[" + who + "] " + graph.name_of(n) +
                  " reads no key-value cache: its layer has to use Call::cache" +
                  (who == "generate" ? ", or the Generator {.cache = false} " : " ") + at_line(n.where));
}

// A run over few tokens is over soon. Below so many products of a weight and a number, one thread is done by
// the time that several have agreed on who does what.
inline int threads_for(const LanguageModel& model, std::int64_t tokens, int threads) {
  constexpr std::int64_t worth_threads = std::int64_t{1} << 22;
  return threads == 0 && model.count() < worth_threads / tokens ? 1 : threads;
}

inline CompileOptions options_for(const LanguageModel& model, std::int64_t tokens, int threads,
                                  Precision precision) {
  return {.threads = threads_for(model, tokens, threads), .tf32 = precision == Precision::tf32};
}

}  // namespace tg::nn::detail

// The cost of a token: after a few and after many in a key-value cache, and without a cache.
#include <cmath>

#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>
#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

struct Kind {
  const char* name;
  nn::Architecture architecture;
};

void measure(const Kind& kind, std::int64_t context, const Settings& settings, Report& report) {
  const nn::ModelConfig config{.architecture = kind.architecture,
                               .vocabulary = 65,
                               .context = context,
                               .layers = 4,
                               .heads = 4,
                               .width = 128};
  nn::Params params(0, f32, settings.device);
  const nn::Model model(params, config);
  const nn::Precision precision = nn::precision_named(settings.dtype_name());
  // If a generator gets the same text again, it reads only its last token again.
  const auto seconds = [&](nn::Generator& generator, std::int64_t length) {
    std::vector<std::int32_t> text(static_cast<std::size_t>(length));
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::int32_t>(i * 7 % 65);
    generator.next(text);
    return best_seconds(settings.seconds, [&] { generator.next(text); });
  };
  for (int threads = settings.threads;; threads = 1) {
    const auto add = [&](const std::string& name, std::int64_t length, double s, double share) {
      report.add(
          {.name = name,
           .shape = std::string(kind.name) + ", " + std::to_string(length) + " of " + std::to_string(context),
           .dtype = settings.dtype_name(),
           .threads = threads,
           .ms = s * 1e3,
           .rate = 1 / s,
           .unit = "tokens/s",
           .share = share,
           .of = std::isnan(share) ? "" : "whole text"});
    };
    nn::Generator plain(model, {.threads = threads, .precision = precision, .cache = false}),
        cached(model, {.threads = threads, .precision = precision});
    const double whole = seconds(plain, context);
    if (report.selects("whole text")) add("whole text", context, whole, Row::none);
    for (const std::int64_t length : {std::int64_t{1}, (context + 1) / 2, context}) {
      if (!report.selects("cached")) break;
      const double s = seconds(cached, length);
      add("cached", length, s, s / whole);
    }
    if (threads == 1) break;
  }
}

}  // namespace

void run_generate(const Settings& settings, const Machine&, Report& report) {
  const std::vector<std::int64_t> contexts =
      settings.shapes.empty() ? std::vector<std::int64_t>{64, 1024} : settings.shapes[0];
  for (const std::int64_t context : contexts)
    for (const Kind& kind :
         {Kind{"MHA", nn::Gpt{}}, Kind{"GQA", nn::Llama{.key_heads = 2}}, Kind{"MLA", nn::DeepSeek{}}})
      measure(kind, context, settings, report);
}

}  // namespace tg::bench

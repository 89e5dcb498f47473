// The cost of a token: after a few and after many in a key-value cache, without a cache, and for many texts
// at once.
#include <cmath>
#include <limits>

#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>
#include "tools/bench/modes.h"
#include "tools/bench/other_libraries.h"

namespace tg::bench {

namespace {

struct Kind {
  const char* name;
  nn::Architecture architecture;
};

// Seconds of an engine's step in which each of `texts` texts reads one token, after half its context.
double seconds_of_step(const nn::Model& model, std::int64_t context, std::int64_t texts, int threads,
                       nn::Precision precision, double seconds) {
  const std::int64_t length = (context + 1) / 2;
  nn::Engine engine(model,
                    {.seats = texts, .chunk = texts * length, .threads = threads, .precision = precision});
  double best = std::numeric_limits<double>::infinity(), end = 0;
  for (bool compiled = false; !compiled || now() < end;) {
    engine.forget();
    for (std::int64_t t = 0; t < texts; ++t) {
      std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
      for (std::int64_t i = 0; i < length; ++i)
        prompt[static_cast<std::size_t>(i)] = static_cast<std::int32_t>((t + i * (t + 7)) % 65);
      engine.add(nn::Engine::Request{.prompt = prompt, .sampling = {.temperature = 0}});
    }
    engine.step();  // reads all prompts
    engine.step();  // the first time, compiles the next program
    if (!compiled) compiled = true, end = now() + seconds;
    const auto all = static_cast<std::size_t>(texts);
    while (engine.texts() == all) {
      const double start = now();
      engine.step();
      const double step = now() - start;
      if (engine.texts() == all || std::isinf(best)) best = std::min(best, step);
      if (now() >= end) return best;
    }
    engine.run();
  }
  return best;
}

std::vector<std::int32_t> text_of(std::int64_t length) {
  std::vector<std::int32_t> text(static_cast<std::size_t>(length));
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::int32_t>(i * 7 % 65);
  return text;
}

void measure(const Kind& kind, std::int64_t context, const Settings& settings, Report& report) {
  const nn::ModelConfig config{.architecture = kind.architecture,
                               .vocabulary = 65,
                               .context = context,
                               .layers = 4,
                               .heads = 4,
                               .width = 128};
  nn::Params params(0, settings.dtype, settings.device);
  const nn::Model model(params, config);
  const nn::Precision precision = nn::precision_named(settings.dtype_name());
  // If a generator gets the same text again, it reads only its last token again.
  const auto seconds = [&](nn::Generator& generator, std::int64_t length) {
    const std::vector<std::int32_t> text = text_of(length);
    generator.next(text);
    return best_seconds(settings.seconds, [&] { generator.next(text); });
  };
  for (int threads = settings.threads;; threads = 1) {
    const auto add = [&](const std::string& name, std::int64_t length, double s, double share,
                         const char* of = "whole text") {
      report.add(
          {.name = name,
           .shape = std::string(kind.name) + ", " + std::to_string(length) + " of " + std::to_string(context),
           .dtype = settings.dtype_name(),
           .threads = threads,
           .ms = s * 1e3,
           .rate = 1 / s,
           .unit = "tokens/s",
           .share = share,
           .of = std::isnan(share) ? "" : of});
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
    if (report.selects("prompt")) {  // by both, a token of it
      const std::vector<std::int32_t> text = text_of(context);
      nn::Engine engine(model, {.seats = 1, .chunk = context, .threads = threads, .precision = precision});
      const double s = best_seconds(settings.seconds, [&] { cached.forget(), cached.next(text); });
      const double by_engine = best_seconds(settings.seconds, [&] {
        engine.forget();
        engine.add(nn::Engine::Request{.prompt = text, .tokens = 1, .sampling = {.temperature = 0}});
        engine.run();
      });
      const auto count = static_cast<double>(context);
      add("prompt", context, s / count, s / whole);
      add("prompt by an engine", context, by_engine / count, s / by_engine, "prompt");
    }
    const std::int64_t sizes[] = {config.layers, config.heads, config.width, context, config.vocabulary};
    std::list<OtherDecoding> others;  // that have a GPT
    if (report.selects("engine") && kind.architecture.name() == nn::Gpt::name)
      others = other_decodings(settings, sizes);
    double alone = Row::none;
    for (const std::int64_t texts : {1, 4, 16, 64}) {
      if (!report.selects("engine")) break;
      const auto count = static_cast<double>(texts);
      const std::string name = ", " + std::to_string(texts) + (texts == 1 ? " text" : " texts");
      const double s = seconds_of_step(model, context, texts, threads, precision, settings.seconds) / count;
      if (texts == 1) alone = s;
      add("engine" + name, (context + 1) / 2, s, alone / s, "engine, 1 text");
      for (OtherDecoding& other : others) {
        const double theirs = other.seconds_of_step(texts, (context + 1) / 2 + 1) / count;
        if (!std::isnan(theirs)) add(other.name() + name, (context + 1) / 2, theirs, s / theirs, "engine");
      }
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

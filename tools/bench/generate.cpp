// Measures the time per generated token: with few and with many tokens in a key-value cache, without a cache,
// and for several sequences in parallel.
#include <cmath>
#include <limits>

#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>
#include "tools/bench/measure.h"
#include "tools/bench/other_libraries.h"

namespace tg::bench {

namespace {

// Seconds of an engine's step in which each of `sequences` sequences reads one token, at half of the context.
double seconds_of_step(const nn::Model& model, std::int64_t context, std::int64_t sequences, int threads,
                       const Settings& settings) {
  const std::int64_t length = (context + 1) / 2;
  nn::Engine engine(model, {.slots = sequences,
                            .chunk = sequences * length,
                            .threads = threads,
                            .precision = settings.precision()});
  double best = std::numeric_limits<double>::infinity(), end = 0;
  for (bool compiled = false; !compiled || now() < end;) {
    engine.forget();
    for (std::int64_t t = 0; t < sequences; ++t) {
      std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
      for (std::int64_t i = 0; i < length; ++i)
        prompt[static_cast<std::size_t>(i)] = static_cast<std::int32_t>((t + i * (t + 7)) % 65);
      engine.add(nn::Engine::Request{.prompt = prompt, .sampling = {.temperature = 0}});
    }
    engine.step();  // reads all prompts
    engine.step();  // the first call also compiles the next program
    if (!compiled) compiled = true, end = now() + settings.seconds;
    const auto all = static_cast<std::size_t>(sequences);
    while (engine.sequences() == all) {
      const double step = seconds_of([&] { engine.step(); });
      if (engine.sequences() == all || std::isinf(best)) best = std::min(best, step);
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

void measure_model(const std::string& kind, const nn::Architecture& architecture, std::int64_t context,
                   Report& report) {
  const Settings& settings = report.settings;
  const Sizes sizes{4, 4, 128, context, 65};
  nn::Params params(0, settings.dtype, settings.device);
  const nn::Model model(params, config_of(architecture, sizes));
  // If a generator gets the same sequence again, it recomputes only the last token.
  const auto seconds = [&](nn::Generator& generator, std::int64_t length) {
    const std::vector<std::int32_t> text = text_of(length);
    generator.next(text);
    return best_seconds(settings.seconds, [&] { generator.next(text); });
  };
  const std::int64_t half = (context + 1) / 2;
  for (int threads = settings.threads;; threads = 1) {
    const auto row = [&](const std::string& name, std::int64_t length, double s) {
      const std::string shape = kind + ", " + std::to_string(length) + " of " + std::to_string(context);
      return report.row(name, shape, "", threads).time(s).at(1 / s, "tokens/s");
    };
    nn::Generator plain(model, {.threads = threads, .precision = settings.precision(), .cache = false}),
        cached(model, {.threads = threads, .precision = settings.precision()});
    const double whole = seconds(plain, context);
    report.add_selected(row("whole sequence", context, whole));
    for (const std::int64_t length : {std::int64_t{1}, half, context}) {
      if (!report.selects("cached")) break;
      const double s = seconds(cached, length);
      report.add(row("cached", length, s).part(s / whole, "whole sequence"));
    }
    if (report.selects("prompt")) {  // time per token of the prompt
      const std::vector<std::int32_t> text = text_of(context);
      nn::Engine engine(
          model, {.slots = 1, .chunk = context, .threads = threads, .precision = settings.precision()});
      const auto count = static_cast<double>(context);
      const double s = best_seconds(settings.seconds, [&] { cached.forget(), cached.next(text); }) / count;
      const double by_engine =
          best_seconds(
              settings.seconds,
              [&] {
                engine.forget();
                engine.add(nn::Engine::Request{.prompt = text, .tokens = 1, .sampling = {.temperature = 0}});
                engine.run();
              }) /
          count;
      report.add(row("prompt", context, s).part(s / whole, "whole sequence"));
      report.add(row("prompt by an engine", context, by_engine).part(s / by_engine, "prompt"));
    }
    std::list<OtherDecoding> others;  // other libraries that can run the same GPT
    if (report.selects("engine") && architecture.name() == nn::Gpt::name)
      others = other_decodings(settings, sizes);
    double alone = Row::none;
    for (const std::int64_t sequences : {1, 4, 16, 64}) {
      if (!report.selects("engine")) break;
      const auto count = static_cast<double>(sequences);
      const std::string name =
          ", " + std::to_string(sequences) + (sequences == 1 ? " sequence" : " sequences");
      const double s = seconds_of_step(model, context, sequences, threads, settings) / count;
      if (sequences == 1) alone = s;
      report.add(row("engine" + name, half, s).part(alone / s, "engine, 1 sequence"));
      for (OtherDecoding& other : others) {
        const double theirs = other.seconds_of_step(sequences, half + 1) / count;
        if (!std::isnan(theirs))
          report.add(row(other.name() + name, half, theirs).part(s / theirs, "engine"));
      }
    }
    if (threads == 1) break;
  }
}

}  // namespace

void run_generate(Report& report) {
  for (const std::int64_t context : report.sizes({64, 1024})) {
    measure_model("MHA", nn::Gpt{}, context, report);
    measure_model("GQA", nn::Llama{.key_heads = 2}, context, report);
    measure_model("MLA", nn::DeepSeek{}, context, report);
  }
}

}  // namespace tg::bench

// A trace of requests on an engine whose cache is contiguous, with room for a whole context for each text,
// and on one whose cache is in pages, with equally many bytes: what users of either see [Stratos,
// PagedAttention].
#include <cmath>

#include <tilegrad/io/files/file.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/model.h>
#include "tools/bench/cache_history.h"
#include "tools/bench/modes.h"
#include "tools/bench/other_libraries.h"
#include "tools/bench/replay.h"
#include "tools/train_report.h"

namespace tg::bench {

namespace {

nn::ModelConfig config_of(const std::vector<std::int64_t>& sizes) {
  nn::ModelConfig config{.architecture = nn::Gpt{},
                         .vocabulary = sizes[4],
                         .context = sizes[3],
                         .layers = sizes[0],
                         .heads = sizes[1],
                         .width = sizes[2]};
  config.std = 0.02 * std::sqrt(768. / static_cast<double>(config.width));
  return config;
}

// Adds rows that say how a replay went.
class ServeRows {
 public:
  ServeRows(const Settings& settings, std::string name, std::string shape, Report& report)
      : settings_(settings), name_(std::move(name)), shape_(std::move(shape)), report_(report) {}

  void add(const std::string& what, Row row) {
    row.name = name_ + what, row.shape = shape_;
    row.dtype = settings_.dtype_name(), row.threads = settings_.threads;
    if (report_.selects(row.name)) report_.add(row);
  }
  void add(const Replay& r) {
    const auto count = [](std::int64_t n) { return static_cast<double>(n); };
    add("", {.ms = r.seconds * 1e3, .rate = count(r.tokens) / r.seconds, .unit = "tokens/s"});
    add(", requests", {.rate = static_cast<double>(r.first.size()) / r.seconds, .unit = "requests/s"});
    add(", step", {.ms = r.stepping * 1e3 / count(r.steps), .rate = r.texts, .unit = "texts"});
    add(", host in a step", {.ms = r.host * 1e3 / count(r.steps)});
    add(", cache in use", {.share = r.useful, .of = "cache"});
    if (!std::isnan(r.useful_full)) add(", in use, texts wait", {.share = r.useful_full, .of = "cache"});
    add(", most in use", {.share = r.most_useful, .of = "cache"});
    add(", preemptions", {.rate = count(r.preemptions), .unit = "texts"});
    add(", found in the cache", {.rate = count(r.found), .unit = "tokens"});
    for (const auto& [part, name] : {std::pair(0.5, " p50"), {0.99, " p99"}}) {
      add(std::string(", first token") + name, {.ms = percentile(r.first, part) * 1e3});
      add(std::string(", between tokens") + name, {.ms = percentile(r.between, part) * 1e3});
    }
  }

 private:
  const Settings& settings_;
  std::string name_, shape_;
  Report& report_;
};

void check_equal(const Replay& contiguous, const Replay& paged) {
  for (std::size_t i = 0; i < contiguous.texts_written.size(); ++i) {
    const auto &a = contiguous.texts_written[i], &b = paged.texts_written[i];
    if (a == b) continue;
    const auto at =
        static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
    throw Error("[serve] request " + std::to_string(i + 1) +
                " got another text from the cache in pages: token " + std::to_string(at + 1) + " differs");
  }
}

}  // namespace

void run_serve(const Settings& settings, const Machine&, Report& report) {
  const ServeSettings& s = settings.serve;
  const nn::Precision precision = nn::precision_named(settings.dtype_name());
  const std::vector<std::int64_t> sizes =
      settings.shapes.empty() ? std::vector<std::int64_t>{4, 4, 128, 1024, 65} : settings.shapes[0];
  nn::Params params(static_cast<std::uint64_t>(s.random.seed), settings.dtype, settings.device);
  const nn::Model model(params, config_of(sizes));
  const std::int64_t context = sizes[3], of_token = bytes_of(cache_of_token(model, precision)),
                     room = s.cache.count > 0 ? static_cast<std::int64_t>(s.cache.bytes(of_token)) / of_token
                                              : 16 * context,
                     contexts = room / context, tokens = contexts * context;
  if (contexts < 1)
    throw Error("[serve] --cache-memory has room for " + std::to_string(room) +
                " tokens, expected at least " + std::to_string(context) + ", one context");
  if (s.page_size > context)
    throw Error("[serve] --page " + std::to_string(s.page_size) + " is larger than the context of " +
                std::to_string(context));
  const std::vector<Arrival> trace = s.trace.empty()
                                         ? random_trace(s.random, context)
                                         : parse_trace(io::read_file(s.trace, "trace"), s.trace, context);
  if (settings.compare && trace.back().seconds > 0)
    throw Error("[serve] --compare needs requests that are all there at the beginning");
  std::list<OtherDecoding> others = other_decodings(settings, sizes);
  const auto prompts = random_prompts(trace, s.random.shared_prefix, sizes[4], s.random.seed);
  const std::string shape = joined(sizes);
  ServeRows(settings, "cache", shape, report)
      .add("", {.rate = static_cast<double>(tokens * of_token) * 0x1p-20, .unit = "MiB"});

  struct Cache {
    std::string name;
    std::int64_t page_size, seats;
    Replay replay = {};
    std::optional<CacheHistory> history = {};
    std::optional<nn::Engine> engine = {};
  };
  Cache caches[] = {{"contiguous", context, std::min(s.seats, contexts)},
                    {"pages of " + std::to_string(s.page_size), s.page_size, s.seats}};
  for (Cache& c : caches) {
    nn::Engine::Options options{.seats = c.seats,
                                .cache_tokens = tokens / c.page_size * c.page_size,
                                .page_size = c.page_size,
                                .threads = settings.threads,
                                .precision = precision};
    if (s.in_step) options.ahead = false;
    c.engine.emplace(model, options);
    c.engine->prepare();  // so that nothing is compiled during the replay
    constexpr std::int64_t most_columns = 2000;
    if (!s.plot.empty()) c.history.emplace(c.engine->scheduler().pool(), s.page_size, most_columns);
    c.replay = replay(*c.engine, trace, prompts, c.history ? &*c.history : nullptr);
    ServeRows(settings, c.name, shape, report).add(c.replay);
  }
  check_equal(caches[0].replay, caches[1].replay);
  for (OtherDecoding& other : others) {
    const OtherDecoding::Replay r = other.replay(caches[0].seats, trace);
    ServeRows rows(settings, other.name(), shape, report);
    rows.add("", {.ms = r.seconds * 1e3,
                  .rate = static_cast<double>(caches[0].replay.tokens) / r.seconds,
                  .unit = "tokens/s",
                  .share = caches[1].replay.seconds / r.seconds,
                  .of = caches[1].name});
    rows.add(", step", {.ms = r.seconds * 1e3 / r.steps});
  }
  const double ratio = caches[0].replay.seconds / caches[1].replay.seconds;
  ServeRows(settings, "paged / contiguous", shape, report).add("", {.rate = ratio, .unit = "×"});
  if (s.plot.empty()) return;
  std::vector<CachePanel> panels;
  for (const Cache& c : caches)
    panels.push_back(
        {{c.name + ": " + grouped(std::llround(static_cast<double>(c.replay.tokens) / c.replay.seconds)) +
              " tokens/s",
          std::isnan(c.replay.useful_full)
              ? short_number(100 * c.replay.useful) + " % in use"
              : short_number(100 * c.replay.useful_full) + " % in use while texts wait"},
         &*c.history});
  draw_caches(std::to_string(trace.size()) + " requests in a cache of " +
                  size_text(static_cast<double>(tokens * of_token)),
              panels)
      .save_png(s.plot);
}

}  // namespace tg::bench

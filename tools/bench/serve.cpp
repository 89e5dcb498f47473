// Replays a trace of requests on two engines with caches of the same size: a contiguous one, which reserves a
// full context for each sequence, and a paged one. Reports the latency and throughput that users observe
// [Stratos, PagedAttention].
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>
#include <utility>

#include <tilegrad/io/files/file.h>
#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/model.h>
#include "tools/bench/cache_history.h"
#include "tools/bench/measure.h"
#include "tools/bench/other_libraries.h"
#include "tools/train_report.h"

namespace tg::bench {

namespace {

struct Replay {
  double seconds = 0;   // until the last token
  double stepping = 0;  // time in steps, a part of `seconds`; a step needs at least one sequence
  double host = 0;      // part of `stepping` outside of the model's runs
  std::int64_t steps = 0, tokens = 0;
  double sequences = 0;  // mean number of sequences in the cache, over the steps
  // The share of the cache that contains tokens of a sequence. `useful` is the mean over all steps,
  // `useful_full` the mean over steps with waiting sequences (NaN if there are none), and `most_useful` the
  // maximum.
  double useful = 0, useful_full = 0, most_useful = 0;
  std::int64_t preemptions = 0, found = 0;
  std::vector<double> first, between;  // seconds to a sequence's first token, and between its tokens; sorted
  std::vector<std::vector<std::int32_t>> outputs;  // tokens of each request
};

class Clock {
 public:
  double seconds() const { return now() - start_; }
  // Runs f and excludes its time.
  template <class F>
  void stopped(F&& f) {
    start_ += seconds_of(f);
  }

 private:
  double start_ = now();
};

// The number of tokens in the cache. A token that several sequences share is counted once.
std::int64_t useful_tokens(const nn::PagePool& pool, const std::vector<CachedSequence>& sequences) {
  std::vector<std::int64_t> held_by_page(static_cast<std::size_t>(pool.pages()) + 1);
  std::int64_t sum = 0;
  for (const CachedSequence& t : sequences) {
    std::int64_t left = t.table->length();
    for (const std::int32_t page : t.table->pages()) {
      const std::int64_t n = std::clamp<std::int64_t>(left, 0, pool.page_size());
      std::int64_t& held = held_by_page[static_cast<std::size_t>(page)];
      sum += std::max<std::int64_t>(0, n - held);
      held = std::max(held, n);
      left -= n;
    }
  }
  return sum;
}

// The p-quantile of sorted numbers: the smallest number x among them for which at least a fraction p of all
// numbers is ≤ x. NaN if there are none.
double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return Row::none;
  const auto rank = static_cast<std::size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

// Replays a trace: adds each request at its arrival time and decodes it greedily. The clock is stopped while
// the function inspects the pages. `history`, if not null, records every step.
Replay replay(nn::Engine& engine, const std::vector<Arrival>& trace,
              const std::vector<std::vector<std::int32_t>>& prompts, CacheHistory* history) {
  const nn::Scheduler& scheduler = engine.scheduler();
  const nn::PagePool& pool = scheduler.pool();
  const std::int64_t preempted_before = scheduler.preemptions(), found_before = scheduler.found();
  Replay r;
  std::map<nn::Engine::Handle, std::size_t> sequences;  // request number of each unfinished sequence
  // The report callback counts as host time, so it only appends to this list.
  struct Written {
    std::size_t request;
    std::int32_t token;
    double time;
  };
  std::vector<Written> all_written;
  all_written.reserve(std::accumulate(
      trace.begin(), trace.end(), std::size_t{0},
      [](std::size_t n, const Arrival& a) { return n + static_cast<std::size_t>(a.output); }));
  Clock clock;
  bool looked = false;          // the pages were already inspected in this step
  double time = 0;              // the time when the tokens of the step were available
  std::int64_t full_steps = 0;  // steps with waiting sequences
  const auto look = [&] {
    if (looked) return;
    looked = true;
    clock.stopped([&] {
      std::vector<CachedSequence> cached;
      for (const auto& [handle, request] : sequences)
        if (scheduler.is_running(handle))
          cached.push_back(
              {static_cast<std::int64_t>(request), &scheduler.table(handle), &scheduler.tokens(handle)});
      const double share = static_cast<double>(useful_tokens(pool, cached)) /
                           (static_cast<double>(pool.pages()) * static_cast<double>(pool.page_size()));
      r.sequences += static_cast<double>(cached.size());
      r.useful += share;
      if (scheduler.waiting() > 0) r.useful_full += share, ++full_steps;
      r.most_useful = std::max(r.most_useful, share);
      if (history) history->add(cached);
    });
  };
  const auto report = [&](std::size_t request, const nn::Engine::Token& token) {
    if (!looked) r.seconds = time = clock.seconds();
    all_written.push_back({request, token.token, time});
    if (token.end != nn::Engine::End::no) sequences.erase(token.sequence);
    look();  // called at the first report, when ending sequences still have their pages
    return true;
  };
  for (std::size_t next = 0; next < trace.size() || engine.sequences() > 0;) {
    for (const double by = clock.seconds(); next < trace.size() && trace[next].seconds <= by; ++next) {
      const auto handle = engine.add(nn::Engine::Request{
          .prompt = prompts[next],
          .tokens = trace[next].output,
          .sampling = {.temperature = 0},
          .report = [&report, request = next](const auto& token) { return report(request, token); }});
      sequences[handle] = next;
    }
    if (engine.sequences() == 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(trace[next].seconds - clock.seconds()));
      continue;
    }
    looked = false;
    const double start = clock.seconds(), runs = engine.run_seconds();
    engine.step();
    const double step = clock.seconds() - start;
    r.stepping += step;
    r.host += step - (engine.run_seconds() - runs);
    look();
    ++r.steps;
  }
  r.outputs.resize(trace.size());
  std::vector<double> last;  // per request: time of arrival, or of its latest token
  for (const Arrival& a : trace) last.push_back(a.seconds);
  for (const Written& w : all_written) {
    auto& written = r.outputs[w.request];
    (written.empty() ? r.first : r.between).push_back(w.time - std::exchange(last[w.request], w.time));
    written.push_back(w.token);
  }
  r.preemptions = scheduler.preemptions() - preempted_before;
  r.found = scheduler.found() - found_before;
  r.tokens = std::ssize(r.first) + std::ssize(r.between);
  r.sequences /= static_cast<double>(r.steps);
  r.useful /= static_cast<double>(r.steps);
  r.useful_full /= static_cast<double>(full_steps);
  std::sort(r.first.begin(), r.first.end());
  std::sort(r.between.begin(), r.between.end());
  return r;
}

void add_rows(const std::string& name, const std::string& shape, const Replay& r, Report& report) {
  const auto row = [&](const std::string& what) { return report.row(name + what, shape); };
  const auto timed = [&](const std::string& what, double seconds) { return row(what).time(seconds); };
  const auto counted = [&](const char* what, double n, const char* unit) {
    report.add_selected(row(what).at(n, unit));
  };
  const auto cached = [&](const char* what, double share) {
    report.add_selected(row(what).part(share, "cache"));
  };
  const auto steps = static_cast<double>(r.steps);
  report.add_selected(timed("", r.seconds).at(static_cast<double>(r.tokens) / r.seconds, "tokens/s"));
  counted(", requests", static_cast<double>(r.first.size()) / r.seconds, "requests/s");
  report.add_selected(timed(", step", r.stepping / steps).at(r.sequences, "sequences"));
  report.add_selected(timed(", host in a step", r.host / steps));
  cached(", cache in use", r.useful);
  if (!std::isnan(r.useful_full)) cached(", in use, waiting", r.useful_full);
  cached(", most in use", r.most_useful);
  counted(", preemptions", static_cast<double>(r.preemptions), "sequences");
  counted(", reused tokens", static_cast<double>(r.found), "tokens");
  for (const auto& [part, which] : {std::pair(0.5, " p50"), {0.99, " p99"}}) {
    report.add_selected(timed(std::string(", first token") + which, percentile(r.first, part)));
    report.add_selected(timed(std::string(", between tokens") + which, percentile(r.between, part)));
  }
}

void check_equal(const Replay& contiguous, const Replay& paged) {
  for (std::size_t i = 0; i < contiguous.outputs.size(); ++i) {
    const auto &a = contiguous.outputs[i], &b = paged.outputs[i];
    if (a == b) continue;
    const auto at =
        static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
    throw Error("[serve] request " + std::to_string(i + 1) +
                " has a different output with the paged cache: token " + std::to_string(at + 1) + " differs");
  }
}

}  // namespace

void run_serve(Report& report) {
  const Settings& settings = report.settings;
  const ServeSettings& s = settings.serve;
  const nn::Precision precision = settings.precision();
  const Sizes sizes = report.sizes({4, 4, 128, 1024, 65});
  nn::ModelConfig config = config_of(nn::Gpt{}, sizes);
  config.std = 0.02 * std::sqrt(768. / static_cast<double>(config.width));
  nn::Params params(static_cast<std::uint64_t>(s.random.seed), settings.dtype, settings.device);
  const nn::Model model(params, config);
  const std::int64_t context = sizes[3], of_token = bytes_of(cache_of_token(model, precision)),
                     room = s.cache.count > 0 ? static_cast<std::int64_t>(s.cache.bytes(of_token)) / of_token
                                              : 16 * context,
                     contexts = room / context, tokens = contexts * context;
  if (contexts < 1)
    throw Error("[serve] --cache-memory has room for " + std::to_string(room) +
                " tokens, expected at least " + std::to_string(context) + ", a full context");
  if (s.page_size > context)
    throw Error("[serve] --page " + std::to_string(s.page_size) + " is larger than the context of " +
                std::to_string(context));
  const std::vector<Arrival> trace = s.trace.empty()
                                         ? random_trace(s.random, context)
                                         : parse_trace(io::read_file(s.trace, "trace"), s.trace, context);
  if (settings.compare && trace.back().seconds > 0)
    throw Error("[serve] --compare requires --rate 0: all requests must arrive at the start");
  std::list<OtherDecoding> others = other_decodings(settings, sizes);
  const auto prompts = random_prompts(trace, s.random.shared_prefix, sizes[4], s.random.seed);
  const std::string shape = joined(sizes);
  const auto add_one = [&](const char* name, double rate, const char* unit) {
    report.add_selected(report.row(name, shape).at(rate, unit));
  };
  add_one("cache", static_cast<double>(tokens * of_token) * 0x1p-20, "MiB");

  struct Cache {
    std::string name;
    std::int64_t page_size, slots;
    Replay replay = {};
    std::optional<CacheHistory> history = {};
    std::optional<nn::Engine> engine = {};
  };
  Cache caches[] = {{"contiguous", context, std::min(s.slots, contexts)},
                    {"pages of " + std::to_string(s.page_size), s.page_size, s.slots}};
  for (Cache& c : caches) {
    nn::Engine::Options options{.slots = c.slots,
                                .cache_tokens = tokens / c.page_size * c.page_size,
                                .page_size = c.page_size,
                                .threads = settings.threads,
                                .precision = precision};
    if (s.in_step) options.ahead = false;
    c.engine.emplace(model, options);
    c.engine->prepare();  // compile everything before the replay
    constexpr std::int64_t most_columns = 2000;
    if (!settings.plot.empty()) c.history.emplace(c.engine->scheduler().pool(), s.page_size, most_columns);
    c.replay = replay(*c.engine, trace, prompts, c.history ? &*c.history : nullptr);
    add_rows(c.name, shape, c.replay, report);
  }
  check_equal(caches[0].replay, caches[1].replay);
  for (OtherDecoding& other : others) {
    const OtherDecoding::Replay r = other.replay(caches[0].slots, trace);
    report.add_selected(report.row(other.name(), shape)
                            .time(r.seconds)
                            .at(static_cast<double>(caches[0].replay.tokens) / r.seconds, "tokens/s")
                            .part(caches[1].replay.seconds / r.seconds, caches[1].name));
    report.add_selected(report.row(other.name() + ", step", shape).time(r.seconds / r.steps));
  }
  add_one("paged / contiguous", caches[0].replay.seconds / caches[1].replay.seconds, "×");
  if (settings.plot.empty()) return;
  std::vector<CachePanel> panels;
  for (const Cache& c : caches) {
    const Replay& r = c.replay;
    const bool waited = !std::isnan(r.useful_full);
    panels.push_back(
        {{c.name + ": " + grouped(std::llround(static_cast<double>(r.tokens) / r.seconds)) + " tokens/s",
          short_number(100 * (waited ? r.useful_full : r.useful)) + " % in use" +
              (waited ? " while sequences wait" : "")},
         &*c.history});
  }
  draw_caches(std::to_string(trace.size()) + " requests in a cache of " +
                  size_text(static_cast<double>(tokens * of_token)),
              panels)
      .save_png(settings.plot);
}

}  // namespace tg::bench

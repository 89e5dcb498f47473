#include "tools/bench/replay.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include "tools/bench/measure.h"

namespace tg::bench {

namespace {

using i64 = std::int64_t;

class Clock {
 public:
  double seconds() const { return now() - start_; }
  // What f does takes no time.
  template <class F>
  void stopped(F&& f) {
    const double before = now();
    f();
    start_ += now() - before;
  }

 private:
  double start_ = now();
};

// Tokens in the cache, those that several texts share counted once.
class UsefulTokens {
 public:
  explicit UsefulTokens(const nn::PagePool& pool) : held_(static_cast<std::size_t>(pool.pages()) + 1) {}

  i64 count(const nn::Scheduler& scheduler, const std::vector<CachedText>& texts) {
    std::fill(held_.begin(), held_.end(), 0);
    i64 sum = 0;
    const i64 size = scheduler.pool().page_size();
    for (const CachedText& t : texts) {
      i64 left = t.table->length();
      for (const std::int32_t page : t.table->pages()) {
        const i64 n = std::clamp<i64>(left, 0, size);
        i64& held = held_[static_cast<std::size_t>(page)];
        sum += std::max<i64>(0, n - held);
        held = std::max(held, n);
        left -= n;
      }
    }
    return sum;
  }

 private:
  std::vector<i64> held_;  // by page
};

}  // namespace

double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto rank = static_cast<std::size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

Replay replay(nn::Engine& engine, const std::vector<Arrival>& trace,
              const std::vector<std::vector<std::int32_t>>& prompts, CacheHistory* history) {
  const nn::Scheduler& scheduler = engine.scheduler();
  const i64 preempted_before = scheduler.preemptions(), found_before = scheduler.found();
  Replay r;
  std::map<nn::Engine::Handle, std::size_t> texts;  // the request of each that has not ended
  // What a report does is part of the host's time: it only adds a line to this list.
  struct Written {
    std::size_t request;
    std::int32_t token;
    double time;
  };
  std::vector<Written> all_written;
  all_written.reserve(std::accumulate(
      trace.begin(), trace.end(), std::size_t{0},
      [](std::size_t n, const Arrival& a) { return n + static_cast<std::size_t>(a.output); }));
  UsefulTokens useful(scheduler.pool());
  Clock clock;
  bool looked = false;  // in this step
  double time = 0;      // when its tokens were there
  i64 full_steps = 0;   // with texts that wait
  const auto look = [&] {
    if (looked) return;
    looked = true;
    clock.stopped([&] {
      std::vector<CachedText> cached;
      for (const auto& [handle, request] : texts)
        if (scheduler.is_running(handle))
          cached.push_back({static_cast<i64>(request), &scheduler.table(handle), &scheduler.tokens(handle)});
      const double share =
          static_cast<double>(useful.count(scheduler, cached)) /
          (static_cast<double>(scheduler.pool().pages()) * static_cast<double>(scheduler.pool().page_size()));
      r.texts += static_cast<double>(cached.size());
      r.useful += share;
      if (scheduler.waiting() > 0) r.useful_full += share, ++full_steps;
      r.most_useful = std::max(r.most_useful, share);
      if (history) history->add(cached);
    });
  };
  const auto report = [&](std::size_t request, const nn::Engine::Token& token) {
    if (!looked) r.seconds = time = clock.seconds();
    all_written.push_back({request, token.token, time});
    if (token.end != nn::Engine::End::no) texts.erase(token.text);
    look();  // at the first report, when the others that end in this step still have their pages
    return true;
  };
  for (std::size_t next = 0; next < trace.size() || engine.texts() > 0;) {
    for (const double by = clock.seconds(); next < trace.size() && trace[next].seconds <= by; ++next) {
      const auto handle = engine.add(nn::Engine::Request{
          .prompt = prompts[next],
          .tokens = trace[next].output,
          .sampling = {.temperature = 0},
          .report = [&report, request = next](const auto& token) { return report(request, token); }});
      texts[handle] = next;
    }
    if (engine.texts() == 0) {
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
  r.texts_written.resize(trace.size());
  std::vector<double> last;  // by request: when it arrived, or had its last token
  for (const Arrival& a : trace) last.push_back(a.seconds);
  for (const Written& w : all_written) {
    auto& written = r.texts_written[w.request];
    (written.empty() ? r.first : r.between).push_back(w.time - std::exchange(last[w.request], w.time));
    written.push_back(w.token);
  }
  r.preemptions = scheduler.preemptions() - preempted_before;
  r.found = scheduler.found() - found_before;
  r.tokens = std::ssize(r.first) + std::ssize(r.between);
  r.texts /= static_cast<double>(r.steps);
  r.useful /= static_cast<double>(r.steps);
  r.useful_full /= static_cast<double>(full_steps);
  std::sort(r.first.begin(), r.first.end());
  std::sort(r.between.begin(), r.between.end());
  return r;
}

}  // namespace tg::bench

#include "tests/gpu_emulator/clocks.h"

#include <algorithm>
#include <utility>

namespace tg::emulator {

bool clocks_started = false;
WarpTime warp_times[32];

namespace {

constexpr Time always = ~Time{0};

unsigned threads = 0;
std::vector<SharedClock> known;
std::vector<Time> fenced;

std::shared_ptr<Clock> copy_of(const SharedClock& c) {
  return c ? std::make_shared<Clock>(*c) : std::make_shared<Clock>(clock_places());
}
void raise(Time& to, Time from) {
  to = std::max(to, from);
}

// The lanes of a warp join the same two clocks one after another. So the last result is cached.
SharedClock joined(const SharedClock& a, const SharedClock& b) {
  static SharedClock last_a, last_b, result;
  if (a == b || !b) return a;
  if (!a) return b;
  if (a == last_a && b == last_b) return result;
  auto c = copy_of(a);
  for (std::size_t n = 0; n < c->size(); ++n) raise((*c)[n], (*b)[n]);
  last_a = a, last_b = b;
  return result = *c == *a ? a : c;
}

}  // namespace

void forget_clocks(unsigned count) {
  if (clocks_started) known.clear(), fenced.clear();
  clocks_started = false;
  threads = count;
  std::fill(warp_times, warp_times + 32, WarpTime{1, 0});
}
void start_clocks() {
  if (clocks_started) return;
  clocks_started = true;
  known.assign(threads, nullptr), fenced.assign(threads, 0);
  for (unsigned warp = 0; warp < (threads + 31) / 32; ++warp) {
    auto c = copy_of(nullptr);
    for (unsigned t = warp * 32; t < std::min(threads, warp * 32 + 32); ++t)
      (*c)[t] = warp_times[warp].last_syncwarp, known[t] = c;
  }
}

std::size_t clock_places() {
  return 2 * threads + 64 + most_mbarriers;
}
unsigned fenced_of(unsigned thread) {
  return threads + thread;
}
unsigned products_of(unsigned warp) {
  return 2 * threads + warp;
}
unsigned arrivals_of(unsigned warp) {
  return 2 * threads + 32 + warp;
}
unsigned copies_to(unsigned mbarrier) {
  return 2 * threads + 64 + mbarrier;
}

const SharedClock& known_to(unsigned thread) {
  return known[thread];
}
Time fenced_by(unsigned thread) {
  return fenced[thread];
}

void fence_writes(unsigned thread) {
  start_clocks();
  fenced[thread] = ++warp_times[thread / 32].now;
}
void acquire(unsigned thread, const SharedClock& released) {
  known[thread] = joined(known[thread], released);
}
void learn(unsigned thread, unsigned place, Time time) {
  static SharedClock last, result;
  static unsigned last_place = 0;
  static Time last_time = 0;
  SharedClock& mine = known[thread];
  if (at(mine, place) >= time) return;
  if (mine != last || place != last_place || time != last_time || !result) {
    auto c = copy_of(mine);
    (*c)[place] = time;
    last = mine, last_place = place, last_time = time, result = c;
  }
  mine = result;
}

void order_lanes(unsigned warp) {
  WarpTime& time = warp_times[warp];
  time.last_syncwarp = ++time.now;
  if (!clocks_started) return;
  Released all;
  const unsigned first = warp * 32, end = std::min(threads, first + 32);
  for (unsigned t = first; t < end; ++t) all.add(t);
  const SharedClock c = all.take();
  std::fill(known.begin() + first, known.begin() + end, c);
  time.last_syncwarp = time.now;
}
void order_threads(unsigned first, unsigned end) {
  if (!clocks_started) return;
  Released all;
  for (unsigned t = first; t < end; ++t) all.add(t);
  std::fill(known.begin() + first, known.begin() + end, all.take());
}

void Released::join(const SharedClock& other) {
  if (clock_ && other == joined_) return;
  joined_ = other;
  if (!clock_) {
    clock_ = copy_of(other);
    return;
  }
  if (!other) return;
  for (std::size_t n = 0; n < clock_->size(); ++n) raise((*clock_)[n], (*other)[n]);
}
void Released::add(unsigned thread) {
  join(known[thread]);
  const Time now = ++warp_times[thread / 32].now;
  set(thread, now);
  set(arrivals_of(thread / 32), now);
  set(fenced_of(thread), fenced[thread]);
}
void Released::add_asynchronous(unsigned thread) {
  set(arrivals_of(thread / 32), ++warp_times[thread / 32].now);
  set(fenced_of(thread), fenced[thread]);
  if (const SharedClock& c = known[thread])
    for (unsigned n = fenced_of(0); n < c->size(); ++n) set(n, (*c)[n]);
}
void Released::set(unsigned place, Time time) {
  if (!clock_) clock_ = copy_of(nullptr);
  raise((*clock_)[place], time);
}
SharedClock Released::take() {
  joined_ = nullptr;
  return std::exchange(clock_, nullptr);
}

void CommonKnowledge::lower(unsigned place, Time to) {
  Time& t = (*clock_)[place];
  t = std::min(t, to);
}
// A thread always knows its own accesses, regardless of its clock. So its own entries are skipped until
// another thread adds the same clock.
void CommonKnowledge::add(unsigned thread) {
  const SharedClock& c = known[thread];
  if (!any_) {
    clock_ = std::make_shared<Clock>(clock_places(), always);
    any_ = true;
  } else if (c == last_) {
    if (first_of_last_ != ~0u)
      for (const unsigned place : {first_of_last_, fenced_of(first_of_last_)}) lower(place, at(c, place));
    first_of_last_ = ~0u;
    return;
  }
  const unsigned own = fenced_of(thread);
  for (unsigned n = 0; n < clock_->size(); ++n)
    if (n != thread) lower(n, n == own ? fenced[thread] : at(c, n));
  last_ = c, first_of_last_ = thread;
}

}  // namespace tg::emulator

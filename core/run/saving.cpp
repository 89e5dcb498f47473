#include "core/run/saving.h"

#include <ctime>

#include <algorithm>

namespace tg {

namespace {

constexpr std::int64_t look_each_ms = 50;

EndState private_state{};
std::atomic<EndState*> end_state{&private_state};

}  // namespace

EndState& own_end_state() {
  return *end_state.load(std::memory_order_acquire);
}

void share_end_state(EndState& shared) {
  end_state.store(&shared, std::memory_order_release);
}

std::int64_t monotonic_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000 + now.tv_nsec / 1'000'000;
}

SaveScope::SaveScope(Stage stage, bool counts)
    : state_(counts ? &own_end_state() : nullptr), writes_(stage == Stage::writing) {
  if (state_ && writes_) state_->writing.fetch_add(1, std::memory_order_relaxed);
  if (state_) state_->saving.fetch_add(1, std::memory_order_release);
}

SaveScope::~SaveScope() {
  if (!state_) return;
  state_->saved.store(monotonic_ms(), std::memory_order_relaxed);  // before `saving` drops to 0
  if (writes_) state_->writing.fetch_sub(1, std::memory_order_release);
  state_->saving.fetch_sub(1, std::memory_order_release);
}

std::int64_t time_to_end(std::int64_t now, std::int64_t asked, const EndTimes& times, std::uint32_t saving,
                         std::int64_t saved) {
  if (now < asked + times.grace) return asked + times.grace - now;
  const std::int64_t save_end = asked + times.save_grace;
  if (saving > 0 && now < save_end) return std::min(look_each_ms, save_end - now);
  // If a save exceeded its time limit, the time after the save is measured from that limit.
  if (saving == 0 && saved > 0 && now < std::min(saved, save_end) + end_after_save_ms) return look_each_ms;
  return 0;
}

}  // namespace tg

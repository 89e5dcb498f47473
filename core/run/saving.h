// What a process finishes before it ends when it is asked to end: a checkpoint. Signal handlers, the watchdog
// of its ranks and tools/launch read it, so it consists of a few numbers, which launch may share with the
// process.
#pragma once

#include <atomic>
#include <cstdint>

namespace tg {

struct alignas(64) EndState {
  std::atomic<std::int32_t> process;   // its number; 0: no process uses this state
  std::atomic<std::int32_t> asked_by;  // the first signal that asked it to end; 0: none
  std::atomic<std::uint32_t> saving;   // SaveScopes that exist
  std::atomic<std::uint32_t> writing;  // those of Stage::writing
  std::atomic<std::int64_t> saved;     // when the last SaveScope ended, by monotonic_ms(); 0: none has
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);  // for signal handlers and between processes

EndState& own_end_state();
// From now on this process's state is `shared`, which must exist until the process ends. Call it before the
// first SaveScope.
void share_end_state(EndState& shared);

std::int64_t monotonic_ms();  // the same clock in all processes of a host

// While one exists, this process saves: it is not ended before its time for that is over.
class SaveScope {
 public:
  // `computing` leads to a checkpoint: the step or the exchange after which it is written.
  enum class Stage { computing, writing };
  explicit SaveScope(Stage stage, bool counts = true);  // without `counts` it does nothing
  ~SaveScope();
  SaveScope(const SaveScope&) = delete;

 private:
  EndState* const state_;  // null: it does not count
  const bool writes_;
};

// Times that a process has to end, in ms from the signal.
struct EndTimes {
  std::int64_t grace = 8'000, save_grace = 120'000;
};
// Time to report a save and to end.
constexpr std::int64_t end_after_save_ms = 2'000;

// For how many ms nobody need look again at a process that was asked to end at `asked`; 0: its time is over.
// `saving` and `saved` are those of its state. May be called by a signal handler.
std::int64_t time_to_end(std::int64_t now, std::int64_t asked, const EndTimes& times, std::uint32_t saving,
                         std::int64_t saved);

}  // namespace tg

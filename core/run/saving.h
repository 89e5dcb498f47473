// The exit state of a process. When such a process receives an exit signal, it first finishes a checkpoint.
// Signal handlers, the watchdog of the ranks and tools/launch read the state. It therefore consists of a few
// numbers, which can be in memory shared with launch.
#pragma once

#include <atomic>
#include <cstdint>

namespace tg {

struct alignas(64) EndState {
  std::atomic<std::int32_t> process;   // process id; 0: no process uses this state
  std::atomic<std::int32_t> asked_by;  // the first signal that requested the exit; 0: none
  std::atomic<std::uint32_t> saving;   // number of SaveScopes
  std::atomic<std::uint32_t> writing;  // number of SaveScopes with Stage::writing
  std::atomic<std::int64_t> saved;     // when the last SaveScope ended, by monotonic_ms(); 0: never
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);  // for signal handlers and shared memory

EndState& own_end_state();
// Uses `shared` as this process's state. `shared` must exist until the process exits. Must be called before
// the first SaveScope.
void share_end_state(EndState& shared);

std::int64_t monotonic_ms();  // the same clock for all processes of a host

// While a SaveScope exists, this process is saving a checkpoint. The process is not killed before the time
// limit for saving has passed.
class SaveScope {
 public:
  // computing: the process computes or exchanges data for the checkpoint. writing: it writes the checkpoint.
  enum class Stage { computing, writing };
  explicit SaveScope(Stage stage, bool counts = true);  // `counts` = false: does nothing
  ~SaveScope();
  SaveScope(const SaveScope&) = delete;

 private:
  EndState* const state_;  // null if it does not count
  const bool writes_;
};

// Time limits for an exit, in ms after the signal.
struct EndTimes {
  std::int64_t grace = 8'000, save_grace = 120'000;
};
// Time for reporting a save and exiting.
constexpr std::int64_t end_after_save_ms = 2'000;

// For a process that was asked to exit at the time `asked`. Returns the time in ms until the caller must
// check again, or 0 if the time limit has passed. `saving` and `saved` are fields of the process's EndState.
// A signal handler may call this function.
std::int64_t time_to_end(std::int64_t now, std::int64_t asked, const EndTimes& times, std::uint32_t saving,
                         std::int64_t saved);

}  // namespace tg

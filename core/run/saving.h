// The state of a process that receives an exit signal and first finishes a checkpoint. Signal handlers, the
// watchdog of the ranks and tools/launch read it, so it consists of a few numbers, which launch may share
// with the process.
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

// While a SaveScope exists, this process is saving a checkpoint. It is not killed before the time limit for
// that has passed.
class SaveScope {
 public:
  // computing: the step or exchange before the checkpoint is written. writing: the checkpoint is being
  // written.
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

// Returns the time in ms until a process that was asked to exit at `asked` must be checked again, or 0 if its
// time has passed. `saving` and `saved` are fields of its EndState. A signal handler may call this function.
std::int64_t time_to_end(std::int64_t now, std::int64_t asked, const EndTimes& times, std::uint32_t saving,
                         std::int64_t saved);

}  // namespace tg

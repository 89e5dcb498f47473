// The watchdog: a thread in every rank that detects lost and hanging ranks and reports them to all ranks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tilegrad/parallel/group.h>
#include "core/os/socket.h"
#include "parallel/network.h"
#include "parallel/rendezvous.h"
#include "parallel/shared_memory.h"

namespace tg::parallel {

// Detects ranks that hang, based on the states that all ranks publish. The current time is an argument. An
// interval starts when the detector sees a change.
class HangDetector {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // A copy of the values of a RankState.
  struct Seen {
    std::int64_t steps = 0;
    std::uint32_t moves = 0, pauses = 0, beats = 0;
    bool is_waiting = false, has_ended = false;
    bool is_on_gpu = false;  // if waiting: whether for a GPU, possibly for its own work
  };

  // `step_timeout` as in JoinOptions.
  HangDetector(int ranks, std::chrono::milliseconds step_timeout);
  std::optional<LostRank> look(Time now, std::span<const Seen> ranks);

 private:
  struct Rank {
    Seen seen;
    Time moved{}, beaten{};  // when `moves` and `beats` last changed
    std::int64_t first_steps = 0;
    Time first{}, last{};  // when it finished the first step and the last step
  };
  std::chrono::milliseconds timeout_of(const Rank& r) const;

  const std::chrono::milliseconds step_timeout_;
  std::vector<Rank> ranks_;
  Time looked_{};
};

class Watchdog {
 public:
  // If the ranks are on several hosts, `notes` is used instead of the connections. A connection can report
  // only the end of a process.
  Watchdog(std::shared_ptr<SharedMemory> memory, std::vector<Connection> connections,
           std::unique_ptr<Notes> notes, int rank, const JoinOptions& options);
  ~Watchdog();

 private:
  void run();
  void listen();  // waits for at most 100 ms until a connection ends or receives data
  void look_at_connections(std::span<const os::Polled> waited);
  void look_for_hangs();
  void look_for_lost_ranks();
  std::int64_t time_left() const;  // ms until this process is killed after a loss

  const std::shared_ptr<SharedMemory> memory_;
  std::vector<Connection> connections_;
  const std::unique_ptr<Notes> notes_;
  const int rank_;
  const std::chrono::milliseconds end_after_, save_after_;
  const std::function<void(const RankLost&)> on_lost_;
  HangDetector hangs_;
  HangDetector::Time lost_{};  // when the watchdog detected the loss
  os::Waker stop_;             // ends the thread
  std::thread thread_;
};

}  // namespace tg::parallel

// The memory that all ranks of one host map, and a Communicator that uses it. The memory contains a barrier.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/core/run/communicator.h>
#include "core/base/file_write.h"

namespace tg::parallel {

constexpr int most_ranks = 1024;

// These functions call os::new_shared_memory() and os::map_shared(). They throw Error.
FileDescriptor new_memory(std::size_t bytes);
void* map_memory(int descriptor, std::size_t bytes);

// The state that a rank publishes for the watchdogs of all ranks. Only the rank itself writes it.
struct alignas(64) RankState {
  std::atomic<std::int64_t> steps;        // last finished step + 1
  std::atomic<std::uint32_t> moves;       // counter of the rank's progress
  std::atomic<std::uint32_t> is_waiting;  // for other ranks: 0: no; 1: in share(); 2: on a GPU
  std::atomic<std::uint32_t> pauses;      // number of active pauses
  std::atomic<std::uint32_t> beats;       // heartbeats of its watchdog, which show that the process runs
  std::atomic<std::uint32_t> has_ended;   // 1 if it exited in an orderly way

  // Does the same as Communicator::note_wait().
  void note_wait(bool begins);
};

// A lost rank and the reason, in one line.
struct LostRank {
  int rank;
  std::string why;
};

// Unnamed memory of a host's ranks. A rank inherits the memory from the process that forked it, or opens a
// descriptor that another process sent. The size cannot change, so accesses never raise SIGBUS.
class SharedMemory {
 public:
  // Creates memory for 1 to most_ranks ranks. Pages that are never written use no memory.
  static std::shared_ptr<SharedMemory> create(int ranks);
  // Opens memory that create() made in another process. The function becomes the owner of `descriptor`, even
  // if it throws. Throws Error for any other file.
  static std::shared_ptr<SharedMemory> open(int descriptor, int ranks);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;

  int ranks() const { return ranks_; }
  int descriptor() const { return file_.fd; }

  // Makes every current and future share() throw RankLost on all ranks, with the line "[ranks] rank R WHY".
  // Only the first call has an effect. `by` is the calling rank, or ranks() for a caller that is not a rank.
  void mark_lost(int rank, std::string_view why, int by);
  std::optional<LostRank> lost() const;
  // Throws RankLost if a rank is lost.
  void check_lost() const;
  RankState& state(int rank) const;

 private:
  friend class HostCommunicator;
  struct Header;
  struct Slot;
  SharedMemory(FileDescriptor file, int ranks);  // maps it

  static std::size_t windows_at(int ranks);
  static std::size_t size_for(int ranks);

  Slot& slot(int i) const;  // of rank i; slot ranks() is for other processes
  std::byte* window(unsigned half, int rank) const;
  void wait_for_all(unsigned generation);  // the barrier

  const FileDescriptor file_;
  const int ranks_;
  std::byte* const memory_;
};

// The communicator of a rank, if all ranks are on one host. Not thread-safe.
class HostCommunicator : public Communicator {
 public:
  HostCommunicator(std::shared_ptr<SharedMemory> memory, int rank);

  void share(std::span<const std::byte> own, const Reader& read) override;
  void check_lost() const override { memory_->check_lost(); }
  void note_wait(bool begins) override { memory_->state(rank()).note_wait(begins); }
  // Calls SharedMemory::mark_lost() for this rank as the caller. Thread-safe.
  void mark_lost(int rank, std::string_view why) { memory_->mark_lost(rank, why, this->rank()); }

 private:
  std::shared_ptr<SharedMemory> memory_;
  std::vector<const std::byte*> shown_[2];  // windows of all ranks, for each half
};

}  // namespace tg::parallel

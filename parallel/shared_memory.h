// What the ranks of one host share: memory that each of them maps, with a barrier in it, and the Communicator
// that works by it.
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

// The same as os::new_shared_memory() and os::map_shared(), which throw Error.
FileDescriptor new_memory(std::size_t bytes);
void* map_memory(int descriptor, std::size_t bytes);

// What each rank says of itself, for the watchdogs of all. Only the rank writes it.
struct alignas(64) RankState {
  std::atomic<std::int64_t> steps;        // the last one that it finished, + 1
  std::atomic<std::uint32_t> moves;       // how often it said that it goes on
  std::atomic<std::uint32_t> is_waiting;  // for other ranks: 1 in share(), 2 on a GPU
  std::atomic<std::uint32_t> pauses;      // that hold
  std::atomic<std::uint32_t> beats;       // of its watchdog: its process runs
  std::atomic<std::uint32_t> has_ended;   // by itself, without an error

  // As Communicator::note_wait.
  void note_wait(bool begins);
};

// A rank that others wait for in vain, and a line about it.
struct LostRank {
  int rank;
  std::string why;
};

// Memory of a host's ranks, without a name: ranks have it from the process that forked them, or open the
// descriptor that another one sent. Its size cannot change (a mapping never ends in SIGBUS).
class SharedMemory {
 public:
  // New memory for 1 to most_ranks ranks. What is never written takes no room.
  static std::shared_ptr<SharedMemory> create(int ranks);
  // The memory that create() made in another process; `descriptor` belongs to the result, also if it throws.
  // Throws Error for anything else.
  static std::shared_ptr<SharedMemory> open(int descriptor, int ranks);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;

  int ranks() const { return ranks_; }
  int descriptor() const { return file_.fd; }

  // Ends every share() that waits or will be called, on all ranks, with a RankLost of one line,
  // "[ranks] rank R WHY". The first call counts. A caller that is no rank itself gives by = ranks().
  void mark_lost(int rank, std::string_view why, int by);
  std::optional<LostRank> lost() const;
  // Throws the RankLost if a rank is lost.
  void check_lost() const;
  RankState& state(int rank) const;

 private:
  friend class HostCommunicator;
  struct Header;
  struct Slot;
  SharedMemory(FileDescriptor file, int ranks);  // maps it

  static std::size_t windows_at(int ranks);
  static std::size_t size_for(int ranks);

  Slot& slot(int i) const;  // of rank i; that of number ranks() is for other processes
  std::byte* window(unsigned half, int rank) const;
  void wait_for_all(unsigned generation);  // the barrier

  const FileDescriptor file_;
  const int ranks_;
  std::byte* const memory_;
};

// A rank of the host's. Not for several threads at a time.
class HostCommunicator : public Communicator {
 public:
  HostCommunicator(std::shared_ptr<SharedMemory> memory, int rank);

  void share(std::span<const std::byte> own, const Reader& read) override;
  void check_lost() const override { memory_->check_lost(); }
  void note_wait(bool begins) override { memory_->state(rank()).note_wait(begins); }
  // As SharedMemory's, by this rank. From any thread.
  void mark_lost(int rank, std::string_view why) { memory_->mark_lost(rank, why, this->rank()); }

 private:
  std::shared_ptr<SharedMemory> memory_;
  std::vector<const std::byte*> shown_[2];  // windows of all ranks, for each half
};

}  // namespace tg::parallel

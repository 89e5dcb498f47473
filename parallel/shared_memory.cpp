#include "parallel/shared_memory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "core/base/spin.h"
#include "core/os/memory.h"
#include "core/os/thread.h"
#include "parallel/message.h"

namespace tg::parallel {

namespace {

constexpr std::uint64_t memory_magic = 0x736b6e6172206774;  // "tg ranks"
constexpr std::uint32_t memory_version = 1;
constexpr std::size_t page = 4096, longest_why = 496;

using Word = std::atomic<std::uint32_t>;
// Checks that atomics work between processes, and that zeroed memory is a valid atomic with the value 0.
static_assert(Word::is_always_lock_free && sizeof(Word) == 4 &&
              std::atomic<std::int64_t>::is_always_lock_free);

constexpr std::int64_t longest_wait_ns = 50'000'000;

const std::uint32_t* plain(const Word& word) {
  return reinterpret_cast<const std::uint32_t*>(&word);
}

void wake_all(const Word& word) {
  os::wake(plain(word), INT_MAX, true);
}

}  // namespace

FileDescriptor new_memory(std::size_t bytes) {
  const os::SharedFile made = os::new_shared_memory("tilegrad ranks", bytes);
  if (made.error != 0) fail(std::string("cannot create shared memory: ") + std::strerror(made.error));
  return FileDescriptor(made.descriptor);
}

void* map_memory(int descriptor, std::size_t bytes) {
  void* memory = nullptr;
  if (const int error = os::map_shared(descriptor, bytes, memory))
    fail(std::string("cannot map the shared memory: ") + std::strerror(error));
  return memory;
}

// The start of the memory. The slots follow and then, on a new page, the windows. Words have separate cache
// lines if one rank may write a word while other ranks wait for another word.
struct SharedMemory::Header {
  std::uint64_t magic;
  std::uint32_t version, ranks;
  alignas(64) Word arrived;     // number of arrivals at all barriers so far
  alignas(64) Word generation;  // number of completed barriers
  alignas(64) Word lost;        // 0; then the lost rank + 1 in the low 16 bits, the reason's slot above
};

struct alignas(64) SharedMemory::Slot {
  std::uint64_t bytes[2];  // size of the data in the rank's window, for each half
  char why[longest_why];   // reason why this slot's rank marks a rank as lost, terminated by a zero
  RankState state;
};

std::size_t SharedMemory::windows_at(int ranks) {
  const std::size_t bytes = sizeof(Header) + (static_cast<std::size_t>(ranks) + 1) * sizeof(Slot);
  return (bytes + page - 1) / page * page;
}

std::size_t SharedMemory::size_for(int ranks) {
  if (ranks < 1 || ranks > most_ranks)
    fail(std::to_string(ranks) + " ranks: expected 1 to " + std::to_string(most_ranks));
  return windows_at(ranks) + 2 * static_cast<std::size_t>(ranks) * Communicator::most_shared;
}

SharedMemory::SharedMemory(FileDescriptor file, int ranks)
    : file_(std::move(file)),
      ranks_(ranks),
      memory_(static_cast<std::byte*>(map_memory(file_.fd, size_for(ranks)))) {}

SharedMemory::~SharedMemory() {
  os::unmap(memory_, size_for(ranks_));
}

std::shared_ptr<SharedMemory> SharedMemory::create(int ranks) {
  std::shared_ptr<SharedMemory> made(new SharedMemory(new_memory(size_for(ranks)), ranks));
  // The slots need no initialization: a new file contains zeros.
  new (made->memory_)
      Header{.magic = memory_magic, .version = memory_version, .ranks = static_cast<std::uint32_t>(ranks)};
  return made;
}

std::shared_ptr<SharedMemory> SharedMemory::open(int descriptor, int ranks) {
  FileDescriptor file(descriptor);
  if (!os::is_shared_memory(descriptor, size_for(ranks)))
    fail("the received file is not the shared memory of " + std::to_string(ranks) + " ranks");
  std::shared_ptr<SharedMemory> opened(new SharedMemory(std::move(file), ranks));
  const auto& header = *reinterpret_cast<const Header*>(opened->memory_);
  if (header.magic != memory_magic || header.version != memory_version ||
      header.ranks != static_cast<unsigned>(ranks))
    fail("the received file is not the shared memory of " + std::to_string(ranks) + " ranks, version " +
         std::to_string(memory_version));
  return opened;
}

SharedMemory::Slot& SharedMemory::slot(int i) const {
  return reinterpret_cast<Slot*>(memory_ + sizeof(Header))[i];
}

RankState& SharedMemory::state(int rank) const {
  return slot(rank).state;
}

std::byte* SharedMemory::window(unsigned half, int rank) const {
  return memory_ + windows_at(ranks_) +
         (half * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)) *
             Communicator::most_shared;
}

void SharedMemory::mark_lost(int rank, std::string_view why, int by) {
  if (rank < 0 || rank >= ranks_ || by < 0 || by > ranks_)
    fail("rank " + std::to_string(rank) + " cannot be lost: there are " + std::to_string(ranks_));
  Header& header = *reinterpret_cast<Header*>(memory_);
  static std::mutex threads;  // the threads of this process share one slot
  const std::lock_guard lock(threads);
  if (header.lost.load(std::memory_order_acquire) == 0) {
    // A process first writes the reason to its own slot and then sets the word. The word therefore always
    // refers to a complete string, even if a process dies between the two steps.
    const std::string_view line = why.substr(0, longest_why - 1);  // zeros follow
    std::replace_copy(line.begin(), line.end(), slot(by).why, '\n', ' ');
    std::uint32_t none = 0;
    header.lost.compare_exchange_strong(
        none, static_cast<std::uint32_t>(by) << 16 | static_cast<std::uint32_t>(rank + 1),
        std::memory_order_acq_rel);
  }
  // A rank that has just checked `lost` but does not wait yet misses this wakeup. It checks again 50 ms
  // later.
  wake_all(header.generation);
}

std::optional<LostRank> SharedMemory::lost() const {
  const std::uint32_t lost = reinterpret_cast<const Header*>(memory_)->lost.load(std::memory_order_acquire);
  if (lost == 0) return std::nullopt;
  const int by = std::min(static_cast<int>(lost >> 16), ranks_);
  const char* why = slot(by).why;
  return LostRank{static_cast<int>(lost & 0xffff) - 1, std::string(why, strnlen(why, longest_why))};
}

void SharedMemory::check_lost() const {
  if (const std::optional<LostRank> l = lost())
    throw RankLost("[ranks] rank " + std::to_string(l->rank) + " " + l->why);
}

void SharedMemory::wait_for_all(unsigned generation) {
  Header& header = *reinterpret_cast<Header*>(memory_);
  const auto all = static_cast<std::uint32_t>(ranks_);
  // No rank arrives at the next barrier before it has seen the new generation. Both counters may wrap around.
  if (header.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == (generation + 1) * all) {
    header.generation.store(generation + 1, std::memory_order_release);
    wake_all(header.generation);
    return;
  }
  // Spins only if each rank has a core. In that case the other ranks arrive either soon or after a long time.
  // With fewer cores, spinning could occupy the core of the rank for which it waits.
  static const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const auto ready = [&] { return header.generation.load(std::memory_order_acquire) != generation; };
  if (spin_until(ready, std::chrono::microseconds(all <= cores ? 50 : 0))) return;
  while (header.generation.load(std::memory_order_acquire) == generation) {
    check_lost();
    // A wait may miss the loss of a rank: see mark_lost().
    os::wait_while_equal(plain(header.generation), generation, true, longest_wait_ns);
  }
}

HostCommunicator::HostCommunicator(std::shared_ptr<SharedMemory> memory, int rank)
    : Communicator(rank, memory->ranks()), memory_(std::move(memory)) {
  if (rank < 0 || rank >= size())
    fail("rank " + std::to_string(rank) + " of " + std::to_string(size()) + ": expected 0 to " +
         std::to_string(size() - 1));
  for (const unsigned half : {0u, 1u})
    for (int r = 0; r < size(); ++r) shown_[half].push_back(memory_->window(half, r));
}

void RankState::note_wait(bool begins) {
  if (!begins) moves.fetch_add(1, std::memory_order_relaxed);
  is_waiting.store(begins ? 2 : 0, std::memory_order_relaxed);
}

// Calls of share() alternate between the two halves of the windows, so one barrier per call is enough. A rank
// writes to the same half again in the second call after this one. Before that, it passes the barrier of the
// next call. When all ranks have reached that barrier, `read` of this call has returned on all ranks.
void HostCommunicator::share(std::span<const std::byte> own, const Reader& read) {
  if (!read) fail("share: the reader is empty");
  if (own.size() > most_shared)
    fail("share: " + std::to_string(own.size()) + " bytes: expected at most " + std::to_string(most_shared));
  memory_->check_lost();
  auto& header = *reinterpret_cast<SharedMemory::Header*>(memory_->memory_);
  // The generation cannot change before this rank reaches the barrier.
  const std::uint32_t generation = header.generation.load(std::memory_order_acquire);
  const unsigned half = generation % 2;
  if (!own.empty()) std::memcpy(memory_->window(half, rank()), own.data(), own.size());
  memory_->slot(rank()).bytes[half] = own.size();
  RankState& state = memory_->state(rank());
  state.is_waiting.store(1, std::memory_order_relaxed);
  memory_->wait_for_all(generation);
  state.note_wait(false);
  const std::uint64_t first = memory_->slot(0).bytes[half];
  for (int r = 1; r < size(); ++r) {
    const std::uint64_t bytes = memory_->slot(r).bytes[half];
    if (bytes != first)
      fail("share: rank 0 shows " + std::to_string(first) + " bytes and rank " + std::to_string(r) + " " +
           std::to_string(bytes) + ": expected the same number of all ranks");
  }
  read(shown_[half]);
}

}  // namespace tg::parallel

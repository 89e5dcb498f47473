#include "parallel/shared_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "core/base/file_write.h"
#include "core/base/spin.h"
#include "parallel/message.h"

namespace tg::parallel {

namespace {

constexpr std::uint64_t memory_magic = 0x736b6e6172206774;  // "tg ranks"
constexpr std::uint32_t memory_version = 1;
constexpr std::size_t page = 4096, longest_why = 496;

using Word = std::atomic<std::uint32_t>;
// They work between processes, and memory of zeros is zeros of theirs.
static_assert(Word::is_always_lock_free && sizeof(Word) == 4 &&
              std::atomic<std::int64_t>::is_always_lock_free);

// Waits until the word is no longer `seen`, for at most 50 ms; may return early.
void wait_while(Word& word, std::uint32_t seen) {
#if defined(__linux__)
  const timespec limit{.tv_sec = 0, .tv_nsec = 50'000'000};
  // Without FUTEX_PRIVATE_FLAG: the waiters are different processes.
  const long result = syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
  if (result == 0 || errno != ENOSYS) return;
#endif
  if (word.load(std::memory_order_acquire) == seen)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void wake_all([[maybe_unused]] Word& word) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
}

}  // namespace

// An open file of that size which no other process can find by a name, and which cannot get another size.
int unnamed_file([[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
  // MFD_NOEXEC_SEAL, which some systems insist on; Linux knows it from 6.3 on.
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING, not_executable = 8;
  int memory = memfd_create("tilegrad ranks", flags | not_executable);
  if (memory < 0 && errno == EINVAL) memory = memfd_create("tilegrad ranks", flags);
  FileDescriptor file(memory);
  if (file.fd < 0 || ftruncate(file.fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(file.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    fail(std::string("cannot make shared memory: ") + std::strerror(errno));
  return std::exchange(file.fd, -1);
#else
  fail("several ranks need Linux");
#endif
}

bool is_sealed([[maybe_unused]] int descriptor) {
#if defined(__linux__)
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK);
#else
  return false;
#endif
}

void* map_shared(int descriptor, std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) fail(std::string("cannot map the shared memory: ") + std::strerror(errno));
  return memory;
}

// At the start of the memory; the slots follow, and then, from a page of their own, the windows. What one
// rank writes while others wait for something else lies in cache lines of its own.
struct SharedMemory::Header {
  std::uint64_t magic;
  std::uint32_t version, ranks;
  alignas(64) Word arrived;     // arrivals of ranks at all barriers so far
  alignas(64) Word generation;  // barriers that all have come to
  alignas(64) Word lost;        // 0; later rank + 1, and above 16 bits the number of the slot that says why
};

struct alignas(64) SharedMemory::Slot {
  std::uint64_t bytes[2];  // that the rank shows in its window of either half
  char why[longest_why];   // of the rank that it marks as lost, ended by a zero
  RankState state;
};

namespace {

std::size_t windows_at(int ranks, std::size_t header, std::size_t slot) {
  const std::size_t bytes = header + (static_cast<std::size_t>(ranks) + 1) * slot;
  return (bytes + page - 1) / page * page;
}

std::size_t all_windows(int ranks) {
  return 2 * static_cast<std::size_t>(ranks) * Communicator::most_shared;
}

void check_ranks(int ranks) {
  if (ranks < 1 || ranks > most_ranks)
    fail(std::to_string(ranks) + " ranks: expected 1 to " + std::to_string(most_ranks));
}

}  // namespace

SharedMemory::SharedMemory(int descriptor, int ranks, void* memory)
    : descriptor_(descriptor), ranks_(ranks), memory_(static_cast<std::byte*>(memory)) {}

SharedMemory::~SharedMemory() {
  munmap(memory_, windows_at(ranks_, sizeof(Header), sizeof(Slot)) + all_windows(ranks_));
  ::close(descriptor_);
}

std::shared_ptr<SharedMemory> SharedMemory::create(int ranks) {
  check_ranks(ranks);
  const std::size_t bytes = windows_at(ranks, sizeof(Header), sizeof(Slot)) + all_windows(ranks);
  FileDescriptor file(unnamed_file(bytes));
  void* memory = map_shared(file.fd, bytes);
  std::shared_ptr<SharedMemory> made(new SharedMemory(std::exchange(file.fd, -1), ranks, memory));
  // The slots are zeros, as a new file is.
  new (memory)
      Header{.magic = memory_magic, .version = memory_version, .ranks = static_cast<std::uint32_t>(ranks)};
  return made;
}

std::shared_ptr<SharedMemory> SharedMemory::open(int descriptor, int ranks) {
  FileDescriptor file(descriptor);
  check_ranks(ranks);
  const std::size_t bytes = windows_at(ranks, sizeof(Header), sizeof(Slot)) + all_windows(ranks);
  struct stat about;
  if (fstat(descriptor, &about) != 0 || about.st_size != static_cast<off_t>(bytes) || !is_sealed(descriptor))
    fail("what was sent is not the shared memory of " + std::to_string(ranks) + " ranks");
  void* memory = map_shared(descriptor, bytes);
  std::shared_ptr<SharedMemory> opened(new SharedMemory(std::exchange(file.fd, -1), ranks, memory));
  const auto& header = *static_cast<const Header*>(memory);
  if (header.magic != memory_magic || header.version != memory_version ||
      header.ranks != static_cast<unsigned>(ranks))
    fail("what was sent is not the shared memory of " + std::to_string(ranks) + " ranks, version " +
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
  return memory_ + windows_at(ranks_, sizeof(Header), sizeof(Slot)) +
         (half * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)) *
             Communicator::most_shared;
}

void SharedMemory::mark_lost(int rank, std::string_view why, int by) {
  if (rank < 0 || rank >= ranks_ || by < 0 || by > ranks_)
    fail("rank " + std::to_string(rank) + " cannot be lost: there are " + std::to_string(ranks_));
  Header& header = *reinterpret_cast<Header*>(memory_);
  static std::mutex threads;  // of this process, which have one slot
  const std::lock_guard lock(threads);
  if (header.lost.load(std::memory_order_acquire) == 0) {
    // Each process says it in its own slot first, so that the text is whole where the word names it, even if
    // the process dies in between.
    const std::string_view line = why.substr(0, longest_why - 1);  // before zeros
    std::replace_copy(line.begin(), line.end(), slot(by).why, '\n', ' ');
    std::uint32_t none = 0;
    header.lost.compare_exchange_strong(
        none, static_cast<std::uint32_t>(by) << 16 | static_cast<std::uint32_t>(rank + 1),
        std::memory_order_acq_rel);
  }
  // One that has looked at `lost` and does not wait yet misses this, and looks again 50 ms later.
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
  // No rank arrives at the next barrier before it sees the generation. Both numbers wrap.
  if (header.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == (generation + 1) * all) {
    header.generation.store(generation + 1, std::memory_order_release);
    wake_all(header.generation);
    return;
  }
  // Where each rank has a core, the others come soon or after a long time. Elsewhere, waiting takes the core
  // of the one that is waited for.
  static const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const auto ready = [&] { return header.generation.load(std::memory_order_acquire) != generation; };
  if (spin_until(ready, std::chrono::microseconds(all <= cores ? 50 : 0))) return;
  while (header.generation.load(std::memory_order_acquire) == generation) {
    check_lost();
    wait_while(header.generation, generation);
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

// Calls of share() use the two halves of the windows by turns, and so one barrier is enough. A rank writes
// into a half again in the second call after this one, when it has passed the barrier of the call in between.
// All ranks have come to that barrier, which means that they have returned from `read` of this call.
void HostCommunicator::share(std::span<const std::byte> own, const Reader& read) {
  if (!read) fail("share: the reader is empty");
  if (own.size() > most_shared)
    fail("share: " + std::to_string(own.size()) + " bytes: expected at most " + std::to_string(most_shared));
  memory_->check_lost();
  auto& header = *reinterpret_cast<SharedMemory::Header*>(memory_->memory_);
  // It does not change before this rank has come to the barrier.
  const std::uint32_t generation = header.generation.load(std::memory_order_acquire);
  const unsigned half = generation % 2;
  if (!own.empty()) std::memcpy(memory_->window(half, rank()), own.data(), own.size());
  memory_->slot(rank()).bytes[half] = own.size();
  RankState& state = memory_->state(rank());
  state.is_waiting.store(1, std::memory_order_relaxed);
  memory_->wait_for_all(generation);
  state.moves.fetch_add(1, std::memory_order_relaxed);
  state.is_waiting.store(0, std::memory_order_relaxed);
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

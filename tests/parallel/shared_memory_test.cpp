// Tests that all ranks receive the shared bytes of each rank, in order. If a rank is lost, all other ranks
// must end.
#include "parallel/shared_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/support/ranks.h"

namespace tg {
namespace {

using parallel::HostCommunicator;
using parallel::SharedMemory;

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// The n bytes that a rank shares in a round. They differ for each rank, round and offset.
std::vector<std::byte> shown_by(int rank, unsigned round, std::size_t n) {
  std::vector<std::byte> bytes(n);
  std::mt19937_64 random(static_cast<std::uint64_t>(rank) * 1'000'003 + round);
  for (std::size_t i = 0; i < n; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, n - i));
  }
  return bytes;
}

std::span<const std::byte> bytes_of(const auto& x) {
  return std::as_bytes(std::span(&x, 1));
}

TEST(SharedMemory, SingleRankReadsItsOwnBytes) {
  HostCommunicator one(SharedMemory::create(1), 0);
  EXPECT_EQ(one.rank(), 0);
  EXPECT_EQ(one.size(), 1);
  for (unsigned round = 0; round < 5; ++round) {
    const std::vector<std::byte> own = shown_by(0, round, 100);
    one.share(own, [&](std::span<const std::byte* const> shown) {
      ASSERT_EQ(shown.size(), 1u);
      EXPECT_EQ(std::memcmp(shown[0], own.data(), own.size()), 0);
    });
  }
}

TEST(SharedMemory, ShareDeliversAllBytesByRankAtAnySize) {
  for (const int n : {2, 3, 5})
    run_ranks(n, [](Communicator& ranks) {
      unsigned round = 0;
      for (const std::size_t bytes : {0, 1, 7, 8, 63, 64, 65, 4095, 4096, 4097, 100'000, 1 << 20}) {
        ++round;
        bool was_read = false;
        ranks.share(shown_by(ranks.rank(), round, bytes), [&](std::span<const std::byte* const> shown) {
          was_read = true;
          ASSERT_EQ(shown.size(), static_cast<std::size_t>(ranks.size()));
          for (int r = 0; r < ranks.size(); ++r) {
            const std::vector<std::byte> expected = shown_by(r, round, bytes);
            EXPECT_TRUE(std::equal(expected.begin(), expected.end(), shown[static_cast<std::size_t>(r)]))
                << bytes << " bytes of rank " << r;
          }
        });
        EXPECT_TRUE(was_read);
      }
    });
}

// Each rank reads after a different delay. A fast rank must not overwrite bytes before others have read them.
TEST(SharedMemory, BytesAreKeptDuringReadsInTenThousandRounds) {
  for (const int n : {2, 4})
    run_ranks(n, [](Communicator& ranks) {
      std::mt19937 random(static_cast<unsigned>(ranks.rank()));
      for (std::uint64_t round = 0; round < 10'000; ++round) {
        const std::array<std::uint64_t, 2> own{round, static_cast<std::uint64_t>(ranks.rank())};
        bool is_right = true;
        ranks.share(bytes_of(own), [&](std::span<const std::byte* const> shown) {
          if (random() % 64 == 0) usleep(random() % 200);
          for (std::uint64_t r = 0; r < shown.size(); ++r) {
            const std::array<std::uint64_t, 2> expected{round, r};
            is_right &= std::memcmp(shown[r], &expected, sizeof expected) == 0;
          }
        });
        if (!is_right) throw Error("round " + std::to_string(round) + " has different bytes");
        if (random() % 64 == 0) usleep(random() % 200);
      }
    });
}

TEST(SharedMemory, RankThatExitsEarlyEndsAllOthers) {
  for (const int at : {0, 1, 500}) {
    const auto start = std::chrono::steady_clock::now();
    const std::vector<RankResult> results = ask_each_rank(4, [&](Communicator& ranks) -> std::string {
      for (int round = 0;; ++round) {
        if (ranks.rank() == 2 && round == at) _exit(7);
        ranks.share(bytes_of(round), [](auto) {});
      }
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(results[r].kind, r == 2 ? '?' : 'l');
      EXPECT_EQ(results[r].text, r == 2 ? "ended with exit code 7 in the middle"
                                        : "[ranks] rank 2 ended with exit code 7 in the middle");
    }
  }
}

TEST(SharedMemory, LossIsPermanentAndKeepsTheFirstReason) {
  const auto memory = SharedMemory::create(2);
  HostCommunicator rank(memory, 0);
  rank.mark_lost(1, "is gone:\nnobody knows where");
  rank.mark_lost(0, "is gone too");
  memory->mark_lost(0, "is gone", 2);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(rank.share({}, [](auto) {}), RankLost);
    EXPECT_EQ(error_of([&] { rank.share({}, [](auto) {}); }), "[ranks] rank 1 is gone: nobody knows where");
  }
  const auto other = SharedMemory::create(2);
  other->mark_lost(1, std::string(10'000, 'x'), 2);
  EXPECT_LT(error_of([&] { other->check_lost(); }).size(), 1000u);
}

TEST(SharedMemory, DifferentSizesAreReportedByAllRanks) {
  const std::vector<RankResult> results = ask_each_rank(3, [](Communicator& ranks) -> std::string {
    ranks.share(bytes_of(1), [](auto) {});
    const std::vector<std::byte> own(ranks.rank() == 1 ? 12 : 16);
    const std::string first = error_of([&] { ranks.share(own, [](auto) {}); });
    ranks.share(bytes_of(1), [](auto) {});  // the ranks are still synchronized
    return first;
  });
  for (const RankResult& r : results) {
    EXPECT_EQ(r.kind, '+');
    EXPECT_EQ(r.text,
              "[ranks] share: rank 0 shows 16 bytes and rank 1 12: expected the same number of all ranks");
  }
}

#if defined(__linux__)
// The memory begins with a header of 256 bytes. Slots of 576 bytes follow, for each rank and for other
// processes. The two windows of each rank start at the next page boundary.
TEST(SharedMemory, PartsFillTheMemoryWithoutOverlap) {
  for (const int n : {1, 2, 6, 7, 20, 26, 27, 28, 1024}) {  // with 27 ranks, the slots end at a page boundary
    const auto memory = SharedMemory::create(n);
    struct stat about;
    ASSERT_EQ(fstat(memory->descriptor(), &about), 0);
    const std::int64_t slots = 256 + 576 * (n + 1);
    EXPECT_EQ(about.st_size, (slots + 4095) / 4096 * 4096 + std::int64_t{n} * 2 * (1 << 20)) << n;
    EXPECT_NE(fcntl(memory->descriptor(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_EQ(fcntl(memory->descriptor(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    for (int r = 1; r < n; ++r)
      EXPECT_EQ(reinterpret_cast<const char*>(&memory->state(r)) -
                    reinterpret_cast<const char*>(&memory->state(r - 1)),
                576);
  }
  const auto memory = SharedMemory::create(1);
  HostCommunicator one(memory, 0);
  const std::vector<std::byte> ones(Communicator::most_shared, std::byte{0xff});
  std::vector<const std::byte*> windows;
  for (int i = 0; i < 4; ++i)
    one.share(ones, [&](std::span<const std::byte* const> shown) { windows.push_back(shown[0]); });
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(windows[0]) % 4096, 0u);
  EXPECT_EQ(windows[1] - windows[0], std::ptrdiff_t{1} << 20) << "the second window";
  EXPECT_TRUE(windows[2] == windows[0] && windows[3] == windows[1]);
  const parallel::RankState& state = memory->state(0);
  EXPECT_EQ(state.moves, 4u);
  EXPECT_EQ(state.steps + state.is_waiting + state.pauses + state.beats + state.has_ended, 0);
  EXPECT_FALSE(memory->lost());
}
#endif

#if defined(__linux__)
// The test maps the memory to read it and to act as other processes.
class RawMemory {
 public:
  explicit RawMemory(const SharedMemory& memory) {
    struct stat about {};
    EXPECT_EQ(fstat(memory.descriptor(), &about), 0);
    size_ = static_cast<std::size_t>(about.st_size);
    bytes_ =
        static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, memory.descriptor(), 0));
  }
  ~RawMemory() { munmap(bytes_, size_); }
  RawMemory(const RawMemory&) = delete;

  std::string_view bytes(std::size_t at, std::size_t count) const { return {bytes_ + at, count}; }
  template <class T>
  std::atomic<T>& word(std::size_t at) {
    return *reinterpret_cast<std::atomic<T>*>(bytes_ + at);
  }
  std::atomic<std::uint32_t>& arrived() { return word<std::uint32_t>(64); }
  std::atomic<std::uint32_t>& generation() { return word<std::uint32_t>(128); }
  std::atomic<std::uint32_t>& lost() { return word<std::uint32_t>(192); }

 private:
  std::size_t size_;
  char* bytes_;
};

constexpr std::size_t slot_size = 576, state_at = 512, mib = 1 << 20;
constexpr std::size_t slot_at(int i) {
  return 256 + slot_size * static_cast<std::size_t>(i);
}

// Writes all fields, then checks the header, slots and windows byte by byte. The test arrives at the barrier
// for all other ranks. The counters of the barriers wrap around.
TEST(SharedMemory, FieldsDoNotOverlap) {
  for (const int n : {1, 2, 6, 7, 26, 27, 28, 100})
    for (const std::uint32_t first : {0u, 0x7fff'ffffu, 0xffff'fffeu, 0xffff'ffffu}) {
      const auto memory = SharedMemory::create(n);
      RawMemory raw(*memory);
      const auto ranks = static_cast<std::uint32_t>(n);
      const std::size_t windows = (slot_at(n + 1) + 4095) / 4096 * 4096;
      std::string expected(windows, '\0');
      const auto put = [&](std::size_t at, auto x) { std::memcpy(expected.data() + at, &x, sizeof x); };
      put(0, std::uint64_t{0x736b6e6172206774}), put(8, 1u), put(12, ranks);
      std::uint32_t generation = first;
      for (const int r : {0, n - 1}) {
        HostCommunicator rank(memory, r);
        for (int call = 0; call < 2; ++call, ++generation) {
          const std::size_t half = generation % 2;
          raw.generation() = generation, raw.arrived() = generation * ranks + ranks - 1;
          for (int i = 0; i < n; ++i)
            raw.word<std::uint64_t>(slot_at(i) + 8 * half) = mib, put(slot_at(i) + 8 * half, mib);
          const std::vector<std::byte> own = shown_by(r, generation, mib);
          std::ptrdiff_t apart = 0;
          rank.share(own, [&](std::span<const std::byte* const> shown) {
            ASSERT_EQ(shown.size(), ranks);
            apart = shown[ranks - 1] - shown[0];
          });
          EXPECT_EQ(apart, std::ptrdiff_t{n - 1} << 20);
          const std::size_t window = windows + (half * ranks + static_cast<std::size_t>(r)) * mib;
          EXPECT_EQ(std::memcmp(raw.bytes(window, mib).data(), own.data(), mib), 0)
              << n << " ranks, rank " << r << ", half " << half;
        }
      }
      put(64, generation * ranks), put(128, generation);
      for (int r = 0; r < n; ++r) {
        const auto i = static_cast<std::uint32_t>(r);
        parallel::RankState& s = memory->state(r);
        s.steps = 10 * r + 1, put(slot_at(r) + state_at, std::int64_t{10 * r + 1});
        std::size_t at = slot_at(r) + state_at + 8;
        for (auto* x : {&s.moves, &s.is_waiting, &s.pauses, &s.beats, &s.has_ended})
          *x = i + 1000, put(at, i + 1000), at += 4;
      }
      for (const int by : {0, n - 1, n}) {
        raw.lost() = 0;
        memory->mark_lost(n - 1, std::string(495, 'w'), by);
        std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(slot_at(by) + 16), 495, 'w');
        put(192, static_cast<std::uint32_t>(by) << 16 | ranks);
        EXPECT_TRUE(raw.bytes(0, windows) == expected) << n << " ranks, lost by " << by;
      }
    }
}

// A loss may contain arbitrary bits that mark_lost() did not write. Reading it must not access bytes outside
// of the memory.
TEST(SharedMemory, LossWithArbitraryBitsIsReadSafely) {
  for (const int n : {1, 3}) {
    const auto memory = SharedMemory::create(n);
    RawMemory raw(*memory);
    std::memset(&raw.word<char>(slot_at(n) + 16), 'x', 496);  // the reason has no terminator
    for (const std::uint32_t by :
         {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n) + 1, 0xffffu}) {
      raw.lost() = by << 16 | 0xffff;
      ASSERT_TRUE(memory->lost());
      EXPECT_EQ(memory->lost()->rank, 0xfffe);
      EXPECT_EQ(memory->lost()->why, std::string(496, 'x')) << by;
    }
  }
}

// Returns whether a call of share() ends within this time and with this result. `then` runs 10 ms after the
// call starts to wait. One success in ten attempts is enough, because other processes may cause delays.
bool goes_on_within(std::chrono::milliseconds limit, const std::string& result,
                    const std::function<void(const std::shared_ptr<SharedMemory>&)>& then) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    const auto memory = SharedMemory::create(2);
    HostCommunicator rank(memory, 0);
    std::chrono::steady_clock::duration took{};
    std::thread waits([&] {
      const auto start = std::chrono::steady_clock::now();
      EXPECT_EQ(error_of([&] { rank.share({}, [](auto) {}); }), result);
      took = std::chrono::steady_clock::now() - start;
    });
    while (memory->state(0).is_waiting == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    then(memory);
    waits.join();
    if (took < limit) return true;
  }
  return false;
}

// A loss wakes a waiting rank. A process may die after it has marked a loss and before it wakes the others.
// In this case, the others detect the loss after 50 ms.
TEST(SharedMemory, WaitingRankIsWokenSoon) {
  using std::chrono::milliseconds;
  EXPECT_TRUE(goes_on_within(milliseconds(40), "no error",
                             [](const auto& memory) { HostCommunicator(memory, 1).share({}, [](auto) {}); }));
  EXPECT_TRUE(goes_on_within(milliseconds(40), "[ranks] rank 1 is lost",
                             [](const auto& memory) { memory->mark_lost(1, "is lost", 0); }));
  EXPECT_TRUE(goes_on_within(milliseconds(400), "[ranks] rank 1 is lost", [](const auto& memory) {
    RawMemory raw(*memory);
    std::memcpy(&raw.word<char>(slot_at(2) + 16), "is lost", 7);
    raw.lost() = 2u << 16 | 2;
  }));
}

// Waiting uses little processor time, because a waiting rank makes only a few checks.
TEST(SharedMemory, WaitingRankUsesLittleProcessorTime) {
  const auto memory = SharedMemory::create(2);
  HostCommunicator zero(memory, 0), one(memory, 1);
  timespec took{};
  std::thread waits([&] {
    zero.share({}, [](auto) {});
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &took);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  one.share({}, [](auto) {});
  waits.join();
  EXPECT_EQ(took.tv_sec, 0);
  EXPECT_LT(took.tv_nsec, 10'000'000);
}
#endif

#if defined(__linux__)
// Counts the mappings of ranks' memory and the open files.
std::pair<std::ptrdiff_t, std::ptrdiff_t> kept() {
  std::ifstream maps("/proc/self/maps");
  std::ptrdiff_t mappings = 0;
  for (std::string line; std::getline(maps, line);) mappings += line.find("tilegrad ranks") != line.npos;
  namespace fs = std::filesystem;
  return {mappings, std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator())};
}

TEST(SharedMemory, DestructionLeavesNoMappingOrFile) {
  const auto before = kept();
  for (const int n : {1, 3, 27, 100, 1024}) {
    {
      const auto memory = SharedMemory::create(n), opened = SharedMemory::open(dup(memory->descriptor()), n);
      EXPECT_EQ(kept(), std::pair(before.first + 2, before.second + 2));
      EXPECT_THROW(SharedMemory::open(dup(memory->descriptor()), n == 1 ? 2 : n - 1), Error);
      EXPECT_EQ(kept(), std::pair(before.first + 2, before.second + 2));
    }
    EXPECT_EQ(kept(), before) << n;
  }
}
#endif

TEST(SharedMemory, RankWaitsForAllOthers) {
  const auto memory = SharedMemory::create(2);
  HostCommunicator zero(memory, 0), one(memory, 1);
  std::thread first([&] { zero.share({}, [](auto) {}); });
  for (int i = 0; i < 5000 && memory->state(0).is_waiting == 0; ++i) usleep(1000);
  EXPECT_EQ(memory->state(0).is_waiting, 1u);
  EXPECT_EQ(memory->state(0).moves, 0u);
  one.share({}, [](auto) {});
  first.join();
  for (const int r : {0, 1}) {
    EXPECT_EQ(memory->state(r).is_waiting, 0u);
    EXPECT_EQ(memory->state(r).moves, 1u);
  }
}

// Only the rank itself and one other process may report a loss. The rank number of the other process is the
// number of ranks.
TEST(SharedMemory, KeepsTheReasonOfALoss) {
  for (const std::size_t length : {0u, 1u, 494u, 495u, 496u, 600u})
    for (const int by : {0, 1, 3}) {
      const auto memory = SharedMemory::create(3);
      EXPECT_FALSE(memory->lost());
      memory->mark_lost(2, std::string(length, '\n') + "end", by);
      ASSERT_TRUE(memory->lost());
      EXPECT_EQ(memory->lost()->rank, 2);
      EXPECT_EQ(memory->lost()->why, (std::string(length, ' ') + "end").substr(0, 495));
      for (int r = 0; r < 3; ++r) EXPECT_EQ(memory->state(r).steps + memory->state(r).moves, 0);
    }
  const auto memory = SharedMemory::create(3);
  for (const auto& [rank, by] : {std::pair(-1, 0), {3, 0}, {0, -1}, {0, 4}})
    EXPECT_EQ(error_of([&, r = rank, b = by] { memory->mark_lost(r, "", b); }),
              "[ranks] rank " + std::to_string(rank) + " cannot be lost: there are 3");
  EXPECT_FALSE(memory->lost());
  const auto one = SharedMemory::create(1);
  HostCommunicator alone(one, 0);
  one->mark_lost(0, "is lost", 1);
  EXPECT_EQ(error_of([&] { alone.share({}, [](auto) {}); }), "[ranks] rank 0 is lost");
}

TEST(SharedMemory, RejectsInvalidArguments) {
  EXPECT_EQ(error_of([] { SharedMemory::create(0); }), "[ranks] 0 ranks: expected 1 to 1024");
  EXPECT_EQ(error_of([] { SharedMemory::create(1025); }), "[ranks] 1025 ranks: expected 1 to 1024");
  const auto memory = SharedMemory::create(2);
  for (const int rank : {-1, 2})
    EXPECT_EQ(error_of([&] { HostCommunicator(memory, rank); }),
              "[ranks] rank " + std::to_string(rank) + " of 2: expected 0 to 1");
  EXPECT_EQ(error_of([&] { memory->mark_lost(2, "", 0); }), "[ranks] rank 2 cannot be lost: there are 2");
  HostCommunicator rank(memory, 0);
  const std::vector<std::byte> too_much(Communicator::most_shared + 1);
  EXPECT_EQ(error_of([&] { rank.share(too_much, [](auto) {}); }),
            "[ranks] share: 1048577 bytes: expected at most 1048576");

  EXPECT_NO_THROW(SharedMemory::open(dup(memory->descriptor()), 2));
  const std::string not_ours = "[ranks] the received file is not the shared memory of 3 ranks";
  EXPECT_EQ(error_of([&] { SharedMemory::open(dup(memory->descriptor()), 3); }), not_ours);
  EXPECT_EQ(error_of([] { SharedMemory::open(-1, 3); }), not_ours);
#if defined(__linux__)
  // The file has the right size, but another process could shrink it.
  struct stat about;
  const auto three = SharedMemory::create(3);
  ASSERT_EQ(fstat(three->descriptor(), &about), 0);
  const int unsealed = memfd_create("test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(unsealed, about.st_size), 0);
  EXPECT_EQ(error_of([&] { SharedMemory::open(unsealed, 3); }), not_ours);
  const int regular = ::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);  // it has no seals
  if (regular >= 0) {
    ASSERT_EQ(ftruncate(regular, about.st_size), 0);
    EXPECT_EQ(error_of([&] { SharedMemory::open(regular, 3); }), not_ours);
  }
  const int empty = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(empty, about.st_size), 0);
  ASSERT_EQ(fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(error_of([&] { SharedMemory::open(empty, 3); }), not_ours + ", version 1");
  // Each field of the header is wrong by itself.
  for (const std::size_t at : {0, 7, 8, 11, 12, 15}) {
    const auto other = SharedMemory::create(3);
    RawMemory raw(*other);
    EXPECT_NO_THROW(SharedMemory::open(dup(other->descriptor()), 3));
    raw.word<unsigned char>(at) ^= 0x40;
    EXPECT_EQ(error_of([&] { SharedMemory::open(dup(other->descriptor()), 3); }), not_ours + ", version 1")
        << "byte " << at;
  }
#endif
}

TEST(RunRanks, FailsWithTheMessageOfTheFailingRank) {
  const auto thrown = [](Communicator& ranks) -> std::string {
    if (ranks.rank() == 1) throw Error("rank 1's own");
    ranks.share({}, [](auto) {});
    return "fine";
  };
  std::vector<RankResult> results = ask_each_rank(2, thrown);
  EXPECT_EQ(results[1].text, "rank 1's own");
  EXPECT_EQ(results[0].text, "[ranks] rank 1 failed");
  results = ask_each_rank(2, [](Communicator&) {
    EXPECT_EQ(1, 2) << "planted";
    return std::string();
  });
  EXPECT_EQ(results[0].kind, '-');
  EXPECT_NE(results[0].text.find("planted"), std::string::npos) << results[0].text;
  results = ask_each_rank(
      2, [](Communicator& ranks) { return ranks.share({}, [](auto) { usleep(20'000'000); }), ""; }, 1);
  EXPECT_EQ(results[0].text, "did not end in 1 seconds");
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no process remains
}

TEST(RunRanks, ReturnsTheResultsOfAllRanks) {
  const std::vector<std::string> texts = ask_ranks(
      3, [](Communicator& ranks) { return std::string(200'000, static_cast<char>('a' + ranks.rank())); });
  for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(texts[r], std::string(200'000, static_cast<char>('a' + r)));
}

}  // namespace
}  // namespace tg

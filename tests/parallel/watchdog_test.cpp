// Tests the watchdog of a rank and its thread. They read the ranks' states, connections and notes, and end
// the process after a loss. The clock of this test runs ten times as fast as real time.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "core/run/saving.h"
#include "parallel/control.h"
#include "parallel/message.h"
#include "tests/support/joined_ranks.h"
#include "tests/support/socket_pair.h"

constexpr int speed = 10;
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int result = static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  if (clock != CLOCK_MONOTONIC) return result;
  const std::int64_t ns = (std::int64_t{now->tv_sec} * 1'000'000'000 + now->tv_nsec) * speed;
  *now = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  return result;
}
extern "C" int poll(pollfd* fds, nfds_t count, int timeout) {
  const int ms = (timeout + speed - 1) / speed;
  timespec limit{.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1'000'000};
  return static_cast<int>(::syscall(SYS_ppoll, fds, count, timeout < 0 ? nullptr : &limit, nullptr, 0));
}

namespace tg {
namespace {

using namespace parallel;

struct Pair : testing::SocketPair {
  void leaves() { ::close(std::exchange(peer.fd, -1)); }
};

std::string loss_of(const SharedMemory& memory) {
  const auto lost = memory.lost();
  return lost ? std::to_string(lost->rank) + " " + lost->why : "none";
}

// Waits for the loss of a rank, or for this number of heartbeats of rank 0.
void await(const SharedMemory& memory, std::uint32_t beats) {
  const std::uint32_t before = memory.state(0).beats;
  while (!memory.lost() && memory.state(0).beats - before < beats) nap(milliseconds(1));
}

TEST(Watchdog, ReadsTheStateOfEachRank) {
  struct Case {
    std::function<void(SharedMemory&)> states;
    std::string loss;  // beginning of the report
    int step_timeout = 500;
    bool moves = false;  // rank 2 makes progress during the wait
  };
  const auto waits = [](SharedMemory& m, std::uint32_t how = 1) { m.state(1).is_waiting = how; };
  const Case cases[] = {
      {[&](SharedMemory& m) { waits(m), m.state(2).has_ended = 1; },
       "2 exited while rank 1 is waiting for it", 0},
      {[&](SharedMemory& m) { waits(m, 2), m.state(2).has_ended = 1; }, "none", 0},
      {[&](SharedMemory& m) { waits(m, 2), m.state(2).has_ended = 1; },
       "2 exited while rank 1 is waiting for it"},
      {[&](SharedMemory& m) { waits(m), m.state(2).steps = 5; }, "2 made no progress for "},
      {[&](SharedMemory& m) { waits(m), m.state(2).steps = 5, m.state(2).pauses = 1; }, "none"},
      {[&](SharedMemory& m) { waits(m), m.state(2).steps = 5, m.state(2).is_waiting = 1; }, "none"},
      {[&](SharedMemory& m) { waits(m), m.state(2).steps = 5; }, "none", 500, true},
      {[&](SharedMemory& m) { m.state(2).steps = 5; }, "none"},
      {[&](SharedMemory& m) { waits(m); }, "none"},
  };
  for (const Case& c : cases) {
    const auto memory = SharedMemory::create(3);
    c.states(*memory);
    std::atomic<bool> ends = false;
    std::thread life([&] {  // ranks 1 and 2 send heartbeats
      for (; !ends; nap(milliseconds(2))) {
        for (const int r : {1, 2}) ++memory->state(r).beats;
        if (c.moves) ++memory->state(2).moves;
      }
    });
    {
      const Watchdog watchdog(memory, {}, nullptr, 0, {.step_timeout = milliseconds(c.step_timeout)});
      await(*memory, c.loss == "none" ? 11 : 1000);
    }
    ends = true;
    life.join();
    EXPECT_EQ(loss_of(*memory).substr(0, c.loss.size()), c.loss);
  }
  const auto memory = SharedMemory::create(3);
  waits(*memory);
  const Watchdog watchdog(memory, {}, nullptr, 0, {.step_timeout = milliseconds(500)});
  await(*memory, 1000);
  EXPECT_EQ(loss_of(*memory).substr(0, 24), "2 is stopped: no heartbe")
      << "rank 0 is alive, and rank 1 is waiting";
}

TEST(Watchdog, ReportsTheRankWhoseConnectionEnds) {
  for (const std::size_t first : {0u, 1u, 2u}) {
    const auto memory = SharedMemory::create(4);
    Pair pairs[3];
    std::vector<Connection> connections;
    for (int i = 0; i < 3; ++i) connections.push_back({i + 1, std::move(pairs[i].own)});
    const Watchdog watchdog(memory, std::move(connections), nullptr, 0, {.step_timeout = milliseconds(0)});
    const auto ended = static_cast<int>(first) + 1;
    memory->state(ended).has_ended = 1;
    pairs[first].leaves();
    await(*memory, 3);
    EXPECT_EQ(loss_of(*memory), "none");
    pairs[(first + 1) % 3].leaves();
    await(*memory, 1000);
    EXPECT_EQ(loss_of(*memory), std::to_string((first + 1) % 3 + 1) +
                                    " is lost: its process exited without reporting an error, or was killed");
  }
}

// Runs the watchdog of rank 0. The test acts as rank 1 and exchanges notes with the watchdog.
struct Exchange {
  std::shared_ptr<SharedMemory> memory = SharedMemory::create(2);
  Pair pair;
  std::string heard;  // returns all data that rank 1 has received
  std::optional<Watchdog> watchdog;

  Exchange() {
    std::vector<Connection> connections;
    connections.push_back({1, std::move(pair.own)});
    watchdog.emplace(memory, std::vector<Connection>(),
                     std::make_unique<Notes>(memory, std::move(connections), 0, milliseconds(100)), 0,
                     JoinOptions{.step_timeout = milliseconds(0)});
  }
  ssize_t hears() {
    char bytes[4096];
    const ssize_t n = ::recv(pair.peer.fd, bytes, sizeof bytes, 0);
    if (n > 0) heard.append(bytes, static_cast<std::size_t>(n));
    return n;
  }
  void hears_the_rest() {
    while (hears() > 0) {
    }
    ASSERT_EQ(heard.size() % 40, 0u) << "only states, because the peer knows the loss";
  }
  std::int64_t last_steps() const {
    std::int64_t steps = 0;
    heard.copy(reinterpret_cast<char*>(&steps), 8, heard.size() - 32);
    return steps;
  }
};

TEST(Watchdog, ExchangesNotesUntilItEnds) {
  Exchange x;
  while (x.heard.size() < 80) x.hears(), nap(milliseconds(1));
  std::string loss(512, '\0');  // a loss of rank 0 itself
  loss[0] = 2, loss[16] = 'w';
  EXPECT_EQ(::send(x.pair.peer.fd, loss.data(), loss.size(), 0), 512);
  await(*x.memory, 1000);
  EXPECT_EQ(loss_of(*x.memory), "0 w");
  x.memory->state(0).steps = 7;
  ::shutdown(x.pair.peer.fd, SHUT_WR);
  x.watchdog.reset();
  x.hears_the_rest();
  EXPECT_TRUE(x.last_steps() == 0 || x.last_steps() == 7);
  EXPECT_EQ(x.hears(), 0) << "the connection has ended";
}

TEST(Watchdog, SendsItsLastStateWhenItEnds) {
  Exchange x;
  while (x.heard.empty()) x.hears(), nap(milliseconds(1));
  x.memory->state(0).steps = 7, x.memory->state(0).has_ended = 1;
  x.watchdog.reset();
  x.hears_the_rest();
  EXPECT_EQ(x.last_steps(), 7);
  EXPECT_EQ(x.heard[x.heard.size() - 8], 1) << "it has ended";
}

// Returns the time from the loss to the end of the process (in ms of the fast clock), the exit code, and the
// output on stderr.
struct Life {
  std::int64_t ms = 0;
  std::string end, line;
};
Life life_of(const JoinOptions& options, bool saves, bool stderr_is_full = false) {
  std::array<int, 2> times{}, lines{};
  EXPECT_EQ(::pipe(times.data()) + ::pipe(lines.data()), 0);
  if (stderr_is_full) {
    ::fcntl(lines[1], F_SETFL, O_NONBLOCK);
    const std::string page(4096, '.');
    while (::write(lines[1], page.data(), page.size()) > 0) {
    }
    ::fcntl(lines[1], F_SETFL, 0);
  }
  const auto results = ask(1, [&](int) -> std::string {
    ::dup2(lines[1], STDERR_FILENO);
    if (saves) own_end_state().writing = 1, own_end_state().saving = 1;
    const auto memory = SharedMemory::create(2);
    const Watchdog watchdog(memory, {}, nullptr, 0, options);
    memory->mark_lost(1, "is lost", 0);
    const std::int64_t start = monotonic_ms();
    for (;; nap(milliseconds(1))) {
      const std::int64_t ms = monotonic_ms() - start;
      (void)!::write(times[1], &ms, sizeof ms);
      if (ms > 6000) return "still here";
    }
  });
  ::close(times[1]), ::close(lines[1]);
  Life life{0, results[0].text, std::string(1000, '\0')};
  for (std::int64_t ms; ::read(times[0], &ms, sizeof ms) == sizeof ms;) life.ms = ms;
  life.line.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(lines[0], life.line.data(), 1000))));
  ::close(times[0]), ::close(lines[0]);
  return life;
}

TEST(Watchdog, KillsItsProcessInTimeAfterALoss) {
  const std::string ended = "ended with exit code 75 in the middle", line = "[ranks] rank 1 is lost\n";
  constexpr milliseconds never(1'000'000);
  const struct {
    JoinOptions options;
    bool saves;
    std::int64_t least;
  } cases[] = {
      {{.end_after = milliseconds(800), .save_after = never}, false, 790},
      {{.end_after = milliseconds(100), .save_after = milliseconds(1500)}, true, 1490},
      {{.end_after = milliseconds(800), .save_after = milliseconds(0)}, true, 790},
  };
  for (const auto& c : cases) {
    const Life life = life_of(c.options, c.saves);
    EXPECT_EQ(life.end, ended);
    EXPECT_EQ(life.line, line);
    EXPECT_GE(life.ms, c.least);
  }
  EXPECT_EQ(life_of({.end_after = milliseconds(0)}, false).end, "still here");
  const Life unread = life_of({.end_after = milliseconds(100)}, false, true);
  EXPECT_EQ(unread.end, ended) << "also if nobody reads its report";
  EXPECT_EQ(unread.line, std::string(1000, '.'));
}

TEST(Messages, SecondsBelowTenHaveOneDecimal) {
  using Seconds = std::chrono::duration<double>;
  for (const auto& [t, text] :
       {std::pair(0.0, "0.0 s"), {0.54, "0.5 s"}, {9.9, "9.9 s"}, {10.0, "10 s"}, {59.6, "60 s"}})
    EXPECT_EQ(seconds_text(Seconds(t)), text);
}

TEST(OwnThread, BlocksSignalsOnlyInItself) {
  sigset_t own, before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  start_thread([&] { pthread_sigmask(SIG_SETMASK, nullptr, &own); }).join();
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int s : {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGPIPE}) {
    EXPECT_EQ(sigismember(&own, s), 1) << s;
    EXPECT_EQ(sigismember(&after, s), sigismember(&before, s)) << s;
  }
}

}  // namespace
}  // namespace tg

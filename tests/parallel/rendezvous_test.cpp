// Tests that ranks join in any order and in spite of other connections. If joining fails, all ranks must
// report the reason.
#include "parallel/rendezvous.h"

#include <gtest/gtest.h>

#include <random>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/support/joined_ranks.h"

namespace tg {
namespace {

TEST(Rendezvous, JoinsInAnyOrder) {
  for (const int late : {0, 1, 3}) {
    const auto results = ask(4, [&](int rank) {
      if (rank == late) nap(milliseconds(200));
      const auto group = parallel::join(world_of(rank, 4));
      EXPECT_EQ(group->communicator().rank(), rank);
      EXPECT_EQ(group->communicator().size(), 4);
      std::string all;
      for (int i = 0; i < 100; ++i) all = numbers(group->communicator(), 10 * rank + i), group->progress(i);
      group->check();
      return all;
    });
    for (const RankResult& r : results) EXPECT_EQ(r.text, "99 109 119 129 ");
  }
}

TEST(Rendezvous, ReportsMissingRanks) {
  const JoinOptions soon{.join_timeout = milliseconds(600)};
  const auto joined = [&](const std::vector<int>& coming, int size) {
    const auto results = ask(static_cast<int>(coming.size()), [&](int i) {
      return error_of([&] { parallel::join(world_of(coming[static_cast<std::size_t>(i)], size), soon); });
    });
    for (const RankResult& r : results) EXPECT_EQ(r.text, results[0].text);
    return results[0].text;
  };
  EXPECT_EQ(joined({0, 1, 3}, 4), "lost: [ranks] rank 2 did not join within 0.6 s (3 of 4 joined)");
  EXPECT_EQ(joined({0, 3}, 4), "lost: [ranks] ranks 1 and 2 did not join within 0.6 s (2 of 4 joined)");
  EXPECT_EQ(
      joined({0}, 20),
      "lost: [ranks] ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 others did not join within 0.6 s (1 of 20 joined)");
  EXPECT_EQ(joined({1, 2}, 3), "lost: [ranks] rank 0 did not join within 0.6 s");
}

TEST(Rendezvous, ReportsTheRanksThatRankZeroWaitsFor) {
  const auto results = ask(2, [](int rank) {
    std::string lines;
    if (rank == 1) nap(milliseconds(400));
    parallel::join(world_of(rank, 2), {.join_timeout = milliseconds(4800),
                                       .report = [&](const std::string& line) { lines += line + "\n"; }});
    return lines;
  });
  EXPECT_EQ(results[0].text,
            "[ranks] waiting for rank 1 (1 of 2 joined)\n");  // reports after 200 ms and after 600 ms
  EXPECT_EQ(results[1].text, "");
}

TEST(Rendezvous, RejectsDifferentProgramsAndNumbersOfRanks) {
  for (const int other : {1, 2}) {  // rank 1 connects before the third rank, or after it
    const auto results = ask(3, [&](int rank) {
      if (rank != 0) nap(milliseconds(100 * rank));
      return error_of(
          [&] { parallel::meet(world_of(rank, 3), {}, rank == other ? "8f2c0000000" : "c4390000000"); });
    });
    for (const RankResult& r : results)
      EXPECT_EQ(r.text, "wrong: [ranks] rank " + std::to_string(other) +
                            " runs build 8f2c0000, rank 0 c4390000: expected the same program");
  }
  const auto results =
      ask(2, [](int rank) { return error_of([&] { parallel::join(world_of(rank, 2 + rank)); }); });
  for (const RankResult& r : results)
    EXPECT_EQ(r.text, "wrong: [ranks] rank 1 is of 3 ranks, rank 0 of 2: expected the same number");
}

// Ranks that connect one by one after the refusal also receive it.
TEST(Rendezvous, RefusalReachesAllRanks) {
  const auto results = ask(6, [&](int rank) {
    if (rank > 1) nap(milliseconds(50 * rank));
    return error_of([&] {
      parallel::meet(world_of(rank, 6), {.join_timeout = milliseconds(2000)}, rank == 1 ? "8f2" : "c43");
    });
  });
  for (const RankResult& r : results)
    EXPECT_EQ(r.text, "wrong: [ranks] rank 1 runs build 8f2, rank 0 c43: expected the same program");
}

TEST(Rendezvous, ReportsThatRankZeroMayOpenTooFewFiles) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizers open files";
#endif
  const auto results = ask(4, [](int rank) {
    nap(milliseconds(200 * rank));  // otherwise a new peer could replace this peer before its message arrives
    if (rank == 0) {
      const FileDescriptor next(::dup(0));  // leaves two free descriptors, one of them for the listener
      const rlimit few{static_cast<rlim_t>(next.fd) + 3, static_cast<rlim_t>(next.fd) + 3};
      ::setrlimit(RLIMIT_NOFILE, &few);
    }
    return error_of([&] { parallel::join(world_of(rank, 4), {.join_timeout = milliseconds(3000)}); });
  });
  for (const RankResult& r : results)
    EXPECT_EQ(r.text,
              "wrong: [ranks] rank 0 cannot open more files, and needs one for each of 3 connections: "
              "expected a higher limit (ulimit -n)");
}

TEST(Rendezvous, RejectsDuplicateRanksAndContinues) {
  const auto results = ask(5, [](int i) {
    const int rank = std::array{0, 1, 2, 1, 0}[static_cast<std::size_t>(i)];
    if (i >= 3) nap(milliseconds(150));
    if (i == 2) nap(milliseconds(300));
    return error_of([&] {
      const auto group = parallel::join(world_of(rank, 3));
      EXPECT_EQ(numbers(group->communicator(), i), "0 1 2 ");
    });
  });
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(results[i].text, "no error");
  for (std::size_t i = 3; i < 5; ++i)
    EXPECT_EQ(results[i].text.find("wrong: [ranks] rank " + std::to_string(4 - i) +
                                   " of this job has already joined: expected one process"),
              0u)
        << results[i].text;
}

struct Stranger {
  FileDescriptor socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  sockaddr_un name{};
  socklen_t length;
  explicit Stranger(const std::string& job) {
    const std::string text = parallel::socket_name(job);
    name.sun_family = AF_UNIX;
    std::copy(text.begin(), text.end(), name.sun_path);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size());
  }
  bool connects() { return ::connect(socket.fd, reinterpret_cast<const sockaddr*>(&name), length) == 0; }
  bool listens() {
    return ::bind(socket.fd, reinterpret_cast<const sockaddr*>(&name), length) == 0 &&
           ::listen(socket.fd, 9) == 0;
  }
};

TEST(Rendezvous, ContinuesDespiteArbitraryInput) {
  const auto results = ask(3, [](int i) {
    if (i < 2) {
      if (i == 1) nap(milliseconds(500));
      const auto group = parallel::join(world_of(i, 2));
      return numbers(group->communicator(), i);
    }
    nap(milliseconds(50));
    std::mt19937 random(1);
    std::vector<std::unique_ptr<Stranger>> silent;
    const std::string job = world_of(0, 2).job;
    for (int n = 0; n < 300; ++n) {
      auto s = std::make_unique<Stranger>(job);
      if (!s->connects()) break;
      std::string bytes(n % 4 == 0 ? 64 : random() % 200, '\0');  // a message has 64 bytes
      for (char& c : bytes) c = static_cast<char>(random());
      if (n % 3 == 0) bytes.assign("nioj gt", 7);
      if (n % 5 != 0) (void)!::send(s->socket.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n % 5 == 0) silent.push_back(std::move(s));
    }
    EXPECT_GT(silent.size(), 10u);
    nap(milliseconds(600));
    return std::string("0 1 ");
  });
  for (const RankResult& r : results) EXPECT_EQ(r.text, "0 1 ");
}

TEST(Rendezvous, RejectsProcessesOfOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  auto results = ask(2, [](int i) {
    if (i == 0) return error_of([] { parallel::join(world_of(0, 2), {.join_timeout = milliseconds(1200)}); });
    nap(milliseconds(50));
    Stranger s(world_of(0, 2).job);  // the name contains root's user id
    if (seteuid(65534) != 0 || !s.connects()) return std::string("cannot connect");
    const auto start = std::chrono::steady_clock::now();
    char reply;
    const auto got = ::recv(s.socket.fd, &reply, 1, 0);  // the connection ends before the timeout of rank 0
    EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(700));
    return std::to_string(got);
  });
  EXPECT_EQ(results[0].text, "lost: [ranks] rank 1 did not join within 1.2 s (1 of 2 joined)");
  EXPECT_EQ(results[1].text, "0");
  results = ask(2, [](int i) {
    const World world = world_of(1, 2);
    if (i == 1) {
      nap(milliseconds(100));
      return error_of([&] { parallel::join(world); });
    }
    Stranger s(world.job);
    if (seteuid(65534) != 0 || !s.listens()) return std::string("cannot listen");
    nap(milliseconds(500));
    return std::string();
  });
  EXPECT_EQ(results[1].text,
            "wrong: [ranks] the address of this job belongs to another user's process: expected rank 0");
}

TEST(Rendezvous, RankKilledDuringTheRendezvousIsReported) {
  for (const int killed : {0, 1}) {
    const auto results = ask(3, [&](int rank) {
      if (rank == 2) nap(milliseconds(250));
      if (rank == killed) ::ualarm(150'000, 0);  // ends rank 0 while it waits for rank 2
      return error_of([&] { parallel::join(world_of(rank, 3), {.join_timeout = milliseconds(400)}); });
    });
    EXPECT_EQ(results[static_cast<std::size_t>(killed)].text, "ended by signal Alarm clock");
    EXPECT_EQ(results[static_cast<std::size_t>(1 - killed)].text,
              "lost: [ranks] rank " + std::to_string(killed) + " exited before all ranks joined");
    // Rank 2 connects too late. If rank 0 is alive, it reports this.
    EXPECT_EQ(results[2].text,
              killed == 0 ? "lost: [ranks] rank 0 did not join within 0.4 s" : results[0].text);
  }
}

}  // namespace
}  // namespace tg

// Tests ranks of several hosts. In this test, both hosts are this machine. Ranks join by a token, share
// bytes, and report losses to each other. Other connections must not disturb them.
#include "parallel/network.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <random>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "parallel/listener.h"
#include "tests/support/lost_ranks.h"

// Replaces system functions. They can simulate a host without IPv6, give a certain port to the next socket,
// and return addresses of both families for a name.
static bool knows_ipv6 = true;
static std::uint16_t next_port = 0;
extern "C" int socket(int family, int type, int protocol) noexcept {
  if (family == AF_INET6 && !knows_ipv6) return errno = EAFNOSUPPORT, -1;
  const int s = static_cast<int>(::syscall(SYS_socket, family, type, protocol));
  if (next_port != 0) {
    sockaddr_in a{};
    a.sin_family = AF_INET, a.sin_port = htons(std::exchange(next_port, 0));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(s, reinterpret_cast<const sockaddr*>(&a), sizeof a);
  }
  return s;
}
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** first) {
  static const auto look_up = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (std::string("both.test") != name) return look_up(name, service, hints, first);
  const int error = look_up("::1", service, hints, first);
  return error ? error : look_up("127.0.0.1", service, hints, &(*first)->ai_next);
}

namespace tg {
namespace {

const std::string token = "0123456789abcdef0123456789abcdef";

sockaddr_in address_of(const char* host, int port) {
  sockaddr_in a{};
  a.sin_family = AF_INET, a.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, host, &a.sin_addr);
  return a;
}

// A TCP socket that listens or connects. It does not implement the protocol.
struct Stranger {
  FileDescriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  bool connects(int port, const char* host = "127.0.0.1") {
    const sockaddr_in a = address_of(host, port);
    return ::connect(socket.fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0;
  }
  int listens() {  // listens on a free port
    sockaddr_in a = address_of("127.0.0.1", 0);
    socklen_t n = sizeof a;
    if (::bind(socket.fd, reinterpret_cast<const sockaddr*>(&a), n) != 0 || ::listen(socket.fd, 9) != 0)
      return 0;
    ::getsockname(socket.fd, reinterpret_cast<sockaddr*>(&a), &n);
    return ntohs(a.sin_port);
  }
  void sends(const std::string& bytes) { (void)!::send(socket.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  std::string receives(std::size_t most = 4096) {
    std::string bytes(most, '\0');
    const ssize_t n = ::recv(socket.fd, bytes.data(), bytes.size(), 0);
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(0, n)));
    return bytes;
  }
};

// Waits until a process listens on the port.
void await_listener(int port) {
  for (int i = 0; i < 1000 && !Stranger().connects(port); ++i) nap(milliseconds(5));
}

int free_port() {
  return Stranger().listens();
}

// The World of a rank on one of two hosts.
World host_world(int rank, int size, int port) {
  return {.rank = rank,
          .size = size,
          .local_rank = rank / 2,
          .local_size = (size + 1) / 2,
          .launcher = "torchrun",
          .job = "test",
          .address = "127.0.0.1",
          .port = port,
          .token = token};
}

std::vector<RankResult> ask_hosts(int n, const std::function<std::string(const World&)>& f,
                                  int seconds = 30) {
  const int port = free_port();
  return ask(
      n, [&](int rank) { return f(host_world(rank, n, port)); }, seconds);
}

std::vector<RankResult> three_hosts(const std::function<std::string(const World&)>& f) {
  return ask_hosts(3, f);
}

void expect_all(const std::vector<RankResult>& results, const std::string& text) {
  for (const RankResult& r : results) EXPECT_EQ(r.text, text);
}

// The bytes that a rank shares in a round. They differ for each rank and round.
std::vector<std::byte> shown_by(int rank, int round, std::size_t n) {
  std::vector<std::byte> bytes(n);
  std::mt19937 random(static_cast<unsigned>(rank * 1'000'003 + round));
  for (std::size_t i = 0; i < n; i += 4) {
    const std::uint32_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(4, n - i));
  }
  return bytes;
}

TEST(Network, ShareDeliversAllBytesByRankAtAnySize) {
  for (const int n : {2, 3, 5})
    expect_all(ask_hosts(n,
                         [](const World& w) {
                           const auto group = parallel::join(w);
                           Communicator& ranks = group->communicator();
                           int round = 0;
                           for (const std::size_t bytes : {0, 1, 7, 64, 4097, 100'000, 1 << 20}) {
                             ++round;
                             bool was_read = false;
                             ranks.share(shown_by(w.rank, round, bytes), [&](auto shown) {
                               was_read = true;
                               ASSERT_EQ(shown.size(), static_cast<std::size_t>(w.size));
                               for (int r = 0; r < w.size; ++r) {
                                 const auto expected = shown_by(r, round, bytes);
                                 EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                                                        shown[static_cast<std::size_t>(r)]));
                               }
                             });
                             EXPECT_TRUE(was_read);
                           }
                           return std::string("all");
                         }),
               "all");
}

TEST(Network, JoinsInAnyOrderAndKeepsBytesDuringReads) {
  for (const int late : {0, 1, 3})
    expect_all(ask_hosts(4,
                         [&](const World& w) {
                           if (w.rank == late) nap(milliseconds(200));
                           const auto group = parallel::join(w);
                           std::mt19937 random(static_cast<unsigned>(w.rank));
                           for (int i = 0; i < 1000; ++i) {
                             const std::string all = numbers(group->communicator(), 10 * w.rank + i);
                             std::string expected;
                             for (int r = 0; r < 4; ++r) expected += std::to_string(10 * r + i) + " ";
                             EXPECT_EQ(all, expected);
                             if (random() % 64 == 0) nap(milliseconds(1));
                             group->progress(i);
                           }
                           group->check();
                           return std::string("all");
                         }),
               "all");
}

TEST(Network, DifferentSizesFailOnAllRanksThatThenContinue) {
  // The error names the first rank with a different number, regardless of the order of joining.
  for (const int late : {2, 3})
    expect_all(ask_hosts(4,
                         [&](const World& w) {
                           if (w.rank == late) nap(milliseconds(100));
                           const auto group = parallel::join(w);
                           std::string line;
                           const std::array<std::size_t, 4> sizes{5, 5, 9, 7};
                           try {
                             group->communicator().share(
                                 shown_by(w.rank, 0, sizes[static_cast<std::size_t>(w.rank)]), [](auto) {});
                           } catch (const Error& e) {
                             line = e.what();
                           }
                           EXPECT_EQ(numbers(group->communicator(), w.rank), "0 1 2 3 ");
                           EXPECT_THROW(
                               group->communicator().share(shown_by(0, 0, (1 << 20) + 1), [](auto) {}),
                               Error);
                           return line;
                         }),
               "[ranks] share: rank 0 shows 5 bytes and rank 2 9: expected the same number of all ranks");
}

// All ranks set socket options. With these options, messages are sent immediately, and a host that no longer
// answers is detected.
TEST(Network, ConnectionsHaveTheExpectedSocketOptions) {
  for (const auto& [timeout, dead] :
       {std::pair(0, 30'000), {1'000, 1'000}, {2'002, 1'001}, {59'998, 29'999}, {90'000, 30'000}})
    EXPECT_EQ(parallel::dead_after({.step_timeout = milliseconds(timeout)}), milliseconds(dead)) << timeout;
  const int port = free_port();
  const auto results = ask(3, [&](int rank) {
    const JoinOptions options{.step_timeout = milliseconds(8000)};
    const parallel::Meeting meeting = parallel::meet(host_world(rank, 3, port), options, "build");
    EXPECT_EQ(meeting.connections.size(), rank == 0 ? 2u : 1u);
    EXPECT_EQ(meeting.data.size(), meeting.connections.size());
    for (const auto* list : {&meeting.connections, &meeting.data})
      for (const parallel::Connection& c : *list) {
        const auto option = [&](int level, int name) {
          int value = -1;
          socklen_t size = sizeof value;
          EXPECT_EQ(::getsockopt(c.socket.fd, level, name, &value, &size), 0);
          return value;
        };
        EXPECT_EQ(option(IPPROTO_TCP, TCP_NODELAY), 1);
        EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
        EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 10);
        EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPINTVL), 5);
        EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPCNT), 4);
        // A stopped process may not acknowledge data for a long time.
        EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), list == &meeting.data ? 0 : 4000);
      }
    return std::string("all");
  });
  expect_all(results, "all");
}

TEST(Network, KilledRankIsReportedImmediatelyByAllOthers) {
  expect_killed_ranks_named(three_hosts);
}

TEST(Network, ErrorOfARankIsReportedByAllOthers) {
  for (const int failing : {0, 1}) {
    auto results = ask_hosts(3, [&](const World& w) {
      const auto group = parallel::join(w);
      numbers(group->communicator(), 0);
      if (w.rank == failing) {
        group->fail("[checkpoint] cannot write out:\nno space");
        throw Error("by itself");
      }
      return share_for_ever(*group);
    });
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(results[static_cast<std::size_t>(rank)].text,
                rank == failing ? "by itself"
                                : "[ranks] rank " + std::to_string(failing) +
                                      " failed: [checkpoint] cannot write out: no space");
    results =
        ask_hosts(2, [&](const World& w) {  // the rank reports nothing, but an exception destroys its group
          const auto group = parallel::join(w);
          if (w.rank == failing) throw Error("by itself");
          return share_for_ever(*group);
        });
    EXPECT_EQ(results[static_cast<std::size_t>(1 - failing)].text,
              "[ranks] rank " + std::to_string(failing) + " failed: ended with an error");
  }
}

TEST(Network, HangingRankIsReportedUnlessItPauses) {
  expect_hanging_ranks_named(three_hosts, milliseconds(800));
}

TEST(Network, StoppedProcessIsReportedAndKilled) {
  expect_stopped_ranks_named(three_hosts, milliseconds(800),
                             milliseconds(400));  // without rank 0, each rank detects the loss by itself
}

TEST(Network, EndedRankStopsTheWait) {
  for (const int ending : {0, 1}) {
    const auto results = ask_hosts(3, [&](const World& w) {
      const auto group = parallel::join(w);
      numbers(group->communicator(), 0);
      if (w.rank == ending) return std::string("done");
      return error_of([&] { share_for_ever(*group); });
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == ending) continue;
      EXPECT_EQ(results[static_cast<std::size_t>(rank)].text.find(
                    "lost: [ranks] rank " + std::to_string(ending) + " exited while rank "),
                0u)
          << results[static_cast<std::size_t>(rank)].text;
    }
  }
}

// Forwards data between rank 1 and rank 0 on both connections: control, then data. The data for rank 1 is
// limited to 200 kB/s.
void pass_on_slowly(Stranger& listener, int port, milliseconds time) {
  std::vector<std::array<Stranger, 2>> lines;  // connections to rank 1 and to rank 0
  lines.reserve(2);
  const auto pass = [](Stranger& from, Stranger& to, std::size_t most) {
    std::string bytes(most, '\0');
    const ssize_t n = ::recv(from.socket.fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) to.sends(bytes.substr(0, static_cast<std::size_t>(n)));
    if (n == 0) ::shutdown(to.socket.fd, SHUT_WR);
  };
  const auto end = std::chrono::steady_clock::now() + time;
  for (; std::chrono::steady_clock::now() < end; nap(milliseconds(10))) {
    pollfd waited{listener.socket.fd, POLLIN, 0};
    if (lines.size() < 2 && ::poll(&waited, 1, 0) > 0) {
      lines.emplace_back()[0].socket.fd = ::accept(listener.socket.fd, nullptr, nullptr);
      EXPECT_TRUE(lines.back()[1].connects(port));
    }
    for (std::size_t i = 0; i < lines.size(); ++i) {
      pass(lines[i][0], lines[i][1], 65536);
      pass(lines[i][1], lines[i][0], i == 0 ? 65536 : 2048);
    }
  }
}

TEST(Network, DataSentBeforeARankEndedIsReceived) {
  const int port = free_port();
  Stranger listener;
  const int slow_port = listener.listens();
  const auto results = ask(3, [&](int i) -> std::string {
    if (i == 2) return await_listener(port), pass_on_slowly(listener, port, milliseconds(6000)), "all";
    const auto group = parallel::join(host_world(i, 2, i == 0 ? port : slow_port));
    group->communicator().share(shown_by(i, 0, 200'000), [](auto) {});
    return "all";
  });
  expect_all(results, "all");
}

TEST(Network, RanksEndInAnyOrderWithoutLeaks) {
  for (const int first : {0, 2})
    expect_all(
        ask_hosts(3,
                  [&](const World& w) {
                    namespace fs = std::filesystem;
                    const auto files = [] {
                      return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
                    };
                    const auto before = files();
                    const std::set<int> inherited = inherited_descriptors();
                    int losses = 0;
                    const auto start = std::chrono::steady_clock::now();
                    {
                      const auto group = parallel::join(w, {.on_lost = [&](const RankLost&) { ++losses; }});
                      numbers(group->communicator(), 0);
                      EXPECT_EQ(inherited_descriptors(), inherited);
                      nap(milliseconds(w.rank == first ? 0 : 300 + 300 * w.rank));
                      group->check();
                    }
                    EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(1800));
                    EXPECT_EQ(files(), before);
                    return std::to_string(losses);
                  }),
        "0");
}

const JoinOptions soon{.join_timeout = milliseconds(700)};

std::string joining(const World& w, const JoinOptions& options = {}) {
  return error_of([&] {
    const auto group = parallel::join(w, options);
    numbers(group->communicator(), 0);
  });
}

TEST(NetworkRendezvous, ReportsMissingRanks) {
  const int port = free_port();
  const std::string where = "127.0.0.1:" + std::to_string(port);
  auto results = ask(3, [&](int i) { return joining(host_world(i, 4, port), soon); });
  expect_all(results,
             "lost: [ranks] rank 3 did not join within 0.7 s (3 of 4 joined); rank 0 listens on " + where);
  results = ask(2, [&](int i) { return joining(host_world(i + 1, 3, port), soon); });
  expect_all(results, "lost: [ranks] rank 0 did not join within 0.7 s (" + where + ": Connection refused)");
}

TEST(NetworkRendezvous, RejectsADifferentToken) {
  const int port = free_port();
  const std::string where = "127.0.0.1:" + std::to_string(port);
  const auto results = ask(3, [&](int i) {
    World w = host_world(i, 3, port);
    if (i == 2) w.token.back() = 'x';
    return joining(w, soon);
  });
  EXPECT_EQ(
      results[2].text,
      "wrong: [ranks] rank 0, on " + where +
          ", has a different token: expected the same TG_TOKEN or content of TG_TOKEN_FILE on all hosts");
  for (const std::size_t r : {0, 1})
    EXPECT_EQ(results[r].text,
              "lost: [ranks] rank 2 did not join within 0.7 s (2 of 3 joined); rank 0 listens on " + where +
                  "; connections with a different token: 2");
}

// If a refused rank knows the token, the other ranks end. If it does not know the token, they continue.
TEST(NetworkRendezvous, RejectsDifferentProgramsAndNumbersOfRanks) {
  const int port = free_port();
  auto results = ask(3, [&](int rank) {
    nap(milliseconds(100 * rank));
    return error_of(
        [&] { parallel::meet(host_world(rank, 3, port), {}, rank == 1 ? "8f2c0000000" : "c4390000000"); });
  });
  expect_all(results,
             "wrong: [ranks] rank 1 runs build 8f2c0000, rank 0 c4390000: expected the same program");
  results = ask(2, [&](int rank) { return joining(host_world(rank, 2 + rank, port)); });
  expect_all(results, "wrong: [ranks] rank 1 is of 3 ranks, rank 0 of 2: expected the same number");
}

TEST(NetworkRendezvous, RejectsPeersOfOtherJobsAndContinues) {
  const int port = free_port();
  const auto results = ask(4, [&](int i) {
    World w = host_world(std::array{0, 1, 1, 2}[static_cast<std::size_t>(i)], 3, port);
    if (i == 2) w.job = "another";
    if (i == 3) nap(milliseconds(300));
    return joining(w);
  });
  for (const std::size_t i : {0, 1, 3}) EXPECT_EQ(results[i].text, "no error");
  EXPECT_EQ(results[2].text,
            "wrong: [ranks] rank 1 belongs to a different job from rank 0: expected the same TG_JOB, if it "
            "is set (this is 'test')");
}

TEST(NetworkRendezvous, RejectsDuplicateRanksAndContinues) {
  const int port = free_port();
  const auto results = ask(5, [&](int i) {
    const int rank = std::array{0, 1, 2, 1, 0}[static_cast<std::size_t>(i)];
    if (i >= 3) nap(milliseconds(150));
    if (i == 2) nap(milliseconds(400));
    return joining(host_world(rank, 3, port));
  });
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(results[i].text, "no error");
  EXPECT_EQ(results[3].text.find("wrong: [ranks] rank 1 of this job has already joined"), 0u)
      << results[3].text;
  EXPECT_EQ(results[4].text.find("wrong: [ranks] another process listens on 127.0.0.1:"), 0u)
      << results[4].text;
}

TEST(NetworkRendezvous, RankKilledDuringTheRendezvousIsReported) {
  for (const int killed : {0, 1}) {
    const int port = free_port();
    const auto results = ask(2, [&](int rank) {
      if (rank == killed) ::ualarm(600'000, 0);
      return joining(host_world(rank, 3, port), {.join_timeout = milliseconds(5000)});
    });
    EXPECT_EQ(results[static_cast<std::size_t>(1 - killed)].text,
              "lost: [ranks] rank " + std::to_string(killed) + " exited before all ranks joined");
  }
}

// An unauthenticated peer sends arbitrary data, in pieces or not at all. The ranks must still join.
TEST(NetworkRendezvous, ContinuesDespiteArbitraryInput) {
  const int port = free_port();
  const auto results = ask(3, [&](int i) {
    if (i < 2) {
      if (i == 1) nap(milliseconds(1000));
      const auto group = parallel::join(host_world(i, 2, port));
      return numbers(group->communicator(), i);
    }
    await_listener(port);
    std::mt19937 random(1);
    std::vector<std::unique_ptr<Stranger>> silent;
    for (int n = 0; n < 600; ++n) {
      auto s = std::make_unique<Stranger>();
      if (!s->connects(port)) break;
      std::string bytes(n % 4 == 0 ? 168 : random() % 400, '\0');  // an answer has 168 bytes
      for (char& c : bytes) c = static_cast<char>(random());
      if (n % 3 == 0) bytes = "GET / HTTP/1.1\r\n\r\n";
      if (n % 7 == 0) bytes.assign(100'000, 'x');
      if (n % 2 != 0) s->sends(bytes);
      if (n % 2 == 0 || n % 3 == 0) silent.push_back(std::move(s));
    }
    EXPECT_GT(silent.size(), 300u);  // more than rank 0 accepts at a time
    nap(milliseconds(1200));
    return std::string("0 1 ");
  });
  expect_all(results, "0 1 ");
}

// An answer cannot be replayed. An unauthenticated peer receives only a challenge and a refusal.
TEST(NetworkRendezvous, AnswerCannotBeReplayed) {
  const int port = free_port();
  const auto results = ask(3, [&](int i) -> std::string {
    if (i == 0) return joining(host_world(0, 3, port), {.join_timeout = milliseconds(1500)});
    if (i == 1) {  // through a listener that forwards the messages
      nap(milliseconds(400));
      return "";
    }
    Stranger between;
    const int own_port = between.listens();
    const pid_t victim = ::fork();
    if (victim == 0) {
      joining(host_world(1, 3, own_port), soon);
      ::_exit(0);
    }
    Stranger seen, rank_0;
    seen.socket.fd = ::accept(between.socket.fd, nullptr, nullptr);
    while (!rank_0.connects(port)) rank_0.socket.fd = ::socket(AF_INET, SOCK_STREAM, 0), nap(milliseconds(5));
    seen.sends(rank_0.receives());
    const std::string answer = seen.receives();
    ::kill(victim, SIGKILL);
    ::waitpid(victim, nullptr, 0);
    Stranger again;
    if (!again.connects(port)) return "cannot connect";
    EXPECT_EQ(again.receives().size(), 40u);  // the challenge
    again.sends(answer);
    const std::string refusal = again.receives();
    EXPECT_EQ(refusal.size(), 544u);
    std::uint32_t kind = 0;
    std::memcpy(&kind, refusal.data() + 8, sizeof kind);
    EXPECT_EQ(kind, 3u);  // an unauthenticated peer
    EXPECT_EQ(refusal.find("rank"), std::string::npos);
    return again.receives();  // the end
  });
  EXPECT_EQ(results[2].kind, '+') << results[2].text;
  EXPECT_EQ(results[2].text, "");
  EXPECT_NE(results[0].text.find("; connections with a different token: 1"), std::string::npos)
      << results[0].text;
}

TEST(NetworkRendezvous, RejectsARankZeroWithoutTheToken) {
  for (const bool speaks_our_way : {true, false}) {
    const auto results = ask(1, [&](int) -> std::string {
      Stranger listener;
      const int port = listener.listens();
      const pid_t child = ::fork();
      if (child == 0) {
        Stranger s;
        s.socket.fd = ::accept(listener.socket.fd, nullptr, nullptr);
        std::string challenge(40, '\7');
        if (speaks_our_way) challenge.replace(0, 8, std::string("tg join\0", 8));
        s.sends(challenge);
        s.receives();
        Stranger second;
        second.socket.fd = ::accept(listener.socket.fd, nullptr, nullptr);
        second.sends(challenge);
        second.receives();
        std::string reply(544, '\0');  // a welcome
        reply.replace(0, 8, std::string("tg join\0", 8));
        s.sends(reply);
        nap(milliseconds(300));
        ::_exit(0);
      }
      const std::string line = joining(host_world(1, 2, port), {.join_timeout = milliseconds(3000)});
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
      return line.substr(0, line.find("127.")) + line.substr(line.find(' ', line.find("127.")));
    });
    EXPECT_EQ(results[0].text,
              speaks_our_way
                  ? "wrong: [ranks] the process on  does not know the token: expected rank 0 of this job"
                  : "wrong: [ranks] the process that listens on  is not rank 0: expected a free port, and "
                    "TG_PORT sets another");
  }
}

TEST(NetworkRendezvous, ListensOnlyOnTheGivenAddress) {
  const int port = free_port();
  const auto results = ask(2, [&](int i) -> std::string {
    if (i == 0) return joining(host_world(0, 2, port), soon);
    await_listener(port);
    EXPECT_FALSE(Stranger().connects(port, "127.0.0.2"));
    EXPECT_TRUE(Stranger().connects(port, "127.0.0.1"));
    return "";
  });
  EXPECT_EQ(results[1].kind, '+') << results[1].text;
  const auto with_address = [&](const std::string& address) {
    World w = host_world(0, 2, port);
    w.address = address;
    return ask(1, [&](int) { return joining(w, soon); })[0].text;
  };
  for (const char* any : {"0.0.0.0", "::", "::ffff:0.0.0.0"})
    EXPECT_EQ(with_address(any), std::string("wrong: [ranks] MASTER_ADDR is ") + any +
                                     ": expected the one address of rank 0's host that others use");
  EXPECT_EQ(
      with_address("192.0.2.1"),
      "wrong: [ranks] MASTER_ADDR is 192.0.2.1, which is not an address of this host: expected rank 0's");
  EXPECT_EQ(with_address("no.such.host.invalid")
                .find("wrong: [ranks] MASTER_ADDR is no.such.host.invalid, which cannot be found: "),
            0u);
}

TEST(NetworkRendezvous, JoinsOverIpv6AndByName) {
  for (const std::string address : {"::1", "localhost"}) {
    const int port = free_port();
    const auto results = ask(2, [&](int i) {
      World w = host_world(i, 2, port);
      w.address = address;
      return joining(w, {.join_timeout = milliseconds(5000)});
    });
    if (results[0].text.find("not an address of this host") != std::string::npos)
      GTEST_SKIP() << "this host has no " << address;
    expect_all(results, "no error");
  }
}

TEST(NetworkRendezvous, JoinsByANameWithAnUnusableAddress) {
  const int port = free_port();
  expect_all(ask(2,
                 [&](int i) {
                   knows_ipv6 = false;
                   World w = host_world(i, 2, port);
                   w.address = "both.test";
                   return joining(w, {.join_timeout = milliseconds(5000)});
                 }),
             "no error");
}

TEST(NetworkRendezvous, SelfConnectionIsClosed) {
  const int port = free_port();
  expect_all(ask(2,
                 [&](int i) {
                   if (i == 0) nap(milliseconds(500));
                   if (i == 1) next_port = static_cast<std::uint16_t>(port);
                   return joining(host_world(i, 2, port), {.join_timeout = milliseconds(5000)});
                 }),
             "no error");
}

// If rank 0 may open only a few files, it disconnects unauthenticated peers and accepts the ranks.
TEST(NetworkRendezvous, ContinuesIfPeersUseAllDescriptors) {
  const int port = free_port();
  const auto results = ask(3, [&](int i) {
    if (i == 0) {
      const rlimit few{40, 40};
      ::setrlimit(RLIMIT_NOFILE, &few);
    }
    if (i < 2) {
      nap(milliseconds(500 * i));
      const auto start = std::chrono::steady_clock::now();
      const std::string line = joining(host_world(i, 2, port));
      EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(2500));
      return line;
    }
    await_listener(port);
    std::vector<Stranger> silent(100);
    for (Stranger& s : silent) s.connects(port);
    nap(milliseconds(1500));
    return std::string("no error");
  });
  expect_all(results, "no error");
}

// The program creates a World by itself.
TEST(NetworkRendezvous, RequiresATokenAndAPort) {
  World w = host_world(0, 2, 0);
  EXPECT_EQ(error_of([&] { parallel::join(w); }), "wrong: [ranks] port 0: expected 1 to 65535");
  w.token.clear();
  EXPECT_EQ(error_of([&] { parallel::join(w); }),
            "wrong: [ranks] the token of ranks on several hosts has 0 characters: expected 32 to 4096, for "
            "example from: openssl rand -hex 32");
}

// An authenticated rank may still send anything.
TEST(Notes, InvalidMessageEndsTheRun) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    const FileDescriptor peer(ends[1]);
    const auto memory = parallel::SharedMemory::create(3);
    std::vector<parallel::Connection> connections;
    connections.push_back({2, FileDescriptor(ends[0])});
    parallel::Notes notes(memory, std::move(connections), 0, milliseconds(100));
    std::mt19937 random(seed);
    std::string bytes(1 + random() % 3000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    if (seed % 2 == 0) bytes.insert(0, std::string("\2\0\0\0\0\0\0\0", 8));  // a loss of any rank
    (void)!::send(peer.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    notes.hear();
    if (bytes.size() >= 512) {
      ASSERT_TRUE(memory->lost());
      EXPECT_EQ(memory->lost()->rank, 2);
      EXPECT_EQ(memory->lost()->why, "sent an invalid message");
    }
  }
}

TEST(NetworkCommunicator, RejectsTooManyBytes) {
  for (const int rank : {0, 1}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    const FileDescriptor peer(ends[1]);
    const auto memory = parallel::SharedMemory::create(2);
    std::vector<parallel::Connection> connections;
    connections.push_back({1 - rank, FileDescriptor(ends[0])});
    parallel::NetworkCommunicator ranks(memory, std::move(connections), rank);
    const std::array<std::uint64_t, 3> sent{std::uint64_t{1} << 60, 0, ~std::uint64_t{0}};
    (void)!::send(peer.fd, sent.data(), sizeof sent, MSG_NOSIGNAL);
    EXPECT_EQ(error_of([&] { numbers(ranks, 0); }),
              "lost: [ranks] rank " + std::to_string(1 - rank) + " sent an invalid message");
  }
}

}  // namespace
}  // namespace tg

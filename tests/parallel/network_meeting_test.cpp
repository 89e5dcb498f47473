// Tests how ranks of several hosts join, exact to the byte and the millisecond. One side is the code under
// test. The other side is a script in virtual time, which implements the handshake separately.
#include <gtest/gtest.h>

#include <array>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "parallel/listener.h"
#include "tests/support/failing_calls.h"
#include "tests/support/joined_ranks.h"
#include "tests/support/virtual_time.h"

namespace tg {
namespace {

using namespace parallel;
using testing::VirtualTime, testing::fail_call_of, testing::has_failed;
using Lines = std::vector<std::string>;

const std::string token(32, 't'), magic("tg join\0", 8);

World on_hosts(int rank, int size, int port) {
  return {.rank = rank,
          .size = size,
          .local_rank = 0,
          .local_size = 1,
          .launcher = "torchrun",
          .job = "scripted",
          .address = "127.0.0.1",
          .port = port,
          .token = token};
}

std::string join_bytes(int rank, int size, int purpose, const std::string& build = "build") {
  const auto word = [](std::int32_t x) { return std::string(reinterpret_cast<const char*>(&x), 4); };
  const auto text = [](std::string t) { return t.resize(40), t; };
  return magic + word(2) + word(rank) + word(size) + word(purpose) + text(build) + text(job_hash("scripted"));
}

std::string proof(const std::string& role, const std::string& challenge, const std::string& answer,
                  const std::string& message, const std::string& key = token) {
  const std::string whole = "tilegrad: " + role + challenge + answer + message;
  const std::array<std::string_view, 1> pieces{whole};
  const Digest d = hmac_sha256(key, pieces);
  return {reinterpret_cast<const char*>(d.data()), d.size()};
}

sockaddr_in loopback(int port) {
  sockaddr_in a{};
  a.sin_family = AF_INET, a.sin_port = htons(static_cast<std::uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

// The other end of a TCP connection. Data that is sent to this end arrives within a short real time.
struct Peer {
  FileDescriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  void connects(int port) {
    const sockaddr_in a = loopback(port);
    EXPECT_EQ(::connect(socket.fd, reinterpret_cast<const sockaddr*>(&a), sizeof a), 0);
  }
  int listens(int port = 0, int backlog = 9) {
    sockaddr_in a = loopback(port);
    socklen_t n = sizeof a;
    const int on = 1;
    ::setsockopt(socket.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    EXPECT_EQ(::bind(socket.fd, reinterpret_cast<const sockaddr*>(&a), n), 0);
    EXPECT_EQ(::listen(socket.fd, backlog), 0);
    ::getsockname(socket.fd, reinterpret_cast<sockaddr*>(&a), &n);
    return ntohs(a.sin_port);
  }
  void accepts(const Peer& listener) {
    ::close(std::exchange(socket.fd, ::accept4(listener.socket.fd, nullptr, nullptr, SOCK_CLOEXEC)));
  }
  void leaves() { ::close(std::exchange(socket.fd, -1)); }
  void says(const std::string& bytes) const {
    const int on = 1;  // otherwise a second message may wait until the first is acknowledged
    ::setsockopt(socket.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    EXPECT_EQ(::send(socket.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  // Receives `size` bytes, or fewer if the connection ends or no data arrives.
  std::string hears(std::size_t size, int real_ms = 2000) const {
    std::string all(size, '\0');
    std::size_t done = 0;
    while (done < size) {
      pollfd waited{socket.fd, POLLIN, 0};
      if (testing::poll_really(&waited, 1, real_ms) <= 0) break;
      const ssize_t n = ::recv(socket.fd, all.data() + done, size - done, 0);
      if (n <= 0) break;
      done += static_cast<std::size_t>(n);
    }
    all.resize(done);
    return all;
  }
  bool has_ended(int real_ms = 2000) const {
    pollfd waited{socket.fd, POLLIN, 0};
    char byte;
    return testing::poll_really(&waited, 1, real_ms) > 0 && ::recv(socket.fd, &byte, 1, MSG_PEEK) <= 0;
  }
};

// Returns the socket options of a connection. A connection never blocks and is not inherited. SO_REUSEADDR is
// set, because rank 0 may need the port.
std::string options_of(const Connection& c) {
  std::string all;
  EXPECT_NE(::fcntl(c.socket.fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(c.socket.fd, F_GETFD) & FD_CLOEXEC, 0);
  for (const auto& [level, option] : {std::pair(SOL_SOCKET, SO_REUSEADDR),
                                      {SOL_SOCKET, SO_KEEPALIVE},
                                      {IPPROTO_TCP, TCP_NODELAY},
                                      {IPPROTO_TCP, TCP_KEEPIDLE},
                                      {IPPROTO_TCP, TCP_KEEPINTVL},
                                      {IPPROTO_TCP, TCP_KEEPCNT},
                                      {IPPROTO_TCP, TCP_USER_TIMEOUT}}) {
    int value = -1;
    socklen_t n = sizeof value;
    EXPECT_EQ(::getsockopt(c.socket.fd, level, option, &value, &n), 0);
    all += std::to_string(value) + " ";
  }
  return all;
}
// The options for a step_timeout of 8 s.
const std::string options_of_control = "1 1 1 10 5 4 4000 ", options_of_data = "1 1 1 10 5 4 0 ";

int free_port() {
  return Peer().listens();
}

// A rank that joins by the protocol in the first comment of network_listener.cpp.
struct Joining : Peer {
  std::string challenge, nonce = std::string(32, 'n');
  // Calls f when the challenge has arrived. Rank 0 sends the challenge after this event.
  void connects(int port, const std::function<void()>& f) {
    Peer::connects(port);
    VirtualTime::current->at(VirtualTime::current->now(), [this, f] {
      const std::string said = hears(40);
      EXPECT_EQ(said.substr(0, 8), magic);
      challenge = said.substr(std::min<std::size_t>(8, said.size()));
      f();
    });
  }
  std::string answer(const std::string& join, const std::string& key = token) const {
    return nonce + join + proof("joins", challenge, nonce, join, key);
  }
  void comes(int port, const std::string& join) {
    connects(port, [this, join] { says(answer(join)); });
  }
  // Returns the kind and text of the reply. The proof in the reply must be correct.
  std::string verdict(int real_ms = 2000) const {
    const std::string said = hears(544, real_ms);
    if (said.empty()) return has_ended(0) ? "the end" : "nothing";
    EXPECT_EQ(said.size(), 544u);
    EXPECT_EQ(said.substr(0, 8), magic);
    std::uint32_t kind = 0;
    std::memcpy(&kind, said.data() + 8, 4);
    if (kind == 3)
      return "stranger" + std::string(said.find_first_not_of('\0', 12) == said.npos ? "" : " and more");
    EXPECT_EQ(said.substr(512), proof("replies", challenge, nonce, said.substr(0, 512)));
    return std::array{"welcome: ", "wrong: ", "lost: "}[kind] + std::string(said.data() + 12);
  }
};

// Returns the message of the error that f throws.
std::string outcome(const std::function<void()>& f) {
  std::string line;
  try {
    line = error_of(f);
  } catch (const Error& e) {
    line = e.what();
  }
  return line;
}

struct Hosted {
  explicit Hosted(int size, int join_timeout = 2400)
      : port(free_port()),
        world(on_hosts(0, size, port)),
        options{.join_timeout = milliseconds(join_timeout), .report = [&](const std::string& line) {
                  reports.push_back(std::to_string(time.now()) + " " + line);
                }} {
    time.grace = 2;
  }
  std::string meets() {
    return outcome([&] { meeting.emplace(meet(world, options, "build")); });
  }
  std::string where() const { return "; rank 0 listens on 127.0.0.1:" + std::to_string(port); }
  int port;
  World world;
  JoinOptions options;
  VirtualTime time;
  Lines reports;
  std::optional<Meeting> meeting;
};

TEST(NetworkMeeting, RankZeroWelcomesTwoConnectionsOfEachRank) {
  Hosted h(3);
  h.options.step_timeout = milliseconds(8000);
  Joining peers[4];
  const int ranks[] = {2, 1, 1, 2}, purposes[] = {1, 0, 1, 0};
  for (int i = 0; i < 4; ++i)
    h.time.at(50 * (i + 1), [&, i] { peers[i].comes(h.port, join_bytes(ranks[i], 3, purposes[i])); });
  ASSERT_EQ(h.meets(), "no error");
  EXPECT_EQ(h.time.now(), 200);
  EXPECT_EQ(h.reports, (Lines{"100 [ranks] waiting for ranks 1 and 2 (1 of 3 joined)" + h.where()}));
  for (const Joining& p : peers) EXPECT_EQ(p.verdict(), "welcome: ");
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(peers[i].challenge, peers[j].challenge);
  ASSERT_EQ(h.meeting->connections.size(), 2u);
  ASSERT_EQ(h.meeting->data.size(), 2u);
  EXPECT_EQ(h.meeting->memory->ranks(), 3);
  const auto expect_pair = [](const Connection& c, int rank, const Peer& peer) {
    EXPECT_EQ(c.rank, rank);
    EXPECT_EQ(::send(c.socket.fd, "xy", 2, 0), 2);
    EXPECT_EQ(peer.hears(2), "xy");
  };
  for (const Connection& c : h.meeting->connections) EXPECT_EQ(options_of(c), options_of_control);
  for (const Connection& c : h.meeting->data) EXPECT_EQ(options_of(c), options_of_data);
  expect_pair(h.meeting->connections[0], 1, peers[1]), expect_pair(h.meeting->connections[1], 2, peers[3]);
  expect_pair(h.meeting->data[0], 2, peers[0]), expect_pair(h.meeting->data[1], 1, peers[2]);
}

TEST(NetworkMeeting, RankZeroAcceptsOnlyPeersWithTheToken) {
  const std::string good = join_bytes(1, 2, 0);
  struct Case {
    std::function<std::string(const Joining&)> answer;
    std::string verdict;
    bool is_counted = true;
  };
  const auto with = [&](std::size_t at, char c) {
    std::string join = good;
    join[at] = c;
    return [join](const Joining& j) { return j.answer(join); };
  };
  const Case cases[] = {
      {[&](const Joining& j) { return j.answer(good, std::string(31, 't') + "u"); }, "stranger"},
      {[&](const Joining& j) { return std::string(168, '\0') + j.challenge.substr(0, 0); }, "stranger"},
      {[&](const Joining& j) {  // an answer to a different challenge
         return j.nonce + good + proof("joins", std::string(32, 'c'), j.nonce, good);
       },
       "stranger"},
      {[&](const Joining& j) {  // an answer with a different nonce
         return j.nonce + good + proof("joins", j.challenge, std::string(32, 'm'), good);
       },
       "stranger"},
      {[&](const Joining& j) { return j.nonce + good + proof("replies", j.challenge, j.nonce, good); },
       "stranger"},
      {[&](const Joining& j) {
         return j.nonce + join_bytes(1, 2, 1) + proof("joins", j.challenge, j.nonce, good);
       },
       "stranger"},
      {with(0, 'T'), "the end", false},
      {with(20, 2), "the end", false},  // an unknown purpose
      {with(23, 1), "the end", false},
  };
  for (const Case& c : cases) {
    Hosted h(2, 600);
    Joining other;
    h.time.at(50, [&] { other.connects(h.port, [&] { other.says(c.answer(other)); }); });
    const std::string counted = c.is_counted ? "; connections with a different token: 1" : "";
    EXPECT_EQ(h.meets(),
              "lost: [ranks] rank 1 did not join within 0.6 s (1 of 2 joined)" + h.where() + counted);
    EXPECT_EQ(other.verdict(), c.verdict);
    EXPECT_TRUE(other.has_ended());
    ASSERT_FALSE(h.reports.empty());
    EXPECT_EQ(h.reports.back(), "575 [ranks] waiting for rank 1 (1 of 2 joined)" + h.where() + counted);
  }
}

TEST(NetworkMeeting, AnswerInPiecesIsAcceptedForFiveSeconds) {
  for (const std::size_t cut : {1u, 32u, 136u, 167u})
    for (const int end : {4900, 5100}) {
      Hosted h(2, 9000);
      Joining control, data;
      std::string answer;
      h.time.at(50, [&] {
        control.connects(h.port, [&] {
          answer = control.answer(join_bytes(1, 2, 0));
          control.says(answer.substr(0, cut));
        });
      });
      h.time.at(end, [&] { control.says(answer.substr(cut)); });
      h.time.at(6000, [&] { data.comes(h.port, join_bytes(1, 2, 1)); });
      if (end < 5000) {
        EXPECT_EQ(h.meets(), "no error");
        EXPECT_EQ(h.time.now(), 6000);
        EXPECT_EQ(control.verdict(), "welcome: ");
      } else {
        EXPECT_EQ(h.meets(), "lost: [ranks] rank 1 did not join within 9.0 s (1 of 2 joined)" + h.where());
        EXPECT_TRUE(control.has_ended());
        EXPECT_EQ(data.verdict(),
                  "lost: [ranks] rank 1 did not join within 9.0 s (1 of 2 joined)" + h.where());
      }
    }
}

// A peer sends a byte after the answer and before the welcome.
TEST(NetworkMeeting, ExtraBytesAfterAnAnswerEndTheRun) {
  for (const std::size_t first : {0u, 100u}) {  // the byte was sent earlier
    Hosted h(2);
    Joining control;
    std::string all;
    h.time.at(50, [&] {
      control.connects(h.port, [&] {
        all = control.answer(join_bytes(1, 2, 0)) + "x";
        control.says(all.substr(0, first));
      });
    });
    h.time.at(60, [&] { control.says(all.substr(first)); });
    EXPECT_EQ(h.meets(), "lost: [ranks] rank 1 exited before all ranks joined");
    EXPECT_EQ(h.time.now(), 60 + 1000);  // rank 0 waits for the rank's other connection
    EXPECT_EQ(control.verdict(), "lost: [ranks] rank 1 exited before all ranks joined");
  }
}

TEST(NetworkMeeting, RefusalsReachBothConnectionsOfARank) {
  Hosted h(2);
  Joining control, data, again;
  h.time.at(50, [&] { control.comes(h.port, join_bytes(1, 2, 0)); });
  h.time.at(60, [&] { again.comes(h.port, join_bytes(1, 2, 0)); });
  h.time.at(300, [&] { data.comes(h.port, join_bytes(1, 2, 1, "other")); });
  const std::string line = "wrong: [ranks] rank 1 runs build other, rank 0 build: expected the same program";
  EXPECT_EQ(h.meets(), line);
  EXPECT_EQ(h.time.now(), 300);
  EXPECT_EQ(control.verdict(), line);
  EXPECT_EQ(data.verdict(), line);
  EXPECT_EQ(again.verdict(),
            "wrong: [ranks] rank 1 of this job has already joined: expected one process per rank, and a "
            "different TG_JOB for a different job (this is 'scripted')");
}

// Runs rank 1 of two with a rank 0 that follows a script.
struct JoiningRank {
  explicit JoiningRank(int join_timeout = 2400)
      : options{.join_timeout = milliseconds(join_timeout),
                .step_timeout = milliseconds(8000),
                .report = [&](const std::string& line) {
                  reports.push_back(std::to_string(time.now()) + " " + line);
                }} {
    time.grace = 2;
  }
  std::string meets(int to_port) {
    port = to_port;
    return outcome([&] { meeting.emplace(meet(on_hosts(1, 2, port), options, "build")); });
  }
  // Accepts the next connection and sends the challenge: 32 times `c`.
  void challenges(Peer& peer, char c) {
    peer.accepts(host);
    peer.says(magic + std::string(32, c));
  }
  // Receives an answer, which must be correct. Returns its nonce.
  std::string nonce_of(const Peer& peer, char c, int purpose) {
    const std::string said = peer.hears(168), join = join_bytes(1, 2, purpose);
    EXPECT_EQ(said.size(), 168u);
    EXPECT_EQ(said.substr(32, 104), join);
    EXPECT_EQ(said.substr(136), proof("joins", std::string(32, c), said.substr(0, 32), join));
    return said.substr(0, 32);
  }
  static std::string reply(std::uint32_t kind, const std::string& text, char c, const std::string& nonce,
                           const std::string& first = magic) {
    std::string r = first + std::string(reinterpret_cast<const char*>(&kind), 4) + text;
    r.resize(512);
    return r + proof("replies", std::string(32, c), nonce, r);
  }
  int port = 0;
  JoinOptions options;
  VirtualTime time;
  Lines reports;
  Peer host, control, data;
  std::optional<Meeting> meeting;
};

TEST(NetworkMeeting, RankRetriesWithIncreasingIntervals) {
  JoiningRank g;
  const int port = free_port();
  const std::string why = " (127.0.0.1:" + std::to_string(port) + ": Connection refused)";
  EXPECT_EQ(g.meets(port), "lost: [ranks] rank 0 did not join within 2.4 s" + why);
  std::vector<std::int64_t> naps{5, 10, 20, 40, 80, 160};
  std::int64_t sum = 315;
  for (; sum < 2400; sum += 250) naps.push_back(250);
  EXPECT_EQ(g.time.naps, naps);
  EXPECT_EQ(g.time.now(), sum);
  ASSERT_GE(g.reports.size(), 2u);
  EXPECT_EQ(g.reports[0], "155 [ranks] waiting for rank 0" + why);
  EXPECT_EQ(g.reports[1], "315 [ranks] waiting for rank 0" + why);
}

// If a host does not answer at all, each attempt lasts five seconds.
TEST(NetworkMeeting, RankRetriesASilentHost) {
  JoiningRank g(12'000);
  const int port = g.host.listens(0, 0);
  std::vector<Peer> full(3);  // more than the backlog of the listener
  for (Peer& p : full) {
    ::fcntl(p.socket.fd, F_SETFL, O_NONBLOCK);
    const sockaddr_in a = loopback(port);
    (void)::connect(p.socket.fd, reinterpret_cast<const sockaddr*>(&a), sizeof a);
  }
  EXPECT_EQ(g.meets(port), "lost: [ranks] rank 0 did not join within 12 s (127.0.0.1:" +
                               std::to_string(port) + ": Connection timed out)");
  EXPECT_EQ(g.time.now(), 12'000);
  EXPECT_EQ(g.time.naps, (std::vector<std::int64_t>{5, 10}));
}

TEST(NetworkMeeting, RankJoinsWithTwoConnections) {
  for (const bool in_pieces : {false, true}) {
    JoiningRank g;
    const int port = g.host.listens();
    std::string control_nonce, data_nonce;
    g.time.at(20, [&] {
      if (!in_pieces) return g.challenges(g.control, 'a');
      g.control.accepts(g.host);
      g.control.says(magic.substr(0, 1));
    });
    if (in_pieces) g.time.at(25, [&] { g.control.says(magic.substr(1) + std::string(32, 'a')); });
    g.time.at(30, [&] { control_nonce = g.nonce_of(g.control, 'a', 0), g.challenges(g.data, 'b'); });
    g.time.at(40, [&] { data_nonce = g.nonce_of(g.data, 'b', 1); });
    g.time.at(2 * 2400 + 4900, [&] {
      const std::string reply = g.reply(0, "", 'a', control_nonce);
      g.control.says(reply.substr(0, 500));
    });
    g.time.at(2 * 2400 + 4910,
              [&] { g.control.says(g.reply(0, "", 'a', control_nonce).substr(500) + "more"); });
    g.time.at(2 * 2400 + 4950, [&] { g.data.says(g.reply(0, "", 'b', data_nonce)); });
    ASSERT_EQ(g.meets(port), "no error");
    EXPECT_EQ(g.time.now(), 2 * 2400 + 4950);
    EXPECT_NE(control_nonce, data_nonce);
    ASSERT_EQ(g.meeting->connections.size(), 1u);
    ASSERT_EQ(g.meeting->data.size(), 1u);
    EXPECT_EQ(g.meeting->memory->ranks(), 2);
    EXPECT_EQ(g.meeting->connections[0].rank, 0);
    EXPECT_EQ(g.meeting->data[0].rank, 0);
    for (const auto& [c, peer] :
         {std::pair(&g.meeting->connections[0], &g.control), {&g.meeting->data[0], &g.data}}) {
      EXPECT_EQ(::send(c->socket.fd, "xy", 2, 0), 2);
      EXPECT_EQ(peer->hears(2), "xy");
      char more[9];
      EXPECT_EQ(::recv(c->socket.fd, more, sizeof more, 0), peer == &g.control ? 4 : -1)
          << "data after the reply is a message of the group";
      EXPECT_EQ(options_of(*c), peer == &g.control ? options_of_control : options_of_data);
    }
  }
}

TEST(NetworkMeeting, RankVerifiesTheReply) {
  struct Case {
    std::function<std::string(const std::string& nonce)> reply;
    std::string expected;
  };
  const std::string stranger =
      "wrong: [ranks] the process on AT does not know the token: expected rank 0 of this job";
  const Case cases[] = {
      {[](const std::string& n) { return JoiningRank::reply(1, "why", 'a', n); }, "wrong: why"},
      {[](const std::string& n) { return JoiningRank::reply(2, "why", 'a', n); }, "lost: why"},
      {[](const std::string& n) { return JoiningRank::reply(3, "", 'a', n); },
       "wrong: [ranks] rank 0, on AT, has a different token: expected the same TG_TOKEN or content of "
       "TG_TOKEN_FILE on all hosts"},
      {[](const std::string& n) { return JoiningRank::reply(0, "", 'c', n); }, stranger},
      {[](const std::string&) { return JoiningRank::reply(0, "", 'a', std::string(32, 'x')); }, stranger},
      {[](const std::string& n) {
         return JoiningRank::reply(0, "", 'a', n, "xg join" + std::string(1, '\0'));
       },
       stranger},
      {[](const std::string& n) {
         std::string r = JoiningRank::reply(1, "why", 'a', n);
         r[13] ^= 1;
         return r;
       },
       stranger},
      {[](const std::string& n) { return JoiningRank::reply(0, "", 'a', n).substr(0, 543); },
       "lost: [ranks] rank 0 exited before all ranks joined"},
      {[](const std::string&) { return std::string(); },
       "lost: [ranks] rank 0 exited before all ranks joined"},
  };
  for (const Case& c : cases) {
    JoiningRank g;
    const int port = g.host.listens();
    g.time.at(20, [&] { g.challenges(g.control, 'a'); });
    g.time.at(30, [&] { g.challenges(g.data, 'b'); });
    g.time.at(90, [&] {
      const std::string reply = c.reply(g.nonce_of(g.control, 'a', 0));
      if (!reply.empty()) g.control.says(reply);
      if (reply.size() != 544) g.control.leaves();
    });
    std::string expected = c.expected;
    if (const auto at = expected.find("AT"); at != expected.npos)
      expected.replace(at, 2, "127.0.0.1:" + std::to_string(port));
    EXPECT_EQ(g.meets(port), expected);
    EXPECT_EQ(g.time.now(), 90);
  }
}

TEST(NetworkMeeting, RankWaitsForTheReplyTwiceAsLong) {
  JoiningRank g;
  const int port = g.host.listens();
  g.time.at(20, [&] { g.challenges(g.control, 'a'); });
  g.time.at(30, [&] { g.challenges(g.data, 'b'); });
  EXPECT_EQ(g.meets(port), "lost: [ranks] rank 0 does not answer");
  EXPECT_EQ(g.time.now(), 30 + 2 * 2400 + 5000);
}

// Connections end without a challenge, or send a wrong challenge.
TEST(NetworkMeeting, RankRetriesWithoutAChallenge) {
  JoiningRank g;
  const int port = g.host.listens();
  g.time.at(20, [&] { g.control.accepts(g.host), g.control.says("tg"), g.control.leaves(); });
  g.time.at(200, [&] { g.challenges(g.data, 'b'); });
  g.time.at(250, [&] {
    g.nonce_of(g.data, 'b', 0), g.control.accepts(g.host), g.control.says(std::string(40, 'x'));
  });
  EXPECT_EQ(g.meets(port), "wrong: [ranks] the process that listens on 127.0.0.1:" + std::to_string(port) +
                               " is not rank 0: expected a free port, and TG_PORT sets another");
  EXPECT_EQ(g.time.naps, (std::vector<std::int64_t>{5}));
}

TEST(NetworkMeeting, FailingSystemCallsAreReported) {
  struct Case {
    const char* call;
    int error;
    std::string expected;
    int others = 0;
  };
  const auto failure_of = [](const Case& c, const World& w, const JoinOptions& options) {
    fail_call_of(c.call, c.error, c.others);
    try {
      meet(w, options, "build");
    } catch (const Error& e) {
      EXPECT_TRUE(has_failed()) << c.call;
      return std::string(e.what());
    }
    return std::string("none");
  };
  const std::string at = "127.0.0.1:" + std::to_string(free_port()),
                    listens = "[ranks] to listen on " + at + " failed: ",
                    busy = "[ranks] another process listens on " + at +
                           ": expected a free port, and TG_PORT sets another";
  const World host = on_hosts(0, 2, std::stoi(at.substr(10))), peer = on_hosts(1, 2, host.port);
  for (const Case& c :
       {Case{"socket", EMFILE, "[ranks] socket failed: Too many open files"},
        {"socket", EAFNOSUPPORT, listens + "Address family not supported by protocol"},
        {"setsockopt", EPERM, "[ranks] setsockopt failed: Operation not permitted"},
        {"bind", EACCES, listens + "Permission denied"},
        {"bind", EADDRNOTAVAIL,
         "[ranks] MASTER_ADDR is 127.0.0.1, which is not an address of this host: expected rank 0's"},
        {"bind", EADDRINUSE, busy},
        {"listen", EADDRINUSE, busy},
        {"listen", EIO, listens + "Input/output error"}}) {
    const VirtualTime time;
    EXPECT_EQ(failure_of(c, host, {.join_timeout = milliseconds(0)}), c.expected) << c.call;
  }
  for (const Case& c :
       {Case{"socket", EMFILE, "[ranks] socket failed: Too many open files"},
        {"socket", EAFNOSUPPORT,
         "[ranks] rank 0 did not join within 0.0 s (" + at + ": Address family not supported by protocol)"},
        {"connect", ENETUNREACH,
         "[ranks] rank 0 did not join within 0.0 s (" + at + ": Network is unreachable)"},
        {"getsockopt", ENOBUFS,
         "[ranks] rank 0 did not join within 0.0 s (" + at + ": No buffer space available)"},
        {"setsockopt", EPERM, "[ranks] setsockopt failed: Operation not permitted"}}) {
    const VirtualTime time;
    EXPECT_EQ(failure_of(c, peer, {.join_timeout = milliseconds(0)}), c.expected) << c.call;
  }
  {
    Hosted h(2);
    Peer any;
    h.time.at(20, [&] { any.connects(h.port), fail_call_of("getrandom", EIO); });
    EXPECT_EQ(h.meets(), "[ranks] getrandom failed: Input/output error");
  }
  for (int option = 0; option < 6; ++option) {
    JoiningRank g;
    const int port = g.host.listens();
    g.time.at(20, [&] { g.challenges(g.control, 'a'), fail_call_of("setsockopt", EPERM, option); });
    EXPECT_EQ(g.meets(port), "[ranks] setsockopt failed: Operation not permitted") << option;
  }
}

TEST(NetworkMeeting, Ipv6AddressesArePrintedInBrackets) {
  const auto meeting_at = [](int rank, const std::string& address) {
    const VirtualTime time;
    World w = on_hosts(rank, 2, free_port());
    w.address = address;
    const std::string line = outcome([&] { meet(w, {.join_timeout = milliseconds(0)}, "build"); });
    const auto port = line.find(":" + std::to_string(w.port));
    return port == line.npos ? line : line.substr(0, port);
  };
  EXPECT_EQ(meeting_at(1, "::1"), "lost: [ranks] rank 0 did not join within 0.0 s ([::1]");
  EXPECT_EQ(meeting_at(1, "127.0.0.1"), "lost: [ranks] rank 0 did not join within 0.0 s (127.0.0.1");
  // The first bytes of this address are zero, but it is not the wildcard address.
  for (const char* address : {"::ffff:0.0.0.1", "::ffff:0.0.1.0", "::ffff:0.1.0.0", "::ffff:1.0.0.0", "::2"})
    EXPECT_EQ(meeting_at(0, address).find("expected the one address"), std::string::npos) << address;
}

// If there are no free descriptors, the oldest unauthenticated peer is disconnected. If there is no such
// peer, joining fails, and the user must raise the limit.
TEST(NetworkMeeting, OldestPeerIsDisconnectedWithoutFreeDescriptors) {
  for (const bool has_stranger : {true, false})
    for (const int error : {EMFILE, ENFILE, EAGAIN}) {
      Hosted h(2);
      Peer silent;
      Joining control, data;
      if (has_stranger) h.time.at(10, [&] { silent.connects(h.port); });
      h.time.at(20, [&] {
        fail_call_of("accept4", error);
        control.Peer::connects(h.port);
      });
      h.time.at(30, [&] {
        control.challenge = control.hears(40).substr(8);
        control.says(control.answer(join_bytes(1, 2, 0)));
      });
      bool is_closed = false;
      h.time.at(35, [&] { is_closed = silent.hears(40, 0).size() == 40 && silent.has_ended(0); });
      h.time.at(40, [&] { data.comes(h.port, join_bytes(1, 2, 1)); });
      const bool is_refused = error == EMFILE && !has_stranger;
      EXPECT_EQ(h.meets(), is_refused ? "wrong: [ranks] rank 0 cannot open more files, and needs one for "
                                        "each of 2 connections: expected a higher limit (ulimit -n)"
                                      : "no error");
      EXPECT_TRUE(has_failed());
      EXPECT_EQ(is_closed, has_stranger && error != EAGAIN) << error;
    }
}

// If a process has closed its standard input, a socket gets number 0.
TEST(NetworkMeeting, DescriptorZeroIsAccepted) {
  const int input = ::dup(STDIN_FILENO);
  for (const bool is_free_from_start : {true, false}) {  // number 0: the listener, or the first connection
    Hosted h(2);
    Joining control, data;
    if (is_free_from_start) ::close(STDIN_FILENO);
    h.time.at(50, [&] {
      if (!is_free_from_start) ::close(STDIN_FILENO);
      control.comes(h.port, join_bytes(1, 2, 0));
    });
    h.time.at(80, [&] { data.comes(h.port, join_bytes(1, 2, 1)); });
    EXPECT_EQ(h.meets(), "no error");
    h.meeting.reset();
    ::dup2(input, STDIN_FILENO);
  }
  JoiningRank g;
  const int port = g.host.listens();
  std::string nonce;
  ::close(STDIN_FILENO);
  g.time.at(20, [&] { g.challenges(g.control, 'a'); });
  g.time.at(30, [&] { nonce = g.nonce_of(g.control, 'a', 0), g.challenges(g.data, 'b'); });
  g.time.at(40, [&] {
    g.control.says(g.reply(0, "", 'a', nonce)), g.data.says(g.reply(0, "", 'b', g.nonce_of(g.data, 'b', 1)));
  });
  EXPECT_EQ(g.meets(port), "no error");
  EXPECT_TRUE(g.time.naps.empty());
  g.meeting.reset();
  ::dup2(input, STDIN_FILENO), ::close(input);
}

// At the end of a connection, recv() does not set errno, so errno contains an earlier error.
TEST(NetworkMeeting, DisconnectedPeerIsRemoved) {
  for (const int earlier_error : {0, EAGAIN, EINTR}) {
    Hosted h(2);
    Joining stranger, control, data;
    h.time.at(20, [&] {
      stranger.connects(h.port, [&] {
        stranger.leaves();
        errno = earlier_error;
      });
    });
    h.time.at(40, [&] { control.comes(h.port, join_bytes(1, 2, 0)); });
    h.time.at(50, [&] { data.comes(h.port, join_bytes(1, 2, 1)); });
    EXPECT_EQ(h.meets(), "no error");
    EXPECT_EQ(h.time.now(), 50);
  }
}

// An interrupted call is repeated. After other errors, the connection is closed.
TEST(NetworkMeeting, InterruptedCallsAreRepeated) {
  for (const int error : {EINTR, EAGAIN, EIO}) {
    JoiningRank g;
    const int port = g.host.listens();
    g.time.at(20, [&] { g.challenges(g.control, 'a'), g.time.next_recv_error = error; });
    g.time.at(30, [&] { g.challenges(g.data, 'b'); });
    const std::string end = error == EIO ? "did not join within 2.4 s" : "does not answer";
    EXPECT_EQ(g.meets(port).substr(0, 21 + end.size()), "lost: [ranks] rank 0 " + end) << error;
    EXPECT_EQ(g.time.naps.size(), error == EIO ? 1u : 0u) << error;
    Hosted h(2);
    Joining control, data;
    h.time.at(20, [&] {
      control.connects(h.port, [&] {
        control.says(control.answer(join_bytes(1, 2, 0)));
        h.time.next_recv_error = error;
      });
    });
    h.time.at(30, [&] { data.comes(h.port, join_bytes(1, 2, 1)); });
    EXPECT_EQ(h.meets().substr(0, 30), error == EIO ? "lost: [ranks] rank 1 did not j" : "no error") << error;
  }
}

// Rank 0 refuses the first connection and no longer listens for the second.
TEST(NetworkMeeting, RefusedRankDoesNotReconnect) {
  JoiningRank g;
  const int port = g.host.listens();
  g.time.at(20, [&] {
    g.challenges(g.control, 'a');
    g.host.leaves();
  });
  g.time.at(30, [&] { g.control.says(g.reply(1, "another program", 'a', g.nonce_of(g.control, 'a', 0))); });
  EXPECT_EQ(g.meets(port), "wrong: another program");
  EXPECT_LT(g.time.now(), 100);
}

}  // namespace
}  // namespace tg

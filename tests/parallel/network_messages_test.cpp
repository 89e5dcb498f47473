// Tests messages between ranks of several hosts, exact to the byte and the millisecond. One side is the code
// under test. The other side is a script in virtual time.
#include "parallel/network.h"

#include <gtest/gtest.h>

#include <random>

#include <sys/socket.h>

#include "tests/support/joined_ranks.h"
#include "tests/support/socket_pair.h"
#include "tests/support/virtual_time.h"

namespace tg {
namespace {

using namespace parallel;
using testing::VirtualTime;
using Lines = std::vector<std::string>;

template <class T>
std::string raw(const T& x) {
  return {reinterpret_cast<const char*>(&x), sizeof x};
}
std::string word(std::uint64_t x) {
  return raw(x);
}

struct Pair : testing::SocketPair {
  Connection connection(int rank) { return {rank, std::move(own)}; }
  void says(const std::string& bytes) const {
    EXPECT_EQ(::send(peer.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  std::string hears() const {  // reads all available data
    std::string all;
    char part[65536];
    for (ssize_t n; (n = ::recv(peer.fd, part, sizeof part, 0)) > 0;)
      all.append(part, static_cast<std::size_t>(n));
    return all;
  }
  bool has_ended() const {  // and no data is left
    char byte;
    return ::recv(peer.fd, &byte, 1, MSG_PEEK) == 0;
  }
  void leaves() { ::close(std::exchange(peer.fd, -1)); }
};

std::span<const std::byte> as_bytes(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

// The NetworkCommunicator of a rank whose peers follow a script.
struct Sharing {
  Sharing(int rank, int size, bool in_order = false)
      : memory(SharedMemory::create(size)), pairs(rank == 0 ? static_cast<std::size_t>(size) - 1 : 1) {
    std::vector<Connection> connections;
    if (rank != 0) connections.push_back(pairs[0].connection(0));
    for (int r = 1; rank == 0 && r < size; ++r) {
      const int next = in_order ? r : size - r;  // both orders must work
      connections.push_back(pairs[static_cast<std::size_t>(next) - 1].connection(next));
    }
    ranks.emplace(memory, std::move(connections), rank);
  }
  // Returns the bytes of all ranks, joined by commas, or the error.
  std::string shares(const std::string& own) {
    try {
      std::string all;
      ranks->share(as_bytes(own), [&](std::span<const std::byte* const> shown) {
        for (const std::byte* s : shown)
          all += std::string(reinterpret_cast<const char*>(s), own.size()) + ",";
      });
      return all;
    } catch (const RankLost& e) {
      return std::string("lost: ") + e.what();
    } catch (const Error& e) {
      return e.what();
    }
  }
  const RankState& state() const { return memory->state(ranks->rank()); }
  VirtualTime time;
  std::shared_ptr<SharedMemory> memory;
  std::vector<Pair> pairs;
  std::optional<NetworkCommunicator> ranks;
};

std::string head(std::uint64_t bytes, std::uint64_t other_bytes, std::int64_t other) {
  return word(bytes) + word(other_bytes) + raw(other);
}

TEST(NetworkSharing, RankZeroGathersAndBroadcasts) {
  Sharing s(0, 3);
  s.pairs[0].says(word(2) + "bb"), s.pairs[1].says(word(2) + "cc");
  EXPECT_EQ(s.shares("aa"), "aa,bb,cc,");
  for (const Pair& p : s.pairs) EXPECT_EQ(p.hears(), head(2, 0, -1) + "aabbcc");
  EXPECT_EQ(s.state().moves, 2u * 4 + 1) << "each received and sent message, and the end";
  EXPECT_EQ(s.state().is_waiting, 0u);
  EXPECT_EQ(s.time.corked, (std::vector<std::size_t>{24, 24})) << "headers are sent together with the data";
  s.pairs[0].says(word(0)), s.pairs[1].says(word(0));
  EXPECT_EQ(s.shares(""), ",,,");
  for (const Pair& p : s.pairs) EXPECT_EQ(p.hears(), head(0, 0, -1));
  EXPECT_EQ(s.time.corked.size(), 2u);
}

TEST(NetworkSharing, OtherRanksSendTheirBytesAndReceiveAll) {
  Sharing s(2, 3);
  s.time.at(30, [&] {  // rank 0 replies when it has all bytes
    EXPECT_EQ(s.pairs[0].hears(), word(2) + "cc");
    s.pairs[0].says(head(2, 0, -1) + "aabbcc");
  });
  EXPECT_EQ(s.shares("cc"), "aa,bb,cc,");
  EXPECT_EQ(s.time.corked, (std::vector<std::size_t>{8}));
  EXPECT_EQ(s.state().moves, 4u + 1);
  s.pairs[0].says(head(0, 0, -1));
  EXPECT_EQ(s.shares(""), ",,,");
  EXPECT_EQ(s.pairs[0].hears(), word(0));
  EXPECT_EQ(s.time.corked.size(), 1u);
  EXPECT_EQ(s.state().is_waiting, 0u);
}

// Bytes arrive one at a time, with pauses. During this time, the rank's state is `waiting`.
TEST(NetworkSharing, LateBytesAreAwaited) {
  for (const int rank : {0, 1}) {
    Sharing s(rank, 2);
    const std::string said = rank == 0 ? word(3) + "bbb" : head(3, 0, -1) + "aaabbb";
    for (std::size_t i = 0; i < said.size(); ++i)
      s.time.at(static_cast<std::int64_t>(70 * i), [&, i] {
        EXPECT_EQ(s.state().is_waiting, 1u);
        s.pairs[0].says(said.substr(i, 1));
      });
    EXPECT_EQ(s.shares(rank == 0 ? "aaa" : "bbb"), "aaa,bbb,");
    EXPECT_EQ(s.time.now(), 70 * (std::ssize(said) - 1));
    EXPECT_EQ(s.pairs[0].hears(), rank == 0 ? head(3, 0, -1) + "aaabbb" : word(3) + "bbb");
    EXPECT_EQ(s.state().is_waiting, 0u);
  }
}

// The peer reads slowly. Both sides are tested.
TEST(NetworkSharing, SlowReaderBlocksTheSender) {
  for (const int rank : {0, 1}) {
    Sharing s(rank, 2);
    const std::string own(1 << 20, 'o'), other(1 << 20, 'p');
    std::string heard;
    bool is_said = false;
    const std::string said = rank == 0 ? word(1 << 20) + other : head(1 << 20, 0, -1) + other + own;
    std::size_t done = 0;
    for (int i = 1; i < 100; ++i)
      s.time.at(40 * i, [&] {
        heard += s.pairs[0].hears();
        if (done == said.size()) return;
        const ssize_t n = ::send(s.pairs[0].peer.fd, said.data() + done, said.size() - done, MSG_NOSIGNAL);
        if (n > 0) done += static_cast<std::size_t>(n);
        is_said = true;
      });
    EXPECT_EQ(s.shares(own), rank == 0 ? own + "," + other + "," : other + "," + own + ",");
    heard += s.pairs[0].hears();
    EXPECT_TRUE(heard == (rank == 0 ? head(1 << 20, 0, -1) + own + other : word(1 << 20) + own));
    EXPECT_TRUE(is_said);
  }
}

TEST(NetworkSharing, DifferentSizesAreAnErrorOnAllRanks) {
  const auto line = [](int own, int rank, int other) {
    return "[ranks] share: rank 0 shows " + std::to_string(own) + " bytes and rank " + std::to_string(rank) +
           " " + std::to_string(other) + ": expected the same number of all ranks";
  };
  for (const bool in_order : {false, true}) {
    Sharing s(0, 4, in_order);
    s.pairs[0].says(word(2) + "bb"), s.pairs[1].says(word(3) + "ccc"), s.pairs[2].says(word(0));
    EXPECT_EQ(s.shares("aa"), line(2, 2, 3));
    for (const Pair& p : s.pairs) EXPECT_EQ(p.hears(), head(2, 3, 2));
    EXPECT_TRUE(s.time.corked.empty());
    EXPECT_EQ(s.state().is_waiting, 0u);
    s.pairs[0].says(word(0)), s.pairs[1].says(word(2) + "cc"), s.pairs[2].says(word(5) + "ddddd");
    EXPECT_EQ(s.shares("aa"), line(2, 1, 0)) << "they are still synchronized";
    for (const Pair& p : s.pairs) EXPECT_EQ(p.hears(), head(2, 0, 1));
  }
  Sharing other(1, 3);
  other.pairs[0].says(head(5, 2, 1));
  EXPECT_EQ(other.shares("bb"), line(5, 1, 2));
  other.pairs[0].says(head(2, 0, -1) + "aabbcc");
  EXPECT_EQ(other.shares("bb"), "aa,bb,cc,");
}

// The largest size that a rank may share must be accepted.
TEST(NetworkSharing, LargestSizeMayDiffer) {
  Sharing s(0, 2);
  const std::string said = word(1 << 20) + std::string(1 << 20, 'b');
  std::size_t done = 0;
  for (int i = 1; i < 100; ++i)
    s.time.at(40 * i, [&] {
      if (done == said.size()) return;
      const ssize_t n = ::send(s.pairs[0].peer.fd, said.data() + done, said.size() - done, MSG_NOSIGNAL);
      if (n > 0) done += static_cast<std::size_t>(n);
    });
  EXPECT_EQ(s.shares("aa"),
            "[ranks] share: rank 0 shows 2 bytes and rank 1 1048576: expected the same number of all ranks");
  EXPECT_EQ(s.pairs[0].hears(), head(2, 1 << 20, 1));
}

TEST(NetworkSharing, ImpossibleSizesEndTheRun) {
  Sharing zero(0, 3);
  zero.pairs[0].says(word(2) + "bb"), zero.pairs[1].says(word((1 << 20) + 1));
  EXPECT_EQ(zero.shares("aa"), "lost: [ranks] rank 2 sent an invalid message");
  EXPECT_EQ(zero.shares("aa"), "lost: [ranks] rank 2 sent an invalid message");
  Sharing one(1, 2);
  one.pairs[0].says(head(3, 0, -1) + "aaabbb");
  EXPECT_EQ(one.shares("bb"), "lost: [ranks] rank 0 sent an invalid message");
  Sharing large(0, 1);
  EXPECT_EQ(large.shares(std::string((1 << 20) + 1, 'x')),
            "[ranks] share: 1048577 bytes: expected at most 1048576");
  EXPECT_EQ(large.shares(std::string(1 << 20, 'x')), std::string(1 << 20, 'x') + ",");
  try {
    large.ranks->share({}, {});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "[ranks] share: the reader is empty");
  }
  large.memory->mark_lost(0, "is lost", 0);
  EXPECT_EQ(large.shares("a"), "lost: [ranks] rank 0 is lost");
}

// After the end of a connection, the reason may arrive on the other connection within five seconds.
TEST(NetworkSharing, ReasonIsAwaitedAfterAClosedConnection) {
  for (const int rank : {0, 1})
    for (const bool ends_while_sending : {false, true})
      for (const bool has_news : {false, true}) {
        Sharing s(rank, 2);
        if (ends_while_sending && rank == 0) s.pairs[0].says(word(1) + "b");
        if (ends_while_sending) ::shutdown(s.pairs[0].peer.fd, SHUT_RD);
        if (!ends_while_sending) ::shutdown(s.pairs[0].peer.fd, SHUT_WR);
        if (has_news) s.time.at(4930, [&] { s.memory->mark_lost(1 - rank, "has no room", rank); });
        const std::string who = "lost: [ranks] rank " + std::to_string(1 - rank);
        errno = EAGAIN;  // an earlier call may leave this error
        EXPECT_EQ(s.shares("a"), who + (has_news ? " has no room" : " is lost: its connection ended"));
        EXPECT_EQ(s.time.now(), has_news ? 4950 : 5000);
        for (const std::int64_t ms : s.time.naps) EXPECT_EQ(ms, 50);
      }
}

TEST(NetworkSharing, LossEndsAWait) {
  Sharing s(1, 3);
  s.time.at(120, [&] { s.memory->mark_lost(2, "is somewhere else", 1); });
  EXPECT_EQ(s.shares("b"), "lost: [ranks] rank 2 is somewhere else");
  EXPECT_EQ(s.time.now(), 150);
  EXPECT_EQ(error_of([&] { s.ranks->check_lost(); }), "lost: [ranks] rank 2 is somewhere else");
  Sharing late(1, 3);  // the expected data also arrives
  late.time.at(120, [&] {
    late.memory->mark_lost(2, "is somewhere else", 1);
    late.pairs[0].says(head(1, 0, -1) + "abc");
  });
  EXPECT_EQ(late.shares("b"), "lost: [ranks] rank 2 is somewhere else");
  EXPECT_EQ(late.time.now(), 120);
  Sharing interrupted(1, 2);
  interrupted.pairs[0].says(head(1, 0, -1) + "ab");
  interrupted.time.next_recv_error = EINTR;
  EXPECT_EQ(interrupted.shares("b"), "a,b,");
  interrupted.ranks->note_wait(true);
  EXPECT_EQ(interrupted.state().is_waiting, 2u);
}

// Builds messages of Notes, with the fields in the order of RankState.
struct Said {
  std::int64_t steps = 0;
  std::uint32_t moves = 0, is_waiting = 0, pauses = 0, beats = 0, has_ended = 0;
};
std::string state_message(const Said& s) {
  return word(1) + raw(s.steps) + raw(s.moves) + raw(s.is_waiting) + raw(s.pauses) + raw(s.beats) +
         raw(s.has_ended) + raw(std::uint32_t{0});
}
std::string loss_message(std::int64_t rank, std::string why) {
  why.resize(496);
  return word(2) + raw(rank) + why;
}
void set(RankState& to, const Said& s) {
  to.steps = s.steps, to.moves = s.moves, to.is_waiting = s.is_waiting;
  to.pauses = s.pauses, to.beats = s.beats, to.has_ended = s.has_ended;
}
std::string text_of(const RankState& s) {
  std::string text = std::to_string(s.steps.load());
  for (const auto* x : {&s.moves, &s.is_waiting, &s.pauses, &s.beats, &s.has_ended})
    text += " " + std::to_string(x->load());
  return text;
}

struct Noting {
  explicit Noting(int rank, int size = 4, int beat = 1000)
      : memory(SharedMemory::create(size)), pairs(rank == 0 ? static_cast<std::size_t>(size) - 1 : 1) {
    std::vector<Connection> connections;
    for (std::size_t i = 0; i < pairs.size(); ++i)
      connections.push_back(pairs[i].connection(rank == 0 ? static_cast<int>(i) + 1 : 0));
    notes.emplace(memory, std::move(connections), rank, milliseconds(beat));
  }
  std::size_t waited_for() const {
    std::vector<os::Polled> all;
    notes->add_to(all);
    for (const os::Polled& p : all) EXPECT_FALSE(p.for_room);
    return all.size();
  }
  std::string loss() const {
    const auto lost = memory->lost();
    return lost ? std::to_string(lost->rank) + " " + lost->why : "none";
  }
  VirtualTime time;
  std::shared_ptr<SharedMemory> memory;
  std::vector<Pair> pairs;
  std::optional<Notes> notes;
};

// A new state is sent at most every 100 ms. An unchanged state is sent again after `beat`. When a rank has
// ended, its state is always sent.
TEST(NotesRules, StatesAreSentAtTheRequiredIntervals) {
  for (const int beat : {0, 99, 100, 250, 1000})
    for (unsigned seed = 0; seed < 12; ++seed) {
      std::mt19937 random(seed);
      Noting n(0, 3, beat);
      const int longest = std::max(beat, 100);
      Said now, last;
      std::int64_t last_time = -1'000'000;
      int sent = 0, kept = 0;
      for (int look = 0; look < 150; ++look) {
        const int waits[] = {1, 49, 50, 99, 100, 101, 150};
        n.time.pass(waits[random() % std::size(waits)]);
        now.beats = static_cast<std::uint32_t>(look + 1);
        switch (random() % 24) {
          case 0:
            ++now.steps;
            break;
          case 1:
            ++now.moves;
            break;
          case 2:
            now.is_waiting = random() % 3;
            break;
          case 3:
            now.pauses ^= 1;
            break;
          case 4:
            now.has_ended = look > 120;
            break;
        }
        set(n.memory->state(0), now);
        n.notes->say();
        const auto fields = [](const Said& s) {
          return std::tuple(s.steps, s.moves, s.is_waiting, s.pauses, s.has_ended);
        };
        const bool is_new = last_time < 0 || fields(now) != fields(last);
        const std::int64_t since = n.time.now() - last_time;
        const bool says = (is_new && since >= 100) || since >= longest || now.has_ended != 0;
        if (says) last = now, last_time = n.time.now();
        for (const Pair& p : n.pairs)
          ASSERT_EQ(p.hears(), says ? state_message(now) : "") << beat << " " << look;
        ++(says ? sent : kept);
      }
      EXPECT_GT(sent, 10);
      EXPECT_GT(kept, 10);
    }
}

TEST(NotesRules, HeartbeatIntervalIsAnEighthOfTheTimeout) {
  for (const auto& [timeout, beat] :
       {std::pair(0, 1000), {1, 0}, {8, 1}, {800, 100}, {7999, 999}, {8000, 1000}, {60'000, 1000}})
    EXPECT_EQ(beat_of(milliseconds(timeout)), milliseconds(beat)) << timeout;
}

TEST(NotesRules, LossIsSentOnceToEachPeer) {
  Noting n(0, 4);
  set(n.memory->state(0), {.steps = 5});
  n.notes->say();
  for (const Pair& p : n.pairs) EXPECT_EQ(p.hears(), state_message({.steps = 5}));
  n.pairs[2].says(loss_message(1, "has no room"));  // rank 3 already knows this loss
  n.notes->hear();
  EXPECT_EQ(n.loss(), "1 has no room");
  for (int i = 0; i < 3; ++i) n.notes->say();
  EXPECT_EQ(n.pairs[0].hears(), loss_message(1, "has no room"));
  EXPECT_EQ(n.pairs[1].hears(), loss_message(1, "has no room"));
  EXPECT_EQ(n.pairs[2].hears(), "");
  for (const std::size_t length : {494u, 495u, 496u, 2000u}) {
    Noting other(1, 2);
    other.memory->mark_lost(0, std::string(length, 'w'), 1);
    other.notes->say();
    EXPECT_EQ(other.pairs[0].hears(),
              state_message({}) + loss_message(0, std::string(std::min<std::size_t>(length, 495), 'w')));
  }
}

TEST(NotesRules, MessagesInAnyPiecesSetTheStateOfTheirRank) {
  const Said first{7, 8, 1, 2, 9, 0}, second{INT64_MAX, UINT32_MAX, 2, UINT32_MAX, UINT32_MAX, 1};
  const std::string both = state_message(first) + state_message(second);
  ASSERT_EQ(both.size(), 80u);
  for (std::size_t cut = 0; cut <= both.size(); ++cut) {
    Noting n(0, 4);
    n.pairs[1].says(both.substr(0, cut));
    n.notes->hear();
    EXPECT_EQ(text_of(n.memory->state(2)), cut < 40 ? "0 0 0 0 0 0"
                                           : cut < 80
                                               ? "7 8 1 2 9 0"
                                               : "9223372036854775807 4294967295 2 4294967295 4294967295 1");
    n.pairs[1].says(both.substr(cut));
    n.notes->hear();
    EXPECT_EQ(text_of(n.memory->state(2)), "9223372036854775807 4294967295 2 4294967295 4294967295 1");
    for (const int other : {0, 1, 3}) EXPECT_EQ(text_of(n.memory->state(other)), "0 0 0 0 0 0");
    EXPECT_EQ(n.loss(), "none");
    EXPECT_EQ(n.waited_for(), 3u);
  }
}

// A rank has a connection only to rank 0. It counts heartbeats of the other ranks itself.
TEST(NotesRules, RankCountsHeartbeatsOfUnconnectedRanks) {
  Noting n(2, 4);
  n.pairs[0].says(state_message({.beats = 50}));
  for (int i = 0; i < 3; ++i) n.notes->hear();
  for (const auto& [rank, beats] : {std::pair(0, 50u), {1, 3u}, {2, 0u}, {3, 3u}, {4, 0u}})
    EXPECT_EQ(n.memory->state(rank).beats, beats) << rank << " of 4, whose memory has a fifth state";
  Noting zero(0, 4);
  zero.notes->hear();
  for (int r = 0; r < 4; ++r) EXPECT_EQ(zero.memory->state(r).beats, 0u);
}

TEST(NotesRules, ImpossibleMessagesAndEndsOfConnectionsAreLosses) {
  const std::string gone = "is lost: its process exited without reporting an error, or was killed",
                    nonsense = "sent an invalid message";
  struct Case {
    std::function<void(Noting&)> says;
    std::string loss;  // a message of rank 2 or of a different rank
    bool stays = false;
  };
  const auto message = [](const std::string& bytes) {
    return [bytes](Noting& n) { n.pairs[1].says(bytes); };
  };
  const Case cases[] = {
      {message(word(0)), "2 " + nonsense},
      {message(word(3)), "2 " + nonsense},
      {message(word(std::uint64_t{1} << 32 | 1)), "2 " + nonsense},
      {message(word(2).substr(0, 7)), "none", true},
      {message(loss_message(-1, "why")), "2 " + nonsense},
      {message(loss_message(4, "why")), "2 " + nonsense},
      {message(loss_message(INT64_MIN, "why")), "2 " + nonsense},
      {message(loss_message(0, "why")), "0 why", true},
      {message(loss_message(3, std::string(496, 'w'))), "3 " + std::string(495, 'w'), true},
      {message(loss_message(3, "why").substr(0, 511)), "none", true},
      {message(state_message({.steps = 3}) + word(9)), "2 " + nonsense},
      {[](Noting& n) { n.pairs[0].leaves(); }, "1 " + gone},
      {[](Noting& n) { n.pairs[1].leaves(); }, "2 " + gone},
      {[](Noting& n) {
         n.notes->say();  // nobody reads this data, so the connection is reset
         n.pairs[1].leaves();
       },
       "2 " + gone},
      {[](Noting& n) {
         n.pairs[1].leaves();
         n.notes->say();  // this call must not raise a signal
       },
       "2 " + gone},
      {[](Noting& n) { n.time.next_recv_error = EPIPE; }, "1 " + gone},
      {[](Noting& n) { n.time.next_recv_error = ETIMEDOUT; },
       "1 is lost: its host does not answer (Connection timed out)"},
      {[](Noting& n) { n.time.next_recv_error = EINTR; }, "none", true},
      {[](Noting& n) { n.time.next_recv_error = EAGAIN; }, "none", true},
      {[](Noting& n) {
         n.pairs[1].says(state_message({.has_ended = 1}));
         n.pairs[1].leaves();
       },
       "none"},
  };
  for (std::size_t i = 0; i < std::size(cases); ++i)
    for (const int earlier_error : {0, EINTR, EAGAIN, EPIPE, ETIMEDOUT}) {
      const Case& c = cases[i];
      Noting n(0, 4);
      c.says(n);
      errno = earlier_error;  // a successful recv() does not reset errno
      n.notes->hear();
      EXPECT_EQ(n.loss(), c.loss) << i;
      EXPECT_EQ(n.waited_for(), c.stays ? 3u : 2u) << i;
      n.pairs[2].says(state_message({.steps = 11}));  // the other connections are not affected
      n.notes->hear(), n.notes->say();
      EXPECT_EQ(n.memory->state(3).steps, 11) << i;
      EXPECT_NE(n.pairs[2].hears(), "") << i;
      if (!c.stays && c.loss == "2 " + nonsense) {
        EXPECT_EQ(n.pairs[1].hears(), "");
        EXPECT_TRUE(n.pairs[1].has_ended()) << "the peer may wait for the end";
      }
    }
}

// If a peer does not read for some time, it must still receive complete messages: a state and the loss.
TEST(NotesRules, SlowPeerReceivesWholeMessages) {
  Noting n(0, 3);
  std::size_t said = 0;
  std::string quick;
  for (int i = 0; i < 2000; ++i) {
    n.time.pass(100);
    n.memory->state(0).steps = i;
    n.notes->say(), ++said;
    quick += n.pairs[1].hears();
  }
  n.memory->mark_lost(2, "is lost", 0);
  n.notes->say();
  quick += n.pairs[1].hears();
  EXPECT_EQ(quick.size(), said * 40 + 512);
  std::string slow;
  for (int i = 0; i < 3; ++i) slow += n.pairs[0].hears(), n.notes->say();
  ASSERT_GE(slow.size(), 512u + 40);
  EXPECT_LT(slow.size(), quick.size());
  std::size_t at = 0, losses = 0;
  std::int64_t steps = -1;
  while (at < slow.size()) {
    if (slow.substr(at, 8) == word(2)) {
      EXPECT_EQ(slow.substr(at, 512), loss_message(2, "is lost"));
      at += 512, ++losses;
      continue;
    }
    std::int64_t next = 0;
    slow.copy(reinterpret_cast<char*>(&next), 8, at + 8);
    ASSERT_EQ(slow.substr(at, 40), state_message({.steps = next}));
    EXPECT_GT(next, steps);
    steps = next, at += 40;
  }
  EXPECT_EQ(losses, 1u);
}

// The connection of a slow peer stays open. Otherwise, unread data would be lost.
TEST(NotesRules, ConnectionOfASlowPeerStaysOpen) {
  Noting n(0, 2);
  for (int i = 0; i < 2000; ++i) {
    n.time.pass(100);
    n.memory->state(0).steps = i;
    n.notes->say();
  }
  const std::int64_t start = n.time.now();
  n.notes->say_goodbye();
  EXPECT_EQ(n.time.now(), start + 1000);
  EXPECT_EQ(n.pairs[0].hears().size() % 40, 0u);
  EXPECT_FALSE(n.pairs[0].has_ended());
}

TEST(NotesRules, FinalMessagesAreDeliveredToAll) {
  for (const bool all_end : {true, false}) {
    Noting n(0, 3);
    set(n.memory->state(0), {.steps = 4, .has_ended = 1});
    n.time.at(130, [&] {
      EXPECT_EQ(n.pairs[0].hears(), state_message({.steps = 4, .has_ended = 1}));
      EXPECT_TRUE(n.pairs[0].has_ended()) << "no more data arrives";
      n.pairs[0].says(std::string(5000, 'x'));
      n.pairs[0].leaves();
    });
    n.time.at(310, [&] {
      n.pairs[1].says("x");
      if (all_end) n.pairs[1].leaves();
    });
    n.notes->say_goodbye();
    EXPECT_EQ(n.time.now(), all_end ? 310 : 1010) << "it checks every 50 ms";
  }
}

// A connection with an error counts as ended. After an interrupted call, it may still work.
TEST(NotesRules, FinalMessagesSkipBrokenConnections) {
  for (const int error : {ECONNRESET, ETIMEDOUT, EINTR, EAGAIN}) {
    Noting n(0, 3);
    n.pairs[1].leaves();
    n.time.at(130, [&] {
      n.pairs[0].says("x");
      n.time.next_recv_error = error;
    });
    n.time.at(410, [&] { n.pairs[0].leaves(); });
    errno = EINTR;
    n.notes->say_goodbye();
    EXPECT_EQ(n.time.now(), error == EINTR || error == EAGAIN ? 410 : 130) << error;
  }
}

}  // namespace
}  // namespace tg

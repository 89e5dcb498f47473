// Tests how ranks of one host join, exact to the byte and the millisecond. One side is the code under test.
// The other side is a script in virtual time.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/hash.h"
#include "tests/support/local_meeting.h"

namespace tg {
namespace {

using namespace parallel;
using namespace testing;

TEST(Meeting, RankZeroReportsMissingRanksAndTimesOut) {
  Hosted h(4);
  Peer second;
  h.time.at(650, [&] { second.comes(join_of_rank(2, 4)); });
  EXPECT_EQ(h.meets(), "lost: [ranks] ranks 1 and 3 did not join within 2.4 s (2 of 4 joined)");
  EXPECT_EQ(h.time.now(), 2400);
  Lines expected;  // after 1/24 of the time, then after every 1/12
  for (int t = 100; t < 2400; t += 200)
    expected.push_back(std::to_string(t) + " [ranks] waiting for " +
                       (t < 650 ? "ranks 1, 2 and 3 (1 of 4 joined)" : "ranks 1 and 3 (2 of 4 joined)"));
  EXPECT_EQ(h.reports, expected);
  EXPECT_EQ(second.hears(), "lost: [ranks] ranks 1 and 3 did not join within 2.4 s (2 of 4 joined)");
  EXPECT_EQ(second.hears(), "the end");
}

TEST(Meeting, RankZeroNamesAtMostEightMissingRanks) {
  for (const auto& [size, text] : {std::pair(2, "rank 1"),
                                   {3, "ranks 1 and 2"},
                                   {9, "ranks 1, 2, 3, 4, 5, 6, 7 and 8"},
                                   {10, "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 1 others"},
                                   {30, "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 21 others"}}) {
    Hosted h(size, 0);
    EXPECT_EQ(h.meets(), std::string("lost: [ranks] ") + text + " did not join within 0.0 s (1 of " +
                             std::to_string(size) + " joined)");
    EXPECT_EQ(h.time.now(), 0);
  }
}

// A connection never blocks. If this process starts programs, they do not inherit the connection.
void expect_flags(const Connection& c) {
  EXPECT_NE(::fcntl(c.socket.fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(c.socket.fd, F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Meeting, AllRanksReceiveRankZerosMemory) {
  Hosted h(4);
  Peer peers[3];
  const int order[] = {2, 3, 1};
  for (int i = 0; i < 3; ++i) h.time.at(40 * (i + 1), [&, i] { peers[i].comes(join_of_rank(order[i], 4)); });
  ASSERT_EQ(h.meets(), "no error");
  EXPECT_EQ(h.time.now(), 120);
  EXPECT_TRUE(h.meeting->data.empty());
  ASSERT_EQ(h.meeting->connections.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(h.meeting->connections[i].rank, order[i]);
    expect_flags(h.meeting->connections[i]);
    int descriptor = -1;
    EXPECT_EQ(peers[i].hears(&descriptor), "welcome:  with a descriptor");
    EXPECT_NE(::fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
    const auto memory = SharedMemory::open(descriptor, 4);
    memory->state(3).steps = static_cast<std::int64_t>(i) + 5;
    EXPECT_EQ(h.meeting->memory->state(3).steps, static_cast<std::int64_t>(i) + 5);
    EXPECT_EQ(peers[i].hears(), "nothing");
    peers[i].leaves();
    char byte;
    EXPECT_EQ(::recv(h.meeting->connections[i].socket.fd, &byte, 1, 0), 0) << "its own connection";
  }
}

// One field of the second Join is wrong. Rank 0 sends a specific reply for each field. Some of these errors
// end the run.
TEST(Meeting, RankZeroValidatesEachFieldOfAJoin) {
  const std::string other_job = " (this is '" + job + "')";
  const auto here = [&](int rank) {
    return "[ranks] rank " + std::to_string(rank) +
           " of this job has already joined: expected one process per rank, and a different TG_JOB for a "
           "different job" +
           other_job;
  };
  struct Case {
    std::function<void(Join&)> change;
    std::string line;  // "": the connection is closed
    bool ends = false;
  };
  const Case cases[] = {
      {[](Join& j) { j.magic ^= 1; }, ""},
      {[](Join& j) { j.version = 3; },
       "[ranks] rank 2 uses protocol version 3, rank 0 uses 2: expected the same program", true},
      {[](Join& j) { j.version = 1; },
       "[ranks] rank 2 uses protocol version 1, rank 0 uses 2: expected the same program", true},
      {[](Join& j) { j.job[3] ^= 1; },
       "[ranks] rank 2 belongs to a different job from rank 0: expected the same TG_JOB, if it is set" +
           other_job},
      {[](Join& j) { j.job[39] = 1; },
       "[ranks] rank 2 belongs to a different job from rank 0: expected the same TG_JOB, if it is set" +
           other_job},
      {[](Join& j) { j.size = 4; }, "[ranks] rank 2 is of 4 ranks, rank 0 of 3: expected the same number",
       true},
      {[](Join& j) { j.build[0] = 'B', j.build[8] = 'x'; },
       "[ranks] rank 2 runs build Build, rank 0 build: expected the same program", true},
      {[](Join& j) { std::copy_n("0123456789", 10, j.build.begin()); },
       "[ranks] rank 2 runs build 01234567, rank 0 build: expected the same program", true},
      {[](Join& j) { j.build.fill('y'); },
       "[ranks] rank 2 runs build yyyyyyyy, rank 0 build: expected the same program", true},
      {[](Join& j) { j.rank = 0; }, here(0)},
      {[](Join& j) { j.rank = -1; }, here(-1)},
      {[](Join& j) { j.rank = 3; }, here(3)},
      {[](Join& j) { j.rank = 1; }, here(1)},
  };
  for (const Case& c : cases) {
    Hosted h(3);
    Peer first, second, other;
    Join join = join_of_rank(2, 3);
    c.change(join);
    h.time.at(10, [&] { first.comes(join_of_rank(1, 3)); });
    h.time.at(20, [&] { other.comes(join); });
    h.time.at(30, [&] { second.comes(join_of_rank(2, 3)); });
    EXPECT_EQ(h.meets(), c.ends ? "wrong: " + c.line : "no error");
    EXPECT_EQ(h.time.now(), c.ends ? 20 : 30);  // both peers are notified, and rank 0 stops waiting
    EXPECT_EQ(other.hears(), c.line.empty() ? "the end" : "wrong: " + c.line);
    EXPECT_EQ(first.hears(), c.ends ? "wrong: " + c.line : "welcome:  with a descriptor");
    if (!c.ends) {
      EXPECT_EQ(second.hears(), "welcome:  with a descriptor");
    }
  }
}

TEST(Meeting, MessagesOfWrongSizeAreRejected) {
  Hosted h(2);
  Peer peers[4], rank;
  const std::string join = bytes_of_join(join_of_rank(1, 2));
  ASSERT_EQ(join.size(), 104u);
  const std::string messages[] = {join.substr(0, 103), join + "x", "x", join + join};
  for (int i = 0; i < 4; ++i) h.time.at(10, [&, i] { peers[i].connects(), peers[i].says(messages[i]); });
  h.time.at(20, [&] { rank.comes(join_of_rank(1, 2)); });
  EXPECT_EQ(h.meets(), "no error");
  for (const Peer& p : peers) EXPECT_EQ(p.hears(), "the end");
  EXPECT_EQ(rank.hears(), "welcome:  with a descriptor");
}

// For a second after a refusal, rank 0 replies to ranks that connect.
TEST(Meeting, LateRanksReceiveTheRefusal) {
  for (const int latest : {900, 999, 1500}) {
    Hosted h(4);
    Peer first, wrong, late, last;
    Join other = join_of_rank(2, 4);
    other.size = 5;
    h.time.at(20, [&] { wrong.comes(other); });
    h.time.at(300, [&] { late.comes(join_of_rank(3, 4)); });
    h.time.at(20 + latest, [&] { last.comes(other); });
    const std::string line = "wrong: [ranks] rank 2 is of 5 ranks, rank 0 of 4: expected the same number";
    EXPECT_EQ(h.meets(), line);
    EXPECT_EQ(h.time.now(), 20 + std::min(latest, 1000));
    EXPECT_EQ(wrong.hears(), line);
    EXPECT_EQ(late.hears(), line);
    if (latest < 1000) {
      EXPECT_EQ(last.hears(), line);
    }
  }
}

// A rank that has received the refusal ends. This is not reported as a loss.
TEST(Meeting, RanksMayExitAfterARefusal) {
  Hosted h(5);
  Peer first, wrong, late, last;
  Join other = join_of_rank(2, 5);
  other.size = 6;
  const std::string line = "wrong: [ranks] rank 2 is of 6 ranks, rank 0 of 5: expected the same number";
  h.time.at(10, [&] { first.comes(join_of_rank(1, 5)); });
  h.time.at(20, [&] { wrong.comes(other); });
  h.time.at(100, [&] {
    EXPECT_EQ(first.hears(), line);
    first.leaves();
  });
  h.time.at(300, [&] { late.comes(join_of_rank(3, 5)); });
  h.time.at(400, [&] { last.comes(join_of_rank(4, 5)); });
  EXPECT_EQ(h.meets(), line);
  EXPECT_EQ(h.time.now(), 400);
  EXPECT_EQ(late.hears(), line);
  EXPECT_EQ(last.hears(), line);
}

TEST(Meeting, RankThatEndsEarlyEndsTheOthers) {
  for (const bool says_more : {false, true}) {
    Hosted h(3);
    Peer first, second;
    h.time.at(10, [&] { first.comes(join_of_rank(1, 3)); });
    h.time.at(50, [&] { says_more ? first.says("more") : first.leaves(); });
    h.time.at(80, [&] { second.comes(join_of_rank(2, 3)); });
    EXPECT_EQ(h.meets(), "lost: [ranks] rank 1 exited before all ranks joined");
    EXPECT_EQ(h.time.now(), 80);
    EXPECT_EQ(second.hears(), "lost: [ranks] rank 1 exited before all ranks joined");
  }
  Hosted h(3);  // the last rank leaves before its welcome
  Peer first, second;
  h.time.at(10, [&] { first.comes(join_of_rank(1, 3)); });
  h.time.at(20, [&] { second.comes(join_of_rank(2, 3)), second.leaves(); });
  EXPECT_EQ(h.meets(), "lost: [ranks] rank 2 exited before all ranks joined");
}

TEST(Meeting, SilentPeerIsDisconnectedAfterFiveSeconds) {
  Hosted h(2, 8000);
  Peer silent, rank;
  Lines heard;
  h.time.at(50, [&] { silent.connects(); });
  for (const int t : {60, 5049, 5052}) h.time.at(t, [&] { heard.push_back(silent.hears()); });
  h.time.at(6000, [&] { rank.comes(join_of_rank(1, 2)); });
  EXPECT_EQ(h.meets(), "no error");
  EXPECT_EQ(heard, (Lines{"nothing", "nothing", "the end"}));
  Lines expected;  // the same reports as without the peer
  for (int t = 333; t < 6000; t += 666)
    expected.push_back(std::to_string(t) + " [ranks] waiting for rank 1 (1 of 2 joined)");
  EXPECT_EQ(h.reports, expected);
}

TEST(Meeting, OldestPeerIsDisconnectedWithoutFreeDescriptors) {
  Hosted h(2);
  Peer silent[2], rank;
  Lines heard;
  for (int i : {0, 1}) h.time.at(10 + i, [&, i] { silent[i].connects(); });
  h.time.at(20, [&] {
    fail_call_of("accept4", EMFILE);
    rank.connects();
  });
  h.time.at(30, [&] {
    heard = {silent[0].hears(), silent[1].hears()};
    rank.says(bytes_of_join(join_of_rank(1, 2)));
  });
  EXPECT_EQ(h.meets(), "no error");
  EXPECT_EQ(heard, (Lines{"the end", "nothing"}));
}

// Rank 0 reads one message in each call of poll(). If a peer has sent a message before this call, it stays
// connected, even if its time has expired.
TEST(Meeting, MessagesAtTheLastMomentAreAccepted) {
  Hosted h(4, 8000);
  Peer ranks[3];
  h.time.at(50, [&] {
    for (Peer& p : ranks) p.connects();
  });
  h.time.at(5050, [&] {
    for (int r : {0, 1, 2}) ranks[r].says(bytes_of_join(join_of_rank(r + 1, 4)));
  });
  EXPECT_EQ(h.meets(), "no error");
  EXPECT_EQ(h.time.now(), 5050);
  for (const Peer& p : ranks) EXPECT_EQ(p.hears(), "welcome:  with a descriptor");
}

// A rank that connects after all ranks have joined may be rejected. This is not a loss.
TEST(Meeting, CompleteGroupNeedsNoMoreDescriptors) {
  for (const int error : {EMFILE, ENFILE}) {
    Hosted h(2);
    Peer rank, other;
    h.time.at(10, [&] { rank.connects(); });
    h.time.at(20, [&] {
      other.connects();
      fail_call_of("accept4", error);
      rank.says(bytes_of_join(join_of_rank(1, 2)));
    });
    EXPECT_EQ(h.meets(), "no error");
    EXPECT_TRUE(has_failed()) << "both are seen in one call of poll()";
    EXPECT_EQ(rank.hears(), "welcome:  with a descriptor");
  }
}

// The number of peers exceeds the limit by one, so the oldest peer is disconnected.
TEST(Meeting, OldestOfTooManyPeersIsDisconnected) {
  Hosted h(3);
  std::vector<Peer> silent(256 + 2 + 2);
  Peer ranks[2];
  Lines before, after;
  for (std::size_t i = 0; i < silent.size(); ++i)
    h.time.at(10 + static_cast<std::int64_t>(i), [&, i] { silent[i].connects(); });
  h.time.at(10 + 257, [&] { before.push_back(silent[0].hears()); });
  h.time.at(900, [&] {
    after = {silent[0].hears(), silent[1].hears(), silent[2].hears(), silent.back().hears()};
  });
  for (int r : {0, 1}) h.time.at(1000 + r, [&, r] { ranks[r].comes(join_of_rank(r + 1, 3)); });
  EXPECT_EQ(h.meets(), "no error");
  EXPECT_EQ(before, (Lines{"nothing"}));
  EXPECT_EQ(after, (Lines{"the end", "the end", "nothing", "nothing"}));
}

// If a job name is too long for a reply, it is truncated.
TEST(Meeting, LongRepliesAreTruncated) {
  Hosted h(2);
  h.world.job = std::string(600, 'j');
  h.options.join_timeout = milliseconds(100);
  std::string line;
  Peer wrong;
  h.time.at(10, [&] {
    sockaddr_un name{};
    const std::string text = socket_name(h.world.job);
    name.sun_family = AF_UNIX;
    std::copy(text.begin(), text.end(), name.sun_path);
    EXPECT_EQ(::connect(wrong.socket.fd, reinterpret_cast<const sockaddr*>(&name),
                        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size())),
              0);
    wrong.says(bytes_of_join(join_of_rank(1, 2)));  // a peer of a different job
  });
  EXPECT_EQ(h.meets(), "lost: [ranks] rank 1 did not join within 0.1 s (1 of 2 joined)");
  const std::string whole =
      "wrong: [ranks] rank 1 belongs to a different job from rank 0: expected the same TG_JOB, if it is set "
      "(this is '" +
      h.world.job;
  EXPECT_EQ(wrong.hears(), whole.substr(0, 7 + 499));
}

TEST(Meeting, DuplicateRankIsReported) {
  Peer first;
  first.listens();
  Hosted h(2);
  EXPECT_EQ(h.meets(),
            "wrong: [ranks] rank 0 of this job has already joined: expected one process with rank 0, and a "
            "different TG_JOB for a different job (this is '" +
                job + "')");
}

TEST(Meeting, RankRetriesWithIncreasingIntervals) {
  JoiningRank g;
  EXPECT_EQ(g.meets(), "lost: [ranks] rank 0 did not join within 2.4 s");
  std::vector<std::int64_t> naps{5, 10, 20, 40, 80};
  std::int64_t sum = 155;
  for (; sum < 2400; sum += 100) naps.push_back(100);
  EXPECT_EQ(g.time.naps, naps);
  EXPECT_EQ(g.time.now(), sum);
  ASSERT_EQ(g.reports.size(), 12u);
  EXPECT_EQ(g.reports[0], "155 [ranks] waiting for rank 0");  // the first attempt after 100 ms
  for (std::size_t i = 1; i < 12; ++i)
    EXPECT_EQ(g.reports[i], std::to_string(155 + 200 * i) + " [ranks] waiting for rank 0");
}

TEST(Meeting, RankSendsItsJoinAndReadsTheReply) {
  const std::string longest(499, 'w'), gone = "lost: [ranks] rank 0 exited before all ranks joined";
  const auto memory = SharedMemory::create(3);
  struct Case {
    std::function<void(JoiningRank&)> reply;
    std::string expected;
    int at = 500;
  };
  const Case cases[] = {
      {[&](JoiningRank& g) { g.replies(0, "", memory->descriptor()); }, "no error"},
      {[&](JoiningRank& g) { g.replies(0, "", memory->descriptor()); }, "no error", 9800},
      {[&](JoiningRank& g) { g.replies(1, "why"); }, "wrong: why"},
      {[&](JoiningRank& g) { g.replies(1, longest); }, "wrong: " + longest},
      {[&](JoiningRank& g) { g.replies(2, "why"); }, "lost: why"},
      {[&](JoiningRank& g) { g.replies(3, "who"); }, "lost: who"},
      {[&](JoiningRank& g) { g.replies(0, "", memory->descriptor(), 511); }, gone},
      {[&](JoiningRank& g) { g.replies(0, "", memory->descriptor(), 512, 7); }, gone},
      {[&](JoiningRank& g) { g.replies(1, "why", -1, 12); }, gone},
      {[&](JoiningRank& g) { g.peer.leaves(); }, gone},
      {[&](JoiningRank&) {}, "lost: [ranks] rank 0 does not answer"},
  };
  for (const Case& c : cases) {
    JoiningRank g;
    g.time.at(100, [&] { g.host.listens(); });  // the rank connects at 155 ms
    g.time.at(400, [&] {
      g.accepts();
      std::string said(200, '\0');
      said.resize(
          static_cast<std::size_t>(std::max<ssize_t>(0, ::recv(g.peer.socket.fd, said.data(), 200, 0))));
      EXPECT_EQ(said, bytes_of_join(join_of_rank(1, 3)));
    });
    g.time.at(c.at, [&] { c.reply(g); });
    EXPECT_EQ(g.meets(), c.expected);
    const bool is_silent = c.expected.ends_with("answer");
    EXPECT_EQ(g.time.now(), is_silent ? 155 + 2 * 2400 + 5000 : c.at);
    EXPECT_EQ(g.time.naps, (std::vector<std::int64_t>{5, 10, 20, 40, 80}));
    if (c.expected != "no error") continue;
    EXPECT_TRUE(g.meeting->data.empty());
    ASSERT_EQ(g.meeting->connections.size(), 1u);
    EXPECT_EQ(g.meeting->connections[0].rank, 0);
    expect_flags(g.meeting->connections[0]);
    g.meeting->memory->state(2).beats = 77;
    EXPECT_EQ(memory->state(2).beats, 77u);
    g.peer.leaves();
    char byte;
    EXPECT_EQ(::recv(g.meeting->connections[0].socket.fd, &byte, 1, 0), 0);
  }
}

// If a process has closed its standard input, a descriptor gets number 0.
TEST(Meeting, DescriptorZeroIsAccepted) {
  const int input = ::dup(STDIN_FILENO);
  const auto memory = SharedMemory::create(3);
  for (const bool is_free_from_start : {true, false}) {
    Hosted h(2);
    Peer rank;
    if (is_free_from_start) ::close(STDIN_FILENO);
    h.time.at(20, [&] {
      if (!is_free_from_start) ::close(STDIN_FILENO);
      rank.comes(join_of_rank(1, 2));
    });
    EXPECT_EQ(h.meets(), "no error");
    EXPECT_EQ(rank.hears(), "welcome:  with a descriptor") << "the memory's descriptor may be 0";
    h.meeting.reset(), ::dup2(input, STDIN_FILENO);
    JoiningRank g;
    g.host.listens();
    if (is_free_from_start) ::close(STDIN_FILENO);
    g.time.at(20, [&] {
      g.accepts();
      if (!is_free_from_start) ::close(STDIN_FILENO);
      g.replies(0, "", memory->descriptor());
    });
    EXPECT_EQ(g.meets(), "no error");
    g.meeting.reset(), ::dup2(input, STDIN_FILENO);
  }
  ::close(STDIN_FILENO);
  EXPECT_EQ(own_build().size(), 32u);
  errno = EINVAL;  // an earlier call may leave this error
  EXPECT_EQ(SharedMemory::create(2)->descriptor(), 0);
  ::dup2(input, STDIN_FILENO), ::close(input);
}

TEST(Meeting, AddressesOfJobsDiffer) {
  EXPECT_EQ(socket_name(job),
            std::string(1, '\0') + "tilegrad." + std::to_string(geteuid()) + "." + job_hash(job));
  EXPECT_NE(job_hash("a"), job_hash("b"));
}

TEST(Meeting, BuildIdIsTheHashOfTheProgram) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::ostringstream content;
  content << std::ifstream(program, std::ios::binary).rdbuf();
  const std::string bytes = content.str();
  const std::array<std::string_view, 1> pieces{bytes};
  const auto mappings = [&] {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) count += line.ends_with(program);
    return count;
  };
  const int before = mappings();
  EXPECT_EQ(own_build(), xxh3_128(pieces));
  EXPECT_NE(last_open_flags & O_CLOEXEC, 0) << "another thread may start a program meanwhile";
  EXPECT_EQ(mappings(), before) << "no mapping is left";
  EXPECT_GT(before, 0);
}

// Tests each system call that can fail, and the rank's report.
TEST(Meeting, FailingSystemCallsAreReported) {
  struct Case {
    const char* call;
    int error;
    std::string expected;
    int others = 0;
  };
  const std::string memory = "[ranks] cannot create shared memory: ",
                    file = "[ranks] reading /proc/self/exe failed: ",
                    absent = "[ranks] rank 1 did not join within 0.0 s (1 of 2 joined)";
  const auto expect = [](const Case& c, const std::string& got) {
    EXPECT_EQ(got, c.expected) << c.call;
    EXPECT_TRUE(has_failed()) << c.call;
  };
  for (const Case& c : {Case{"socket", EMFILE, "[ranks] socket failed: Too many open files"},
                        {"bind", EACCES, "[ranks] bind failed: Permission denied"},
                        {"listen", EOPNOTSUPP, "[ranks] listen failed: Operation not supported"}}) {
    Hosted h(2, 0);
    fail_call_of(c.call, c.error);
    expect(c, failure_of([&] { meet(h.world, h.options, "build"); }));
  }
  for (const Case& c : {Case{"socket", EMFILE, "[ranks] socket failed: Too many open files"},
                        {"connect", EACCES, "[ranks] connect failed: Permission denied"},
                        {"connect", EAGAIN, "[ranks] rank 0 did not join within 0.0 s"},
                        {"connect", EINTR, "[ranks] rank 0 did not join within 0.0 s"}}) {
    JoiningRank g(0);
    fail_call_of(c.call, c.error);
    expect(c, failure_of([&] { meet(local(1, 2), g.options, "build"); }));
  }
  for (const Case& c : {Case{"memfd_create", EMFILE, memory + "Too many open files"},
                        {"memfd_create", EINVAL, "none"},  // an older system lacks this call
                        {"ftruncate", ENOSPC, memory + "No space left on device"},
                        {"fcntl", EPERM, memory + "Operation not permitted"},
                        {"mmap", ENOMEM, "[ranks] cannot map the shared memory: Cannot allocate memory"}}) {
    fail_call_of(c.call, c.error);
    expect(c, failure_of([&] { SharedMemory::create(2); }));
  }
  for (const Case& c : {Case{"open", EACCES, file + "Permission denied"},
                        {"fstat", EIO, file + "Input/output error"},
                        {"mmap", ENOMEM, "[ranks] mapping /proc/self/exe failed: Cannot allocate memory"}}) {
    fail_call_of(c.call, c.error);
    expect(c, failure_of([&] { own_build(); }));
  }
#ifndef __SANITIZE_ADDRESS__  // the sanitizer also calls pipe2()
  const Case pipe{"pipe2", EMFILE, "[ranks] pipe failed: Too many open files"};
  fail_call_of(pipe.call, pipe.error);
  expect(pipe, failure_of([&] { GroupOfRankOne(); }));
#endif
}

TEST(Meeting, InterruptedWaitsAreRepeated) {
  for (const int error : {EINTR, ENOMEM}) {
    Hosted h(2);
    Peer rank;
    h.time.at(20, [&] {
      rank.comes(join_of_rank(1, 2));
      h.time.next_poll_error = error;
    });
    EXPECT_EQ(failure_of([&] { meet(h.world, h.options, "build"); }),
              error == EINTR ? "none" : "[ranks] poll failed: Cannot allocate memory");
    EXPECT_EQ(h.time.now(), 20);
  }
  const auto memory = SharedMemory::create(3);
  JoiningRank g;
  g.host.listens();
  g.time.at(20, [&] {
    g.accepts();
    g.time.next_poll_error = EINTR;
  });
  g.time.at(40, [&] { g.replies(0, "", memory->descriptor()); });
  EXPECT_EQ(g.meets(), "no error");
  EXPECT_EQ(g.time.now(), 40);
}

// The user of the peer is unknown.
TEST(Meeting, PeersOfUnknownUsersAreRejected) {
  Hosted h(2);
  Peer unknown, rank;
  h.time.at(20, [&] {
    fail_call_of("getsockopt", EPERM);
    unknown.comes(join_of_rank(1, 2));
  });
  h.time.at(40, [&] { rank.comes(join_of_rank(1, 2)); });
  EXPECT_EQ(h.meets(), "no error");
  EXPECT_EQ(unknown.hears(), "the end");
  EXPECT_EQ(rank.hears(), "welcome:  with a descriptor");
  JoiningRank g;
  g.host.listens();
  fail_call_of("getsockopt", EPERM);
  EXPECT_EQ(g.meets(),
            "wrong: [ranks] the address of this job belongs to another user's process: expected rank 0");
}

}  // namespace
}  // namespace tg

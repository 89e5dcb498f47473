// Helpers that test how ranks of one host join, exact to the byte and the millisecond. One side is the code
// under test. The other side is a script in virtual time. virtual_time.h and failing_calls.h replace system
// calls.
#pragma once

#include <gtest/gtest.h>

#include <array>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "parallel/listener.h"
#include "tests/support/failing_calls.h"
#include "tests/support/joined_ranks.h"
#include "tests/support/virtual_time.h"

namespace tg::testing {

using namespace parallel;
using Lines = std::vector<std::string>;

inline const std::string job = "scripted " + std::to_string(getpid());

inline World local(int rank, int size) {
  return {rank, size, rank, size, "launch", job};
}

inline Join join_of_rank(int rank, int size, const std::string& build = "build") {
  Join join{};
  join.magic = 0x6e696f6a206774, join.version = 2, join.rank = rank, join.size = size;
  std::copy(build.begin(), build.end(), join.build.begin());
  const std::string hash = job_hash(job);
  std::copy(hash.begin(), hash.end(), join.job.begin());
  return join;
}

inline std::string bytes_of_join(const Join& join) {
  return {reinterpret_cast<const char*>(&join), sizeof join};
}

inline sockaddr_un address(socklen_t& length) {
  sockaddr_un name{};
  const std::string text = socket_name(job);
  name.sun_family = AF_UNIX;
  std::copy(text.begin(), text.end(), name.sun_path);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size());
  return name;
}

// The socket to which the code under test is connected.
struct Peer {
  FileDescriptor socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  void connects() {
    socklen_t length = 0;
    const sockaddr_un name = address(length);
    EXPECT_EQ(::connect(socket.fd, reinterpret_cast<const sockaddr*>(&name), length), 0);
  }
  void listens() {
    socklen_t length = 0;
    const sockaddr_un name = address(length);
    EXPECT_EQ(::bind(socket.fd, reinterpret_cast<const sockaddr*>(&name), length), 0);
    EXPECT_EQ(::listen(socket.fd, 9), 0);
  }
  void says(const std::string& bytes) const {
    EXPECT_EQ(::send(socket.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  void comes(const Join& join) { connects(), says(bytes_of_join(join)); }
  void leaves() { ::close(std::exchange(socket.fd, -1)); }
  // Returns "nothing", "the end", or the kind and the text of a reply. Also returns whether a descriptor was
  // attached.
  std::string hears(int* descriptor = nullptr) const {
    Reply reply{};
    iovec part{&reply, sizeof reply};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr m{
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.data(), .msg_controllen = control.size()};
    const ssize_t n = ::recvmsg(socket.fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return errno == EAGAIN ? "nothing" : "the end";
    if (n == 0) return "the end";
    EXPECT_EQ(n, 512);
    EXPECT_EQ(reply.magic, 0x6e696f6a206774u);
    EXPECT_EQ(reply.text.back(), 0);
    const cmsghdr* header = CMSG_FIRSTHDR(&m);
    if (header && descriptor) std::memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
    return std::array{"welcome", "wrong", "lost", "stranger"}[reply.kind] + std::string(": ") +
           reply.text.data() + (header ? " with a descriptor" : "");
  }
};

// Runs rank 0 with peers that follow a script.
struct Hosted {
  explicit Hosted(int size, int join_timeout = 2400)
      : world(local(0, size)),
        options{.join_timeout = milliseconds(join_timeout), .report = [&](const std::string& line) {
                  reports.push_back(std::to_string(time.now()) + " " + line);
                }} {}
  std::string meets() {
    return error_of([&] { meeting.emplace(meet(world, options, "build")); });
  }
  World world;
  JoinOptions options;
  VirtualTime time;
  Lines reports;
  std::optional<Meeting> meeting;
};

// Runs rank 1 of three with a rank 0 that follows a script.
struct JoiningRank {
  explicit JoiningRank(int join_timeout = 2400)
      : options{.join_timeout = milliseconds(join_timeout), .report = [&](const std::string& line) {
                  reports.push_back(std::to_string(time.now()) + " " + line);
                }} {}
  std::string meets() {
    return error_of([&] { meeting.emplace(meet(local(1, 3), options, "build")); });
  }
  void accepts() {
    peer.socket.fd = (peer.leaves(), ::accept4(host.socket.fd, nullptr, nullptr, SOCK_NONBLOCK));
  }
  void replies(std::uint32_t kind, const std::string& text, int descriptor = -1, std::size_t size = 512,
               std::uint64_t magic = 0x6e696f6a206774) const {
    std::string bytes(512, '\0');
    std::memcpy(bytes.data(), &magic, 8), std::memcpy(bytes.data() + 8, &kind, 4);
    text.copy(bytes.data() + 12, 499);
    iovec part{bytes.data(), size};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr m{.msg_iov = &part, .msg_iovlen = 1};
    if (descriptor >= 0) {
      m.msg_control = control.data(), m.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&m);
      header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS,
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    EXPECT_EQ(::sendmsg(peer.socket.fd, &m, MSG_NOSIGNAL), static_cast<ssize_t>(size));
  }
  JoinOptions options;
  VirtualTime time;
  Lines reports;
  Peer host, peer;
  std::optional<Meeting> meeting;
};

// Makes a group of rank 1 in the memory that the script has sent.
struct GroupOfRankOne {
  explicit GroupOfRankOne(JoinOptions options = {}) : memory(SharedMemory::create(3)) {
    JoiningRank g;
    g.host.listens();
    g.time.at(20, [&] { g.accepts(), g.replies(0, "", memory->descriptor()); });
    group = join(local(1, 3), options);
    host = std::exchange(g.peer.socket.fd, -1);
  }
  ~GroupOfRankOne() { ::close(host); }
  std::shared_ptr<SharedMemory> memory;
  std::shared_ptr<Group> group;
  int host = -1;
};

inline std::string failure_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

}  // namespace tg::testing

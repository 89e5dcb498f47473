// Ranks of one host meet at an abstract Unix socket. Each message is one packet, and the system says whose
// process is at the other end.
#include "parallel/door.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "parallel/message.h"

#if defined(__linux__)

namespace tg::parallel {

namespace {

struct Address {
  sockaddr_un name{};
  socklen_t length;
  explicit Address(const std::string& job) {
    const std::string text = socket_name(job);
    name.sun_family = AF_UNIX;
    std::copy(text.begin(), text.end(), name.sun_path);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

FileDescriptor new_socket() {
  FileDescriptor s(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (s.fd < 0) fail_call("socket");
  return s;
}

// The user whose process is at the other end; nothing if that is unknown.
std::optional<uid_t> user_of(int socket) {
  ucred peer{};
  socklen_t n = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0) return std::nullopt;
  return peer.uid;
}

bool send_reply(int socket, Reply::Kind kind, const std::string& text, int descriptor) {
  Reply reply{.magic = join_magic, .kind = kind};
  put(reply.text, text);
  iovec part{&reply, sizeof reply};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{.msg_iov = &part, .msg_iovlen = 1};
  if (descriptor >= 0) {
    message.msg_control = control.data(), message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof reply);
}

class LocalDoor : public Door {
 public:
  explicit LocalDoor(const World& world) : Door(new_socket()) {
    const Address address(world.job);
    if (bind(listener_.fd, address.get(), address.length) != 0) {
      if (errno != EADDRINUSE) fail_call("bind");
      refuse_world(
          "rank 0 of this job is here already: expected one process with rank 0, and another TG_JOB for "
          "another job (this is '" +
          world.job + "')");
    }
    if (listen(listener_.fd, most_ranks) != 0) fail_call("listen");
  }

  int connections_per_rank() const override { return 1; }

  std::optional<Guest> accept() override {
    FileDescriptor s(accept4(listener_.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (s.fd < 0 || user_of(s.fd) != geteuid()) return std::nullopt;
    return Guest{std::move(s), {}};
  }

  Heard hear(Guest& guest) override {
    const ssize_t n = recv(guest.socket.fd, &guest.join, sizeof guest.join, MSG_TRUNC);
    const bool is_ours = n == static_cast<ssize_t>(sizeof guest.join) && guest.join.magic == join_magic;
    return is_ours ? Heard::joins : Heard::refused;
  }

  bool reply(const Guest& guest, Reply::Kind kind, const std::string& text, int descriptor) override {
    return send_reply(guest.socket.fd, kind, text, descriptor);
  }
};

// A socket that is connected to rank 0.
FileDescriptor connect_to_host(const World& world, const JoinOptions& options) {
  const Address address(world.job);
  const Milliseconds timeout = options.join_timeout;
  const Clock::time_point end = Clock::now() + timeout;
  WaitReports reports(options);
  for (Milliseconds nap{5};; nap = std::min(nap * 2, Milliseconds(100))) {
    FileDescriptor s = new_socket();
    if (connect(s.fd, address.get(), address.length) == 0) {
      if (user_of(s.fd) != geteuid())
        refuse_world("the address of this job belongs to another user's process: expected rank 0");
      return s;
    }
    // Nobody listens yet, or too many are waiting.
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) fail_call("connect");
    if (Clock::now() >= end) throw RankLost("[ranks] rank 0 did not come in " + seconds_text(timeout));
    if (reports.is_due()) reports.say("rank 0");
    std::this_thread::sleep_for(nap);
  }
}

// The reply and the descriptor that came with it, or -1.
std::pair<Reply, FileDescriptor> receive(int socket) {
  Reply reply{};
  iovec part{&reply, sizeof reply};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.data(), .msg_controllen = control.size()};
  const ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  int descriptor = -1;
  if (const cmsghdr* header = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
      header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  FileDescriptor received(descriptor);
  if (n != static_cast<ssize_t>(sizeof reply) || reply.magic != join_magic)
    throw RankLost("[ranks] rank 0 ended before all ranks had come");
  return {reply, std::move(received)};
}

}  // namespace

std::unique_ptr<Door> open_local_door(const World& world) {
  return std::make_unique<LocalDoor>(world);
}

Meeting enter_local(const World& world, const JoinOptions& options, const std::string& build) {
  FileDescriptor s = connect_to_host(world, options);
  const Join join = join_of(world, build, Purpose::control);
  // If it cannot be sent the reply says why, or that nobody is there.
  (void)!send(s.fd, &join, sizeof join, MSG_NOSIGNAL);
  const Clock::time_point end = end_of_patience(options);
  pollfd waited{s.fd, POLLIN};
  while (poll(&waited, 1, until(end)) <= 0)
    if (Clock::now() >= end) throw RankLost("[ranks] rank 0 does not answer");
  auto [reply, descriptor] = receive(s.fd);
  if (reply.kind == Reply::wrong) throw WorldError(text_of(reply.text));
  if (reply.kind != Reply::welcome) throw RankLost(text_of(reply.text));
  Meeting meeting{SharedMemory::open(std::exchange(descriptor.fd, -1), world.size), {}, {}};
  meeting.connections.push_back({0, std::move(s)});
  return meeting;
}

std::string socket_name(const std::string& job) {
  return std::string(1, '\0') + "tilegrad." + std::to_string(geteuid()) + "." + job_hash(job);
}

}  // namespace tg::parallel

#endif

// Ranks of one host meet at an abstract Unix socket. Each message is one packet, and the system reports the
// user of the peer process.
#include "parallel/listener.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "core/os/socket.h"
#include "parallel/message.h"

namespace tg::parallel {

namespace {

os::Address address_of(const World& world) {
  return os::local_address(socket_name(world.job));
}

FileDescriptor local_socket(const os::Address& address) {
  const os::Socket s = os::open_socket(address);
  if (s.descriptor < 0) fail_call("socket", s.error);
  return FileDescriptor(s.descriptor);
}

class LocalListener : public Listener {
 public:
  explicit LocalListener(const World& world, const os::Address& address) : Listener(local_socket(address)) {
    if (const int error = os::bind(socket_.fd, address)) {
      if (error != EADDRINUSE) fail_call("bind", error);
      refuse_world(
          "rank 0 of this job has already joined: expected one process with rank 0, and a different TG_JOB "
          "for a different job (this is '" +
          world.job + "')");
    }
    if (const int error = os::listen(socket_.fd, most_ranks)) fail_call("listen", error);
  }

  int connections_per_rank() const override { return 1; }

  std::optional<JoiningPeer> accept(int& error) override {
    const os::Socket accepted = os::accept(socket_.fd);
    FileDescriptor s(accepted.descriptor);
    error = accepted.error;
    if (s.fd < 0 || !os::is_of_this_user(s.fd)) return std::nullopt;
    return JoiningPeer{std::move(s), {}};
  }

  Heard hear(JoiningPeer& peer) override {
    std::array<std::byte, sizeof(Join) + 1> packet;  // one byte longer, to detect messages that are too long
    if (os::receive(peer.socket.fd, packet).bytes != sizeof(Join)) return Heard::refused;
    std::memcpy(&peer.join, packet.data(), sizeof(Join));
    return peer.join.magic == join_magic ? Heard::joins : Heard::refused;
  }

  bool reply(const JoiningPeer& peer, Reply::Kind kind, const std::string& text, int descriptor) override {
    Reply reply{.magic = join_magic, .kind = kind, .text = {}};
    put(reply.text, text);
    return os::send_with(peer.socket.fd, raw_bytes(reply), descriptor).bytes == sizeof reply;
  }
};

// A socket that is connected to rank 0.
FileDescriptor connect_to_host(const World& world, const JoinOptions& options) {
  const os::Address address = address_of(world);
  const Milliseconds timeout = options.join_timeout;
  const Clock::time_point end = Clock::now() + timeout;
  WaitReports reports(options);
  for (Milliseconds nap{5};; nap = std::min(nap * 2, Milliseconds(100))) {
    FileDescriptor s = local_socket(address);
    const int error = os::connect(s.fd, address);
    if (error == 0) {
      if (!os::is_of_this_user(s.fd))
        refuse_world("the address of this job belongs to another user's process: expected rank 0");
      return s;
    }
    // Either no process listens yet, or too many connections are pending.
    if (error != ECONNREFUSED && !os::is_temporary(error)) fail_call("connect", error);
    if (Clock::now() >= end) throw RankLost("[ranks] rank 0 did not join within " + seconds_text(timeout));
    if (reports.is_due()) reports.say("rank 0");
    std::this_thread::sleep_for(nap);
  }
}

// Returns the reply and the descriptor that was sent with it; −1 means none.
std::pair<Reply, FileDescriptor> receive(int socket) {
  Reply reply{};
  FileDescriptor received(-1);
  const os::Transfer n = os::receive_with(socket, raw_bytes(reply), received.fd);
  if (n.bytes != sizeof reply || reply.magic != join_magic)
    throw RankLost("[ranks] rank 0 exited before all ranks joined");
  return {reply, std::move(received)};
}

}  // namespace

std::unique_ptr<Listener> open_local_listener(const World& world) {
  return std::make_unique<LocalListener>(world, address_of(world));
}

Meeting enter_local(const World& world, const JoinOptions& options, const std::string& build) {
  FileDescriptor s = connect_to_host(world, options);
  const Join join = join_of(world, build, Purpose::control);
  // An error is ignored here. In that case the reply contains the reason, or the connection has ended.
  os::send(s.fd, raw_bytes(join));
  const Clock::time_point end = end_of_patience(options);
  while (os::poll({s.fd}, until(end)) != 0)
    if (Clock::now() >= end) throw RankLost("[ranks] rank 0 does not answer");
  auto [reply, descriptor] = receive(s.fd);
  if (reply.kind == Reply::wrong) throw WorldError(text_of(reply.text));
  if (reply.kind != Reply::welcome) throw RankLost(text_of(reply.text));
  Meeting meeting{SharedMemory::open(std::exchange(descriptor.fd, -1), world.size), {}, {}};
  meeting.connections.push_back({0, std::move(s)});
  return meeting;
}

std::string socket_name(const std::string& job) {
  return std::string(1, '\0') + "tilegrad." + std::to_string(os::effective_user()) + "." + job_hash(job);
}

}  // namespace tg::parallel

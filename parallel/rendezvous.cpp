#include "parallel/rendezvous.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "parallel/message.h"

namespace tg::parallel {

#if !defined(__linux__)

std::string own_build() {
  return "";
}
std::string socket_name(const std::string& job) {
  return job;
}
Meeting meet(const World&, const JoinOptions&, const std::string&) {
  throw WorldError("[ranks] several ranks need Linux");
}

#else

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr std::uint64_t join_magic = 0x6e696f6a206774;  // "tg join"
constexpr std::uint32_t join_version = 1;
constexpr Milliseconds patience_with_strangers{5'000}, patience_with_latecomers{1'000};

// What a rank sends to rank 0, once. Both messages are one packet of SOCK_SEQPACKET.
struct Join {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank, size;
  std::array<char, 40> build;
};

// What rank 0 sends back, once; a welcome has the descriptor of the shared memory with it.
struct Reply {
  enum Kind : std::uint32_t { welcome, wrong, lost };
  std::uint64_t magic;
  Kind kind;
  std::array<char, 500> text;  // the line to throw, ended by a zero
};

template <std::size_t n>
void put(std::array<char, n>& to, const std::string& text) {
  to = {};
  std::copy_n(text.begin(), std::min(text.size(), n - 1), to.begin());
}
template <std::size_t n>
std::string text_of(const std::array<char, n>& from) {
  return {from.data(), strnlen(from.data(), n)};
}

[[noreturn]] void fail_call(const char* call) {
  fail(std::string(call) + " failed: " + std::strerror(errno));
}

// Until then, for poll(): rounded up, at least 0.
int until(Clock::time_point then) {
  const auto left = std::chrono::ceil<Milliseconds>(then - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

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

bool send_reply(int socket, Reply::Kind kind, const std::string& text, int descriptor = -1) {
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

// Rank 0 while it waits for the others.
class Host {
 public:
  Host(const World& world, const JoinOptions& options, const std::string& build)
      : world_(world), options_(options), build_(build), listener_(new_socket()) {
    const Address address(world.job);
    if (bind(listener_.fd, address.get(), address.length) != 0) {
      if (errno != EADDRINUSE) fail_call("bind");
      refuse_world(
          "rank 0 of this job is here already: expected one process with rank 0, and another TG_JOB for "
          "another "
          "job (this is '" +
          world.job + "')");
    }
    if (listen(listener_.fd, most_ranks) != 0) fail_call("listen");
  }

  Meeting meet() {
    try {
      await_all();
      return welcome();
    } catch (const WorldError& e) {
      tell_all(Reply::wrong, e.what());
      throw;
    } catch (const RankLost& e) {
      tell_all(Reply::lost, e.what());
      throw;
    }
  }

 private:
  struct Stranger {  // has connected and not said who it is
    FileDescriptor socket;
    Clock::time_point leave;
  };

  void await_all() {
    const Clock::time_point start = Clock::now(), end = start + options_.join_timeout;
    Clock::time_point report = start + options_.join_timeout / 24;
    while (joined_.size() + 1 < static_cast<std::size_t>(world_.size)) {
      if (Clock::now() >= end) {
        is_late_ = true;
        throw RankLost("[ranks] " + absent() + " did not come in " + seconds_text(options_.join_timeout) +
                       here());
      }
      if (Clock::now() >= report) {
        report += options_.join_timeout / 12;
        if (options_.report) options_.report("[ranks] waiting for " + absent() + here());
      }
      wait(std::min(report, end));
    }
  }

  void wait(Clock::time_point end) {
    std::vector<pollfd> waited{{listener_.fd, POLLIN, 0}};
    for (const Stranger& s : strangers_) {
      waited.push_back({s.socket.fd, POLLIN, 0});
      end = std::min(end, s.leave);
    }
    for (const Connection& c : joined_) waited.push_back({c.socket.fd, POLLIN, 0});
    if (poll(waited.data(), waited.size(), until(end)) < 0 && errno != EINTR) fail_call("poll");
    for (const Connection& c : joined_)  // a rank says nothing more: it has ended
      for (const pollfd& w : waited)
        if (w.fd == c.socket.fd && w.revents != 0)
          throw RankLost("[ranks] rank " + std::to_string(c.rank) + " ended before all ranks had come");
    // One that speaks is heard, the next in the next call. The sockets of those that stay silent are closed.
    std::optional<Stranger> speaking;
    std::vector<Stranger> rest;
    for (std::size_t i = 0; i < strangers_.size(); ++i) {
      Stranger& s = strangers_[i];
      const bool speaks = waited[1 + i].revents != 0;
      if (speaks && !speaking)
        speaking.emplace(std::move(s));
      else if (speaks || Clock::now() < s.leave)
        rest.push_back(std::move(s));
    }
    std::swap(strangers_, rest);
    if (waited[0].revents != 0) accept_one();
    if (speaking) hear(*speaking);
  }

  void accept_one() {
    FileDescriptor s(accept4(listener_.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (s.fd < 0) return;  // it has given up
    if (user_of(s.fd) != geteuid() || strangers_.size() > static_cast<std::size_t>(most_ranks)) return;
    strangers_.push_back({std::move(s), Clock::now() + patience_with_strangers});
  }

  void hear(Stranger& s) {
    Join join;
    const ssize_t n = recv(s.socket.fd, &join, sizeof join, MSG_TRUNC);
    if (n != static_cast<ssize_t>(sizeof join) || join.magic != join_magic) return;  // not one of ours
    if (verdict_) {
      send_reply(s.socket.fd, verdict_->first, verdict_->second), ++told_;
      return;
    }
    const std::string rank = "rank " + std::to_string(join.rank);
    const auto refuse = [&](const std::string& why) {
      send_reply(s.socket.fd, Reply::wrong, "[ranks] " + why), ++told_;
      refuse_world(why);
    };
    if (join.version != join_version)
      refuse(rank + " joins by version " + std::to_string(join.version) + ", rank 0 by " +
             std::to_string(join_version) + ": expected the same program");
    if (join.size != world_.size)
      refuse(rank + " is of " + std::to_string(join.size) + " ranks, rank 0 of " +
             std::to_string(world_.size) + ": expected the same number");
    if (const std::string build = text_of(join.build); build != build_)
      refuse(rank + " runs build " + build.substr(0, 8) + ", rank 0 " + build_.substr(0, 8) +
             ": expected the same program");
    const bool is_here =
        std::any_of(joined_.begin(), joined_.end(), [&](const Connection& c) { return c.rank == join.rank; });
    // The others can do without it: it may belong to another job.
    if (join.rank < 1 || join.rank >= world_.size || is_here) {
      send_reply(s.socket.fd, Reply::wrong,
                 "[ranks] " + rank +
                     " of this job is here already: expected one process of each rank, and another "
                     "TG_JOB for another job (this is '" +
                     world_.job + "')");
      return;
    }
    joined_.push_back({join.rank, std::move(s.socket)});
  }

  Meeting welcome() {
    Meeting meeting{SharedMemory::create(world_.size), {}};
    for (const Connection& c : joined_)
      if (!send_reply(c.socket.fd, Reply::welcome, "", meeting.memory->descriptor()))
        throw RankLost("[ranks] rank " + std::to_string(c.rank) + " ended before all ranks had come");
    meeting.connections = std::move(joined_);
    return meeting;
  }

  // Tells all ranks why they do not begin, also those that come a little later: they would wait for rank 0.
  void tell_all(Reply::Kind kind, const std::string& line) {
    for (const Connection& c : joined_) send_reply(c.socket.fd, kind, line), ++told_;
    joined_.clear();
    verdict_ = {kind, line};
    const Clock::time_point end = Clock::now() + (is_late_ ? Milliseconds(0) : patience_with_latecomers);
    while (told_ + 1 < world_.size && Clock::now() < end) wait(end);
  }

  // "rank 3", "ranks 1, 3 and 5 others"
  std::string absent() const {
    std::vector<bool> is_here(static_cast<std::size_t>(world_.size));
    is_here[0] = true;
    for (const Connection& c : joined_) is_here[static_cast<std::size_t>(c.rank)] = true;
    std::string names;
    int named = 0;
    const int all = world_.size - static_cast<int>(joined_.size()) - 1;
    for (int r = 1; r < world_.size && named < 8; ++r)
      if (!is_here[static_cast<std::size_t>(r)]) {
        names += (named == 0 ? "" : named + 1 == all ? " and " : ", ") + std::to_string(r);
        ++named;
      }
    if (named < all) names += " and " + std::to_string(all - named) + " others";
    return (all == 1 ? "rank " : "ranks ") + names;
  }
  std::string here() const {
    return " (" + std::to_string(joined_.size() + 1) + " of " + std::to_string(world_.size) + " are here)";
  }

  const World& world_;
  const JoinOptions& options_;
  const std::string& build_;
  FileDescriptor listener_;
  std::vector<Stranger> strangers_;
  std::vector<Connection> joined_;
  bool is_late_ = false;                                         // the time to join is over
  std::optional<std::pair<Reply::Kind, std::string> > verdict_;  // for those that come now
  int told_ = 0;                                                 // ranks that know it
};

// A socket that is connected to rank 0.
FileDescriptor connect_to_host(const World& world, Milliseconds timeout) {
  const Address address(world.job);
  const Clock::time_point end = Clock::now() + timeout;
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

Meeting meet_host(const World& world, const JoinOptions& options, const std::string& build) {
  FileDescriptor s = connect_to_host(world, options.join_timeout);
  Join join{.magic = join_magic, .version = join_version, .rank = world.rank, .size = world.size};
  put(join.build, build);
  // If it cannot be sent the reply says why, or that nobody is there.
  (void)!send(s.fd, &join, sizeof join, MSG_NOSIGNAL);
  // Rank 0 ends it after the same time, and may have begun to count later.
  const Clock::time_point end = Clock::now() + 2 * options.join_timeout + Milliseconds(5'000);
  pollfd waited{s.fd, POLLIN, 0};
  while (poll(&waited, 1, until(end)) <= 0)
    if (Clock::now() >= end) throw RankLost("[ranks] rank 0 does not answer");
  auto [reply, descriptor] = receive(s.fd);
  if (reply.kind == Reply::wrong) throw WorldError(text_of(reply.text));
  if (reply.kind != Reply::welcome) throw RankLost(text_of(reply.text));
  Meeting meeting{SharedMemory::open(std::exchange(descriptor.fd, -1), world.size), {}};
  meeting.connections.push_back({0, std::move(s)});
  return meeting;
}

}  // namespace

std::string socket_name(const std::string& job) {
  const std::array<std::string_view, 1> pieces{job};
  return std::string(1, '\0') + "tilegrad." + std::to_string(geteuid()) + "." + xxh3_128(pieces);
}

std::string own_build() {
  const FileDescriptor file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  struct stat about {};
  if (file.fd < 0 || fstat(file.fd, &about) != 0 || about.st_size == 0) fail_call("reading /proc/self/exe");
  const auto bytes = static_cast<std::size_t>(about.st_size);
  void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (memory == MAP_FAILED) fail_call("mapping /proc/self/exe");
  const std::array<std::string_view, 1> pieces{std::string_view(static_cast<const char*>(memory), bytes)};
  std::string digits = xxh3_128(pieces);
  munmap(memory, bytes);
  return digits;
}

Meeting meet(const World& world, const JoinOptions& options, const std::string& build) {
  return world.rank == 0 ? Host(world, options, build).meet() : meet_host(world, options, build);
}

#endif

}  // namespace tg::parallel

// Ranks of several hosts meet at the address where rank 0 listens. Before anything that a peer sends is
// looked at, it must have shown that it knows the token, and rank 0 shows it with its reply:
//
//   rank 0 → peer  challenge  a number used once, n
//   peer → rank 0  answer     its own number m, its Join, HMAC(token, "joins", n, m, Join)
//   rank 0 → peer  Reply, HMAC(token, "replies", n, m, Reply)
//
// The token does not travel, and what was recorded cannot be sent again. What follows on the connection is
// neither encrypted nor signed.
#include "parallel/door.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/random.h>
#endif

#include "parallel/message.h"

#if defined(__linux__)

namespace tg::parallel {

namespace {

struct Challenge {
  std::uint64_t magic;
  Digest nonce;
};
struct Answer {
  Digest nonce;
  Join join;
  Digest proof;
};
struct SignedReply {
  Reply reply;
  Digest proof;
};
static_assert(std::has_unique_object_representations_v<Challenge> &&
              std::has_unique_object_representations_v<Answer> &&
              std::has_unique_object_representations_v<SignedReply>);

template <class T>
std::string_view bytes_of(const T& x) {
  return {reinterpret_cast<const char*>(&x), sizeof x};
}

Digest new_nonce() {
  Digest nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) fail_call("getrandom");
  return nonce;
}

template <class Message>
Digest proof_of(const std::string& token, std::string_view role, const Digest& challenge,
                const Digest& answer, const Message& message) {
  const std::array<std::string_view, 4> pieces{role, bytes_of(challenge), bytes_of(answer),
                                               bytes_of(message)};
  return hmac_sha256(token, pieces);
}
constexpr std::string_view joins = "tilegrad: joins", replies = "tilegrad: replies";

void set_option(int socket, int level, int option, int value) {
  if (setsockopt(socket, level, option, &value, sizeof value) != 0) fail_call("setsockopt");
}

// Small messages leave at once, and a peer whose host is gone is noticed: in silence, and on a connection for
// control also when it does not confirm what was sent. On one for data a stopped process may not confirm.
void prepare(int socket, Purpose purpose, const JoinOptions& options) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  if (purpose == Purpose::control)
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(dead_after(options).count()));
}

struct Addresses {
  addrinfo* first = nullptr;
  std::string error;  // why there are none
  Addresses(const World& world) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM, hints.ai_flags = AI_NUMERICSERV;
    if (const int e = getaddrinfo(world.address.c_str(), std::to_string(world.port).c_str(), &hints, &first))
      error = e == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(e);
  }
  Addresses(const Addresses&) = delete;
  ~Addresses() {
    if (first) freeaddrinfo(first);
  }
};

bool is_any(const addrinfo& a) {
  if (a.ai_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(a.ai_addr)->sin_addr.s_addr == htonl(INADDR_ANY);
  if (a.ai_family != AF_INET6) return false;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(a.ai_addr)->sin6_addr;
  const bool is_zero = std::all_of(address.s6_addr + 12, address.s6_addr + 16, [](int b) { return b == 0; });
  return IN6_IS_ADDR_UNSPECIFIED(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && is_zero);
}

// "10.0.0.1:29501"
std::string text_of_address(const addrinfo& a) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  getnameinfo(a.ai_addr, a.ai_addrlen, host.data(), host.size(), port.data(), port.size(),
              NI_NUMERICHOST | NI_NUMERICSERV);
  const std::string name = a.ai_family == AF_INET6 ? "[" + std::string(host.data()) + "]" : host.data();
  return name + ":" + port.data();
}

// -1 with errno where this host does not know addresses of that family at all.
FileDescriptor new_socket(int family) {
  FileDescriptor s(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (s.fd < 0 && errno != EAFNOSUPPORT) fail_call("socket");
  return s;
}

class NetworkDoor : public Door {
 public:
  NetworkDoor(const World& world, const JoinOptions& options)
      : Door(FileDescriptor(-1)), token_(world.token), options_(options) {
    const Addresses addresses(world);
    const std::string named = "MASTER_ADDR is " + world.address;
    if (!addresses.first) refuse_world(named + ", which cannot be found: " + addresses.error);
    int error = 0;
    for (const addrinfo* a = addresses.first; a && listener_.fd < 0; a = a->ai_next) {
      if (is_any(*a)) refuse_world(named + ": expected the one address of rank 0's host that others use");
      where_ = text_of_address(*a);
      FileDescriptor s = new_socket(a->ai_family);
      if (s.fd >= 0) set_option(s.fd, SOL_SOCKET, SO_REUSEADDR, 1);
      if (s.fd >= 0 && bind(s.fd, a->ai_addr, a->ai_addrlen) == 0 && listen(s.fd, 1024) == 0)
        listener_.fd = std::exchange(s.fd, -1);
      else
        error = errno;
    }
    if (listener_.fd >= 0) return;
    if (error == EADDRNOTAVAIL) refuse_world(named + ", which is no address of this host: expected rank 0's");
    if (error == EADDRINUSE)
      refuse_world("another process listens on " + where_ +
                   ": expected a free port, and TG_PORT sets another");
    errno = error;
    fail_call(("to listen on " + where_).c_str());
  }

  int connections_per_rank() const override { return 2; }

  std::optional<Guest> accept() override {
    Guest guest{FileDescriptor(accept4(listener_.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)), {}};
    if (guest.socket.fd < 0) return std::nullopt;
    guest.own_nonce = new_nonce();
    const Challenge challenge{join_magic, guest.own_nonce};
    // It has room in the system's memory.
    if (send(guest.socket.fd, &challenge, sizeof challenge, MSG_NOSIGNAL) != sizeof challenge)
      return std::nullopt;
    return guest;
  }

  Heard hear(Guest& guest) override {
    std::array<char, sizeof(Answer)> bytes;
    if (Clock::now() >= guest.leave) return Heard::refused;
    const ssize_t n = recv(guest.socket.fd, bytes.data(), bytes.size() - guest.received.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Heard::nothing;
    if (n <= 0) return Heard::refused;
    guest.received.append(bytes.data(), static_cast<std::size_t>(n));
    if (guest.received.size() < sizeof(Answer)) return Heard::nothing;
    Answer answer;
    std::memcpy(&answer, guest.received.data(), sizeof answer);
    if (!are_equal(answer.proof, proof_of(token_, joins, guest.own_nonce, answer.nonce, answer.join))) {
      ++strangers_;
      const SignedReply refusal{.reply = {.magic = join_magic, .kind = Reply::stranger, .text = {}},
                                .proof = {}};
      (void)!send(guest.socket.fd, &refusal, sizeof refusal, MSG_NOSIGNAL);
      return Heard::refused;
    }
    if (answer.join.magic != join_magic || answer.join.purpose > Purpose::data) return Heard::refused;
    guest.join = answer.join, guest.its_nonce = answer.nonce;
    prepare(guest.socket.fd, guest.join.purpose, options_);
    return Heard::joins;
  }

  bool reply(const Guest& guest, Reply::Kind kind, const std::string& text, int) override {
    SignedReply message{.reply = {.magic = join_magic, .kind = kind, .text = {}}, .proof = {}};
    put(message.reply.text, text);
    message.proof = proof_of(token_, replies, guest.own_nonce, guest.its_nonce, message.reply);
    return send(guest.socket.fd, &message, sizeof message, MSG_NOSIGNAL) ==
           static_cast<ssize_t>(sizeof message);
  }

  std::string about() const override {
    std::string text = "; rank 0 listens on " + where_;
    if (strangers_ > 0) text += "; connections with another token: " + std::to_string(strangers_);
    return text;
  }

 private:
  const std::string& token_;
  const JoinOptions& options_;
  std::string where_;
  std::int64_t strangers_ = 0;
};

// One connection to rank 0, made by one rank.
class Entrance {
 public:
  Entrance(const World& world, const JoinOptions& options, const std::string& build, Purpose purpose)
      : world_(world), options_(options), join_(join_of(world, build, purpose)), socket_(-1) {}

  // Connects and answers the challenge, or returns when `other` has got its reply already.
  void come(const Entrance* other) {
    const Clock::time_point end = Clock::now() + options_.join_timeout;
    WaitReports reports(options_);
    std::string why;
    for (Milliseconds nap{5};; nap = std::min(nap * 2, Milliseconds(250))) {
      const Addresses addresses(world_);
      if (!addresses.first)
        why = "MASTER_ADDR is " + world_.address + ", which cannot be found: " + addresses.error;
      for (const addrinfo* a = addresses.first; a; a = a->ai_next) {
        where_ = text_of_address(*a);
        if (connects(*a, end) && answers(end)) return;
        why = where_ + ": " + std::strerror(errno);
      }
      if (other && other->has_reply()) return;
      if (Clock::now() >= end)
        throw RankLost("[ranks] rank 0 did not come in " + seconds_text(options_.join_timeout) + " (" + why +
                       ")");
      if (reports.is_due()) reports.say("rank 0 (" + why + ")");
      std::this_thread::sleep_for(nap);
    }
  }

  // Rank 0's verdict. Throws if it is no welcome.
  void await_reply() {
    SignedReply message{};
    if (!receive(message, end_of_patience(options_))) {
      if (errno == ETIMEDOUT) throw RankLost("[ranks] rank 0 does not answer");
      throw RankLost("[ranks] rank 0 ended before all ranks had come");
    }
    const Reply& reply = message.reply;
    if (reply.kind == Reply::stranger)
      refuse_world(
          "rank 0, on " + where_ +
          ", has another token: expected the same TG_TOKEN or content of TG_TOKEN_FILE on all hosts");
    if (reply.magic != join_magic ||
        !are_equal(message.proof, proof_of(world_.token, replies, challenge_, nonce_, reply)))
      refuse_world("what answers on " + where_ + " does not know the token: expected rank 0 of this job");
    if (reply.kind == Reply::wrong) throw WorldError(text_of(reply.text));
    if (reply.kind != Reply::welcome) throw RankLost(text_of(reply.text));
  }

  Connection connection() { return {0, std::move(socket_)}; }

 private:
  bool has_reply() const { return waits(POLLIN, Clock::now()); }

  bool waits(short event, Clock::time_point end) const {
    pollfd waited{socket_.fd, event};
    for (;;) {
      const int n = poll(&waited, 1, until(end));
      if (n > 0) return true;
      if (Clock::now() >= end) return errno = ETIMEDOUT, false;
    }
  }

  void replace_socket(FileDescriptor s) { std::swap(socket_.fd, s.fd); }

  bool connects(const addrinfo& a, Clock::time_point end) {
    replace_socket(new_socket(a.ai_family));
    if (socket_.fd < 0) return false;
    set_option(socket_.fd, SOL_SOCKET, SO_REUSEADDR, 1);  // rank 0 may want the port that this one gets
    if (connect(socket_.fd, a.ai_addr, a.ai_addrlen) != 0 && errno != EINPROGRESS) return false;
    // A host that does not answer yet is asked again: the system's own pauses get long.
    if (!waits(POLLOUT, std::min(end, Clock::now() + Milliseconds(5'000)))) return false;
    int error = 0;
    socklen_t n = sizeof error;
    if (getsockopt(socket_.fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0) return false;
    return errno = error, error == 0 && !is_its_own_peer();
  }

  // On rank 0's host, before it listens: where its port is one of those that the system gives to who
  // connects.
  bool is_its_own_peer() const {
    sockaddr_storage own{}, peer{};
    socklen_t own_size = sizeof own, peer_size = sizeof peer;
    getsockname(socket_.fd, reinterpret_cast<sockaddr*>(&own), &own_size);
    getpeername(socket_.fd, reinterpret_cast<sockaddr*>(&peer), &peer_size);
    errno = ECONNREFUSED;
    return own_size == peer_size && std::memcmp(&own, &peer, own_size) == 0;
  }

  bool answers(Clock::time_point end) {
    Challenge challenge{};
    if (!receive(challenge, end)) return false;
    if (challenge.magic != join_magic)
      refuse_world("what listens on " + where_ +
                   " is not rank 0: expected a free port, and TG_PORT sets another");
    challenge_ = challenge.nonce, nonce_ = new_nonce();
    const Answer answer{nonce_, join_, proof_of(world_.token, joins, challenge_, nonce_, join_)};
    prepare(socket_.fd, join_.purpose, options_);
    return send(socket_.fd, &answer, sizeof answer, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof answer);
  }

  template <class T>
  bool receive(T& message, Clock::time_point end) {
    char* at = reinterpret_cast<char*>(&message);
    for (std::size_t done = 0; done < sizeof message;) {
      if (!waits(POLLIN, end)) return false;
      const ssize_t n = recv(socket_.fd, at + done, sizeof message - done, 0);
      if (n > 0) done += static_cast<std::size_t>(n);
      if (n == 0) return errno = ECONNRESET, false;
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    }
    return true;
  }

  const World& world_;
  const JoinOptions& options_;
  const Join join_;
  FileDescriptor socket_;
  std::string where_;
  Digest challenge_{}, nonce_{};
};

}  // namespace

Milliseconds dead_after(const JoinOptions& options) {
  if (options.step_timeout == Milliseconds(0)) return Milliseconds(30'000);
  return std::clamp(options.step_timeout / 2, Milliseconds(1'000), Milliseconds(30'000));
}

std::unique_ptr<Door> open_network_door(const World& world, const JoinOptions& options) {
  return std::make_unique<NetworkDoor>(world, options);
}

Meeting enter_network(const World& world, const JoinOptions& options, const std::string& build) {
  Entrance control(world, options, build, Purpose::control), data(world, options, build, Purpose::data);
  control.come(nullptr);
  data.come(&control);
  control.await_reply();
  data.await_reply();
  Meeting meeting{SharedMemory::create(world.size), {}, {}};
  meeting.connections.push_back(control.connection());
  meeting.data.push_back(data.connection());
  return meeting;
}

}  // namespace tg::parallel

#endif

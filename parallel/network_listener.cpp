// Ranks of several hosts connect to the address on which rank 0 listens. Before rank 0 reads a peer's Join,
// the peer must prove that it knows the token. The reply proves that rank 0 also knows the token:
//
//      rank 0 → peer  challenge  a nonce n
//      peer → rank 0  answer     its nonce m, its Join, HMAC(token, "joins", n, m, Join)
//      rank 0 → peer  Reply, HMAC(token, "replies", n, m, Reply)
//
// The token itself is never sent, and recorded messages cannot be replayed. Later traffic on the connection
// is neither encrypted nor signed.
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
  if (const int error = os::fill_with_random(raw_bytes(nonce))) fail_call("getrandom", error);
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

void check_options(int error) {
  if (error != 0) fail_call("setsockopt", error);
}

// Disables delays for small messages, and enables the detection of dead hosts. On a control connection, a
// host also counts as dead if it does not acknowledge sent bytes. On a data connection it does not, because
// the receive buffer of a stopped process may be full.
void prepare(int socket, Purpose purpose, const JoinOptions& options) {
  os::TcpOptions tcp{.idle = 10, .interval = 5, .probes = 4};
  if (purpose == Purpose::control) tcp.confirm_ms = static_cast<int>(dead_after(options).count());
  check_options(os::set_options(socket, tcp));
}

// If this host does not support the address family, the result is empty and `error` is set.
FileDescriptor network_socket(const os::Address& address, int& error) {
  const os::Socket opened = os::open_socket(address);
  FileDescriptor s(opened.descriptor);
  error = opened.error;
  if (s.fd < 0 && error != EAFNOSUPPORT) fail_call("socket", error);
  // Rank 0 may need a port that a socket of another rank has used.
  if (s.fd >= 0) check_options(os::allow_reuse(s.fd));
  return s;
}

class NetworkListener : public Listener {
 public:
  NetworkListener(const World& world, const JoinOptions& options)
      : Listener(FileDescriptor(-1)), token_(world.token), options_(options) {
    const os::Addresses addresses = os::find_addresses(world.address, world.port);
    const std::string named = "MASTER_ADDR is " + world.address;
    if (addresses.list.empty()) refuse_world(named + ", which cannot be found: " + addresses.error);
    int error = 0;
    for (const os::Address& a : addresses.list) {
      if (a.is_any) refuse_world(named + ": expected the one address of rank 0's host that others use");
      where_ = a.text;
      FileDescriptor s = network_socket(a, error);
      if (s.fd >= 0) error = os::bind(s.fd, a);
      if (error == 0) error = os::listen(s.fd, 1024);
      if (error != 0) continue;
      socket_.fd = std::exchange(s.fd, -1);
      return;
    }
    if (error == EADDRNOTAVAIL)
      refuse_world(named + ", which is not an address of this host: expected rank 0's");
    if (error == EADDRINUSE)
      refuse_world("another process listens on " + where_ +
                   ": expected a free port, and TG_PORT sets another");
    fail_call("to listen on " + where_, error);
  }

  int connections_per_rank() const override { return 2; }

  std::optional<JoiningPeer> accept(int& error) override {
    const os::Socket accepted = os::accept(socket_.fd);
    JoiningPeer peer{FileDescriptor(accepted.descriptor), {}};
    error = accepted.error;
    if (peer.socket.fd < 0) return std::nullopt;
    peer.own_nonce = new_nonce();
    const Challenge challenge{join_magic, peer.own_nonce};
    // The challenge always fits into the empty send buffer.
    if (os::send(peer.socket.fd, raw_bytes(challenge)).bytes != sizeof challenge) return std::nullopt;
    return peer;
  }

  Heard hear(JoiningPeer& peer) override {
    std::array<char, sizeof(Answer)> bytes;
    if (Clock::now() >= peer.leave) return Heard::refused;
    const auto [n, error] =
        os::receive(peer.socket.fd, raw_bytes(bytes).first(bytes.size() - peer.received.size()));
    if (os::is_temporary(error)) return Heard::nothing;
    if (n == 0) return Heard::refused;
    peer.received.append(bytes.data(), n);
    if (peer.received.size() < sizeof(Answer)) return Heard::nothing;
    Answer answer;
    std::memcpy(&answer, peer.received.data(), sizeof answer);
    if (!are_equal(answer.proof, proof_of(token_, joins, peer.own_nonce, answer.nonce, answer.join))) {
      ++strangers_;
      const SignedReply refusal{.reply = {.magic = join_magic, .kind = Reply::stranger, .text = {}},
                                .proof = {}};
      os::send(peer.socket.fd, raw_bytes(refusal));
      return Heard::refused;
    }
    if (answer.join.magic != join_magic || answer.join.purpose > Purpose::data) return Heard::refused;
    peer.join = answer.join, peer.its_nonce = answer.nonce;
    prepare(peer.socket.fd, peer.join.purpose, options_);
    return Heard::joins;
  }

  bool reply(const JoiningPeer& peer, Reply::Kind kind, const std::string& text, int) override {
    SignedReply message{.reply = {.magic = join_magic, .kind = kind, .text = {}}, .proof = {}};
    put(message.reply.text, text);
    message.proof = proof_of(token_, replies, peer.own_nonce, peer.its_nonce, message.reply);
    return os::send(peer.socket.fd, raw_bytes(message)).bytes == sizeof message;
  }

  std::string about() const override {
    std::string text = "; rank 0 listens on " + where_;
    if (strangers_ > 0) text += "; connections with a different token: " + std::to_string(strangers_);
    return text;
  }

 private:
  const std::string& token_;
  const JoinOptions& options_;
  std::string where_;
  std::int64_t strangers_ = 0;
};

// A connection of one rank to rank 0.
class Entrance {
 public:
  Entrance(const World& world, const JoinOptions& options, const std::string& build, Purpose purpose)
      : world_(world), options_(options), join_(join_of(world, build, purpose)), socket_(-1) {}

  // Connects and answers the challenge. Returns early if `other` already has its reply.
  void come(const Entrance* other) {
    const Clock::time_point end = Clock::now() + options_.join_timeout;
    WaitReports reports(options_);
    std::string why;
    for (Milliseconds nap{5};; nap = std::min(nap * 2, Milliseconds(250))) {
      const os::Addresses addresses = os::find_addresses(world_.address, world_.port);
      if (addresses.list.empty())
        why = "MASTER_ADDR is " + world_.address + ", which cannot be found: " + addresses.error;
      for (const os::Address& a : addresses.list) {
        where_ = a.text;
        int error = connect_to(a, end);
        if (error == 0) error = answer_challenge(end);
        if (error == 0) return;
        why = where_ + ": " + std::strerror(error);
      }
      if (other && other->has_reply()) return;
      if (Clock::now() >= end)
        throw RankLost("[ranks] rank 0 did not join within " + seconds_text(options_.join_timeout) + " (" +
                       why + ")");
      if (reports.is_due()) reports.say("rank 0 (" + why + ")");
      std::this_thread::sleep_for(nap);
    }
  }

  // Waits for rank 0's reply. Throws if it is not a welcome.
  void await_reply() {
    SignedReply message{};
    if (const int error = receive(message, end_of_patience(options_))) {
      if (error == ETIMEDOUT) throw RankLost("[ranks] rank 0 does not answer");
      throw RankLost("[ranks] rank 0 exited before all ranks joined");
    }
    const Reply& reply = message.reply;
    if (reply.kind == Reply::stranger)
      refuse_world(
          "rank 0, on " + where_ +
          ", has a different token: expected the same TG_TOKEN or content of TG_TOKEN_FILE on all hosts");
    if (reply.magic != join_magic ||
        !are_equal(message.proof, proof_of(world_.token, replies, challenge_, nonce_, reply)))
      refuse_world("the process on " + where_ + " does not know the token: expected rank 0 of this job");
    if (reply.kind == Reply::wrong) throw WorldError(text_of(reply.text));
    if (reply.kind != Reply::welcome) throw RankLost(text_of(reply.text));
  }

  Connection connection() { return {0, std::move(socket_)}; }

 private:
  bool has_reply() const { return wait({socket_.fd}, Clock::now()) == 0; }

  // The functions below return an error number, or 0.

  static int wait(os::Polled socket, Clock::time_point end) {
    for (;;) {
      if (os::poll(socket, until(end)) == 0) return 0;
      if (Clock::now() >= end) return ETIMEDOUT;
    }
  }

  int connect_to(const os::Address& a, Clock::time_point end) {
    int error = 0;
    FileDescriptor s = network_socket(a, error);
    std::swap(socket_.fd, s.fd);
    if (socket_.fd < 0) return error;
    error = os::connect(socket_.fd, a);
    if (error != 0 && error != EINPROGRESS) return error;
    // Connects again if the host does not answer yet, because the system's retries become too rare.
    error =
        wait({.descriptor = socket_.fd, .for_room = true}, std::min(end, Clock::now() + Milliseconds(5'000)));
    if (error == 0) error = os::connect_error(socket_.fd);
    // If rank 0 does not listen yet, the system may assign rank 0's port to a connecting rank on the same
    // host. That rank then connects to itself.
    return error == 0 && os::is_its_own_peer(socket_.fd) ? ECONNREFUSED : error;
  }

  int answer_challenge(Clock::time_point end) {
    Challenge challenge{};
    if (const int error = receive(challenge, end)) return error;
    if (challenge.magic != join_magic)
      refuse_world("the process that listens on " + where_ +
                   " is not rank 0: expected a free port, and TG_PORT sets another");
    challenge_ = challenge.nonce, nonce_ = new_nonce();
    const Answer answer{nonce_, join_, proof_of(world_.token, joins, challenge_, nonce_, join_)};
    prepare(socket_.fd, join_.purpose, options_);
    const os::Transfer sent = os::send(socket_.fd, raw_bytes(answer));
    return sent.error == 0 && sent.bytes < sizeof answer ? ENOBUFS : sent.error;
  }

  template <class T>
  int receive(T& message, Clock::time_point end) {
    for (std::span<std::byte> left = raw_bytes(message); !left.empty();) {
      if (const int error = wait({socket_.fd}, end)) return error;
      const auto [n, error] = os::receive(socket_.fd, left);
      if (n == 0 && !os::is_temporary(error)) return error == 0 ? ECONNRESET : error;
      left = left.subspan(n);
    }
    return 0;
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

std::unique_ptr<Listener> open_network_listener(const World& world, const JoinOptions& options) {
  return std::make_unique<NetworkListener>(world, options);
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

// The socket on which rank 0 accepts the other ranks. On one host it is a Unix socket (local_listener.cpp);
// for several hosts it is a TCP socket (network_listener.cpp). Until a peer is authenticated, its messages
// are ignored.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/message.h"
#include "parallel/rendezvous.h"
#include "parallel/sha256.h"

namespace tg::parallel {

constexpr std::uint64_t join_magic = 0x6e696f6a206774;  // "tg join"
constexpr std::uint32_t join_version = 2;

// The purpose of a connection. On one host, each rank has a control connection only. On several hosts, it has
// one connection of each kind.
enum class Purpose : std::uint32_t { control, data };

// The message that a rank sends to rank 0, once per connection.
struct Join {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank, size;
  Purpose purpose;
  std::array<char, 40> build, job;  // hashes
};

// Rank 0 replies once to each Join. On one host, a welcome is sent with the descriptor of the shared memory.
struct Reply {
  enum Kind : std::uint32_t { welcome, wrong, lost, stranger };
  std::uint64_t magic;
  Kind kind;
  std::array<char, 500> text;  // the line to throw, terminated by a zero
};
static_assert(std::has_unique_object_representations_v<Join> &&
              std::has_unique_object_representations_v<Reply>);

// Returns the time from now to `then` in ms, for os::poll(). It is rounded up and at least 0.
int until(Clock::time_point then);

std::string job_hash(const std::string& job);

Join join_of(const World& world, const std::string& build, Purpose purpose);

// A process that is connected but has not joined yet.
struct JoiningPeer {
  FileDescriptor socket;
  Clock::time_point leave;                // deadline for its Join
  Join join = {};                         // set once it has arrived
  Digest own_nonce = {}, its_nonce = {};  // used in one proof each; only in a network
  std::string received = {};              // the first bytes of an incomplete message
};

// Rank 0's side.
class Listener {
 public:
  virtual ~Listener() = default;
  int descriptor() const { return socket_.fd; }
  void close() { FileDescriptor(std::exchange(socket_.fd, -1)); }  // later connections fail
  virtual int connections_per_rank() const = 0;
  // Accepts the next connection. Returns nothing if the peer has disconnected or is rejected, or after a
  // system error.
  virtual std::optional<JoiningPeer> accept(int& error) = 0;
  enum class Heard { nothing, refused, joins };
  // Reads the bytes that have arrived. Returns `nothing` if the peer's Join is incomplete, `refused` if the
  // bytes are not a Join, and `joins` if peer.join is set.
  virtual Heard hear(JoiningPeer& peer) = 0;
  virtual bool reply(const JoiningPeer& peer, Reply::Kind kind, const std::string& text,
                     int descriptor = -1) = 0;
  virtual std::string about() const { return ""; }  // appended to messages about ranks that do not join

 protected:
  explicit Listener(FileDescriptor socket) : socket_(std::move(socket)) {}
  FileDescriptor socket_;
};

std::unique_ptr<Listener> open_local_listener(const World& world);
std::unique_ptr<Listener> open_network_listener(const World& world, const JoinOptions& options);

// For the other ranks: each function connects to rank 0 and joins.
Meeting enter_local(const World& world, const JoinOptions& options, const std::string& build);
Meeting enter_network(const World& world, const JoinOptions& options, const std::string& build);

// Reports from time to time which ranks this rank is waiting for.
class WaitReports {
 public:
  explicit WaitReports(const JoinOptions& options)
      : options_(options), next_(Clock::now() + options.join_timeout / 24) {}
  Clock::time_point next() const { return next_; }
  bool is_due() const { return Clock::now() >= next_; }
  void say(const std::string& whom) {
    next_ += options_.join_timeout / 12;
    if (options_.report) options_.report("[ranks] waiting for " + whom);
  }

 private:
  const JoinOptions& options_;
  Clock::time_point next_;
};

// The deadline for rank 0's reply. Rank 0 gives up after the same time but may have started later.
inline Clock::time_point end_of_patience(const JoinOptions& options) {
  return Clock::now() + 2 * options.join_timeout + Milliseconds(5'000);
}

// Returns the time after which a dead host is detected.
Milliseconds dead_after(const JoinOptions& options);

}  // namespace tg::parallel

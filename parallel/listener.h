// The socket at which rank 0 accepts the other ranks: a socket of one host (local_listener.cpp), or an
// address in a network (network_listener.cpp). A peer's messages count only after the peer has been
// authenticated.
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

// What a connection is for: on one host there is one for each rank, on several hosts two.
enum class Purpose : std::uint32_t { control, data };

// What a rank sends to rank 0, once for each connection.
struct Join {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank, size;
  Purpose purpose;
  std::array<char, 40> build, job;  // hashes
};

// What rank 0 sends back, once; a welcome on one host has the descriptor of the shared memory with it.
struct Reply {
  enum Kind : std::uint32_t { welcome, wrong, lost, stranger };
  std::uint64_t magic;
  Kind kind;
  std::array<char, 500> text;  // the line to throw, ended by a zero
};
static_assert(std::has_unique_object_representations_v<Join> &&
              std::has_unique_object_representations_v<Reply>);

// Until then, in ms, for os::poll(): rounded up, at least 0.
int until(Clock::time_point then);

std::string job_hash(const std::string& job);

Join join_of(const World& world, const std::string& build, Purpose purpose);

// A process that has connected and not joined yet.
struct JoiningPeer {
  FileDescriptor socket;
  Clock::time_point leave;                // when its Join must have arrived
  Join join = {};                         // set by then
  Digest own_nonce = {}, its_nonce = {};  // numbers used once, in proofs; only in a network
  std::string received = {};              // the beginning of an incomplete message
};

// Rank 0's side.
class Listener {
 public:
  virtual ~Listener() = default;
  int descriptor() const { return socket_.fd; }
  void close() { FileDescriptor(std::exchange(socket_.fd, -1)); }  // no process can connect after that
  virtual int connections_per_rank() const = 0;
  // The next process that has connected. Nothing if it has given up or is refused, or on a system error.
  virtual std::optional<JoiningPeer> accept(int& error) = 0;
  enum class Heard { nothing, refused, joins };
  // Reads the bytes that have arrived. `nothing`: its Join is incomplete. `refused`: they are not a Join.
  // `joins`: peer.join is set.
  virtual Heard hear(JoiningPeer& peer) = 0;
  virtual bool reply(const JoiningPeer& peer, Reply::Kind kind, const std::string& text,
                     int descriptor = -1) = 0;
  virtual std::string about() const { return ""; }  // added to lines about ranks that do not arrive

 protected:
  explicit Listener(FileDescriptor socket) : socket_(std::move(socket)) {}
  FileDescriptor socket_;
};

std::unique_ptr<Listener> open_local_listener(const World& world);
std::unique_ptr<Listener> open_network_listener(const World& world, const JoinOptions& options);

// The other ranks' side.
Meeting enter_local(const World& world, const JoinOptions& options, const std::string& build);
Meeting enter_network(const World& world, const JoinOptions& options, const std::string& build);

// Says now and then for whom a rank waits.
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

// Rank 0 ends it after the same time, and may have begun to count later.
inline Clock::time_point end_of_patience(const JoinOptions& options) {
  return Clock::now() + 2 * options.join_timeout + Milliseconds(5'000);
}

// A dead host is noticed after this long.
Milliseconds dead_after(const JoinOptions& options);

}  // namespace tg::parallel

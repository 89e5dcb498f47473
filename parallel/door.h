// Where ranks come to meet rank 0: a socket of one host (local_door.cpp), or an address in a network
// (network_door.cpp). Who comes in is a guest; what it says counts when it has shown that it may.
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

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

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

// One that has connected.
struct Guest {
  FileDescriptor socket;
  Clock::time_point leave;                // when it must have said who it is
  Join join = {};                         // once it has
  Digest own_nonce = {}, its_nonce = {};  // numbers used once, in proofs; of a network's guest
  std::string received = {};              // of a message that is not whole yet
};

// Rank 0's side.
class Door {
 public:
  virtual ~Door() = default;
  int listener() const { return listener_.fd; }
  void close() { FileDescriptor(std::exchange(listener_.fd, -1)); }  // nobody can connect after that
  virtual int connections_per_rank() const = 0;
  // One that has connected; nothing if it has given up, or may not come in, or the system has an error.
  virtual std::optional<Guest> accept(int& error) = 0;
  enum class Heard { nothing, refused, joins };
  // What it has sent so far: not all yet, not what a rank sends, or its Join, which is then in it.
  virtual Heard hear(Guest& guest) = 0;
  virtual bool reply(const Guest& guest, Reply::Kind kind, const std::string& text, int descriptor = -1) = 0;
  virtual std::string about() const { return ""; }  // added to lines about those that do not come

 protected:
  explicit Door(FileDescriptor listener) : listener_(std::move(listener)) {}
  FileDescriptor listener_;
};

std::unique_ptr<Door> open_local_door(const World& world);
std::unique_ptr<Door> open_network_door(const World& world, const JoinOptions& options);

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

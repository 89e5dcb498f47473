// Sockets between processes on one or several hosts. A socket is a descriptor, and the caller closes it.
// Sockets do not block. Programs started by this process do not inherit them. Errors are numbers of <cerrno>,
// or 0; std::strerror() describes them.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/os/streams.h"

namespace tg::os {

// Fills `bytes` with unpredictable random numbers.
int fill_with_random(std::span<std::byte> bytes);

// The id of the user whose rights this process has.
std::uint64_t effective_user();

// ---- Addresses

struct Address {
  alignas(8) std::array<std::byte, 128> bytes{};  // in the system's form
  std::uint32_t size = 0;
  std::string text{};   // "10.0.0.1:29501", "[::1]:29501"; empty for a local one
  bool is_any = false;  // all addresses of this host
};

// The TCP addresses of a host. The host is given by name or by numeric address. If there are no addresses,
// `error` is the reason.
struct Addresses {
  std::vector<Address> list;
  std::string error;
};
Addresses find_addresses(const std::string& host, int port);

// An address for processes of this host, in the abstract namespace. Such an address begins with a zero byte
// and is not a file.
Address local_address(const std::string& name);

// ---- Connections

struct Socket {
  int descriptor;  // −1: none
  int error = 0;
};

// Opens a socket for such an address. A TCP socket is a byte stream. A local socket preserves message
// boundaries.
Socket open_socket(const Address& address);
int bind(int socket, const Address& address);
int listen(int socket, int most_waiting);
// Accepts the next connection of a listening socket.
Socket accept(int listener);
// Returns EINPROGRESS if the connection is pending. When it is established or has failed, the socket becomes
// writable.
int connect(int socket, const Address& address);
int connect_error(int socket);  // the reason if it failed

// Whether the socket is connected to itself. This can happen if a socket connects to a port of its own host,
// and the system assigns the same port to the socket.
bool is_its_own_peer(int socket);
// Whether the peer process, which is on this host, has the rights of the same user.
bool is_of_this_user(int socket);

// After this socket is closed, another socket can listen on the same port without delay.
int allow_reuse(int socket);

// Small messages are sent without a delay. A connection ends if the other host does not answer `probes`
// keepalive probes. The first probe is sent after `idle` seconds of silence, and the others `interval`
// seconds apart. A connection also ends if the other host does not acknowledge sent bytes for `confirm_ms`; 0
// means the system's limit.
struct TcpOptions {
  int idle, interval, probes, confirm_ms = 0;
};
int set_options(int socket, const TcpOptions& options);

// ---- Messages

struct Transfer {
  std::size_t bytes = 0;  // when receiving: 0 without an error means the end of the connection
  int error = 0;
};

// Sends as many bytes as fit into the socket's buffer. If further bytes follow immediately, set `more`; small
// messages are then sent together.
Transfer send(int socket, std::span<const std::byte> bytes, bool more = false);
Transfer receive(int socket, std::span<std::byte> bytes);

// Sends a message to a process on the same host, with a descriptor; −1 means none.
Transfer send_with(int socket, std::span<const std::byte> bytes, int descriptor);
Transfer receive_with(int socket, std::span<std::byte> bytes, int& descriptor);

// Whether the same call may succeed later.
constexpr bool is_temporary(int error) {
  return error == EAGAIN || error == EINTR;
}

void shut_down_sending(int socket);  // the peer receives all sent bytes, then the end
void shut_down(int socket);          // in both directions

// Wakes a thread that waits in poll() for its descriptor.
class Waker {
 public:
  Waker();
  ~Waker();
  Waker(const Waker&) = delete;

  int error() const { return error_; }  // the reason if it has no descriptor
  int descriptor() const { return pipe_.reader; }
  void wake();

 private:
  Pipe pipe_;
  const int error_;
};

}  // namespace tg::os

#include "core/os/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/os/linux/error.h"

namespace tg::os {

namespace {

Socket new_socket(int descriptor) {
  return {descriptor, error_unless(descriptor >= 0)};
}

Transfer transfer_of(ssize_t bytes) {
  return {static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)), error_unless(bytes >= 0)};
}

static_assert(sizeof(Address::bytes) >= sizeof(sockaddr_storage) &&
              alignof(Address) >= alignof(sockaddr_storage));

const sockaddr* system_address(const Address& a) {
  return reinterpret_cast<const sockaddr*>(a.bytes.data());
}

bool is_any(const addrinfo& a) {
  if (a.ai_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(a.ai_addr)->sin_addr.s_addr == htonl(INADDR_ANY);
  if (a.ai_family != AF_INET6) return false;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(a.ai_addr)->sin6_addr;
  const bool is_zero = std::all_of(address.s6_addr + 12, address.s6_addr + 16, [](int b) { return b == 0; });
  return IN6_IS_ADDR_UNSPECIFIED(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && is_zero);
}

std::string text_of_address(const addrinfo& a) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  getnameinfo(a.ai_addr, a.ai_addrlen, host.data(), host.size(), port.data(), port.size(),
              NI_NUMERICHOST | NI_NUMERICSERV);
  const std::string name = a.ai_family == AF_INET6 ? "[" + std::string(host.data()) + "]" : host.data();
  return name + ":" + port.data();
}

bool set_option(int socket, int level, int option, int value) {
  return setsockopt(socket, level, option, &value, sizeof value) == 0;
}

// A message with space for one descriptor.
struct Message {
  iovec part;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  Message(void* bytes, std::size_t size, bool has_descriptor) : part{bytes, size} {
    header.msg_iov = &part, header.msg_iovlen = 1;
    if (has_descriptor) header.msg_control = control.data(), header.msg_controllen = control.size();
  }
  Message(const Message&) = delete;
};

}  // namespace

int fill_with_random(std::span<std::byte> bytes) {
  return error_unless(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
}

std::uint64_t effective_user() {
  return geteuid();
}

Addresses find_addresses(const std::string& host, int port) {
  addrinfo hints{}, *first = nullptr;
  hints.ai_socktype = SOCK_STREAM, hints.ai_flags = AI_NUMERICSERV;
  Addresses found;
  if (const int e = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first)) {
    found.error = e == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(e);
    return found;
  }
  for (const addrinfo* a = first; a; a = a->ai_next) {
    Address& address = found.list.emplace_back();
    address.size = std::min<socklen_t>(a->ai_addrlen, sizeof address.bytes);
    std::memcpy(address.bytes.data(), a->ai_addr, address.size);
    address.text = text_of_address(*a), address.is_any = is_any(*a);
  }
  freeaddrinfo(first);
  return found;
}

Address local_address(const std::string& name) {
  sockaddr_un local{};
  local.sun_family = AF_UNIX;
  Address address;
  address.size = static_cast<std::uint32_t>(offsetof(sockaddr_un, sun_path) +
                                            name.copy(local.sun_path, sizeof local.sun_path));
  std::memcpy(address.bytes.data(), &local, sizeof local);
  return address;
}

Socket open_socket(const Address& address) {
  const int family = system_address(address)->sa_family;
  const int type = family == AF_UNIX ? SOCK_SEQPACKET : SOCK_STREAM;
  return new_socket(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int bind(int socket, const Address& address) {
  return error_unless(::bind(socket, system_address(address), address.size) == 0);
}

int listen(int socket, int most_waiting) {
  return error_unless(::listen(socket, most_waiting) == 0);
}

Socket accept(int listener) {
  return new_socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

int connect(int socket, const Address& address) {
  return error_unless(::connect(socket, system_address(address), address.size) == 0);
}

int connect_error(int socket) {
  int error = 0;
  socklen_t n = sizeof error;
  return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &n) != 0 ? errno : error;
}

bool is_its_own_peer(int socket) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof own, peer_size = sizeof peer;
  getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size);
  getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size);
  return own_size == peer_size && std::memcmp(&own, &peer, own_size) == 0;
}

bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t n = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 && peer.uid == geteuid();
}

int allow_reuse(int socket) {
  return error_unless(set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1));
}

int set_options(int socket, const TcpOptions& options) {
  return error_unless(
      set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1) && set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1) &&
      set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, options.idle) &&
      set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, options.interval) &&
      set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, options.probes) &&
      (options.confirm_ms == 0 || set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, options.confirm_ms)));
}

Transfer send(int socket, std::span<const std::byte> bytes, bool more) {
  return transfer_of(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | (more ? MSG_MORE : 0)));
}

Transfer receive(int socket, std::span<std::byte> bytes) {
  return transfer_of(::recv(socket, bytes.data(), bytes.size(), 0));
}

Transfer send_with(int socket, std::span<const std::byte> bytes, int descriptor) {
  Message message(const_cast<std::byte*>(bytes.data()), bytes.size(), descriptor >= 0);
  if (cmsghdr* header = CMSG_FIRSTHDR(&message.header)) {
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return transfer_of(::sendmsg(socket, &message.header, MSG_NOSIGNAL));
}

Transfer receive_with(int socket, std::span<std::byte> bytes, int& descriptor) {
  Message message(bytes.data(), bytes.size(), true);
  const Transfer received = transfer_of(::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC));
  descriptor = -1;
  if (const cmsghdr* header = received.bytes > 0 ? CMSG_FIRSTHDR(&message.header) : nullptr;
      header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return received;
}

void shut_down_sending(int socket) {
  ::shutdown(socket, SHUT_WR);
}

void shut_down(int socket) {
  ::shutdown(socket, SHUT_RDWR);
}

Waker::Waker() : error_(open_pipe(pipe_)) {}

Waker::~Waker() {
  close_stream(pipe_.reader), close_stream(pipe_.writer);
}

// Writes a byte. Closing the descriptor is not sufficient, because a forked process may also have it.
void Waker::wake() {
  (void)!::write(pipe_.writer, "", 1);
}

}  // namespace tg::os

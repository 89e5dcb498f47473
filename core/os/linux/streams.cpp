#include "core/os/streams.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <vector>

namespace tg::os {

namespace {

std::ptrdiff_t moved_bytes(ssize_t n) {
  if (n >= 0) return n;
  return errno == EAGAIN || errno == EINTR ? none_now : 0;
}

}  // namespace

const std::size_t whole_write = PIPE_BUF;

void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) == -1 && errno == EBADF) ::open("/dev/null", O_RDWR);
}

int open_pipe(Pipe& pipe) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno;
  pipe = {ends[0], ends[1]};
  return 0;
}

void close_stream(int stream) {
  if (stream >= 0) ::close(stream);
}

void make_nonblocking(int stream) {
  ::fcntl(stream, F_SETFL, O_NONBLOCK);
}

std::FILE* file_of(int stream, const char* mode) {
  return ::fdopen(stream, mode);
}

std::ptrdiff_t read_some(int stream, std::span<char> bytes) {
  return moved_bytes(::read(stream, bytes.data(), bytes.size()));
}

std::ptrdiff_t write_some(int stream, std::string_view bytes) {
  return moved_bytes(::write(stream, bytes.data(), bytes.size()));
}

bool has_room(int stream) {
  pollfd room{stream, POLLOUT, 0};
  return ::poll(&room, 1, 0) > 0;
}

int bytes_to_read(std::FILE* stream) {
  int n = 0;
  return ::ioctl(::fileno(stream), FIONREAD, &n) == 0 ? n : 0;
}

int poll(std::span<Polled> all, int timeout_ms) {
  std::vector<pollfd> waited;
  for (const Polled& p : all)
    waited.push_back({p.descriptor, static_cast<short>(p.for_room ? POLLOUT : POLLIN), 0});
  const int ready = ::poll(waited.data(), waited.size(), timeout_ms);
  if (ready < 0) return errno;
  for (std::size_t i = 0; i < all.size(); ++i) all[i].is_ready = waited[i].revents != 0;
  return ready == 0 ? ETIMEDOUT : 0;
}

bool is_terminal(std::FILE* stream) {
  return ::isatty(::fileno(stream)) == 1;
}

int terminal_width(std::FILE* stream) {
  winsize size{};
  return ::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace tg::os

// Terminals, and pipes and standard streams by their file descriptors, and how to use them without waiting. A
// signal handler may call write_some() and has_room().
#pragma once

#include <cstddef>
#include <cstdio>
#include <span>
#include <string_view>

namespace tg::os {

constexpr int standard_error = 2;
extern const std::size_t whole_write;  // bytes that a pipe receives in one piece

// Opens /dev/null as each standard stream that the caller of this process closed. Otherwise a file that the
// process opens would get the stream's number, and its content would be overwritten by printed lines.
void open_standard_streams();

struct Pipe {
  int reader = -1, writer = -1;
};
// Programs that this process starts do not inherit the ends. Returns 0 or an error number.
int open_pipe(Pipe& pipe);
void close_stream(int stream);  // -1: none
void make_nonblocking(int stream);
std::FILE* file_of(int stream, const char* mode);  // which owns the stream; null if it cannot

// Return the number of bytes read or written. 0: the stream has ended or failed. none_now: a nonblocking
// stream would wait, or a signal interrupted the call.
constexpr std::ptrdiff_t none_now = -1;
std::ptrdiff_t read_some(int stream, std::span<char> bytes);
std::ptrdiff_t write_some(int stream, std::string_view bytes);
bool has_room(int stream);             // or it has failed, so that a write does not wait either
int bytes_to_read(std::FILE* stream);  // in addition to those in its buffer

struct Polled {
  int descriptor;         // of a stream or socket; negative: none
  bool for_room = false;  // waits for room to send; otherwise for something to receive, as the end
  bool is_ready = false;  // also after an error
};

// Waits until at least one of them is ready. Returns 0 or a number of <cerrno>: ETIMEDOUT if none is after
// `timeout_ms`, EINTR if a signal was received.
int poll(std::span<Polled> all, int timeout_ms);
inline int poll(Polled one, int timeout_ms) {
  return poll(std::span(&one, 1), timeout_ms);
}

bool is_terminal(std::FILE* stream);
int terminal_width(std::FILE* stream);  // in characters; 0: unknown

}  // namespace tg::os

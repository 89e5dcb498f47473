// Terminals, pipes and standard streams. Pipes and streams are file descriptors, and functions do not block.
// A signal handler may call write_some() and has_room().
#pragma once

#include <cstddef>
#include <cstdio>
#include <span>
#include <string_view>

namespace tg::os {

constexpr int standard_error = 2;
extern const std::size_t whole_write;  // number of bytes that a pipe receives atomically

// Opens /dev/null for each standard stream that the parent process has closed. Otherwise a later file might
// get the number of the stream, and printed lines would overwrite the file.
void open_standard_streams();

struct Pipe {
  int reader = -1, writer = -1;
};
// Opens a pipe. Programs that this process starts do not inherit its ends. Returns 0 or an error number.
int open_pipe(Pipe& pipe);
void close_stream(int stream);  // -1: none
void make_nonblocking(int stream);
std::FILE* file_of(int stream, const char* mode);  // owns the stream; null on failure

// These functions return the number of bytes read or written, or 0 if the stream has ended or failed. They
// return none_now if a nonblocking stream would wait, or if a signal interrupted the call.
constexpr std::ptrdiff_t none_now = -1;
std::ptrdiff_t read_some(int stream, std::span<char> bytes);
std::ptrdiff_t write_some(int stream, std::string_view bytes);
bool has_room(int stream);             // also true if the stream has failed, so that a write does not block
int bytes_to_read(std::FILE* stream);  // not counting bytes in its buffer

struct Polled {
  int descriptor;         // a stream or socket; negative: none
  bool for_room = false;  // waits for room to send; otherwise for data or the end
  bool is_ready = false;  // also after an error
};

// Waits until at least one element is ready. Returns 0 or a number of <cerrno>: ETIMEDOUT if none is ready
// after `timeout_ms`, EINTR if a signal was received.
int poll(std::span<Polled> all, int timeout_ms);
inline int poll(Polled one, int timeout_ms) {
  return poll(std::span(&one, 1), timeout_ms);
}

bool is_terminal(std::FILE* stream);
int terminal_width(std::FILE* stream);  // in characters; 0: unknown

}  // namespace tg::os

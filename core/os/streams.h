// Pipes and standard streams by their file descriptors, and how to use them without waiting. A signal handler
// may call write_some() and has_room().
#pragma once

#include <cstddef>
#include <cstdio>
#include <span>
#include <string_view>

namespace tg::os {

constexpr int standard_error = 2;
extern const std::size_t whole_write;  // a pipe takes so many bytes in one piece

// If the caller of this process closed standard input, output or error, a file that the process opens would
// get its number, and then what is printed. /dev/null takes it first.
void open_standard_streams();

struct Pipe {
  int reader = -1, writer = -1;
};
// Programs that this process starts do not inherit the ends. Returns 0 or an error number.
int open_pipe(Pipe& pipe);
void close_stream(int stream);  // -1: none
void make_nonblocking(int stream);
std::FILE* file_of(int stream, const char* mode);  // which owns the stream; null if it cannot

// How many bytes were read or written; 0 if the stream has ended or failed, none_now if a nonblocking stream
// would wait or a signal came.
constexpr std::ptrdiff_t none_now = -1;
std::ptrdiff_t read_some(int stream, std::span<char> bytes);
std::ptrdiff_t write_some(int stream, std::string_view bytes);
bool has_room(int stream);             // to write, or it has failed
int bytes_to_read(std::FILE* stream);  // beside those that it has read already

struct WaitedStream {
  int stream;             // -1: none
  bool for_room = false;  // to write; else for bytes to read
  bool is_ready = false;  // set if there are, or if it has ended or failed
};
// Until one of them is ready, a signal comes or the time is over.
void wait_for(std::span<WaitedStream> streams, int milliseconds);

}  // namespace tg::os

// Makes system calls fail in the thread that requests it.
//
//   fail_call_of("listen", EIO);     // the next call fails
//   fail_call_of("socket", EIO, 2);  // the third call fails
//
// The functions below replace the system's functions in the complete executable. Include this file only once.
#pragma once

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tg::testing {

struct FailingCall {
  const char* name;
  int error, others;
};
inline thread_local FailingCall failing_call{"", 0, 0};

inline void fail_call_of(const char* name, int error, int others = 0) {
  failing_call = {name, error, others};
}
inline bool fails(const char* name) {
  if (failing_call.error == 0 || std::strcmp(name, failing_call.name) != 0 || failing_call.others-- > 0)
    return false;
  errno = std::exchange(failing_call.error, 0);
  return true;
}
inline bool has_failed() {
  return failing_call.error == 0;
}
inline thread_local int last_open_flags = 0;  // flags of the last call of open()

}  // namespace tg::testing

#define TG_FAILING_CALL(call, number, parameters, exception, ...)                             \
  extern "C" int call parameters exception {                                                  \
    return tg::testing::fails(#call) ? -1 : static_cast<int>(::syscall(number, __VA_ARGS__)); \
  }
TG_FAILING_CALL(socket, SYS_socket, (int family, int type, int protocol), noexcept, family, type, protocol)
TG_FAILING_CALL(bind, SYS_bind, (int s, const sockaddr* a, socklen_t n), noexcept, s, a, n)
TG_FAILING_CALL(listen, SYS_listen, (int s, int n), noexcept, s, n)
TG_FAILING_CALL(connect, SYS_connect, (int s, const sockaddr* a, socklen_t n), , s, a, n)
TG_FAILING_CALL(accept4, SYS_accept4, (int s, sockaddr* a, socklen_t* n, int flags), , s, a, n, flags)
TG_FAILING_CALL(setsockopt, SYS_setsockopt, (int s, int level, int name, const void* x, socklen_t n),
                noexcept, s, level, name, x, n)
TG_FAILING_CALL(getsockopt, SYS_getsockopt, (int s, int level, int name, void* x, socklen_t* n), noexcept, s,
                level, name, x, n)
TG_FAILING_CALL(pipe2, SYS_pipe2, (int* ends, int flags), noexcept, ends, flags)
TG_FAILING_CALL(memfd_create, SYS_memfd_create, (const char* name, unsigned flags), noexcept, name, flags)
TG_FAILING_CALL(ftruncate, SYS_ftruncate, (int file, off_t size), noexcept, file, size)
TG_FAILING_CALL(fstat, SYS_fstat, (int file, struct stat* about), noexcept, file, about)
#undef TG_FAILING_CALL

extern "C" ssize_t getrandom(void* bytes, size_t size, unsigned flags) {
  return tg::testing::fails("getrandom") ? -1 : ::syscall(SYS_getrandom, bytes, size, flags);
}
extern "C" int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, unsigned) : 0;
  va_end(arguments);
  tg::testing::last_open_flags = flags;
  return tg::testing::fails("open") ? -1
                                    : static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
extern "C" int fcntl(int file, int command, ...) {
  std::va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return tg::testing::fails("fcntl") ? -1 : static_cast<int>(::syscall(SYS_fcntl, file, command, argument));
}
extern "C" void* mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) noexcept {
  if (tg::testing::fails("mmap")) return MAP_FAILED;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, size, protection, flags, file, offset));
}

// Simulates a slow disk. tests/tools/signals_tool.sh loads it with LD_PRELOAD. TG_HOLD names a file, and
// fsync() waits while this file exists. It creates the file TG_HOLD.held to signal that a save is waiting.
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern "C" int fsync(int fd) {
  if (const char* hold = std::getenv("TG_HOLD"); hold && ::access(hold, F_OK) == 0) {
    ::close(::open((std::string(hold) + ".held").c_str(), O_CREAT | O_WRONLY, 0600));
    const timespec nap{.tv_sec = 0, .tv_nsec = 10'000'000};
    while (::access(hold, F_OK) == 0) ::nanosleep(&nap, nullptr);
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

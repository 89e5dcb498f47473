#include "core/os/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

#include "core/os/linux/error.h"

namespace tg::os {

namespace {

// Flags per value of Open, in the order of that enum. Without O_NONBLOCK, opening a pipe would wait for a
// writer.
constexpr int open_flags[] = {O_RDONLY | O_NONBLOCK,
                              O_RDONLY | O_DIRECTORY,
                              O_RDONLY | O_DIRECTORY | O_NOFOLLOW,
                              O_WRONLY | O_NOFOLLOW,
                              O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW,
                              O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_NOFOLLOW,
                              O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_NOFOLLOW | O_EXCL,
                              O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY};

FileStatus status_of(bool is_found, const struct stat& s) {
  if (!is_found) return {.error = errno};
  return {.is_regular = S_ISREG(s.st_mode),
          .is_folder = S_ISDIR(s.st_mode),
          .is_trusted = s.st_uid == ::geteuid() || s.st_uid == 0,
          .permissions = std::filesystem::perms(s.st_mode) & std::filesystem::perms::mask,
          .size = static_cast<std::uint64_t>(s.st_size),
          .id = {s.st_dev, s.st_ino}};
}

}  // namespace

Opened open(const std::string& path, Open how, int folder) {
  const int flags = open_flags[static_cast<int>(how)] | O_CLOEXEC;
  const int fd = folder < 0 ? ::open(path.c_str(), flags, 0666) : ::openat(folder, path.c_str(), flags, 0666);
  return {FileDescriptor(fd), error_unless(fd >= 0)};
}

std::pair<std::size_t, int> read_at(int file, std::uint64_t offset, std::span<std::byte> to) {
  std::size_t used = 0;
  while (used < to.size()) {
    const ssize_t n = ::pread(file, to.data() + used, to.size() - used, static_cast<off_t>(offset + used));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return {used, error_unless(n == 0)};
    used += static_cast<std::size_t>(n);
  }
  return {used, 0};
}

int write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return ENOSPC;  // no progress and no error: prevents an endless loop
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

int sync(int file) {
  return error_unless(::fsync(file) == 0);
}

int sync_if_possible(int file) {
  const int error = sync(file);
  return error == EINVAL || error == EROFS ? 0 : error;
}

int close(int file) {
  return error_unless(::close(file) == 0 || errno == EINTR);
}

int set_permissions(int file, std::filesystem::perms permissions) {
  return error_unless(::fchmod(file, static_cast<mode_t>(permissions)) == 0);
}

int rename_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  struct stat there {};  // second attempt, for file systems without this flag
  if (::lstat(to.c_str(), &there) == 0) return EEXIST;
  return error_unless(::rename(from.c_str(), to.c_str()) == 0);
}

int remove(const std::string& path) {
  return error_unless(::unlink(path.c_str()) == 0);
}

int check_writable(const std::string& path, bool is_folder) {
  return error_unless(::access(path.c_str(), is_folder ? W_OK | X_OK : W_OK) == 0);
}

bool try_lock(int file) {
  return ::flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

std::string temporary_name(const std::string& path) {
  const std::size_t slash = path.rfind('/') + 1;  // 0 if there is none
  static std::atomic<unsigned> serial{0};         // two threads may use the same path
  return path.substr(0, slash) + "." + path.substr(slash) + ".tmp." + std::to_string(::getpid()) + "." +
         std::to_string(serial++);
}

FileStatus status(int file) {
  struct stat s {};
  return status_of(::fstat(file, &s) == 0, s);
}

FileStatus status(const std::string& path) {
  struct stat s {};
  return status_of(::stat(path.c_str(), &s) == 0, s);
}

// A mapped address range, for the SIGBUS handler. The list of ranges only grows, so the handler never reads
// freed memory. A later mapping reuses an unused Range.
struct MappedMemory::Range {
  std::atomic<std::uintptr_t> begin, end;  // end 0: not in use
  std::atomic<bool> is_lost;
  Range* next = nullptr;
};

namespace {

using Range = MappedMemory::Range;
std::atomic<Range*> ranges{nullptr};
std::mutex ranges_mutex;
struct sigaction earlier_handler {};
std::atomic<bool> is_earlier_used{false};  // for a handler of one signal only (SA_RESETHAND)

void call_earlier(int signal, siginfo_t* info, void* context) {
  const bool once = (earlier_handler.sa_flags & SA_RESETHAND) != 0;
  const bool is_function = (earlier_handler.sa_flags & SA_SIGINFO) != 0 ||
                           (earlier_handler.sa_handler != SIG_DFL && earlier_handler.sa_handler != SIG_IGN);
  if (!is_function || (once && is_earlier_used.exchange(true))) {
    // Installs the default action. The faulting instruction then runs again and ends the process. If another
    // process sent the signal, the handler sends it again.
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    if (info->si_code <= 0 && earlier_handler.sa_handler == SIG_IGN) return;
    ::sigaction(signal, &standard, nullptr);
    if (info->si_code <= 0) ::raise(signal);
    return;
  }
  if ((earlier_handler.sa_flags & SA_SIGINFO) != 0)
    earlier_handler.sa_sigaction(signal, info, context);
  else
    earlier_handler.sa_handler(signal);
}

// The SIGBUS handler. It uses only atomics and system calls, which a signal handler may use.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (Range* range = info->si_code > 0 ? ranges.load() : nullptr; range != nullptr; range = range->next) {
    const std::uintptr_t end = range->end.load(), begin = range->begin.load();
    if (at < begin || at >= end) continue;
    range->is_lost.store(true);  // before any thread can read a zero
    const std::uintptr_t page = at & ~(static_cast<std::uintptr_t>(::getpagesize()) - 1);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the page starts before the mapped object
    void* zeros = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    errno = error;
    if (zeros != MAP_FAILED) return;
  }
  call_earlier(signal, info, context);
}

void install_handler() {
  static const bool installed = [] {
    ::sigaction(SIGBUS, nullptr, &earlier_handler);
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_mask = earlier_handler.sa_mask;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | (earlier_handler.sa_flags & (SA_NODEFER | SA_RESTART));
    ::sigaction(SIGBUS, &action, nullptr);
    return true;
  }();
  static_cast<void>(installed);
}

Range& take_range(const void* at, std::size_t bytes) {
  const std::scoped_lock lock(ranges_mutex);
  Range* range = ranges.load();
  while (range != nullptr && range->end != 0) range = range->next;
  if (range == nullptr) {
    range = new Range;
    range->next = ranges.load();
    ranges.store(range);
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  range->is_lost = false, range->begin = begin, range->end = begin + bytes;
  return *range;
}

}  // namespace

int MappedMemory::map(int file, std::size_t bytes) {
  install_handler();
  void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  if (at == MAP_FAILED) return errno;
  const auto page = static_cast<std::size_t>(::getpagesize());
  range_ = &take_range(at, (bytes + page - 1) / page * page);
  at_ = static_cast<char*>(at), size_ = bytes;
  return 0;
}

MappedMemory::~MappedMemory() {
  if (range_ == nullptr) return;
  {
    const std::scoped_lock lock(ranges_mutex);
    range_->end = 0;
  }
  ::munmap(at_, size_);
}

bool MappedMemory::is_part_lost() const {
  return range_->is_lost;
}

void release_pages(const char* begin, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::getpagesize()),
             at = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t first = (at + page - 1) / page * page, last = (at + bytes) / page * page;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): page addresses are computed as integers
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace tg::os

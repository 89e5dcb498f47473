#include "core/os/mapped_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

namespace tg::os {

// What the handler of SIGBUS knows about a mapping. Ranges form a list that only grows: a range that is not
// in use is used again by a later mapping, so the handler never reads freed memory.
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
std::atomic<bool> is_earlier_used{false};  // it was installed for one signal only

void call_earlier(int signal, siginfo_t* info, void* context) {
  const bool once = (earlier_handler.sa_flags & SA_RESETHAND) != 0;
  const bool is_function = (earlier_handler.sa_flags & SA_SIGINFO) != 0 ||
                           (earlier_handler.sa_handler != SIG_DFL && earlier_handler.sa_handler != SIG_IGN);
  if (!is_function || (once && is_earlier_used.exchange(true))) {
    // The instruction is repeated and ends the process. A signal that was sent is sent again.
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

// Calls only what a signal handler may call: atomics and system calls.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (Range* range = info->si_code > 0 ? ranges.load() : nullptr; range != nullptr; range = range->next) {
    const std::uintptr_t end = range->end.load(), begin = range->begin.load();
    if (at < begin || at >= end) continue;
    range->is_lost.store(true);  // before any thread can read a zero
    const std::uintptr_t page = at & ~(static_cast<std::uintptr_t>(::getpagesize()) - 1);
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
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace tg::os

#include <tilegrad/io/files/mapped_file.h>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <utility>

#include <tilegrad/core/base/error.h>
#include "core/base/file_write.h"
#include "io/files/input_file.h"

namespace tg::io {
namespace {

// What the handler of SIGBUS knows about a mapping. Ranges form a list that only grows: a range that is not
// in use is used again by a later mapping, so the handler never reads freed memory.
struct Range {
  std::atomic<std::uintptr_t> begin, end;  // end 0: not in use
  std::atomic<bool> is_lost;
  Range* next = nullptr;
};

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

class Mapping final : public MappedFile::Pages {
 public:
  Mapping(const std::string& path, std::string_view who)
      : file_(path, who), size_(static_cast<std::size_t>(file_.size())), path_(path), who_(who) {
    if (size_ == 0) throw Error("[" + who_ + "] cannot read " + path + ": it is empty");
    install_handler();
    at_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_.descriptor(), 0);
    if (at_ == MAP_FAILED) fail_file(who, "read", path, errno);
    const auto page = static_cast<std::size_t>(::getpagesize());
    range_ = &take_range(at_, (size_ + page - 1) / page * page);
  }
  ~Mapping() override {
    {
      const std::scoped_lock lock(ranges_mutex);
      range_->end = 0;
    }
    ::munmap(at_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // The size shows what no signal does: a file that now ends within a page reads as zeros there.
  void check() const override {
    struct stat now {};
    if (::fstat(file_.descriptor(), &now) != 0) fail_file(who_, "read", path_, errno);
    const auto size = static_cast<std::uint64_t>(now.st_size);
    if (size < size_)
      throw Error("[" + who_ + "] cannot read " + path_ + ": it shrank while it was read, from " +
                  std::to_string(size_) + " to " + std::to_string(size) + " bytes");
    if (range_->is_lost)
      throw Error("[" + who_ + "] cannot read " + path_ +
                  ": a part was lost while it was read; was the file truncated, or does its disk fail?");
  }

  const char* data() const { return static_cast<const char*>(at_); }
  std::size_t size() const { return size_; }
  int descriptor() const { return file_.descriptor(); }

 private:
  InputFile file_;
  std::size_t size_;
  std::string path_, who_;
  void* at_ = nullptr;
  Range* range_ = nullptr;
};

}  // namespace

MappedFile::MappedFile(const std::string& path, std::string_view who) : path_(path), who_(who) {
  const auto mapping = std::make_shared<const Mapping>(path, who);
  data_ = mapping->data(), size_ = mapping->size(), descriptor_ = mapping->descriptor();
  pages_ = mapping;
}

void MappedFile::release(std::size_t offset, std::size_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) return;
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = (offset + page - 1) / page * page, last = (offset + bytes) / page * page;
  if (first < last) ::madvise(const_cast<char*>(data_) + first, last - first, MADV_DONTNEED);
}

void MappedFile::read(std::size_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = ::pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file(who_, "read", path_, errno);
    if (n == 0)
      throw Error("[" + who_ + "] cannot read " + path_ + ": it ends at byte " + std::to_string(offset));
    to = to.subspan(static_cast<std::size_t>(n)), offset += static_cast<std::size_t>(n);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      pages_(std::move(other.pages_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      who_(std::move(other.who_)) {}

}  // namespace tg::io

// Memory that ends at an unreadable page. If a test accesses bytes beyond an operand, it is killed. With the
// address sanitizer, ordinary memory is used, because the sanitizer detects such accesses.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace tg::cpu {

template <class T>
struct GuardedAllocator {
  using value_type = T;
  GuardedAllocator() = default;
  template <class U>
  GuardedAllocator(const GuardedAllocator<U>&) {}

  T* allocate(std::size_t n) {
    void* start =
        mmap(nullptr, room_of(n) + page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    std::byte* end = static_cast<std::byte*>(start) + room_of(n);
    mprotect(end, page(), PROT_NONE);
    return reinterpret_cast<T*>(end - n * sizeof(T));
  }
  void deallocate(T* p, std::size_t n) {
    munmap(reinterpret_cast<std::byte*>(p + n) - room_of(n), room_of(n) + page());
  }
  friend bool operator==(const GuardedAllocator&, const GuardedAllocator&) { return true; }

 private:
  static std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
  static std::size_t room_of(std::size_t n) { return (n * sizeof(T) + page() - 1) / page() * page(); }
};

// Makes a copy of bytes in such memory.
class Guarded {
 public:
  Guarded() = default;
  explicit Guarded(const std::vector<std::byte>& bytes) : bytes_(bytes.begin(), bytes.end()) {}
  std::byte* data() { return bytes_.data(); }

 private:
#if defined(__SANITIZE_ADDRESS__)
  std::vector<std::byte> bytes_;
#else
  std::vector<std::byte, GuardedAllocator<std::byte> > bytes_;
#endif
};

}  // namespace tg::cpu

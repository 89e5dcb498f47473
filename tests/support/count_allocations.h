// Counts the allocations of a test binary in `allocations`. This header replaces operator new and delete, so
// only one file of the binary may include it.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

static std::atomic<long> allocations{0};
[[gnu::noinline]] void* operator new(std::size_t n) {
  ++allocations;
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(n);
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}

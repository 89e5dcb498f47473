// Measures the largest allocation of a reader. This header replaces operators, so include it in only one file
// of a program.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define TG_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TG_ADDRESS_SANITIZER
#endif
#endif

// The bytes of the largest allocation since this variable was last set to 0.
inline std::size_t largest_piece = 0;
// The largest allocation that a reader of a file may make.
inline std::size_t piece_bound(std::size_t file_bytes) {
  return file_bytes + (64 << 10);
}

// Observes every allocation. The address sanitizer has its own operators and calls a hook. Without it, our
// operators observe allocations.
#ifdef TG_ADDRESS_SANITIZER
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, std::size_t),
                                                         void (*)(const volatile void*));
[[maybe_unused]] static const int hooks = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t bytes) { largest_piece = std::max(largest_piece, bytes); },
    [](const volatile void*) {});
#else
void* operator new(std::size_t bytes) {
  largest_piece = std::max(largest_piece, bytes);
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
#endif

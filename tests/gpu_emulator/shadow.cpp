#include "tests/gpu_emulator/shadow.h"

#include <elf.h>
#include <link.h>

#include <array>
#include <cstdint>
#include <string>

#include "tests/gpu_emulator/block.h"

namespace tg::emulator {

namespace {

// An access of a thread: the number of the last barrier of its block, that of its warp, and the thread's
// number. The count of barriers continues from block to block.
using Access = std::uint64_t;
Access access(std::uint32_t barrier, std::uint16_t warp_barrier, unsigned thread) {
  return std::uint64_t{barrier} << 32 | std::uint64_t{warp_barrier} << 16 | thread;
}
std::uint32_t barrier_of(Access a) {
  return static_cast<std::uint32_t>(a >> 32);
}
unsigned thread_of(Access a) {
  return a & 0xffff;
}

struct Location {
  Access write, read, other_read;  // other_read: by another warp than read's
};
constexpr std::size_t grain = 2;  // bytes of a location

std::uint32_t barrier = 1, first_of_block = 1;
std::array<std::uint16_t, 32> warp_barriers{};

// Shared memory, static and dynamic, lies in the thread-local storage of the system's thread.
struct Range {
  const unsigned char *from = nullptr, *to = nullptr, *dynamic = nullptr;
};
Range shared_range() {
  Range r;
  const auto visit = [](dl_phdr_info* info, std::size_t, void* data) {
    for (int n = 0; n < info->dlpi_phnum; ++n)
      if (info->dlpi_phdr[n].p_type == PT_TLS) {
        const auto* from = static_cast<const unsigned char*>(info->dlpi_tls_data);
        const unsigned char* here = dynamic_shared();
        if (from && here >= from && here < from + info->dlpi_phdr[n].p_memsz)
          *static_cast<Range*>(data) = {from, from + info->dlpi_phdr[n].p_memsz, here};
      }
    return 0;
  };
  dl_iterate_phdr(visit, &r);
  return r;
}
const Range range = shared_range();
Location* const locations = new Location[static_cast<std::size_t>(range.to - range.from) / grain + 1]();

bool is_ordered(Access before, Access now) {
  if (barrier_of(before) != barrier_of(now) || thread_of(before) == thread_of(now)) return true;
  return thread_of(before) / 32 == thread_of(now) / 32 && (before ^ now) >> 16 != 0;
}

bool is_dynamic(const unsigned char* p) {
  return p >= range.dynamic && p < range.dynamic + most_shared;
}

[[gnu::noinline, noreturn]] void report(const char* what, const unsigned char* p, Access now,
                                        Access before = 0) {
  std::string text =
      std::string(what) + " in " +
      (is_dynamic(p) ? "byte " + std::to_string(p - range.dynamic) + " of dynamic" : std::string("static")) +
      " shared memory: thread " + std::to_string(thread_of(now));
  if (before) text += " and, with no barrier between them, thread " + std::to_string(thread_of(before));
  give_up(text);
}

// For 16 bytes only an alignment of 8 is required, because structs of two words are copied that way. The
// processor checks the rest where the type requires it.
[[gnu::noinline, noreturn]] void report_misaligned(std::size_t bytes) {
  give_up("thread " + std::to_string(here.number) + ": an access of " + std::to_string(bytes) +
          " bytes at an address that is no multiple of them");
}
template <std::size_t bytes>
[[gnu::always_inline]] inline void insist_on_alignment(const void* p) {
  constexpr std::size_t mask = (bytes < 8 ? bytes : 8) - 1;
  if ((reinterpret_cast<std::uintptr_t>(p) & mask) != 0 && here.number >= 0) report_misaligned(bytes);
}

template <bool writes>
[[gnu::always_inline]] inline void note(const void* p, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(p);
  const auto offset = static_cast<std::size_t>(at - range.from);
  if (offset >= static_cast<std::size_t>(range.to - range.from) || here.number < 0) return;
  if (static_cast<std::size_t>(at - reinterpret_cast<unsigned char*>(&here)) < sizeof here) return;
  const auto thread = static_cast<unsigned>(here.number);
  const Access now = access(barrier, warp_barriers[thread / 32], thread);
  for (std::size_t n = offset / grain; n <= (offset + bytes - 1) / grain; ++n) {
    Location& x = locations[n];
    if constexpr (writes) {
      if (!is_ordered(x.write, now)) report("two writes", at, now, x.write);
      for (const Access r : {x.read, x.other_read})
        if (!is_ordered(r, now)) report("a write after a read", at, now, r);
      x.write = now;
    } else {
      if (x.read == now) continue;  // already checked against the last write
      if (!is_ordered(x.write, now)) report("a read after a write", at, now, x.write);
      if (barrier_of(x.write) < first_of_block && !is_dynamic(at))  // dynamic memory was filled with NaN
        report("nothing was written before a read", at, now);
      if (thread_of(x.read) / 32 != thread / 32) x.other_read = x.read;
      x.read = now;
    }
  }
}

}  // namespace

void forget_accesses() {
  first_of_block = ++barrier;
}
void order_block() {
  ++barrier;
}
void order_warp(unsigned warp) {
  ++warp_barriers[warp];
}
void note_write(void* p, int bytes) {
  note<true>(p, static_cast<std::size_t>(bytes));
}

}  // namespace tg::emulator

// Aligned: of a type whose addresses are multiples of its size, as a GPU insists.
#define TG_ACCESS(kind, writes, bytes)                      \
  extern "C" void __tsan_##kind##bytes(void* p) {           \
    tg::emulator::insist_on_alignment<bytes>(p);            \
    tg::emulator::note<writes>(p, bytes);                   \
  }                                                         \
  extern "C" void __tsan_volatile_##kind##bytes(void* p) {  \
    tg::emulator::insist_on_alignment<bytes>(p);            \
    tg::emulator::note<writes>(p, bytes);                   \
  }                                                         \
  extern "C" void __tsan_unaligned_##kind##bytes(void* p) { \
    tg::emulator::note<writes>(p, bytes);                   \
  }
TG_ACCESS(read, false, 1)
TG_ACCESS(write, true, 1)
TG_ACCESS(read, false, 2)
TG_ACCESS(write, true, 2)
TG_ACCESS(read, false, 4)
TG_ACCESS(write, true, 4)
TG_ACCESS(read, false, 8)
TG_ACCESS(write, true, 8)
TG_ACCESS(read, false, 16)
TG_ACCESS(write, true, 16)
extern "C" void __tsan_read_range(void* p, std::size_t n) {
  if (n) tg::emulator::note<false>(p, n);
}
extern "C" void __tsan_write_range(void* p, std::size_t n) {
  if (n) tg::emulator::note<true>(p, n);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void**, void*) {}

// Atomic operations, of the standard library in host code: as they are.
#define TG_ATOMIC(bits, type)                                                                          \
  extern "C" type __tsan_atomic##bits##_load(const type* p, int) {                                     \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                       \
  }                                                                                                    \
  extern "C" void __tsan_atomic##bits##_store(type* p, type v, int) {                                  \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                    \
  extern "C" type __tsan_atomic##bits##_exchange(type* p, type v, int) {                               \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                \
  }                                                                                                    \
  extern "C" type __tsan_atomic##bits##_fetch_add(type* p, type v, int) {                              \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                                 \
  }                                                                                                    \
  extern "C" type __tsan_atomic##bits##_fetch_sub(type* p, type v, int) {                              \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                                 \
  }                                                                                                    \
  extern "C" int __tsan_atomic##bits##_compare_exchange_strong(type* p, type* old, type v, int, int) { \
    return __atomic_compare_exchange_n(p, old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);          \
  }
TG_ATOMIC(8, std::uint8_t)
TG_ATOMIC(32, std::uint32_t)
TG_ATOMIC(64, std::uint64_t)

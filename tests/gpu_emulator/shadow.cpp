#include "tests/gpu_emulator/shadow.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/coverage.h"
#include "tests/gpu_emulator/early_reads.h"

namespace tg::emulator {

namespace {

std::uint32_t barrier = 1, first_of_block = 1;
constexpr std::uint32_t last_barrier = (1u << 22) - 1;

Access access(unsigned thread) {
  return std::uint64_t{barrier} << 42 | std::uint64_t{warp_times[thread / 32].now} << 16 | thread;
}

// Static and dynamic shared memory are both in thread-local storage.
struct Range {
  const unsigned char *from = nullptr, *to = nullptr, *dynamic = nullptr;
};
Range shared_range() {
  Range r;
  const auto visit = [](dl_phdr_info* info, std::size_t, void* data) {
    for (int n = 0; n < info->dlpi_phnum; ++n)
      if (info->dlpi_phdr[n].p_type == PT_TLS) {
        const auto* from = static_cast<const unsigned char*>(info->dlpi_tls_data);
        const unsigned char* here = dynamic_shared(0);
        if (from && here >= from && here < from + info->dlpi_phdr[n].p_memsz)
          *static_cast<Range*>(data) = {from, from + info->dlpi_phdr[n].p_memsz, here};
      }
    return 0;
  };
  dl_iterate_phdr(visit, &r);
  return r;
}
const Range range = shared_range();
const std::size_t all_locations = static_cast<std::size_t>(range.to - range.from) / grain + 1;
Location* const locations = new Location[all_locations]();

[[gnu::noinline]] bool is_ordered_in_block(Access before, Access now) {
  const unsigned a = thread_of(before), b = thread_of(now);
  if (a / 32 == b / 32 && time_of(before) < warp_times[b / 32].last_syncwarp) return true;
  return has_clocks() && time_of(before) < at(known_to(b), a);
}
[[gnu::always_inline]] inline bool is_ordered(Access before, Access now) {
  return barrier_of(before) != barrier_of(now) || thread_of(before) == thread_of(now) ||
         is_ordered_in_block(before, now);
}

bool is_dynamic(const unsigned char* p) {
  return p >= range.dynamic && p < range.dynamic + most_blocks * most_shared;
}

[[gnu::noinline, noreturn]] void report(const char* what, const unsigned char* p, Access now,
                                        Access before = 0) {
  std::string text =
      std::string(what) + " in " + name_of_shared(p) + ": thread " + std::to_string(thread_of(now));
  if (before) text += " and, with no barrier between them, thread " + std::to_string(thread_of(before));
  give_up(text);
}

// An access of 16 bytes needs an alignment of only 8, because compilers use it to copy structs of two words.
// If a type needs more, the processor checks the alignment.
[[gnu::noinline, noreturn]] void report_misaligned(std::size_t bytes) {
  give_up("thread " + std::to_string(here.number) + ": an access of " + std::to_string(bytes) +
          " bytes at an address that is not a multiple of them");
}
template <std::size_t bytes>
[[gnu::always_inline]] inline void insist_on_alignment(const void* p) {
  constexpr std::size_t mask = (bytes < 8 ? bytes : 8) - 1;
  if ((reinterpret_cast<std::uintptr_t>(p) & mask) != 0 && here.number >= 0) report_misaligned(bytes);
}

// All blocks share one static shared memory. In the emulator, ordinary code never accesses another block's
// static memory.
[[gnu::noinline]] void insist_on_own_block(const unsigned char* p) {
  if (!is_dynamic(p)) give_up("static shared memory, which the emulator does not have in clusters");
  if (static_cast<std::size_t>(p - dynamic_shared()) >= most_shared)
    give_up("thread " + std::to_string(here.number) + ": an ordinary access to " + name_of_shared(p) +
            ", from block " + std::to_string(here.rank));
}

[[gnu::noinline, noreturn]] void report_beyond(const unsigned char* p) {
  give_up("thread " + std::to_string(here.number) + ": an access to " + name_of_shared(p) + ", beyond the " +
          std::to_string(shared_size()) + " bytes of the launch");
}

template <bool writes>
[[gnu::always_inline]] inline void note(const void* p, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(p);
  const auto offset = static_cast<std::size_t>(at - range.from);
  if (here.number < 0) return;
  if (offset >= static_cast<std::size_t>(range.to - range.from)) {
    if (tracks_writes) note_global(p, bytes, writes);
    return;
  }
  if (static_cast<std::size_t>(at - reinterpret_cast<unsigned char*>(&here)) < sizeof here) return;
  if (is_dynamic(at) && static_cast<std::size_t>(at - range.dynamic) % most_shared + bytes > shared_size())
    report_beyond(at);
  const auto thread = static_cast<unsigned>(here.number);
  const Access now = access(thread);
  const bool clocks = has_clocks();
  if (clocks && cluster_blocks > 1) insist_on_own_block(at);
  for (std::size_t n = offset / grain; n <= (offset + bytes - 1) / grain; ++n) {
    Location& x = locations[n];
    if (clocks) check_async(n, writes, at);
    if constexpr (writes) {
      if (!is_ordered(x.write, now)) report("two writes", at, now, x.write);
      for (const Access r : {x.read, x.other_read})
        if (!is_ordered(r, now)) report("a write after a read", at, now, r);
      x.write = now;
    } else {
      if (x.read == now) continue;  // already compared with the last write
      if (!is_ordered(x.write, now)) report("a read after a write", at, now, x.write);
      if (barrier_of(x.write) < first_of_block && !is_dynamic(at))  // dynamic memory was filled with NaN
        report("nothing was written before a read", at, now);
      if (thread_of(x.read) / 32 != thread / 32) x.other_read = x.read;
      x.read = now;
    }
  }
}

}  // namespace

void forget_accesses(unsigned threads) {
  if (barrier > last_barrier / 2) {  // the time is not reset between blocks
    std::fill(locations, locations + all_locations, Location{});
    barrier = 1;
  }
  first_of_block = ++barrier;
  forget_clocks(threads);
  forget_async_accesses();
}
void order_block(unsigned first, unsigned end) {
  // In a cluster, only clocks record the blocks that have arrived at a barrier.
  if (cluster_blocks == 1 && ++barrier == last_barrier)
    give_up("the emulator has no more than two million barriers for a block");
  order_threads(first, end);
}
void order_warp(unsigned warp) {
  order_lanes(warp);
}
Access access_here() {
  return access(static_cast<unsigned>(here.number));
}
bool is_ordered_here(Access before) {
  return is_ordered(before, access_here());
}
bool is_of_this_block(Access a) {
  return barrier_of(a) >= first_of_block;
}
std::size_t location_of(const void* shared) {
  return static_cast<std::size_t>(static_cast<const unsigned char*>(shared) - range.from) / grain;
}
Location& location(std::size_t number) {
  return locations[number];
}
std::string name_of_shared(const void* p) {
  const auto* at = static_cast<const unsigned char*>(p);
  if (!is_dynamic(at)) return "static shared memory";
  const auto offset = static_cast<std::size_t>(at - range.dynamic);
  return "byte " + std::to_string(offset % most_shared) + " of dynamic shared memory" +
         (cluster_blocks > 1 ? " of block " + std::to_string(offset / most_shared) + " of the cluster" : "");
}
void note_write(void* p, int bytes) {
  note<true>(p, static_cast<std::size_t>(bytes));
}

}  // namespace tg::emulator

// Checks that an address is a multiple of the type's size. A GPU requires this.
#define TG_ACCESS(kind, writes, bytes)                      \
  extern "C" void __tsan_##kind##bytes(void* p) {           \
    ++tg::emulator::work_done;                              \
    tg::emulator::insist_on_alignment<bytes>(p);            \
    tg::emulator::note<writes>(p, bytes);                   \
  }                                                         \
  extern "C" void __tsan_volatile_##kind##bytes(void* p) {  \
    ++tg::emulator::work_done;                              \
    tg::emulator::insist_on_alignment<bytes>(p);            \
    tg::emulator::note<writes>(p, bytes);                   \
  }                                                         \
  extern "C" void __tsan_unaligned_##kind##bytes(void* p) { \
    ++tg::emulator::work_done;                              \
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

// In host code, atomic operations of the standard library are executed unchanged.
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
  }                                                                                                    \
  extern "C" int __tsan_atomic##bits##_compare_exchange_weak(type* p, type* old, type v, int, int) {   \
    return __atomic_compare_exchange_n(p, old, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);           \
  }
TG_ATOMIC(8, std::uint8_t)
TG_ATOMIC(32, std::uint32_t)
TG_ATOMIC(64, std::uint64_t)

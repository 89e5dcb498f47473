#include "tests/gpu_emulator/memory.h"

#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/recorder.h"

namespace tg::emulator {

namespace {

constexpr std::size_t page = 4096, alignment = 256;

struct Allocation {
  std::size_t bytes, mapped;
  void* map;
};
std::mutex mutex;
std::map<std::uintptr_t, Allocation>& allocations() {
  static auto* all = new std::map<std::uintptr_t, Allocation>;
  return *all;
}
std::size_t used = 0;

std::size_t rounded(std::size_t n, std::size_t to) {
  return (n + to - 1) / to * to;
}

// A signal handler may call only certain functions. All functions here are allowed, except snprintf. This
// exception is acceptable because the process ends.
void on_fault(int signal, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  char line[400], place[200] = "no device memory";
  if (info->si_code == SI_KERNEL) std::strcpy(place, "a misaligned access of 16 bytes");
  for (const auto& [base, a] : allocations())
    if (at >= base - page && at < base + a.bytes + 2 * page)
      std::snprintf(place, sizeof place, "byte %lld of %zu bytes of device memory",
                    static_cast<long long>(at - base), a.bytes);
  const Index3 b = here.block, t = here.thread;
  const int n = std::snprintf(
      line, sizeof line,
      "emulated GPU: fault at address %p: %s; last in a kernel: block (%u, %u, %u), thread (%u, %u, %u)\n",
      info->si_addr, place, b.x, b.y, b.z, t.x, t.y, t.z);
  std::fwrite(line, 1, static_cast<std::size_t>(n), stderr);
  ::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

std::size_t total_memory() {
  return std::size_t{8} << 30;
}
std::size_t free_memory() {
  return total_memory() - used;
}

void* allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex);
  if (bytes > free_memory()) return nullptr;
  const std::size_t whole = rounded(bytes, alignment), mapped = rounded(whole, page) + 2 * page;
  void* map = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  auto* first = static_cast<std::byte*>(map) + page;
  mprotect(first, mapped - 2 * page, PROT_READ | PROT_WRITE);
  std::byte* base = first + (mapped - 2 * page) - whole;  // the allocation ends directly before the next page
  if (!only_records()) std::memset(base, 0xff, whole);
  allocations().emplace(reinterpret_cast<std::uintptr_t>(base), Allocation{bytes, mapped, map});
  used += bytes;
  return base;
}

bool release(void* p) {
  const std::lock_guard lock(mutex);
  const auto at = allocations().find(reinterpret_cast<std::uintptr_t>(p));
  if (at == allocations().end()) return false;
  munmap(at->second.map, at->second.mapped);
  used -= at->second.bytes;
  allocations().erase(at);
  return true;
}

void tell_faults() {
  static const bool once = [] {
    static std::byte stack[64 << 10];
    stack_t alternative{};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
    struct sigaction action {};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace tg::emulator

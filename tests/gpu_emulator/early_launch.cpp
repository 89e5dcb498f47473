#include "tests/gpu_emulator/early_launch.h"

#include <bitset>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <unordered_map>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/early_reads.h"
#include "tests/gpu_emulator/fiber.h"

namespace tg::emulator {

namespace {

thread_local std::bitset<1024> waited;  // threads of the running block that have waited
thread_local bool is_early = false;     // whether the grid may begin early
bool may_be_first = true;               // no grid has written memory or begun early so far

// Written memory. A page has a bit for each unit of 16 bytes.
constexpr std::uintptr_t unit = 16, units = 256;
using Page = std::bitset<units>;
using Pages = std::unordered_map<std::uintptr_t, Page>;
Pages written, fresh;       // written by previous grids; written by this grid
Page* last_page = nullptr;  // the last used page of `fresh`
std::uintptr_t last_number = 0;

template <class F>
void each_unit(const void* p, std::size_t bytes, F&& f) {
  const auto from = reinterpret_cast<std::uintptr_t>(p) / unit,
             to = (reinterpret_cast<std::uintptr_t>(p) + bytes - 1) / unit;
  for (std::uintptr_t n = from; n <= to; ++n) f(n);
}

std::size_t thread() {
  return static_cast<std::size_t>(here.number);
}

}  // namespace

bool tracks_writes = [] {
  const char* gpu = std::getenv("TG_EMULATED_GPU");
  return gpu && std::string(gpu) == "hopper";
}();

void begin_early() {
  waited[thread()] = false;
  is_early = true;
  may_be_first = false;
}
void end_early() {
  if (!waited[thread()])
    give_up("a kernel that may begin early ends without having waited for the kernel before it");
}
void wait_for_kernel_before() {
  waited[thread()] = true;
}
bool is_before_wait() {
  return is_early && !waited[thread()];
}
void begin_grid() {
  is_early = false;
  may_be_first = true;
  for (const auto& [number, page] : fresh) written[number] |= page;
  fresh.clear();
  last_page = nullptr;
}

void forget_writes() {
  written.clear(), fresh.clear();
  last_page = nullptr;
}
void mark_written(const void* p, std::size_t bytes) {
  each_unit(p, bytes, [](std::uintptr_t n) {
    if (!last_page || last_number != n / units) last_page = &fresh[n / units], last_number = n / units;
    last_page->set(n % units);
  });
}
void note_global(const void* p, std::size_t bytes, bool writes) {
  if (bytes == 0 || is_on_a_stack(p)) return;
  if (writes) {
    if (may_be_first) forget_writes(), may_be_first = false;
    return mark_written(p, bytes);
  }
  if (!is_before_wait()) return;
  each_unit(p, bytes, [](std::uintptr_t n) {
    const auto page = written.find(n / units);
    if (page != written.end() && page->second[n % units])
      give_up("thread " + std::to_string(here.number) +
              " reads memory that a kernel has written, before it waits for the kernel before");
  });
}

}  // namespace tg::emulator

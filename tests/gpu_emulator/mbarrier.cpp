#include "tests/gpu_emulator/mbarrier.h"

#include <cstring>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/clocks.h"
#include "tests/gpu_emulator/cluster.h"
#include "tests/gpu_emulator/coverage.h"
#include "tests/gpu_emulator/shadow.h"

namespace tg::emulator {

namespace {

constexpr std::uint64_t mark = 0x6d62617272696572;  // the memory of a barrier contains this mark

struct Copies {
  int bytes;
  std::function<void()> arrive;
};

struct Barrier {
  std::uint32_t address = 0;  // address in the cluster
  unsigned number = 0;        // index among the barriers of all blocks
  int count = 0;              // arrivals of a phase
  int arrived = 0, expected_bytes = 0;
  Time phases = 0;  // number of ended phases
  std::vector<Copies> copies;
  Access initialised = 0, fenced = 0;
  Released arriving;
  bool from_others = false, last_from_others = false;  // arrivals in this phase and in the previous phase
  SharedClock of_last_phase;
  std::vector<unsigned> waiting;

  int bytes_to_come() const {
    int bytes = expected_bytes;
    for (const Copies& c : copies) bytes -= c.bytes;
    return bytes;
  }
};

std::map<std::uint32_t, Barrier> barriers;

std::string name(std::uint32_t address) {
  return "the mbarrier at " + name_of_shared(shared_pointer(address));
}
std::string state(const Barrier& b) {
  return name(b.address) + ", phase " + std::to_string(b.phases) + ", which lacks " +
         std::to_string(b.count - b.arrived) + " of " + std::to_string(b.count) + " arrivals and " +
         std::to_string(b.bytes_to_come()) + " of " + std::to_string(b.expected_bytes) + " bytes";
}
[[noreturn]] void fail(const std::string& what) {
  give_up("thread " + std::to_string(here.number) + ": " + what);
}

Barrier& barrier_at(std::uint32_t address) {
  const auto at = barriers.find(address);
  if (at == barriers.end()) fail(name(address) + " is used, but not initialised");
  std::uint64_t found;
  std::memcpy(&found, shared_pointer(address), sizeof found);
  if (found != mark) fail(name(address) + " has been overwritten");
  if (!is_ordered_here(at->second.initialised))
    fail(name(address) + " is used with no barrier after its initialisation");
  return at->second;
}
Barrier& own_barrier(std::uint32_t address) {
  if (block_of(address) != here.rank) fail(name(address) + " is not of this block");
  return barrier_at(address);
}
void insist_on_room(const Barrier& b) {
  if (b.arrived == b.count)
    fail("an arrival too many at " + name(b.address) + ": a phase has " + std::to_string(b.count));
}

// Ends the phase if all expected arrivals have occurred, and if all expected bytes have arrived or are
// available.
void advance(Barrier& b) {
  if (b.arrived < b.count || b.bytes_to_come() != 0) return;
  if (!b.copies.empty() && b.waiting.empty()) return;  // the phase ends later, when a thread waits
  for (const Copies& c : std::exchange(b.copies, {}))
    c.arrive(), b.arriving.set(copies_to(b.number), b.phases + 1);
  b.of_last_phase = b.arriving.take();
  b.last_from_others = std::exchange(b.from_others, false);
  ++b.phases;
  b.arrived = b.expected_bytes = 0;
  for (const unsigned t : std::exchange(b.waiting, {})) wake(t);
}

}  // namespace

void mbarrier_init(std::uint32_t address, int arrivals) {
  start_clocks();
  if (address % 8 != 0) fail(name(address) + " is not at a multiple of 8 bytes");
  // A wrong address may belong to another kernel's static shared memory. That memory never contains
  // mbarriers.
  if (static_cast<std::size_t>(shared_pointer(address) - dynamic_shared(block_of(address))) >= most_shared)
    fail(name(address) + " is not in dynamic shared memory");
  if (arrivals < 1) fail(name(address) + " is initialised for " + std::to_string(arrivals) + " arrivals");
  const unsigned number =
      barriers.contains(address) ? barriers[address].number : static_cast<unsigned>(barriers.size());
  if (number >= most_mbarriers)
    fail("the emulator has no more than " + std::to_string(most_mbarriers) + " mbarriers");
  note_write(shared_pointer(address), 8);
  std::memcpy(shared_pointer(address), &mark, sizeof mark);
  Barrier& b = barriers[address] = {};
  b.address = address, b.number = number, b.count = arrivals;
  b.initialised = access_here();
}
void fence_mbarrier_init() {
  for (auto& [address, b] : barriers)
    if (thread_of(b.initialised) == static_cast<unsigned>(here.number)) b.fenced = access_here();
}

void mbarrier_arrive_expect(std::uint32_t address, int bytes) {
  Barrier& b = own_barrier(address);
  insist_on_room(b);
  b.expected_bytes += bytes;
  b.arriving.add(static_cast<unsigned>(here.number));
  ++b.arrived;
  advance(b);
}
void mbarrier_arrive(std::uint32_t address) {
  mbarrier_arrive_expect(address, 0);
}

void mbarrier_arrive_at(std::uint32_t address) {
  const auto me = static_cast<unsigned>(here.number);
  Barrier& b = barrier_at(address);
  insist_on_room(b);
  b.arriving.add_asynchronous(me);
  if (const unsigned rank = block_of(address); rank != here.rank) {
    b.from_others = true;
    keep_until(rank, arrivals_of(me / 32), warp_times[me / 32].now);
  }
  ++b.arrived;
  advance(b);
}

void mbarrier_wait(std::uint32_t address, std::uint32_t parity, Scope scope) {
  Barrier& b = own_barrier(address);
  const auto me = static_cast<unsigned>(here.number);
  // A sleeping thread waits only for the end of this phase. It may run again after the end of the next phase.
  for (const Time phase = b.phases; phase % 2 == parity && b.phases == phase;) {
    b.waiting.push_back(me);
    advance(b);
    if (b.phases > phase) break;
    sleep([](const void* about) { return state(*static_cast<const Barrier*>(about)); }, &b);
  }
  if (b.last_from_others && scope == Scope::block)
    fail("waits in the scope of its block for arrivals of another block at " + name(address) +
         ": mbarrier_wait_cluster");
  acquire(me, b.of_last_phase);
}

void copy_by(std::uint32_t address, std::uint32_t to, int bytes, std::function<void()> arrive,
             const unsigned char* from) {
  Barrier& b = barrier_at(address);
  if (block_of(address) != block_of(to)) fail("a bulk copy to another block than that of " + name(address));
  if (!b.fenced) fail("a bulk copy uses " + name(address) + ", which has no fence_mbarrier_init");
  if (!is_ordered_here(b.fenced))
    fail("a bulk copy uses " + name(address) + " with no barrier after fence_mbarrier_init");
  if (from) note_copy_from(from, bytes, b.number, b.phases);
  note_copy(shared_pointer(to), bytes, b.number, b.phases);
  if (block_of(to) != here.rank) {
    keep_until(block_of(to), copies_to(b.number), b.phases + 1);
    if (from) keep_until(here.rank, copies_to(b.number), b.phases + 1);
  }
  count_copy(bytes);
  std::memset(shared_pointer(to), 0xff, static_cast<std::size_t>(bytes));
  b.copies.push_back({bytes, std::move(arrive)});
  advance(b);
}

void forget_mbarriers() {
  barriers.clear();
}
void insist_on_no_copies() {
  for (const auto& [address, b] : barriers)
    if (!b.copies.empty())
      throw std::runtime_error("the block has ended, but no thread has waited for a bulk copy to " +
                               name(address));
}

}  // namespace tg::emulator

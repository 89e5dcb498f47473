// Checks accesses to shared memory that are concurrent with threads. Bulk copies write pieces of 16 bytes.
// wgmma and copies to other blocks read such pieces. For a thread, a copy is finished if the thread has
// waited for the copy's phase. A warp's wgmma is finished after this warp has waited, for all threads that
// are ordered after the wait.
#include <algorithm>
#include <array>
#include <vector>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/shadow.h"

namespace tg::emulator {

namespace {

constexpr std::size_t each = 16 / grain;  // locations of a piece

struct Arrival {
  unsigned mbarrier = 0;
  Time phases = 0;  // phase of an arriving copy, plus one; 0: there is no copy
};

struct Piece {
  std::uint64_t block = 0;  // number of the block that set the other fields
  Arrival copy;
  std::vector<Arrival> copied;     // phases in which copies from this piece arrive in other blocks
  std::array<Time, 32> product{};  // for each warp: last group that reads the piece, plus one
};

std::uint64_t block = 0;
bool any = false;  // whether this block has such accesses
std::vector<Piece> pieces(most_blocks* most_shared / 16);

Piece* piece_at(const void* p) {
  const auto n = static_cast<std::size_t>(static_cast<const unsigned char*>(p) - dynamic_shared(0)) / 16;
  return n < pieces.size() ? &pieces[n] : nullptr;
}
Piece& piece_to_note(const void* p) {
  Piece& x = *piece_at(p);
  if (x.block != block) x = {}, x.block = block;
  any = true;
  return x;
}

[[noreturn]] void report(const std::string& what, const void* p, const std::string& who) {
  give_up(what + " in " + name_of_shared(p) + ": " + who);
}
std::string thread(unsigned number) {
  return "thread " + std::to_string(number);
}
std::string me() {
  return thread(static_cast<unsigned>(here.number));
}

// Returns a warp whose wgmma may still read the piece, or −1 if there is none.
int reader(const Piece& x, const SharedClock& known) {
  for (unsigned w = 0; w < threads_in_cluster() / 32; ++w)
    if (x.product[w] > at(known, products_of(w))) return static_cast<int>(w);
  return -1;
}
bool has_arrived(const Arrival& copy, const SharedClock& known) {
  return copy.phases <= at(known, copies_to(copy.mbarrier));
}
bool is_copied(const Piece& x, const SharedClock& known) {
  return std::any_of(x.copied.begin(), x.copied.end(),
                     [&](const Arrival& copy) { return !has_arrived(copy, known); });
}

// Checks a write before a copy or wgmma. The write must be ordered before the copy or wgmma. fence_async must
// have made the write visible.
template <class Fenced>
void check_write(Access write, const SharedClock& known, Fenced fenced, const char* what, const void* p) {
  const unsigned writer = thread_of(write);
  if (!is_of_this_block(write) || time_of(write) < fenced(writer)) return;
  const bool ordered = barrier_of(write) != barrier_of(access_here()) || time_of(write) < at(known, writer);
  report(what, p,
         thread(writer) + (ordered ? " wrote it with no fence_async before the barrier"
                                   : " wrote it, with no barrier between them"));
}

}  // namespace

void forget_async_accesses() {
  ++block;
  any = false;
}

void note_copy(void* to, int bytes, unsigned mbarrier, Time phase) {
  const auto issuer = static_cast<unsigned>(here.number);
  const SharedClock& known = known_to(issuer);
  const auto fenced = [&](unsigned writer) {
    return writer == issuer ? fenced_by(issuer) : at(known, fenced_of(writer));
  };
  for (int n = 0; n < bytes; n += 16) {
    unsigned char* const p = static_cast<unsigned char*>(to) + n;
    Piece& x = piece_to_note(p);
    if (!has_arrived(x.copy, known)) report("a bulk copy before another has arrived", p, me());
    if (is_copied(x, known)) report("a bulk copy over what another may still read", p, me());
    if (const int w = reader(x, known); w >= 0)
      report("a bulk copy over what wgmma may still read", p,
             me() + " and, with no wait and barrier between them, warp " + std::to_string(w));
    const std::size_t first = location_of(p);
    Access last = 0;
    for (std::size_t l = first; l < first + each; ++l) {
      const Location& y = location(l);
      if (y.write != last) check_write(last = y.write, known, fenced, "a bulk copy after a write", p);
      for (const Access r : {y.read, y.other_read})
        if (!is_ordered_here(r))
          report("a bulk copy after a read", p,
                 me() + " and, with no barrier between them, " + thread(thread_of(r)));
    }
    x.copy = {mbarrier, phase + 1};
  }
}

void note_store(const void* from, int bytes) {
  const auto issuer = static_cast<unsigned>(here.number);
  const SharedClock& known = known_to(issuer);
  const auto fenced = [&](unsigned writer) {
    return writer == issuer ? fenced_by(issuer) : at(known, fenced_of(writer));
  };
  for (int n = 0; n < bytes; n += 16) {
    const unsigned char* const p = static_cast<const unsigned char*>(from) + n;
    if (!has_arrived(piece_to_note(p).copy, known))
      report("a bulk copy reads before another has arrived", p, me());
    const std::size_t first = location_of(p);
    for (std::size_t l = first; l < first + each; ++l)
      check_write(location(l).write, known, fenced, "a bulk copy reads after a write", p);
  }
}

void note_copy_from(const void* from, int bytes, unsigned mbarrier, Time phase) {
  note_store(from, bytes);
  const SharedClock& known = known_to(static_cast<unsigned>(here.number));
  for (int n = 0; n < bytes; n += 16) {
    Piece& x = piece_to_note(static_cast<const unsigned char*>(from) + n);
    std::erase_if(x.copied, [&](const Arrival& copy) { return has_arrived(copy, known); });
    x.copied.push_back({mbarrier, phase + 1});
  }
}

void note_product(const void* p, unsigned first, unsigned last, Time group, const SharedClock& issued) {
  Piece& x = piece_to_note(p);
  const Time number = group + 1;
  bool seen = true;
  for (unsigned w = first; w < last; ++w) seen = seen && x.product[w] == number;
  if (seen) return;
  const std::string who = "warps " + std::to_string(first) + " … " + std::to_string(last - 1);
  if (!has_arrived(x.copy, issued)) report("wgmma reads before a bulk copy has arrived", p, who);
  const auto fenced = [&](unsigned writer) { return at(issued, fenced_of(writer)); };
  const std::size_t begin = location_of(p);
  Access before = 0;
  for (std::size_t l = begin; l < begin + each; ++l)
    if (const Access write = location(l).write; write != before)
      check_write(before = write, issued, fenced, "wgmma reads after a write", p);
  for (unsigned w = first; w < last; ++w) x.product[w] = number;
}

void check_async(std::size_t number, bool writes, const unsigned char* p) {
  if (!any) return;
  static const std::size_t first = location_of(dynamic_shared(0));
  if (number < first) return;
  const std::size_t n = (number - first) / each;
  if (n >= pieces.size()) return;
  const Piece& x = pieces[n];
  if (x.block != block) return;
  const SharedClock& known = known_to(static_cast<unsigned>(here.number));
  if (!has_arrived(x.copy, known))
    report(writes ? "a write before a bulk copy has arrived" : "a read before a bulk copy has arrived", p,
           me());
  if (!writes) return;
  if (is_copied(x, known)) report("a write over what a bulk copy may still read", p, me());
  if (const int w = reader(x, known); w >= 0)
    report("a write over what wgmma may still read", p,
           me() + " and, with no wait and barrier between them, warp " + std::to_string(w));
}

}  // namespace tg::emulator

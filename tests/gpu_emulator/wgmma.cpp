#include "tests/gpu_emulator/wgmma.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/clocks.h"
#include "tests/gpu_emulator/coverage.h"
#include "tests/gpu_emulator/multiply.h"
#include "tests/gpu_emulator/register_fence.h"
#include "tests/gpu_emulator/shadow.h"

namespace tg::emulator {

namespace {

constexpr unsigned team = 128;  // threads of a warpgroup
constexpr unsigned char poison = 0xff;
using Word4 = std::array<std::uint32_t, 4>;

// The accumulators [64, columns] of wgmma. They exist from the first wgmma until each thread has waited and
// has called keep().
struct Sums {
  int columns = 0;
  std::vector<float> x;
  std::array<float*, team> registers{};
  std::array<bool, team> in_flight{}, done{};  // done: the thread has waited but has not called keep()
  std::array<std::uint64_t, team> last{};      // the last wgmma that the thread has issued
  std::size_t bytes() const { return static_cast<std::size_t>(columns) * 2; }  // bytes of one thread
  int floats() const { return columns / 2; }
  bool meets(unsigned t, const float* from, int count) const {
    return from < registers[t] + floats() && registers[t] < from + count;
  }
  bool is_poisoned(unsigned t) const {
    const auto* byte = reinterpret_cast<const unsigned char*>(registers[t]);
    return std::all_of(byte, byte + bytes(), [](unsigned char b) { return b == poison; });
  }
  // The elements of a thread. In each 16 × 8 part, lane 4·g + t of a warp has the elements (g, 2t), (g, 2t +
  // 1), (g + 8, …).
  float& of_thread(unsigned t, int e) {
    const auto lane = static_cast<int>(t % 32),
               row = static_cast<int>(t / 32) * 16 + lane / 4 + e % 4 / 2 * 8;
    return x[static_cast<std::size_t>(row * columns + e / 4 * 8 + lane % 4 * 2 + e % 2)];
  }
};

struct Product {
  ProductShape shape;
  std::shared_ptr<Sums> sums;
  std::uint64_t group = 0;
  unsigned issued = 0;  // number of threads that have issued the wgmma
  CommonKnowledge known;
  std::array<const std::uint32_t*, team> a_registers{};
  std::array<Word4, team> a{};
};

struct Warpgroup {
  std::deque<Product> products;  // numbers start at `first`
  std::uint64_t first = 0, computed = 0;
  std::vector<std::uint64_t> group_ends;
  std::vector<std::shared_ptr<Sums>> sums;
  std::array<std::uint64_t, team> issued{}, committed{}, waited{};  // products; groups; products
  std::array<int, team> done{};                                     // finished sums of each thread
  std::vector<unsigned> waiting;
  Product& number(std::uint64_t n) { return products[n - first]; }
};

std::vector<Warpgroup> groups;

[[noreturn]] void fail(const std::string& what) {
  give_up("thread " + std::to_string(here.number) + ": " + what);
}
std::string state(const void* about) {
  const auto& w = *static_cast<const Warpgroup*>(about);
  return "wgmma.wait_group of a product that some threads of the warpgroup have not issued (they have "
         "issued " +
         std::to_string(*std::min_element(w.issued.begin(), w.issued.end())) + " … " +
         std::to_string(*std::max_element(w.issued.begin(), w.issued.end())) + ")";
}

Warpgroup& my_group() {
  const auto me = static_cast<unsigned>(here.number);
  if (me / team >= groups.size()) fail("wgmma by less than the four warps of a warpgroup");
  return groups[me / team];
}

void insist_on_operand(std::uint64_t descriptor, bool transposed, int extent, const char* which) {
  if (const char* why = OperandPlace(descriptor, transposed).wrong(extent))
    fail(std::string("wgmma: operand ") + which + " " + why);
}

// Returns the sums with these registers. If there are none, returns sums that are no longer in flight. If all
// sums are in flight, returns new sums.
std::shared_ptr<Sums> sums_at(Warpgroup& w, unsigned t, float* registers, int columns) {
  const auto is_free = [](const std::shared_ptr<Sums>& s) {
    const auto is = [](bool b) { return b; };
    return std::none_of(s->in_flight.begin(), s->in_flight.end(), is) &&
           std::none_of(s->done.begin(), s->done.end(), is);
  };
  for (const auto& s : w.sums)
    if (s->in_flight[t] && s->registers[t] == registers && s->columns == columns) return s;
  for (const auto& s : w.sums)
    if (s->in_flight[t] && s->meets(t, registers, columns / 2))
      fail("wgmma: products in flight have some of these accumulators");
  for (const auto& s : w.sums)
    if (s->registers[t] == registers && s->columns == columns) return s;
  for (const auto& s : w.sums)
    if (s->columns == columns && is_free(s)) return s;
  w.sums.push_back(std::make_shared<Sums>());
  w.sums.back()->columns = columns;
  w.sums.back()->x.resize(static_cast<std::size_t>(64 * columns));
  return w.sums.back();
}

void insist_on_fence(const void* registers, std::size_t bytes, const char* which) {
  if (!has_fence()) fail(std::string("wgmma with no wgmma_fence before it"));
  if (!are_as_fenced(registers, bytes))
    fail(std::string("wgmma: no wgmma_fence since ordinary instructions have written ") + which);
}

void end_done(Warpgroup& w, Sums& s, unsigned t) {
  w.done[t] -= s.done[t];
  s.done[t] = false;
}

// After this, the thread's accumulators belong to wgmma. Accumulators of an earlier wgmma also belong to it
// if keep() was not called.
void take(Warpgroup& w, Sums& s, unsigned t, float* registers) {
  const bool goes_on = s.done[t] && s.registers[t] == registers && s.is_poisoned(t);
  end_done(w, s, t);
  for (const auto& other : w.sums)
    if (other->done[t] && other->meets(t, registers, s.floats())) end_done(w, *other, t);
  if (!goes_on) {
    insist_on_fence(registers, s.bytes(), "its accumulators");
    for (int e = 0; e < s.floats(); ++e) s.of_thread(t, e) = registers[e];
    std::memset(registers, poison, s.bytes());
  }
  s.registers[t] = registers, s.in_flight[t] = true;
}
void finish_sums(Warpgroup& w, Sums& s, unsigned t) {
  if (!s.is_poisoned(t)) fail("accumulators were written while wgmma was in flight");
  s.in_flight[t] = false, s.done[t] = true, ++w.done[t];
}
// Returns the accumulators to the thread.
void give_back(Warpgroup& w, Sums& s, unsigned t) {
  end_done(w, s, t);
  if (!s.is_poisoned(t)) return;  // a different variable uses this memory now
  float* const registers = s.registers[t];
  for (int e = 0; e < s.floats(); ++e) registers[e] = s.of_thread(t, e);
  changed_by_product(registers, s.bytes());
}

void compute(Warpgroup& w, Product& p) {
  const auto first_warp = static_cast<unsigned>(&w - groups.data()) * 4;
  const SharedClock known = p.known.take();
  const auto note = [&](const void* piece, int warp) {  // read by one warp, or by all
    const unsigned first = first_warp + (warp < 0 ? 0 : static_cast<unsigned>(warp));
    note_product(piece, first, warp < 0 ? first + 4 : first + 1, static_cast<Time>(p.group), known);
  };
  static Factors f;
  if (p.shape.a_in_registers)
    for (unsigned t = 0; t < team; ++t) f.left_of_thread(t, p.a[t].data(), p.shape.number);
  else
    f.left_of(OperandPlace(p.shape.a, p.shape.a_transposed), p.shape.number, note);
  f.right_of(OperandPlace(p.shape.b, p.shape.b_transposed), p.shape.columns, p.shape.number, note);
  if (!p.shape.adds) std::fill(p.sums->x.begin(), p.sums->x.end(), 0.f);
  f.multiply(p.sums->x.data(), p.shape.columns);
}

void compute_until(Warpgroup& w, std::uint64_t end) {
  for (; w.computed < end; ++w.computed) compute(w, w.number(w.computed));
}

// Returns the operands and sums that the thread has waited for.
void finish(Warpgroup& w, unsigned t, std::uint64_t end) {
  for (std::uint64_t n = w.waited[t]; n < end; ++n)
    if (const std::uint32_t* a = w.number(n).a_registers[t];
        a && std::memcmp(a, w.number(n).a[t].data(), 16) != 0)
      fail("operand a of wgmma was written while the product was in flight");
  w.waited[t] = std::max(w.waited[t], end);
  for (const auto& s : w.sums)
    if (s->in_flight[t] && s->last[t] < end) finish_sums(w, *s, t);
  const std::uint64_t all = *std::min_element(w.waited.begin(), w.waited.end());
  for (; w.first < all; ++w.first) w.products.pop_front();
}

}  // namespace

void issue_product(const ProductShape& shape, float* sums, const std::uint32_t* a) {
  start_clocks();
  ++executed.products;
  Warpgroup& w = my_group();
  const unsigned t = static_cast<unsigned>(here.number) % team;
  const std::uint64_t n = w.issued[t]++;
  if (n == w.first + w.products.size()) {
    if (!shape.a_in_registers) insist_on_operand(shape.a, shape.a_transposed, 64, "a");
    insist_on_operand(shape.b, shape.b_transposed, shape.columns, "b");
    w.products.push_back({});
    w.products.back().shape = shape;
    w.products.back().group = w.committed[t];
    w.products.back().sums = sums_at(w, t, sums, shape.columns);
  }
  Product& p = w.number(n);
  if (!(p.shape == shape) || p.group != w.committed[t])
    fail("threads of a warpgroup issue different products");
  Sums& s = *p.sums;
  if (s.in_flight[t] && s.registers[t] != sums)
    fail("threads of a warpgroup issue products of different accumulators");
  if (!s.in_flight[t]) take(w, s, t, sums);
  s.last[t] = n;
  if (a) {
    insist_on_fence(a, 16, "operand a");
    p.a_registers[t] = a;
    std::memcpy(p.a[t].data(), a, 16);
  }
  p.known.add(static_cast<unsigned>(here.number));
  if (++p.issued == team)
    for (const unsigned waiting : std::exchange(w.waiting, {})) wake(waiting);
}

void fence_registers() {
  snapshot_registers();
}

void commit_products() {
  Warpgroup& w = my_group();
  const unsigned t = static_cast<unsigned>(here.number) % team;
  const std::uint64_t n = w.committed[t]++;
  if (n == w.group_ends.size()) w.group_ends.push_back(w.issued[t]);
  if (w.group_ends[n] != w.issued[t]) fail("threads of a warpgroup commit different products");
}

void wait_for_products(int pending) {
  start_clocks();
  Warpgroup& w = my_group();
  const auto me = static_cast<unsigned>(here.number);
  const unsigned t = me % team;
  if (w.committed[t] <= static_cast<unsigned>(pending)) return;
  const std::uint64_t done = w.committed[t] - static_cast<unsigned>(pending), end = w.group_ends[done - 1];
  while (std::any_of(w.issued.begin(), w.issued.end(), [&](std::uint64_t n) { return n < end; })) {
    w.waiting.push_back(me);
    sleep(state, &w);
  }
  compute_until(w, end);
  finish(w, t, end);
  learn(me, products_of(me / 32), static_cast<Time>(done));
}

void keep_sums(float* sum) {
  const auto me = static_cast<unsigned>(here.number);
  if (me / team >= groups.size()) return;
  Warpgroup& w = groups[me / team];
  const unsigned t = me % team;
  if (w.done[t] == 0) return;
  for (const auto& s : w.sums)
    if (s->done[t] && s->meets(t, sum, 1)) return give_back(w, *s, t);
}

void forget_products(unsigned threads) {
  groups.clear();
  groups.resize(threads / team);
  forget_snapshots(threads);
}
void insist_on_no_products(unsigned thread) {
  if (thread / team >= groups.size()) return;
  const Warpgroup& w = groups[thread / team];
  if (w.waited[thread % team] < w.issued[thread % team])
    fail("ends before the products that it has issued: a wgmma_wait, or a commit before it, is missing");
}

}  // namespace tg::emulator

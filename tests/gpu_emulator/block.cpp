#include "tests/gpu_emulator/block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu_emulator/cluster.h"
#include "tests/gpu_emulator/coverage.h"
#include "tests/gpu_emulator/early_reads.h"
#include "tests/gpu_emulator/fiber.h"
#include "tests/gpu_emulator/hopper.h"
#include "tests/gpu_emulator/shadow.h"

namespace tg::emulator {

constinit thread_local Here here{{}, {}, {}, {}, -1, 0};
unsigned cluster_blocks = 1;

namespace {

constexpr std::uint32_t first_address = 1024;  // dynamic shared memory starts here, never at 0
constexpr unsigned rank_bit = 24;              // position of the block's rank in an address
alignas(1024) thread_local unsigned char shared_bytes_[most_blocks][most_shared];

std::size_t dynamic_bytes = 0;  // size of the grid's dynamic shared memory

struct Copy {
  void* to;
  const void* from;
  int bytes, filled;
};

struct Thread {
  Index3 index;
  unsigned rank;
  Context context;
  void* stack = nullptr;  // null until the thread has started
  enum { ready, at_block, at_warp, asleep, ended } state = ready;
  Why why = nullptr;  // null unless the thread is asleep
  const void* about = nullptr;
  int barrier_sum = 0;
  std::vector<Copy> copies;               // uncommitted
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
};

// The lanes of a warp that have arrived at a common operation.
struct Meeting {
  unsigned mask, here;
  Apply apply;
  void* brought[32];
};

struct Warp {
  std::vector<Meeting> meetings;
  unsigned alive = 0;
};

// The threads of a block that are waiting in __syncthreads.
struct Together {
  unsigned alive = 0, here = 0;
  int sum = 0;
};

std::string text(const Index3& i) {
  return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

// A block, or the blocks of a cluster.
class Block {
 public:
  // Runs the blocks starting at `first`. Threads start on the stacks of finished blocks.
  void run(const std::function<void()>& body, Index3 size, Index3 first, unsigned blocks);

  void suspend() {
    Thread& me = *running_;
    if (Thread* to = next(); to != &me) go(me.context, to);  // the last thread may continue first
    enter(me);
  }
  int meet(int value);
  [[noreturn]] void give_up(const std::string& why) {
    failure_ = std::make_exception_ptr(std::runtime_error(why));
    Context left;
    for (;;) go(left, nullptr);
  }
  void meet(unsigned mask, void* brought, Apply apply);
  Thread& running() { return *running_; }
  unsigned number(const Thread& t) const { return static_cast<unsigned>(&t - threads_.data()); }
  unsigned alive_in_warp() { return warps_[number(*running_) / 32].alive; }
  unsigned size() const { return static_cast<unsigned>(threads_.size()); }
  void sleep(Why why, const void* about) {
    running_->state = Thread::asleep;
    running_->why = why, running_->about = about;
    suspend();
  }
  void wake(unsigned thread) {
    if (threads_[thread].state == Thread::asleep) release(threads_[thread]);
  }
  void let_others_run() {
    ready_.insert(ready_.begin(), running_);  // this thread continues last
    suspend();
  }

 private:
  void enter(const Thread& t) {
    here.thread = t.index;
    here.number = static_cast<int>(number(t));
    here.rank = t.rank;
    here.block.x = first_.x + t.rank;
  }
  static void entry();
  [[noreturn]] void serve();
  Thread* next();
  void go(Context& from, Thread* to);
  void release(Thread& t) {
    t.state = Thread::ready;
    ready_.push_back(&t);
  }
  void end(Thread& t);
  void open_barrier(unsigned rank);
  bool finish(Warp& w, std::size_t meeting, unsigned warp, const Thread* last);
  std::string stuck() const;
  std::string sleepers() const;

  const std::function<void()>* body_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Thread*> ready_;  // the last one runs next, so a warp runs as long as possible
  std::vector<void*> stacks_;
  Thread* running_ = nullptr;
  Context outside_;
  Index3 first_{};
  std::vector<Together> blocks_;
  unsigned alive_ = 0;
  std::exception_ptr failure_;
};

thread_local Block* current = nullptr;

void Block::run(const std::function<void()>& body, Index3 size, Index3 first, unsigned blocks) {
  static const bool reverse = [] {
    const char* order = std::getenv("TG_EMULATOR_ORDER");
    return order && std::string(order) == "reverse";
  }();
  body_ = &body;
  const unsigned each = size.x * size.y * size.z, count = each * blocks;
  threads_.resize(count);
  for (Thread& t : threads_) {
    if (t.stack) stacks_.push_back(std::exchange(t.stack, nullptr));  // stacks of blocks that failed
    t.state = Thread::ready;
    t.copies.clear(), t.groups.clear();
  }
  warps_.assign((count + 31) / 32, {});
  ready_.clear();
  here.block = first_ = first;
  blocks_.assign(blocks, {each});
  alive_ = count;
  failure_ = nullptr;
  for (unsigned n = 0; n < count; ++n) {
    const unsigned in_block = n % each;
    threads_[n].index = {in_block % size.x, in_block / size.x % size.y, in_block / size.x / size.y};
    threads_[n].rank = n / each;
    warps_[n / 32].alive |= 1u << n % 32;
    ready_.push_back(&threads_[n]);
  }
  if (!reverse) std::reverse(ready_.begin(), ready_.end());
  go(outside_, next());
  if (failure_) std::rethrow_exception(failure_);
  if (alive_ > 0) throw std::runtime_error(stuck());
  end_hopper_blocks();
}

Thread* Block::next() {
  if (ready_.empty() || failure_) return nullptr;
  Thread* t = ready_.back();
  ready_.pop_back();
  return t;
}

// If `to` is null, leaves the block.
void Block::go(Context& from, Thread* to) {
  running_ = to;
  if (!to) {
    here.number = -1, here.rank = 0;
    return switch_context(from, outside_);
  }
  enter(*to);
  if (!to->stack) {
    if (stacks_.empty()) stacks_.push_back(make_stack());
    to->stack = stacks_.back();
    stacks_.pop_back();
    to->context = context_at(to->stack, &Block::entry);
  }
  switch_context(from, to->context);
}

void Block::entry() {
  current->serve();
}

// A stack first runs its own thread. Afterward, it runs other threads that have not started.
void Block::serve() {
  for (;;) {
    try {
      (*body_)();
      end_hopper_thread(number(*running_));
    } catch (...) {
      failure_ = std::current_exception();
    }
    Thread& done = *running_;
    end(done);
    void* stack = std::exchange(done.stack, nullptr);
    Thread* t = next();
    if (t && !t->stack) {
      t->stack = stack;
      running_ = t;
      enter(*t);
      continue;
    }
    stacks_.push_back(stack);
    Context left;
    go(left, t);
  }
}

void Block::end(Thread& t) {
  if (!t.copies.empty() && !failure_)
    failure_ =
        std::make_exception_ptr(std::runtime_error("a thread ends with copies that it did not commit"));
  t.state = Thread::ended;
  --alive_;
  Together& block = blocks_[t.rank];
  --block.alive;
  const unsigned n = number(t);
  Warp& w = warps_[n / 32];
  w.alive &= ~(1u << n % 32);
  for (std::size_t m = w.meetings.size(); m-- > 0;) finish(w, m, n / 32, nullptr);
  if (block.here > 0 && block.here == block.alive) open_barrier(t.rank);
  if (cluster_blocks == 1 || failure_) return;
  end_cluster_thread(n);
  if (block.alive == 0) end_cluster_block(t.rank);
}

void Block::open_barrier(unsigned rank) {
  const unsigned each = threads_in_block(), first = rank * each;
  ++executed.barriers;
  order_block(first, first + each);
  Together& block = blocks_[rank];
  for (unsigned n = first + each; n-- > first;)
    if (threads_[n].state == Thread::at_block) {
      threads_[n].barrier_sum = block.sum;
      release(threads_[n]);
    }
  block.here = 0;
  block.sum = 0;
}

int Block::meet(int value) {
  Thread& me = *running_;
  Together& block = blocks_[me.rank];
  block.sum += value;
  me.state = Thread::at_block;
  if (++block.here == block.alive) open_barrier(me.rank);
  suspend();
  return me.barrier_sum;
}

// If all lanes of a meeting have arrived, performs the operation. Then all lanes except `last` continue.
bool Block::finish(Warp& w, std::size_t meeting, unsigned warp, const Thread* last) {
  Meeting& m = w.meetings[meeting];
  if (m.here != (m.mask & w.alive) || m.here == 0) return false;
  ++executed.warps;
  m.apply(m.brought);
  const unsigned here = m.here;
  w.meetings.erase(w.meetings.begin() + static_cast<std::ptrdiff_t>(meeting));
  for (unsigned l = 32; l-- > 0;)
    if (here >> l & 1)
      if (Thread& t = threads_[warp * 32 + l]; &t != last) release(t);
  return true;
}

void Block::meet(unsigned mask, void* brought, Apply apply) {
  Thread& me = *running_;
  const unsigned n = number(me), bit = 1u << n % 32;
  Warp& w = warps_[n / 32];
  if (!(mask & bit)) throw std::runtime_error("thread " + text(me.index) + " is not in the mask it gives");
  std::size_t at = 0;
  while (at < w.meetings.size() && !(w.meetings[at].mask & mask)) ++at;
  if (at == w.meetings.size()) w.meetings.push_back({mask, 0, apply, {}});
  Meeting& m = w.meetings[at];
  if (m.mask != mask || m.apply != apply)
    throw std::runtime_error("thread " + text(me.index) +
                             " disagrees with others of its warp about what they "
                             "do together, or with which lanes");
  m.here |= bit;
  m.brought[n % 32] = brought;
  if (finish(w, at, n / 32, &me)) return;
  me.state = Thread::at_warp;
  suspend();
}

// Groups threads that wait for the same event.
std::string Block::sleepers() const {
  std::map<std::string, std::vector<unsigned>> all;
  for (const Thread& t : threads_)
    if (t.state == Thread::asleep) all[t.why(t.about)].push_back(number(t));
  std::string text;
  for (const auto& [why, who] : all)
    text += " " + std::to_string(who.size()) + " at " + why + " (threads " + std::to_string(who.front()) +
            " … " + std::to_string(who.back()) + ");";
  return text;
}

std::string Block::stuck() const {
  std::string all = "threads wait for others that never arrive:";
  const auto list = [&](decltype(Thread::state) state, const char* what) {
    unsigned count = 0;
    const Thread* first = nullptr;
    for (const Thread& t : threads_)
      if (t.state == state && ++count == 1) first = &t;
    if (first) all += " " + std::to_string(count) + what + " (the first is " + text(first->index) + ");";
  };
  list(Thread::at_block, " at __syncthreads");
  list(Thread::at_warp, " at an operation of their warp");
  return all + sleepers() + " " + std::to_string(alive_) + " of " + std::to_string(threads_.size()) +
         " have not ended";
}

}  // namespace

void run_grid(Index3 grid, Index3 size, std::size_t shared_bytes, const std::function<void()>& body,
              unsigned cluster) {
  static thread_local Block block;
  const unsigned threads = size.x * size.y * size.z;
  insist_on_cluster(grid.x, threads, cluster);
  current = &block;
  cluster_blocks = cluster;
  here.block_size = size, here.grid_size = grid;
  dynamic_bytes = shared_bytes;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; x += cluster) {
        for (unsigned rank = 0; rank < cluster; ++rank) std::memset(dynamic_shared(rank), 0xff, shared_bytes);
        try {
          forget_accesses(threads * cluster);
          begin_hopper_blocks(threads, cluster, shared_bytes);
          block.run(body, size, {x, y, z}, cluster);
          record_block();
        } catch (const std::exception& e) {
          throw std::runtime_error("block " + text(here.block) + ": " + e.what());
        }
      }
}

int meet_block(int value) {
  return current->meet(value);
}
void meet_warp(unsigned mask, void* brought, Apply apply) {
  current->meet(mask, brought, apply);
}
void sync_warp(unsigned mask) {
  current->meet(mask, nullptr,
                [](void* const(&)[32]) { order_warp(static_cast<unsigned>(here.number) / 32); });
}
void give_up(const std::string& why) {
  current->give_up(why);
}
unsigned active_lanes() {
  return current->alive_in_warp();
}
void sleep(Why why, const void* about) {
  current->sleep(why, about);
}
void wake(unsigned thread) {
  current->wake(thread);
}
void let_others_run() {
  current->let_others_run();
}
unsigned threads_in_block() {
  return current->size() / cluster_blocks;
}
unsigned threads_in_cluster() {
  return current->size();
}
const unsigned char* stack_top() {
  return static_cast<const unsigned char*>(current->running().stack);
}
std::size_t shared_size() {
  return dynamic_bytes;
}

unsigned char* dynamic_shared(unsigned rank) {
  return shared_bytes_[rank];
}
std::uint32_t shared_address(const void* p) {  // static shared memory is also thread-local storage
  const auto offset = static_cast<const unsigned char*>(p) - dynamic_shared();
  return (first_address + static_cast<std::uint32_t>(offset)) | here.rank << rank_bit;
}
unsigned char* shared_pointer(std::uint32_t address) {
  const unsigned rank = block_of(address);
  return dynamic_shared(rank) + static_cast<std::int32_t>(address - (rank << rank_bit) - first_address);
}
std::uint32_t shared_of(std::uint32_t address, unsigned rank) {
  if (rank >= cluster_blocks)
    give_up("thread " + std::to_string(here.number) + ": the cluster has no block " + std::to_string(rank));
  return (address & ((1u << rank_bit) - 1)) | rank << rank_bit;
}
unsigned block_of(std::uint32_t address) {
  return cluster_blocks > 1 ? address >> rank_bit : 0;
}

void copy_later(void* to, const void* from, int bytes, int filled) {
  if (reinterpret_cast<std::uintptr_t>(to) % static_cast<std::uintptr_t>(bytes) != 0 ||
      (filled > 0 && reinterpret_cast<std::uintptr_t>(from) % static_cast<std::uintptr_t>(bytes) != 0))
    throw std::runtime_error("cp.async at an address that is not a multiple of " + std::to_string(bytes));
  count_copy(filled);
  if (tracks_writes && filled > 0) note_global(from, static_cast<std::size_t>(filled), false);
  note_write(to, bytes);
  std::memset(to, 0xff, static_cast<std::size_t>(bytes));
  current->running().copies.push_back({to, from, bytes, filled});
}
void commit_copies() {
  Thread& t = current->running();
  t.groups.push_back(std::exchange(t.copies, {}));
}
void wait_copies(int pending) {
  auto& groups = current->running().groups;
  for (; groups.size() > static_cast<std::size_t>(pending); groups.erase(groups.begin()))
    for (const Copy& c : groups.front()) {
      note_write(c.to, c.bytes);
      std::memset(c.to, 0, static_cast<std::size_t>(c.bytes));
      std::memcpy(c.to, c.from, static_cast<std::size_t>(c.filled));
    }
}

}  // namespace tg::emulator

// Replaces NCCL. Emulated GPUs of several processes exchange messages through shared memory. If NCCL would
// wait forever, the call fails. This happens if a message is not received or has the wrong size. It also
// happens if a communicator is destroyed before a graph that uses it. If TG_EMULATED_NCCL_LOST is set,
// exchanges end as if another rank's host were lost.
#include "backends/cuda/collectives/nccl.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/run/ranks.h"
#include "parallel/shared_memory.h"

namespace tg::cuda {

namespace {

// The data of exchanges. Each exchange keeps a reference, because an aborted exchange may still wait.
struct Link {
  std::shared_ptr<parallel::SharedMemory> memory;
  std::unique_ptr<parallel::HostCommunicator> ranks;
  std::mutex mutex;  // protects is_aborted
  std::condition_variable changed;
  bool is_aborted = false;
};

}  // namespace

struct NcclCommunicator {
  std::string name;  // rank 0 creates the memory; other ranks open it by this name
  std::shared_ptr<Link> link = std::make_shared<Link>();
  std::shared_ptr<int> users = std::make_shared<int>();  // graphs keep references
};

namespace {

struct Message {
  std::byte* at;
  std::size_t bytes;
  int peer;
};
// The calls of the current group.
struct Group {
  std::vector<Message> sent, received;
  NcclComm comm = nullptr;
  cudaStream_t stream = nullptr;
} open_group;

constexpr NcclResult failed = static_cast<NcclResult>(3);

// Returns all messages of a rank as bytes. Each message consists of the peer, the size and the data.
std::vector<std::byte> packed(const std::vector<Message>& sent) {
  std::vector<std::byte> all;
  const auto add = [&](const void* p, std::size_t n) {
    all.insert(all.end(), static_cast<const std::byte*>(p), static_cast<const std::byte*>(p) + n);
  };
  for (const Message& m : sent) {
    const std::uint64_t head[2] = {static_cast<std::uint64_t>(m.peer), m.bytes};
    add(head, sizeof head);
    add(m.at, m.bytes);
  }
  return all;
}

// Returns the bytes of every rank on all ranks. The bytes may have any size.
std::vector<std::vector<std::byte>> shown_by_all(Communicator& ranks, std::vector<std::byte> own) {
  const std::vector<std::uint64_t> sizes = gather_one(ranks, std::uint64_t{own.size()});
  const std::uint64_t most = std::ranges::max(sizes);
  own.resize(most);
  std::vector<std::vector<std::byte>> all(sizes.size());
  for (std::size_t at = 0; at < most; at += Communicator::most_shared) {
    const std::size_t bytes = std::min(Communicator::most_shared, most - at);
    ranks.share(std::span(own).subspan(at, bytes), [&](std::span<const std::byte* const> shown) {
      for (std::size_t r = 0; r < shown.size(); ++r) all[r].insert(all[r].end(), shown[r], shown[r] + bytes);
    });
  }
  for (std::size_t r = 0; r < all.size(); ++r) all[r].resize(sizes[r]);
  return all;
}

// Calls shown_by_all in a separate thread. If the exchange is aborted, returns false without waiting for this
// thread.
bool all_have_come(const std::shared_ptr<Link>& link, std::vector<std::byte> own,
                   std::vector<std::vector<std::byte>>& all) {
  struct Waited {
    bool is_over = false;
    std::exception_ptr error;
    std::vector<std::vector<std::byte>> all;
  };
  const auto waited = std::make_shared<Waited>();
  std::unique_lock lock(link->mutex);
  if (link->is_aborted) return false;
  std::thread([link, waited, own = std::move(own)]() mutable {
    std::vector<std::vector<std::byte>> shown;
    std::exception_ptr error;
    try {
      shown = shown_by_all(*link->ranks, std::move(own));
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard guard(link->mutex);
    waited->is_over = true, waited->error = error, waited->all = std::move(shown);
    link->changed.notify_all();
  }).detach();
  link->changed.wait(lock, [&] { return waited->is_over || link->is_aborted; });
  if (!waited->is_over) return false;
  if (waited->error) std::rethrow_exception(waited->error);
  all = std::move(waited->all);
  return true;
}

void exchange(const Group& g, const std::shared_ptr<Link>& link) {
  const Communicator& ranks = *link->ranks;
  std::vector<std::vector<std::byte>> all;
  if (!all_have_come(link, packed(g.sent), all)) return;  // the receive buffers keep their old contents
  std::vector<std::size_t> at(all.size(), 0);             // read position in each rank's data
  std::size_t expected = g.received.size(), found = 0;
  for (const Message& m : g.received) {
    const std::vector<std::byte>& from = all[static_cast<std::size_t>(m.peer)];
    std::size_t& place = at[static_cast<std::size_t>(m.peer)];
    for (bool is_own = false; !is_own;) {
      std::uint64_t head[2];
      if (place + sizeof head > from.size()) throw Error("a message that is waited for was not sent");
      std::memcpy(head, from.data() + place, sizeof head);
      place += sizeof head;
      is_own = head[0] == static_cast<std::uint64_t>(ranks.rank());
      if (is_own && head[1] != m.bytes) throw Error("a message has the wrong size");
      if (is_own) std::memcpy(m.at, from.data() + place, m.bytes), ++found;
      place += head[1];
    }
  }
  std::size_t to_me = 0;
  for (const std::vector<std::byte>& from : all)
    for (std::size_t place = 0; place < from.size();) {
      std::uint64_t head[2];
      std::memcpy(head, from.data() + place, sizeof head);
      to_me += head[0] == static_cast<std::uint64_t>(ranks.rank());
      place += sizeof head + head[1];
    }
  if (found != expected || to_me != expected) throw Error("a message was sent that no rank receives");
}

NcclResult get_version(int* version) {
  *version = 22800;
  return NcclResult::success;
}

NcclResult get_unique_id(NcclId* id) {
  std::random_device random;
  std::snprintf(id->bytes, sizeof id->bytes, "/tmp/tilegrad-nccl-%d-%08x%08x", static_cast<int>(::getpid()),
                random(), random());
  return NcclResult::success;
}

NcclResult comm_init_rank(NcclComm* comm, int ranks, NcclId id, int rank) {
  auto* made = new NcclCommunicator;
  Link& link = *made->link;
  if (rank == 0) {
    link.memory = parallel::SharedMemory::create(ranks);
    const std::string file =
        "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(link.memory->descriptor());
    if (::symlink(file.c_str(), id.bytes) != 0) return failed;
    made->name = id.bytes;
  } else {
    int fd = -1;
    for (int tries = 0; fd < 0 && tries < 10000; ++tries) {
      fd = ::open(id.bytes, O_RDWR | O_CLOEXEC);
      if (fd < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (fd < 0) return failed;
    link.memory = parallel::SharedMemory::open(fd, ranks);
  }
  link.ranks = std::make_unique<parallel::HostCommunicator>(link.memory, rank);
  *comm = made;
  return NcclResult::success;
}

NcclResult release(NcclComm comm) {
  if (!comm->name.empty()) ::unlink(comm->name.c_str());
  delete comm;
  return NcclResult::success;
}

// Waits until all other ranks have also called this function.
NcclResult comm_destroy(NcclComm comm) {
  if (comm->users.use_count() > 1) {
    std::fputs("emulated NCCL: a communicator was destroyed before a graph that uses it\n", stderr);
    std::abort();
  }
  std::vector<std::vector<std::byte>> all;
  all_have_come(comm->link, {}, all);
  return release(comm);
}

// Ends waiting exchanges, then waits until all graphs are destroyed.
NcclResult comm_abort(NcclComm comm) {
  {
    const std::lock_guard lock(comm->link->mutex);
    comm->link->is_aborted = true;
    comm->link->changed.notify_all();
  }
  while (comm->users.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return release(comm);
}

NcclResult group_start() {
  open_group = {};
  return NcclResult::success;
}

NcclResult send(const void* from, std::size_t count, NcclType, int peer, NcclComm comm, cudaStream_t stream) {
  open_group.sent.push_back({const_cast<std::byte*>(static_cast<const std::byte*>(from)), count, peer});
  open_group.comm = comm, open_group.stream = stream;
  return NcclResult::success;
}

NcclResult recv(void* to, std::size_t count, NcclType, int peer, NcclComm comm, cudaStream_t stream) {
  open_group.received.push_back({static_cast<std::byte*>(to), count, peer});
  open_group.comm = comm, open_group.stream = stream;
  return NcclResult::success;
}

NcclResult group_end() {
  if (!open_group.comm) return NcclResult::success;
  if (std::getenv("TG_EMULATED_NCCL_LOST")) return NcclResult::remote_error;
  const Group g = open_group;
  const auto work = [g, link = g.comm->link, user = g.comm->users] { exchange(g, link); };
  return emulator::enqueue(g.stream, work) == cudaSuccess ? NcclResult::success : failed;
}

const char* get_error_string(NcclResult) {
  return "the emulated ranks could not exchange data";
}

}  // namespace

const Nccl& nccl() {
  static const Nccl table{get_version, get_unique_id, comm_init_rank, comm_destroy, comm_abort,
                          group_start, group_end,     send,           recv,         get_error_string};
  return table;
}

}  // namespace tg::cuda

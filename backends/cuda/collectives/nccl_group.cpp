#include "backends/cuda/collectives/ranks.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include <tilegrad/core/base/error.h>
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/memory.h"
#include "core/run/ranks.h"

namespace tg::cuda {

namespace {

// If a rank is lost, NCCL may report an error that does not name the rank. The error is therefore thrown only
// after this time, unless the watchdog identifies the rank earlier. The watchdog needs up to 30 s if a host
// does not answer (dead_after in parallel/network_listener.cpp).
constexpr std::chrono::seconds watchdog_delay{2}, watchdog_delay_of_hosts{40};

void check_nccl(NcclResult result, const char* what, Communicator& ranks) {
  if (result == NcclResult::success) return;
  const RankWait waits(&ranks);
  const auto end = std::chrono::steady_clock::now() +
                   (result == NcclResult::remote_error ? watchdog_delay_of_hosts : watchdog_delay);
  do {
    ranks.check_lost();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (std::chrono::steady_clock::now() < end);
  throw DeviceError("[ranks] NCCL, " + std::string(what) + ": " + nccl().get_error_string(result));
}

// Identifies a GPU by the boot ID of its host and by its PCI bus ID. The device numbers of a process do not
// matter. `network` is the network namespace of its process.
struct GpuPlace {
  std::array<char, 40> system, gpu;
  std::array<char, 32> network;
};

GpuPlace place_of(int gpu) {
  GpuPlace own{};
  check(cudaDeviceGetPCIBusId(own.gpu.data(), static_cast<int>(own.gpu.size()), gpu),
        "the PCI bus ID of a GPU");
  std::ifstream("/proc/sys/kernel/random/boot_id").read(own.system.data(), own.system.size() - 1);
  std::error_code none;
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", none).string();
  std::copy_n(network.begin(), std::min(network.size(), own.network.size() - 1), own.network.begin());
  return own;
}

void check_places(Communicator& ranks, int gpu) {
  const std::vector<GpuPlace> all = gather_one(ranks, place_of(gpu));
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = a + 1; b < all.size(); ++b)
      if (all[a].system == all[b].system && all[a].gpu == all[b].gpu)
        throw DeviceError("[ranks] ranks " + std::to_string(a) + " and " + std::to_string(b) +
                          " have the same GPU, " + all[a].gpu.data() + ": each rank needs its own GPU");
  // Ranks of one host need only the loopback interface, but NCCL prefers external interfaces. It reads this
  // variable when a group's ID is created.
  const bool is_one_host = std::all_of(all.begin(), all.end(), [&](const GpuPlace& p) {
    return p.system == all[0].system && p.network == all[0].network;
  });
  if (is_one_host) setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

}  // namespace

std::shared_ptr<NcclGroup> NcclGroup::of(const std::shared_ptr<Communicator>& ranks, int gpu) {
  static auto& groups = *new std::map<std::pair<const Communicator*, int>, std::weak_ptr<NcclGroup>>;
  std::weak_ptr<NcclGroup>& known = groups[{ranks.get(), gpu}];
  if (std::shared_ptr<NcclGroup> group = known.lock()) return group;
  const Nccl& library = nccl();
  check_places(*ranks, gpu);
  NcclId id{};
  if (ranks->rank() == 0) check_nccl(library.get_unique_id(&id), "the ID of a group", *ranks);
  id = gather_one(*ranks, id)[0];
  const RankWait waits(ranks.get());  // a rank that does not join would otherwise not be noticed
  NcclComm comm = nullptr;
  check_nccl(library.comm_init_rank(&comm, ranks->size(), id, ranks->rank()), "connecting to the other ranks",
             *ranks);
  const std::shared_ptr<NcclGroup> group(new NcclGroup(ranks, comm, gpu));
  group->connect();
  known = group;
  return group;
}

// NCCL connects two ranks at the first send between them. It cannot do so while a program is recorded.
void NcclGroup::connect() const {
  const auto bytes = static_cast<std::size_t>(2 * size());
  const std::shared_ptr<void> memory = zeros_on_device(bytes);
  auto* const at = static_cast<std::byte*>(memory.get());
  begin();
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    send(at + r, 1, r, nullptr);
    recv(at + size() + r, 1, r, nullptr);
  }
  end();
  check(cudaStreamSynchronize(nullptr), "connecting to the other ranks");
}

NcclGroup::NcclGroup(std::shared_ptr<Communicator> ranks, NcclComm comm, int gpu)
    : ranks_(std::move(ranks)), comm_(comm), gpu_(gpu), watch_(ranks_->on_lost([this] { abort(); })) {}

// comm_abort ends exchanges immediately. It then waits until no graph uses the communicator. The thread that
// calls it may have to destroy such a graph.
void NcclGroup::abort() {
  aborting_ = std::thread([comm = comm_, gpu = gpu_] {
    cudaSetDevice(gpu);  // this thread would otherwise initialize another GPU
    nccl().comm_abort(comm);
  });
}

bool NcclGroup::has_failed() const {
  if (std::uncaught_exceptions() > 0) return true;
  try {
    ranks_->check_lost();
    return false;
  } catch (const RankLost&) {
    return true;
  }
}

// Destroying a communicator waits until the other ranks destroy theirs. After a failure, they never do so.
NcclGroup::~NcclGroup() {
  watch_.reset();  // no other thread aborts it after this
  if (aborting_.joinable())
    aborting_.join();
  else if (has_failed())
    nccl().comm_abort(comm_);
  else
    nccl().comm_destroy(comm_);
}

// If a rank is lost, the communicator may no longer exist, because abort() waits only for graphs.
void NcclGroup::begin() const {
  ranks_->check_lost();
  check_nccl(nccl().group_start(), "starting an exchange", *ranks_);
}
void NcclGroup::send(const void* from, std::size_t bytes, int to, cudaStream_t stream) const {
  if (bytes > 0) check_nccl(nccl().send(from, bytes, NcclType::bytes, to, comm_, stream), "sending", *ranks_);
}
void NcclGroup::recv(void* to, std::size_t bytes, int from, cudaStream_t stream) const {
  if (bytes > 0)
    check_nccl(nccl().recv(to, bytes, NcclType::bytes, from, comm_, stream), "receiving", *ranks_);
}
void NcclGroup::end() const {
  check_nccl(nccl().group_end(), "an exchange", *ranks_);
}

}  // namespace tg::cuda

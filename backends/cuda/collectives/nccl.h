// NCCL, loaded at run time. Everything except multi-GPU exchanges works without it. The declarations below
// are the part of NCCL's interface that is used here. They match NCCL's header since version 2.10.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include <tilegrad/core/run/communicator.h>

namespace tg::cuda {

struct NcclId {
  char bytes[128];
};
enum class NcclResult : int { success = 0, remote_error = 6, in_progress = 7 };
enum class NcclType : int { bytes = 0 };  // data is sent as bytes, because NCCL does not need its dtype
using NcclComm = struct NcclCommunicator*;

// Functions of libnccl.
struct Nccl {
  NcclResult (*get_version)(int* version);
  NcclResult (*get_unique_id)(NcclId* id);
  NcclResult (*comm_init_rank)(NcclComm* comm, int ranks, NcclId id, int rank);
  NcclResult (*comm_destroy)(NcclComm comm);
  NcclResult (*comm_abort)(NcclComm comm);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*send)(const void* from, std::size_t count, NcclType type, int peer, NcclComm comm,
                     cudaStream_t stream);
  NcclResult (*recv)(void* to, std::size_t count, NcclType type, int peer, NcclComm comm,
                     cudaStream_t stream);
  const char* (*get_error_string)(NcclResult result);
};

// Returns the library named by TG_NCCL, or otherwise libnccl.so.2. Throws DeviceError with a one-line message
// if there is none, or if it is older than 2.18.
const Nccl& nccl();

// An NCCL communicator over the ranks' GPUs. If a rank is lost, exchanges on this GPU end, and data that has
// not been received is undefined. A caller that waited for an exchange must therefore call
// Communicator::check_lost(). CUDA graphs that use the communicator must be destroyed before it.
class NcclGroup {
 public:
  // Returns the group of these ranks on this GPU. The first call creates the group, and all ranks must make
  // that call. Throws DeviceError if two ranks have the same GPU.
  static std::shared_ptr<NcclGroup> of(const std::shared_ptr<Communicator>& ranks, int gpu);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;

  int rank() const { return ranks_->rank(); }
  int size() const { return ranks_->size(); }
  // Calls between begin() and end() are one operation on the stream. In this operation, each send waits for
  // its peer's recv. Throws DeviceError, or RankLost if a rank is lost.
  void begin() const;
  void send(const void* from, std::size_t bytes, int to, cudaStream_t stream) const;
  void recv(void* to, std::size_t bytes, int from, cudaStream_t stream) const;
  void end() const;

 private:
  NcclGroup(std::shared_ptr<Communicator> ranks, NcclComm comm, int gpu);
  void connect() const;
  void abort();  // called once, by another thread
  bool has_failed() const;
  const std::shared_ptr<Communicator> ranks_;
  const NcclComm comm_;
  const int gpu_;
  std::thread aborting_;         // waits until the graphs are destroyed
  std::shared_ptr<void> watch_;  // for lost ranks
};

}  // namespace tg::cuda

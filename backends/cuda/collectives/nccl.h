// NCCL, found at run time: without it, and with one rank, everything else works. Its interface as far as it
// is used here, as NCCL's own header has it since 2.10.
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
enum class NcclType : int { bytes = 0 };  // data only travel: what they are NCCL need not know
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

// The library that TG_NCCL names, or else libnccl.so.2. Throws DeviceError, in one line, if there is none, or
// one before 2.18.
const Nccl& nccl();

// The ranks' GPUs: an NCCL communicator over all of them. When a rank is lost its exchanges that wait on this
// GPU end, with any numbers for what did not come: who waited for them asks Communicator::check_lost(). CUDA
// graphs that use it must be destroyed before it.
class NcclGroup {
 public:
  // That of these ranks on this GPU, made by the first call, which all ranks must make. Throws DeviceError if
  // two ranks have the same GPU.
  static std::shared_ptr<NcclGroup> of(const std::shared_ptr<Communicator>& ranks, int gpu);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;

  int rank() const { return ranks_->rank(); }
  int size() const { return ranks_->size(); }
  // Calls between begin() and end() are one operation on the stream, in which each send waits for the recv of
  // its peer. Throws DeviceError; RankLost where a rank is lost.
  void begin() const;
  void send(const void* from, std::size_t bytes, int to, cudaStream_t stream) const;
  void recv(void* to, std::size_t bytes, int from, cudaStream_t stream) const;
  void end() const;

 private:
  NcclGroup(std::shared_ptr<Communicator> ranks, NcclComm comm, int gpu);
  void connect() const;
  void abort();  // once, by another thread
  bool has_failed() const;
  const std::shared_ptr<Communicator> ranks_;
  const NcclComm comm_;
  const int gpu_;
  std::thread aborting_;         // waits for the graphs to be destroyed
  std::shared_ptr<void> watch_;  // over the ranks
};

}  // namespace tg::cuda

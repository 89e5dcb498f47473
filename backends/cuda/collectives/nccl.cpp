#include "backends/cuda/collectives/nccl.h"

#include <cstdlib>

#include <tilegrad/core/base/error.h>
#include "core/os/system.h"

namespace tg::cuda {

namespace {

constexpr int least_version = 21800;

template <class F>
void find(void* library, const std::string& path, const char* name, F& function) {
  function = reinterpret_cast<F>(os::find_symbol(library, name));
  if (!function) throw DeviceError("[ranks] " + path + " has no " + name);
}

Nccl loaded() {
  const char* named = std::getenv("TG_NCCL");
  const std::string path = named ? named : "libnccl.so.2";
  void* library = os::load_library(path, os::Symbols::own);
  if (!library)
    throw DeviceError("[ranks] " + path +
                      " was not found: several ranks on GPUs need NCCL 2.18 or later; the "
                      "environment variable TG_NCCL names the file");
  Nccl n{};
  find(library, path, "ncclGetVersion", n.get_version);
  find(library, path, "ncclGetUniqueId", n.get_unique_id);
  find(library, path, "ncclCommInitRank", n.comm_init_rank);
  find(library, path, "ncclCommDestroy", n.comm_destroy);
  find(library, path, "ncclCommAbort", n.comm_abort);
  find(library, path, "ncclGroupStart", n.group_start);
  find(library, path, "ncclGroupEnd", n.group_end);
  find(library, path, "ncclSend", n.send);
  find(library, path, "ncclRecv", n.recv);
  find(library, path, "ncclGetErrorString", n.get_error_string);
  int version = 0;
  if (n.get_version(&version) != NcclResult::success || version < least_version)
    throw DeviceError("[ranks] " + path + " is NCCL " + std::to_string(version / 10000) + "." +
                      std::to_string(version / 100 % 100) + ", expected 2.18 or later");
  return n;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl library = loaded();
  return library;
}

}  // namespace tg::cuda

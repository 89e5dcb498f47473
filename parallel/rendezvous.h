// How the ranks of one host meet: at an abstract Unix socket, named by the user and the job, where rank 0
// listens. When all have come each gets the shared memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tilegrad/parallel/group.h>
#include "core/base/file_write.h"
#include "parallel/shared_memory.h"

namespace tg::parallel {

// To another rank's process. Nothing is sent: it tells when that process ends, however it does.
struct Connection {
  int rank;
  FileDescriptor socket;
};

struct Meeting {
  std::shared_ptr<SharedMemory> memory;
  std::vector<Connection> connections;  // rank 0's: to all others; the others': to rank 0
};

// Of world.size > 1 ranks. `build` is the same for the same program. Throws as join().
Meeting meet(const World& world, const JoinOptions& options, const std::string& build);

// The hash of this process's executable file.
std::string own_build();

// The address's name: it begins with a zero byte and belongs to no file.
std::string socket_name(const std::string& job);

}  // namespace tg::parallel

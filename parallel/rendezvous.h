// How ranks meet. Those of one host: at an abstract Unix socket, named by the user and the job, where rank 0
// listens; when all have come each gets the shared memory. Those of several hosts: at an address where rank 0
// listens; who comes must know the token.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tilegrad/parallel/group.h>
#include <tilegrad/parallel/world.h>
#include "core/base/file_write.h"
#include "parallel/shared_memory.h"

namespace tg::parallel {

// To another rank's process. On one host nothing is sent: it tells when that process ends, however it does.
struct Connection {
  int rank;
  FileDescriptor socket;
};

struct Meeting {
  std::shared_ptr<SharedMemory> memory;  // on several hosts each process has its own
  std::vector<Connection> connections;   // rank 0's: to all others; the others': to rank 0
  std::vector<Connection> data;          // the same once more, for share(), on several hosts
};

// Of world.size > 1 ranks. `build` is the same for the same program. Throws as join().
Meeting meet(const World& world, const JoinOptions& options, const std::string& build);

// The hash of this process's executable file.
std::string own_build();

// The address's name: it begins with a zero byte and belongs to no file.
std::string socket_name(const std::string& job);

// ---- The token: a secret of a job's ranks on several hosts

// What TG_TOKEN is, or the file that TG_TOKEN_FILE names: at least 32 characters, without white space around
// them. Throws WorldError if there is none, if it is too short, and if others than the file's user may read
// it. `several` begins the line about a missing one.
std::string token_of(const Environment& get, const std::string& several);

// Throws WorldError if it is too short or too long; `name` begins the line.
void check_token(const std::string& token, const std::string& name);

}  // namespace tg::parallel

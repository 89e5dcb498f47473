// The rendezvous: the ranks of a job find each other and connect. On one host, rank 0 listens on an abstract
// Unix socket. The socket's name contains the user and the job. When all ranks have joined, each rank
// receives the shared memory. On several hosts, rank 0 listens on a network address, and a peer must know the
// token.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tilegrad/parallel/group.h>
#include <tilegrad/parallel/world.h>
#include "core/base/file_write.h"
#include "parallel/shared_memory.h"

namespace tg::parallel {

// A connection to another rank's process. On one host, nothing is sent over it after the join. When the
// connection ends, the process has exited.
struct Connection {
  int rank;
  FileDescriptor socket;
};

struct Meeting {
  std::shared_ptr<SharedMemory> memory;  // on several hosts, each process has its own
  std::vector<Connection> connections;   // on rank 0: to all others; on the others: to rank 0
  std::vector<Connection> data;          // same, for data of share(); only on several hosts
};

// Connects world.size > 1 ranks. `build` identifies the program. All ranks must have the same `build`. Throws
// the errors of join().
Meeting meet(const World& world, const JoinOptions& options, const std::string& build);

// The hash of this process's executable file.
std::string own_build();

// The abstract name of the socket. It begins with a zero byte and is not a file.
std::string socket_name(const std::string& job);

// ---- The token: a secret of a job's ranks on several hosts

// Returns TG_TOKEN or the content of the file TG_TOKEN_FILE: at least 32 characters, without surrounding
// white space. Throws WorldError if there is none, if it is too short, or if users other than the file's
// owner may read the file. The message about a missing token begins with `several`.
std::string token_of(const Environment& get, const std::string& several);

// Throws WorldError if the token is too short or too long. The message begins with `name`.
void check_token(const std::string& token, const std::string& name);

}  // namespace tg::parallel

// World: the rank of this process and the number of ranks, according to the environment variables of the
// launcher.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <tilegrad/core/base/error.h>

namespace tg::parallel {

// An environment in which the ranks cannot start. The message is one line. It contains the variable, the
// value and the expected value, or a difference between ranks. A restart does not help.
struct WorldError : Error {
  using Error::Error;
};

// The position of this process in a run.
struct World {
  int rank = 0, size = 1;              // rank of this process, 0 to size − 1, and number of ranks
  int local_rank = 0, local_size = 1;  // same, among the ranks of this host; selects the GPU
  // "launch", "torchrun", "Open MPI", "srun" or "MPICH"; empty without a launcher.
  std::string launcher;
  std::string job;  // unique id of this start of the ranks

  // Host name or IP address on which rank 0 listens, if the ranks run on several hosts.
  std::string address = {};
  int port = 0;            // port on which rank 0 listens
  std::string token = {};  // shared secret with which the ranks authenticate
  // Whether the ranks run on several hosts.
  bool has_several_hosts() const { return local_size < size; }
};

// Reads the world from the environment. The first launcher in this list with any variable set is used. All of
// its variables must then be set:
// - tools/launch, torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
// - Open MPI: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK,
//   OMPI_COMM_WORLD_LOCAL_SIZE
// - srun, if SLURM_STEP_ID is set and MPI_LOCALRANKID is not: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID,
//   SLURM_STEP_TASKS_PER_NODE. The other SLURM variables are also set in a batch script.
// - MPICH, Intel MPI: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//
// Without a launcher, the world is one rank. If TG_JOB is set, it is the job. If this host has fewer ranks
// than the world, there are several hosts. The address is then MASTER_ADDR, and the port is TG_PORT, or
// MASTER_PORT + 1 because torchrun may listen on MASTER_PORT. The token is TG_TOKEN or the content of the
// file TG_TOKEN_FILE, which must be readable only by its user. Throws WorldError.
World world();

// Reads the value of an environment variable; empty if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
// Same for any environment. `parent` is the id of the parent process. It identifies the job if the launcher
// provides no job id.
World world_of(const Environment& get, long parent);

}  // namespace tg::parallel

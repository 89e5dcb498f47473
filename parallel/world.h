// World: which of how many ranks this process is, from what the launcher put into the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <tilegrad/core/base/error.h>

namespace tg::parallel {

// An environment in which the ranks cannot start: one line that names the variable, its value and what was
// expected, or what a rank differs in. Starting again changes nothing.
struct WorldError : Error {
  using Error::Error;
};

struct World {
  int rank = 0, size = 1;              // of this process, 0 to size − 1
  int local_rank = 0, local_size = 1;  // among those of this host; for the choice of its GPU
  std::string launcher;                // "launch", "torchrun", "Open MPI", "srun", "MPICH"; "": nobody did
  std::string job;                     // what the ranks of this start have in common, and no others

  // Of ranks on several hosts: where rank 0 listens, a name or an IP address, and the secret by which the
  // ranks know each other.
  std::string address = {};
  int port = 0;
  std::string token = {};
  bool has_several_hosts() const { return local_size < size; }
};

// The launcher is the first of these of whose variables one is set; then all must be:
//   tools/launch, torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   Open MPI                OMPI_COMM_WORLD_RANK, …_SIZE, …_LOCAL_RANK, …_LOCAL_SIZE
//   srun                    if SLURM_STEP_ID is set and MPI_LOCALRANKID is not: SLURM_PROCID, SLURM_NTASKS,
//   SLURM_LOCALID and
//                           SLURM_STEP_TASKS_PER_NODE (the others are also set in a batch script)
//   MPICH, Intel MPI        PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
// Without any, the world is one rank. TG_JOB is the job where it is set. Fewer ranks on this host than in all
// are several hosts: then the address is MASTER_ADDR, the port TG_PORT or else MASTER_PORT + 1 (torchrun
// itself may listen on MASTER_PORT), and the token TG_TOKEN or what the file TG_TOKEN_FILE holds, which only
// its user may read. Throws WorldError.
World world();

// The same of any environment: `get` returns a variable's value; `parent` is the process's parent, the job of
// launchers that give no name.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
World world_of(const Environment& get, long parent);

}  // namespace tg::parallel

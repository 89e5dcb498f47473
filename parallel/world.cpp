#include <tilegrad/parallel/world.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/os/process.h"
#include "parallel/message.h"
#include "parallel/rendezvous.h"
#include "parallel/shared_memory.h"

namespace tg::parallel {

namespace {

struct Launcher {
  std::string name;
  std::string rank, size, local_rank, local_size;  // variable names
  std::string given_by;                            // for messages: the program that sets the variables
};

const auto& launchers = *new std::array<Launcher, 4>{{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "torchrun and tools/launch set"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI's mpirun sets"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "srun sets"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     "mpiexec of MPICH and Intel MPI sets"},
}};

// Reads the variables of one launcher, and throws the errors about them.
class Variables {
 public:
  Variables(const Environment& get, const Launcher& of) : get_(get), of_(of) {}

  bool has(const std::string& name) const { return get_(name).has_value(); }
  bool has_any() const {
    // srun's variables do not prove that srun started this process. They are also set in a batch script,
    // which is one process, and in programs that the script starts without srun. MPICH's mpiexec uses srun to
    // start one process per host.
    if (of_.name == "srun") return has("SLURM_STEP_ID") && !has("MPI_LOCALRANKID");
    return has(of_.rank) || has(of_.size) || has(of_.local_rank) || has(of_.local_size);
  }

  std::string text(const std::string& name) const {
    if (const std::optional<std::string> value = get_(name)) return *value;
    for (const std::string& other : {of_.size, of_.rank, of_.local_rank, of_.local_size})
      if (const std::optional<std::string> value = get_(other))
        refuse_world(other + " is " + *value + " but " + name + " is not set: expected both (" +
                     of_.given_by + " them)");
    refuse_world(name + " is not set: expected " + of_.rank + ", " + of_.size + ", " + of_.local_rank +
                 " and " + of_.local_size + " (" + of_.given_by + " them)");
  }

  // Returns a variable that must be a number from `least` to `most`. `because` explains these limits.
  int number(const std::string& name, int least, int most, const std::string& because = "") const {
    return number_in(text(name), name, least, most, because);
  }
  static int number_in(std::string_view value, const std::string& name, int least, int most,
                       const std::string& because = "") {
    const std::string expected =
        ": expected " + (most <= least ? "" : std::to_string(least) + " to ") + std::to_string(most);
    int n = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
    const bool is_number = !value.empty() && end == value.data() + value.size();
    if (!is_number || error != std::errc() || n < least || n > most)
      refuse_world(name + " is " + (is_number ? std::string(value) : "'" + std::string(value) + "'") +
                   because + expected);
    return n;
  }

  // srun sets a list for all hosts, such as "4(x2),3". SLURM_NODEID is this host's index in the list.
  int tasks_here(int size) const {
    const std::string list = text(of_.local_size);
    const int host = has("SLURM_NODEID") ? number("SLURM_NODEID", 0, 1 << 20) : 0;
    int hosts = 0;
    for (std::size_t at = 0; at <= list.size();) {
      const std::size_t end = std::min(list.find(',', at), list.size());
      std::string_view word = std::string_view(list).substr(at, end - at);
      int times = 1;
      if (const std::size_t open = word.find("(x"); open != std::string_view::npos && word.ends_with(')')) {
        times =
            number_in(word.substr(open + 2, word.size() - open - 3), of_.local_size + "'s count", 1, 1 << 20);
        word = word.substr(0, open);
      }
      const int here = number_in(word, of_.local_size, 1, size, size_is(size));
      if (host < hosts + times) return here;
      hosts += times, at = end + 1;
    }
    refuse_world(of_.local_size + " is " + list + " but SLURM_NODEID is " + std::to_string(host) +
                 ": expected 0 to " + std::to_string(hosts - 1));
  }

  std::string size_is(int size) const { return " but " + of_.size + " is " + std::to_string(size); }

 private:
  const Environment& get_;
  const Launcher& of_;
};

// The name of the job. It is the launcher's id for this start. If there is none, it is the id of the launcher
// process, which is the parent of the ranks. On several hosts, only values that are equal on all hosts are
// used. Parents and torchrun's restart counts differ between hosts.
std::string job_of(const Environment& get, const std::string& launcher, long parent, bool has_several_hosts) {
  const auto value = [&](const char* name) { return get(name).value_or(""); };
  std::string job;
  if (launcher == "torchrun" && get("TORCHELASTIC_RUN_ID"))
    job = value("TORCHELASTIC_RUN_ID") +
          (has_several_hosts ? "" : "." + value("TORCHELASTIC_RESTART_COUNT") + "." + value("MASTER_PORT"));
  if (launcher == "Open MPI")
    job = get("PMIX_NAMESPACE") ? value("PMIX_NAMESPACE") : value("OMPI_MCA_ess_base_jobid");
  if (launcher == "srun") job = value("SLURM_JOB_ID") + "." + value("SLURM_STEP_ID");
  if (job.empty()) job = has_several_hosts ? "on several hosts" : "parent " + std::to_string(parent);
  return launcher + " " + job;
}

// For a world on several hosts: finds the address of rank 0's listener and the token.
void find_meeting_place(const Environment& get, const std::string& several, World& w) {
  const std::optional<std::string> address = get("MASTER_ADDR"), port = get("TG_PORT"),
                                   master_port = get("MASTER_PORT");
  if (!address || address->empty())
    refuse_world(several +
                 " but MASTER_ADDR is not set: expected the address of rank 0's host (torchrun sets it)");
  w.address = *address;
  if (port) {
    w.port = Variables::number_in(*port, "TG_PORT", 1, 65535);
  } else if (master_port) {
    w.port = 1 + Variables::number_in(*master_port, "MASTER_PORT", 1, 65534);
  } else {
    refuse_world(several +
                 " but neither TG_PORT nor MASTER_PORT is set: expected the port where rank 0 "
                 "listens, the same on all hosts");
  }
  w.token = token_of(get, several);
}

}  // namespace

World world_of(const Environment& get, long parent) {
  for (const Launcher& launcher : launchers) {
    const Variables variables(get, launcher);
    if (!variables.has_any()) continue;
    World w{.launcher = launcher.name};
    w.size = variables.number(launcher.size, 1, most_ranks);
    w.rank = variables.number(launcher.rank, 0, w.size - 1, variables.size_is(w.size));
    w.local_size = launcher.name == "srun"
                       ? variables.tasks_here(w.size)
                       : variables.number(launcher.local_size, 1, w.size, variables.size_is(w.size));
    w.local_rank = variables.number(launcher.local_rank, 0, w.local_size - 1,
                                    " but " + launcher.local_size + " is " + std::to_string(w.local_size));
    if (!w.has_several_hosts() && w.local_rank != w.rank)
      refuse_world(launcher.local_rank + " is " + std::to_string(w.local_rank) + " but " + launcher.rank +
                   " is " + std::to_string(w.rank) +
                   ": expected the same number because all ranks are on one host");
    if (w.has_several_hosts())
      find_meeting_place(get,
                         launcher.size + " is " + std::to_string(w.size) + " and " + launcher.local_size +
                             " " + std::to_string(w.local_size) + ", so there are several hosts,",
                         w);
    if (const std::optional<std::string> job = get("TG_JOB"); job && !job->empty()) {
      w.job = *job;
      if (launcher.name == "torchrun" && !get("TORCHELASTIC_RUN_ID")) w.launcher = "launch";
    } else {
      w.job = job_of(get, launcher.name, parent, w.has_several_hosts());
    }
    return w;
  }
  return {};
}

World world() {
  return world_of(
      [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        return value ? std::optional<std::string>(value) : std::nullopt;
      },
      os::parent_process_id());
}

}  // namespace tg::parallel

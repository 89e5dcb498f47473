// Each launcher sets variables that determine the rank of a process. Tests these variables. Each invalid
// environment must be reported in one line.
#include <tilegrad/parallel/world.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <map>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tg {
namespace {

using parallel::World;
using Variables = std::map<std::string, std::string>;

World world_of(const Variables& variables) {
  return parallel::world_of(
      [&](const std::string& name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
      },
      77);
}

std::string text_of(const World& w) {
  return std::to_string(w.rank) + "/" + std::to_string(w.size) + " " + std::to_string(w.local_rank) + "/" +
         std::to_string(w.local_size) + " " + w.launcher + ": " + w.job;
}

Variables with(Variables first, const Variables& others) {
  for (const auto& [name, value] : others) first[name] = value;
  return first;
}

Variables without(Variables v, const char* name) {
  v.erase(name);
  return v;
}

const Variables torchrun{{"RANK", "1"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "4"},
                         {"MASTER_PORT", "29500"},
                         {"MASTER_ADDR", "a"}};
const Variables hosts =
    with(torchrun,
         {{"RANK", "3"}, {"LOCAL_WORLD_SIZE", "2"}, {"TG_TOKEN", " 0123456789abcdef0123456789abcdef\n"}});
const Variables elastic{{"TORCHELASTIC_RUN_ID", "none"}, {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Variables open_mpi{{"OMPI_COMM_WORLD_RANK", "2"},
                         {"OMPI_COMM_WORLD_SIZE", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};
const Variables batch_script{
    {"SLURM_JOB_ID", "12"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}};
const Variables srun{{"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "3"}, {"SLURM_PROCID", "5"},
                     {"SLURM_NTASKS", "8"},  {"SLURM_LOCALID", "5"}, {"SLURM_STEP_TASKS_PER_NODE", "8"},
                     {"SLURM_NODEID", "0"}};
const Variables mpich{
    {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};

TEST(World, MatchesTheLaunchersVariables) {
  const struct {
    Variables variables;
    const char* expected;
  } cases[] = {
      {{}, "0/1 0/1 : "},
      {{{"MASTER_ADDR", "a"}, {"OMP_NUM_THREADS", "1"}}, "0/1 0/1 : "},
      {torchrun, "1/4 1/4 torchrun: torchrun parent 77"},
      {with(torchrun, elastic), "1/4 1/4 torchrun: torchrun none.2.29500"},
      {with(torchrun, {{"TG_JOB", "a job"}}), "1/4 1/4 launch: a job"},
      {with(with(torchrun, elastic), {{"TG_JOB", "a job"}}), "1/4 1/4 torchrun: a job"},
      {with(torchrun, {{"TG_JOB", ""}}), "1/4 1/4 torchrun: torchrun parent 77"},
      {open_mpi, "2/3 2/3 Open MPI: Open MPI parent 77"},
      {with(open_mpi, {{"OMPI_MCA_ess_base_jobid", "9"}}), "2/3 2/3 Open MPI: Open MPI 9"},
      {with(open_mpi, {{"PMIX_NAMESPACE", "prte@1"}, {"OMPI_MCA_ess_base_jobid", "9"}}),
       "2/3 2/3 Open MPI: Open MPI prte@1"},
      {batch_script, "0/1 0/1 : "},
      {srun, "5/8 5/8 srun: srun 12.3"},
      {without(srun, "SLURM_NODEID"), "5/8 5/8 srun: srun 12.3"},  // ranks on the first host
      {with(srun, open_mpi), "2/3 2/3 Open MPI: Open MPI parent 77"},
      {with(srun, mpich), "0/2 0/2 MPICH: MPICH parent 77"},
      {with(srun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}), "5/8 5/8 srun: srun 12.3"},
      {with(srun, torchrun), "1/4 1/4 torchrun: torchrun parent 77"},
      {with(batch_script, mpich), "0/2 0/2 MPICH: MPICH parent 77"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}},
       "0/1 0/1 torchrun: torchrun parent 77"},
  };
  for (const auto& c : cases) EXPECT_EQ(text_of(world_of(c.variables)), c.expected);
}

TEST(World, SeveralHostsHaveAnAddressAndAToken) {
  const auto place_of = [](const World& w) {
    EXPECT_TRUE(w.has_several_hosts());
    return text_of(w) + ", " + w.address + ":" + std::to_string(w.port) + " " + w.token;
  };
  const std::string token = " 0123456789abcdef0123456789abcdef";
  EXPECT_EQ(place_of(world_of(hosts)), "3/4 1/2 torchrun: torchrun on several hosts, a:29501" + token);
  EXPECT_EQ(place_of(world_of(with(with(hosts, elastic), {{"TG_PORT", "7"}}))),
            "3/4 1/2 torchrun: torchrun none, a:7" + token);
  const Variables many = with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}, {"SLURM_LOCALID", "1"}});
  EXPECT_EQ(place_of(world_of(with(
                many, {{"MASTER_ADDR", "gpu1"}, {"TG_PORT", "29501"}, {"TG_TOKEN", hosts.at("TG_TOKEN")}}))),
            "5/8 1/4 srun: srun 12.3, gpu1:29501" + token);
  EXPECT_FALSE(world_of(torchrun).has_several_hosts());
  // Tests numbers and lengths at their limits.
  const std::string longest(4096, 'x');
  for (const auto& [others, port] :
       std::vector<std::pair<Variables, int>>{{{{"TG_PORT", "1"}}, 1},
                                              {{{"TG_PORT", "65535"}}, 65535},
                                              {{{"MASTER_PORT", "1"}}, 2},
                                              {{{"MASTER_PORT", "65534"}}, 65535}})
    EXPECT_EQ(world_of(with(hosts, others)).port, port);
  EXPECT_EQ(world_of(with(hosts, {{"TG_TOKEN", longest}})).token, longest);
  EXPECT_EQ(
      text_of(world_of(
          {{"RANK", "1023"}, {"WORLD_SIZE", "1024"}, {"LOCAL_RANK", "1023"}, {"LOCAL_WORLD_SIZE", "1024"}})),
      "1023/1024 1023/1024 torchrun: torchrun parent 77");
}

TEST(World, TokenFileMustBePrivate) {
  const std::string path = std::filesystem::temp_directory_path() / ("tg_token_" + std::to_string(getpid()));
  std::ofstream(path) << "0123456789abcdef0123456789abcdef\n";
  Variables v = with(hosts, {{"TG_TOKEN_FILE", path}});
  v.erase("TG_TOKEN");
  for (const int mode : {0600, 0400}) {
    ASSERT_EQ(::chmod(path.c_str(), static_cast<mode_t>(mode)), 0);
    EXPECT_EQ(world_of(v).token, "0123456789abcdef0123456789abcdef");
  }
  for (const auto& [mode, text] :
       {std::pair(0640, "0640"), std::pair(0604, "0604"), std::pair(0620, "0620")}) {
    ASSERT_EQ(::chmod(path.c_str(), static_cast<mode_t>(mode)), 0);
    try {
      world_of(v);
      ADD_FAILURE() << text;
    } catch (const parallel::WorldError& e) {
      EXPECT_EQ(e.what(), "[ranks] TG_TOKEN_FILE is " + path + ", whose mode is " + text +
                              ": expected 0600, so that only its user may read it");
    }
  }
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  for (const auto& [content, expected] :
       {std::pair(std::string(4096, 'x') + "\n", std::string(4096, 'x')),
        {" \t\r\n" + std::string(32, 'x') + " y\r\n\t ", std::string(32, 'x') + " y"},
        {std::string(5000, 'x'),
         "[ranks] TG_TOKEN_FILE has 4097 characters: expected 32 to 4096, for example from: openssl rand "
         "-hex 32"},
        {" \n",
         "[ranks] TG_TOKEN_FILE has 0 characters: expected 32 to 4096, for example from: openssl rand -hex "
         "32"}}) {
    std::ofstream(path) << content;
    try {
      EXPECT_EQ(world_of(v).token, expected);
    } catch (const parallel::WorldError& e) {
      EXPECT_EQ(e.what(), expected);
    }
  }
  if (geteuid() == 0 && ::chown(path.c_str(), 65534, 0) == 0) {
    try {
      world_of(v);
      ADD_FAILURE() << "a file of another user was read";
    } catch (const parallel::WorldError& e) {
      EXPECT_EQ(e.what(), "[ranks] TG_TOKEN_FILE is " + path + ", which belongs to another user");
    }
  }
  std::filesystem::remove(path);
}

// A pipe without a writer is rejected immediately. Opening it without O_NONBLOCK would block.
TEST(World, TokenFileMustNotBeAPipe) {
  const std::string path = std::filesystem::temp_directory_path() / ("tg_pipe_" + std::to_string(getpid()));
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  auto refused = std::async(std::launch::async, [&]() -> std::string {
    try {
      return world_of(with(without(hosts, "TG_TOKEN"), {{"TG_TOKEN_FILE", path}})).token;
    } catch (const parallel::WorldError& e) {
      return e.what();
    }
  });
  if (refused.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
    ADD_FAILURE() << "it waits for a writer";
    ::close(::open(path.c_str(), O_RDWR));  // lets a waiting open() return
  }
  EXPECT_EQ(refused.get(), "[ranks] TG_TOKEN_FILE is " + path + ", which is not a regular file");
  std::filesystem::remove(path);
}

// Compares each host of each list with an expanded list, in which each host is repeated by its count.
TEST(World, SrunTasksPerHostAreParsed) {
  const std::vector<std::pair<std::string, std::vector<int>>> lists = {
      {"3,1,2", {3, 1, 2}},
      {"1(x3)", {1, 1, 1}},
      {"2(x2),1,3(x2)", {2, 2, 1, 3, 3}},
      {"1,2(x10)", {1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}},
      {"4(x1),3", {4, 3}}};
  for (const auto& [list, tasks] : lists)
    for (std::size_t host = 0; host < tasks.size(); ++host) {
      const World w = world_of(with(srun, {{"SLURM_NTASKS", "100"},
                                           {"SLURM_STEP_TASKS_PER_NODE", list},
                                           {"SLURM_NODEID", std::to_string(host)},
                                           {"SLURM_LOCALID", std::to_string(tasks[host] - 1)},
                                           {"MASTER_ADDR", "a"},
                                           {"MASTER_PORT", "1"},
                                           {"TG_TOKEN", std::string(32, 'x')}}));
      EXPECT_EQ(w.local_size, tasks[host]) << list << ", host " << host;
      EXPECT_EQ(w.local_rank, tasks[host] - 1);
    }
}

TEST(World, EachInvalidEnvironmentIsOneLine) {
  const auto several = [](const std::string& size, int ranks, const std::string& local, int here) {
    return size + " is " + std::to_string(ranks) + " and " + local + " " + std::to_string(here) +
           ", so there are several hosts, but ";
  };
  const std::string two_hosts = several("WORLD_SIZE", 4, "LOCAL_WORLD_SIZE", 2);
  const std::string no_address =
      "MASTER_ADDR is not set: expected the address of rank 0's host (torchrun sets it)";
  const struct {
    Variables variables;
    std::string expected;
  } cases[] = {
      {with(torchrun, {{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
       "RANK is 2 but WORLD_SIZE is 2: expected 0 to 1"},
      {with(torchrun, {{"RANK", "-1"}}), "RANK is -1 but WORLD_SIZE is 4: expected 0 to 3"},
      {with(torchrun, {{"RANK", "x"}}), "RANK is 'x' but WORLD_SIZE is 4: expected 0 to 3"},
      {with(torchrun, {{"RANK", ""}}), "RANK is '' but WORLD_SIZE is 4: expected 0 to 3"},
      {with(torchrun, {{"RANK", "1 "}}), "RANK is '1 ' but WORLD_SIZE is 4: expected 0 to 3"},
      {with(torchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE is 0: expected 1 to 1024"},
      {with(torchrun, {{"WORLD_SIZE", "1025"}}), "WORLD_SIZE is 1025: expected 1 to 1024"},
      {with(hosts, {{"MASTER_PORT", "0"}}), "MASTER_PORT is 0: expected 1 to 65534"},
      {with(hosts, {{"TG_PORT", "65536"}}), "TG_PORT is 65536: expected 1 to 65535"},
      {with(hosts, {{"TG_TOKEN", std::string(4097, 'x')}}),
       "TG_TOKEN has 4097 characters: expected 32 to 4096, for example from: openssl rand -hex 32"},
      {with(torchrun, {{"WORLD_SIZE", "99999999999"}}), "WORLD_SIZE is 99999999999: expected 1 to 1024"},
      {with(torchrun, {{"WORLD_SIZE", "4.0"}}), "WORLD_SIZE is '4.0': expected 1 to 1024"},
      {with(torchrun, {{"RANK", "0"}, {"LOCAL_RANK", "1"}}),
       "LOCAL_RANK is 1 but RANK is 0: expected the same number because all ranks are on one host"},
      {with(torchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK is 4 but LOCAL_WORLD_SIZE is 4: expected 0 to 3"},
      {with(torchrun, {{"LOCAL_WORLD_SIZE", "5"}}),
       "LOCAL_WORLD_SIZE is 5 but WORLD_SIZE is 4: expected 1 to 4"},
      {with(torchrun, {{"LOCAL_WORLD_SIZE", "2"}}),
       two_hosts + "neither TG_TOKEN nor TG_TOKEN_FILE is set: expected a secret, the same on all hosts, for "
                   "example from: openssl rand -hex 32"},
      {with(torchrun, {{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", ""}}), two_hosts + no_address},
      {without(with(torchrun, {{"LOCAL_WORLD_SIZE", "2"}}), "MASTER_PORT"),
       two_hosts +
           "neither TG_PORT nor MASTER_PORT is set: expected the port where rank 0 listens, the same on all "
           "hosts"},
      {with(hosts, {{"MASTER_PORT", "65535"}}), "MASTER_PORT is 65535: expected 1 to 65534"},
      {with(hosts, {{"TG_PORT", "0"}}), "TG_PORT is 0: expected 1 to 65535"},
      {with(hosts, {{"TG_PORT", "x"}}), "TG_PORT is 'x': expected 1 to 65535"},
      {with(hosts, {{"TG_TOKEN", "secret"}}),
       "TG_TOKEN has 6 characters: expected 32 to 4096, for example from: openssl rand -hex 32"},
      {with(hosts, {{"TG_TOKEN", "  " + std::string(31, 'x') + " \n"}}),
       "TG_TOKEN has 31 characters: expected 32 to 4096, for example from: openssl rand -hex 32"},
      {with(hosts, {{"TG_TOKEN_FILE", "/x"}}),
       "TG_TOKEN and TG_TOKEN_FILE are both set: expected one of them"},
      {with(without(hosts, "TG_TOKEN"), {{"TG_TOKEN_FILE", "/no/such/file"}}),
       "TG_TOKEN_FILE is /no/such/file, which cannot be read: No such file or directory"},
      {with(without(hosts, "TG_TOKEN"), {{"TG_TOKEN_FILE", "/"}}),
       "TG_TOKEN_FILE is /, which is not a regular file"},
      {without(torchrun, "RANK"),
       "WORLD_SIZE is 4 but RANK is not set: expected both (torchrun and tools/launch set them)"},
      {without(torchrun, "WORLD_SIZE"),
       "RANK is 1 but WORLD_SIZE is not set: expected both (torchrun and tools/launch set them)"},
      {without(torchrun, "LOCAL_RANK"),
       "WORLD_SIZE is 4 but LOCAL_RANK is not set: expected both (torchrun and tools/launch set them)"},
      {{{"LOCAL_RANK", "0"}},
       "LOCAL_RANK is 0 but WORLD_SIZE is not set: expected both (torchrun and tools/launch set them)"},
      {with(mpich, {{"RANK", "0"}}),
       "RANK is 0 but WORLD_SIZE is not set: expected both (torchrun and tools/launch set them)"},
      {without(open_mpi, "OMPI_COMM_WORLD_LOCAL_SIZE"),
       "OMPI_COMM_WORLD_SIZE is 3 but OMPI_COMM_WORLD_LOCAL_SIZE is not set: expected both (Open MPI's "
       "mpirun sets "
       "them)"},
      {with(open_mpi, {{"OMPI_COMM_WORLD_RANK", "3"}}),
       "OMPI_COMM_WORLD_RANK is 3 but OMPI_COMM_WORLD_SIZE is 3: expected 0 to 2"},
      {with(batch_script, {{"SLURM_STEP_ID", "0"}}),
       "SLURM_NTASKS is 8 but SLURM_STEP_TASKS_PER_NODE is not set: expected both (srun sets them)"},
      {{{"SLURM_STEP_ID", "0"}},
       "SLURM_NTASKS is not set: expected SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID and "
       "SLURM_STEP_TASKS_PER_NODE "
       "(srun sets them)"},
      {with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}, {"SLURM_LOCALID", "1"}}),
       several("SLURM_NTASKS", 8, "SLURM_STEP_TASKS_PER_NODE", 4) + no_address},
      {with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "3(x2),2"}, {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "2"}}),
       several("SLURM_NTASKS", 8, "SLURM_STEP_TASKS_PER_NODE", 2) + no_address},
      {with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "3(x2),2"}, {"SLURM_NODEID", "3"}}),
       "SLURM_STEP_TASKS_PER_NODE is 3(x2),2 but SLURM_NODEID is 3: expected 0 to 2"},
      {with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "many"}}),
       "SLURM_STEP_TASKS_PER_NODE is 'many' but SLURM_NTASKS is 8: expected 1 to 8"},
      {with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "8)"}}),
       "SLURM_STEP_TASKS_PER_NODE is '8)' but SLURM_NTASKS is 8: expected 1 to 8"},
      {with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "8(x1"}}),
       "SLURM_STEP_TASKS_PER_NODE is '8(x1' but SLURM_NTASKS is 8: expected 1 to 8"},
      {with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "4(x0)"}}),
       "SLURM_STEP_TASKS_PER_NODE's count is 0: expected 1 to 1048576"},
      {with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "4(x1048577)"}}),
       "SLURM_STEP_TASKS_PER_NODE's count is 1048577: expected 1 to 1048576"},
      {with(srun, {{"SLURM_NODEID", "-1"}}), "SLURM_NODEID is -1: expected 0 to 1048576"},
      {with(srun, {{"SLURM_NODEID", "1048577"}}), "SLURM_NODEID is 1048577: expected 0 to 1048576"},
      // Tests the largest values of both variables.
      {with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "5(x1048576),2"},
                   {"SLURM_LOCALID", "1"},
                   {"SLURM_NODEID", "1048576"}}),
       several("SLURM_NTASKS", 8, "SLURM_STEP_TASKS_PER_NODE", 2) + no_address},
      {without(mpich, "PMI_SIZE"),
       "PMI_RANK is 0 but PMI_SIZE is not set: expected both (mpiexec of MPICH and Intel MPI sets them)"},
      {with(mpich, {{"MPI_LOCALNRANKS", "1"}}), several("PMI_SIZE", 2, "MPI_LOCALNRANKS", 1) + no_address},
  };
  for (const auto& c : cases) {
    try {
      ADD_FAILURE() << text_of(world_of(c.variables)) << ", expected: " << c.expected;
    } catch (const parallel::WorldError& e) {
      EXPECT_EQ(e.what(), "[ranks] " + c.expected);
    }
  }
}

TEST(World, ReadFromTheProcessEnvironment) {
  for (const auto& [name, value] : torchrun) setenv(name.c_str(), value.c_str(), 1);
  setenv("TG_JOB", "test", 1);
  EXPECT_EQ(text_of(parallel::world()), "1/4 1/4 launch: test");
  for (const auto& [name, value] : torchrun) unsetenv(name.c_str());
  EXPECT_EQ(text_of(parallel::world()), "0/1 0/1 : ");
  unsetenv("TG_JOB");
}

}  // namespace
}  // namespace tg

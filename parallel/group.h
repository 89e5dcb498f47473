// Group connects and monitors the ranks of a run. A program becomes one of several ranks as follows:
//
//     const parallel::World world = parallel::world();          // throws WorldError: exit code 2
//     const auto group = parallel::join(world);                 // returns on all ranks after all have joined
//     options.ranks = &group->communicator();                   // options of programs
//     try {
//       for (…) program.run(…), group->progress(step);          // throws RankLost: exit code 75
//     } catch (const std::exception& e) { group->fail(e.what()); return parallel::exit_code_of(e); }
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <tilegrad/core/run/communicator.h>
#include <tilegrad/parallel/world.h>

namespace tg::parallel {

// Exit codes of ranks, for launchers. After exit_rank_lost, restarting all ranks can succeed; after
// exit_wrong_environment it cannot.
constexpr int exit_wrong_environment = 2, exit_rank_lost = 75;
// The exit code for an exception that ends a rank: exit_wrong_environment for WorldError, exit_rank_lost for
// RankLost, otherwise 1.
int exit_code_of(const std::exception& e);

// Options of join(): timeouts and callbacks.
struct JoinOptions {
  std::chrono::milliseconds join_timeout{120'000};  // time for all ranks to join
  // If another rank waits for a rank, and that rank makes no progress for this time, it is lost. If 20 × its
  // mean step time is longer, that time is used instead. 0: no timeout. The timeout applies after a rank's
  // first progress().
  std::chrono::milliseconds step_timeout{60'000};
  // If this process still runs at this time after a rank was lost, it exits with exit_rank_lost; 0: never.
  // While the process writes a checkpoint (io::CheckpointStore), save_after is used instead.
  std::chrono::milliseconds end_after{0}, save_after{120'000};
  // Called from time to time with a status line while this rank waits for others.
  std::function<void(const std::string&)> report;
  // Called once when a rank is lost, from another thread. It should end waits outside of
  // Communicator::share().
  std::function<void(const RankLost&)> on_lost;
};

// The membership of this process in a run. The destructor leaves the run in an orderly way. If an exception
// is in flight, it reports that this rank has failed. Any thread may call the methods.
class Group {
 public:
  // Leaves the run; see above.
  ~Group();
  Group(const Group&) = delete;

  // The communicator for CompileOptions::ranks, valid as long as the group.
  Communicator& communicator();

  // Reports that this rank has finished a step.
  void progress(std::int64_t step);

  // While a Pause exists, the step timeout of this rank is suspended. Use it, for example, to compile,
  // validate or write a checkpoint.
  class Pause {
   public:
    // Ends the pause.
    ~Pause();
    // Transfers the pause.
    Pause(Pause&& other) noexcept;
    Pause& operator=(Pause&&) = delete;

   private:
    friend class Group;
    explicit Pause(Group& group);
    Group* group_;
  };
  // Starts a pause.
  [[nodiscard]] Pause pause();

  // Reports that this rank fails with an error: all other ranks get a RankLost with this line.
  void fail(std::string_view why) noexcept;

  // Throws RankLost if a rank is lost, as Communicator::share() does.
  void check() const;

 private:
  friend std::shared_ptr<Group> join(const World& world, const JoinOptions& options);
  struct Parts;
  explicit Group(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
  const int exceptions_;  // in flight when the group was created
};

// Joins all other ranks of this world. All ranks must be processes of the same program. On one host, they
// must belong to the same user. On several hosts, they must know the world's token. With a single rank, the
// function opens no socket. It then starts a thread only if tools/launch started the process. Throws
// WorldError if the ranks are inconsistent: different programs, different tokens, or a rank number that is
// used twice. Throws RankLost if a rank does not join in time, or exits during the join.
std::shared_ptr<Group> join(const World& world, const JoinOptions& options = {});

}  // namespace tg::parallel

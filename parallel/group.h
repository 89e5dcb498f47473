// Group: the ranks of a run, met and watched over. What a program does to be one of several ranks:
//
//   const parallel::World world = parallel::world();          // throws WorldError: exit code 2
//   const auto group = parallel::join(world);                 // returns on all ranks when all have come
//   options.ranks = &group->communicator();                   // of programs
//   for (…) program.run(…), group->progress(step);            // throws RankLost: exit code 75
//   } catch (const std::exception& e) { group->fail(e.what()); return parallel::exit_code_of(e); }
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

// How programs of several ranks end, for launchers: after the second, to start all again makes sense.
constexpr int exit_wrong_environment = 2, exit_rank_lost = 75;
// The exit code for an exception that ends a rank: one of these, or 1.
int exit_code_of(const std::exception& e);

struct JoinOptions {
  std::chrono::milliseconds join_timeout{120'000};  // until all have come
  // A rank that does nothing for this long, or for 20 times its mean step if that is longer, while another
  // one waits for it, is lost. 0: never. It counts from a rank's first progress() on.
  std::chrono::milliseconds step_timeout{60'000};
  // A process that still runs this long after a rank was lost, because it hangs itself, is ended with
  // exit_rank_lost. 0: never. While it writes a checkpoint (io::CheckpointStore) it has save_after instead.
  std::chrono::milliseconds end_after{0}, save_after{120'000};
  std::function<void(const std::string&)>
      report;  // gets a line now and then while this rank waits for others
  // Is called once, from another thread, when a rank is lost: for what waits somewhere else than in share().
  std::function<void(const RankLost&)> on_lost;
};

// All ranks are joined to it while it exists; its destructor says goodbye, or, during an exception, that this
// rank failed. Its methods may be called from any thread.
class Group {
 public:
  ~Group();
  Group(const Group&) = delete;

  // It lives as long as the group does.
  Communicator& communicator();

  // Says that this rank has finished that step.
  void progress(std::int64_t step);

  // While one exists this rank may take its time: to compile, to validate, to write a checkpoint.
  class Pause {
   public:
    ~Pause();
    Pause(Pause&& other) noexcept;
    Pause& operator=(Pause&&) = delete;

   private:
    friend class Group;
    explicit Pause(Group& group);
    Group* group_;
  };
  [[nodiscard]] Pause pause();

  // This rank ends with an error of its own: all others get a RankLost with this line.
  void fail(std::string_view why) noexcept;

  // Throws the RankLost if a rank is lost, as share() does.
  void check() const;

 private:
  friend std::shared_ptr<Group> join(const World& world, const JoinOptions& options);
  struct Parts;
  explicit Group(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
  const int exceptions_;  // that were in flight when it was made
};

// Meets all other ranks of this world, which are processes of the same program: of the same user on this
// host, or on several hosts of whoever knows the world's token. One rank is alone, without any socket and,
// unless tools/launch started it, without a thread. Throws WorldError if the ranks do not fit together, such
// as two programs, two ranks of one number or two tokens; RankLost if one does not come in time, or ends
// meanwhile.
std::shared_ptr<Group> join(const World& world, const JoinOptions& options = {});

}  // namespace tg::parallel

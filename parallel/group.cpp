#include <tilegrad/parallel/group.h>

#include <algorithm>
#include <utility>

#include "core/run/ranks.h"
#include "parallel/control.h"
#include "parallel/launch_board.h"
#include "parallel/message.h"
#include "parallel/network.h"
#include "parallel/rendezvous.h"
#include "parallel/shared_memory.h"

namespace tg::parallel {

// With a single rank, only the communicator and the LaunchWatch are not null.
struct Group::Parts {
  std::unique_ptr<Communicator> communicator;
  std::shared_ptr<SharedMemory> memory;
  int rank = 0;
  std::unique_ptr<LaunchWatch> launch_watch;
  std::unique_ptr<Watchdog> watchdog;  // must be destroyed first

  RankState* state() const { return memory ? &memory->state(rank) : nullptr; }
};

int exit_code_of(const std::exception& e) {
  if (dynamic_cast<const RankLost*>(&e)) return exit_rank_lost;
  return dynamic_cast<const WorldError*>(&e) ? exit_wrong_environment : 1;
}

Group::Group(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)), exceptions_(std::uncaught_exceptions()) {}

Group::~Group() {
  if (std::uncaught_exceptions() > exceptions_)
    fail("ended with an error");
  else if (RankState* s = parts_->state())
    s->has_ended.store(1, std::memory_order_release);  // must be set before the connections close
}

Communicator& Group::communicator() {
  return *parts_->communicator;
}

void Group::progress(std::int64_t step) {
  if (RankState* s = parts_->state()) {
    s->steps.store(std::clamp<std::int64_t>(step, 0, INT64_MAX - 1) + 1, std::memory_order_relaxed);
    s->moves.fetch_add(1, std::memory_order_relaxed);
  }
}

Group::Pause::Pause(Group& group) : group_(&group) {
  if (RankState* s = group_->parts_->state()) s->pauses.fetch_add(1, std::memory_order_relaxed);
}
Group::Pause::Pause(Pause&& other) noexcept : group_(std::exchange(other.group_, nullptr)) {}
Group::Pause::~Pause() {
  if (group_ == nullptr) return;
  if (RankState* s = group_->parts_->state()) s->pauses.fetch_sub(1, std::memory_order_relaxed);
}
Group::Pause Group::pause() {
  return Pause(*this);
}

void Group::fail(std::string_view why) noexcept {
  try {
    if (parts_->memory) parts_->memory->mark_lost(parts_->rank, "failed: " + std::string(why), parts_->rank);
  } catch (...) {  // the other ranks see that the connection ends
  }
}

void Group::check() const {
  if (parts_->memory) parts_->memory->check_lost();
}

std::shared_ptr<Group> join(const World& world, const JoinOptions& options) {
  if (world.size < 1 || world.size > most_ranks || world.rank < 0 || world.rank >= world.size)
    throw WorldError("[ranks] rank " + std::to_string(world.rank) + " of " + std::to_string(world.size) +
                     ": expected 0 to size − 1, and a size of 1 to " + std::to_string(most_ranks));
  for (const std::chrono::milliseconds t :
       {options.join_timeout, options.step_timeout, options.end_after, options.save_after})
    if (t < std::chrono::milliseconds(0) || t > std::chrono::hours(24 * 365))
      throw Error("[ranks] a timeout of " + std::to_string(t.count()) + " ms: expected 0 to a year");
  if (world.size > 1 && world.has_several_hosts()) {
    check_token(world.token, "the token of ranks on several hosts");
    if (world.port < 1 || world.port > 65535)
      throw WorldError("[ranks] port " + std::to_string(world.port) + ": expected 1 to 65535");
  }
  auto parts = std::make_unique<Group::Parts>();
  if (const Launch* launch = launch_of_this_process())
    parts->launch_watch = std::make_unique<LaunchWatch>(*launch);
  if (world.size == 1) {
    parts->communicator = std::make_unique<OneRank>();
  } else {
    Meeting meeting = meet(world, options, own_build());
    std::unique_ptr<Notes> notes;
    if (world.has_several_hosts()) {
      parts->communicator =
          std::make_unique<NetworkCommunicator>(meeting.memory, std::move(meeting.data), world.rank);
      notes = std::make_unique<Notes>(meeting.memory, std::exchange(meeting.connections, {}), world.rank,
                                      beat_of(options.step_timeout));
    } else {
      parts->communicator = std::make_unique<HostCommunicator>(meeting.memory, world.rank);
    }
    parts->memory = meeting.memory, parts->rank = world.rank;
    JoinOptions watched = options;
    watched.on_lost = [ranks = parts->communicator.get(), f = options.on_lost](const RankLost& e) {
      ranks->report_lost();
      if (f) f(e);
    };
    parts->watchdog = std::make_unique<Watchdog>(meeting.memory, std::move(meeting.connections),
                                                 std::move(notes), world.rank, watched);
  }
  return std::shared_ptr<Group>(new Group(std::move(parts)));
}

}  // namespace tg::parallel

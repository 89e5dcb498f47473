#include "parallel/rendezvous.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>

#include "core/base/hash.h"
#include "core/os/memory.h"
#include "core/os/socket.h"
#include "parallel/listener.h"
#include "parallel/message.h"

namespace tg::parallel {

namespace {

constexpr Milliseconds patience_with_strangers{5'000}, patience_with_latecomers{1'000};

// Rank 0's part of meet(): waits until all other ranks have joined.
class Host {
 public:
  Host(const World& world, const JoinOptions& options, const std::string& build)
      : world_(world),
        options_(options),
        own_(join_of(world, build, Purpose::control)),
        listener_(world.has_several_hosts() ? open_network_listener(world, options)
                                            : open_local_listener(world)) {}

  Meeting meet() {
    try {
      await_all();
      return welcome();
    } catch (const WorldError& e) {
      tell_all(Reply::wrong, e.what());
      throw;
    } catch (const RankLost& e) {
      tell_all(Reply::lost, e.what());
      throw;
    }
  }

 private:
  // The number of connections that the other ranks open.
  std::size_t expected() const {
    return static_cast<std::size_t>(world_.size - 1) *
           static_cast<std::size_t>(listener_->connections_per_rank());
  }

  void await_all() {
    const Clock::time_point end = Clock::now() + options_.join_timeout;
    WaitReports reports(options_);
    while (joined_.size() < expected()) {
      if (Clock::now() >= end) {
        is_late_ = true;
        throw RankLost("[ranks] " + absent() + " did not join within " + seconds_text(options_.join_timeout) +
                       here() + listener_->about());
      }
      if (reports.is_due()) reports.say(absent() + here() + listener_->about());
      wait(std::min(reports.next(), end));
    }
  }

  void wait(Clock::time_point end) {
    std::vector<os::Polled> waited{{listener_->descriptor()}};
    for (const JoiningPeer& s : strangers_) {
      waited.push_back({s.socket.fd});
      end = std::min(end, s.leave);
    }
    for (const JoiningPeer& c : joined_) waited.push_back({c.socket.fd});
    if (const int error = os::poll(waited, until(end)); error != 0 && error != ETIMEDOUT && error != EINTR)
      fail_call("poll", error);
    // A rank sends nothing after joining. If its connection is readable, its process has exited.
    for (const JoiningPeer& c : joined_)
      for (const os::Polled& w : waited)
        if (w.descriptor == c.socket.fd && w.is_ready)
          throw RankLost("[ranks] rank " + std::to_string(c.join.rank) + " exited before all ranks joined");
    // Each call processes one peer that has sent data, and closes connections of peers that stay silent.
    std::optional<JoiningPeer> speaking;
    std::deque<JoiningPeer> rest;
    for (std::size_t i = 0; i < strangers_.size(); ++i) {
      JoiningPeer& s = strangers_[i];
      const bool speaks = waited[1 + i].is_ready;
      if (speaks && !speaking)
        speaking.emplace(std::move(s));
      else if (speaks || Clock::now() < s.leave)
        rest.push_back(std::move(s));
    }
    std::swap(strangers_, rest);
    if (speaking) hear(std::move(*speaking));
    if (waited[0].is_ready) accept_one();
  }

  void accept_one() {
    int error = 0;
    std::optional<JoiningPeer> peer = listener_->accept(error);
    if (!peer) {
      if (error != EMFILE && error != ENFILE) return;
      if (!strangers_.empty()) return strangers_.pop_front();
      if (error == EMFILE && joined_.size() < expected())
        refuse_world("rank 0 cannot open more files, and needs one for each of " +
                     std::to_string(expected()) + " connections: expected a higher limit (ulimit -n)");
      return;
    }
    // If there are too many connections, drops the oldest. It is probably not a rank, because a rank sends
    // its Join immediately.
    if (strangers_.size() >= most_strangers + expected()) strangers_.pop_front();
    peer->leave = Clock::now() + patience_with_strangers;
    strangers_.push_back(std::move(*peer));
  }

  void hear(JoiningPeer s) {
    const Listener::Heard heard = listener_->hear(s);
    if (heard == Listener::Heard::nothing) strangers_.push_back(std::move(s));
    if (heard != Listener::Heard::joins) return;
    if (verdict_) {
      listener_->reply(s, verdict_->first, verdict_->second), ++told_;
      return;
    }
    const Join& join = s.join;
    const std::string rank = "rank " + std::to_string(join.rank);
    const auto refuse = [&](const std::string& why) {
      listener_->reply(s, Reply::wrong, "[ranks] " + why), ++told_;
      refuse_world(why);
    };
    // Rejects only this peer. The peer may belong to a different job, so the ranks can start without it.
    const auto turn_away = [&](const std::string& why) {
      listener_->reply(s, Reply::wrong, "[ranks] " + rank + why + " (this is '" + world_.job + "')");
    };
    if (join.version != join_version)
      refuse(rank + " uses protocol version " + std::to_string(join.version) + ", rank 0 uses " +
             std::to_string(join_version) + ": expected the same program");
    if (join.job != own_.job)
      return turn_away(" belongs to a different job from rank 0: expected the same TG_JOB, if it is set");
    if (join.size != world_.size)
      refuse(rank + " is of " + std::to_string(join.size) + " ranks, rank 0 of " +
             std::to_string(world_.size) + ": expected the same number");
    if (join.build != own_.build)
      refuse(rank + " runs build " + text_of(join.build).substr(0, 8) + ", rank 0 " +
             text_of(own_.build).substr(0, 8) + ": expected the same program");
    const bool is_here = std::any_of(joined_.begin(), joined_.end(), [&](const JoiningPeer& g) {
      return g.join.rank == join.rank && g.join.purpose == join.purpose;
    });
    if (join.rank < 1 || join.rank >= world_.size || is_here)
      return turn_away(
          " of this job has already joined: expected one process per rank, and a different TG_JOB for a "
          "different job");
    joined_.push_back(std::move(s));
  }

  Meeting welcome() {
    strangers_.clear();  // otherwise they might use up all descriptors
    listener_->close();  // a rank that joins again soon must connect to the next listener
    Meeting meeting{SharedMemory::create(world_.size), {}, {}};
    for (const JoiningPeer& g : joined_)
      if (!listener_->reply(g, Reply::welcome, "", meeting.memory->descriptor()))
        throw RankLost("[ranks] rank " + std::to_string(g.join.rank) + " exited before all ranks joined");
    for (JoiningPeer& g : joined_)
      (g.join.purpose == Purpose::control ? meeting.connections : meeting.data)
          .push_back({g.join.rank, std::move(g.socket)});
    return meeting;
  }

  // Sends all ranks the reason why the run does not start. Ranks that join slightly later also receive the
  // reason, so they need not wait for rank 0.
  void tell_all(Reply::Kind kind, const std::string& line) {
    for (const JoiningPeer& g : joined_) listener_->reply(g, kind, line), ++told_;
    joined_.clear();
    verdict_ = {kind, line};
    const Clock::time_point end = Clock::now() + (is_late_ ? Milliseconds(0) : patience_with_latecomers);
    while (told_ < expected() && Clock::now() < end) wait(end);
  }

  bool is_complete(int rank) const {
    return std::count_if(joined_.begin(), joined_.end(), [&](const JoiningPeer& g) {
             return g.join.rank == rank;
           }) == listener_->connections_per_rank();
  }
  int complete() const {
    int n = 0;
    for (int r = 1; r < world_.size; ++r) n += is_complete(r);
    return n;
  }

  // "rank 3", "ranks 1, 3 and 5 others"
  std::string absent() const {
    std::string names;
    int named = 0;
    const int all = world_.size - complete() - 1;
    for (int r = 1; r < world_.size && named < 8; ++r)
      if (!is_complete(r)) {
        names += (named == 0 ? "" : named + 1 == all ? " and " : ", ") + std::to_string(r);
        ++named;
      }
    if (named < all) names += " and " + std::to_string(all - named) + " others";
    return (all == 1 ? "rank " : "ranks ") + names;
  }
  std::string here() const {
    return " (" + std::to_string(complete() + 1) + " of " + std::to_string(world_.size) + " joined)";
  }

  static constexpr std::size_t most_strangers = 256;
  const World& world_;
  const JoinOptions& options_;
  const Join own_;
  const std::unique_ptr<Listener> listener_;
  std::deque<JoiningPeer> strangers_;  // connected, but without a Join so far
  std::vector<JoiningPeer> joined_;
  bool is_late_ = false;                                         // the time limit for joining has passed
  std::optional<std::pair<Reply::Kind, std::string> > verdict_;  // for peers that join now
  std::size_t told_ = 0;                                         // number of peers that received the verdict
};

}  // namespace

int until(Clock::time_point then) {
  const auto left = std::chrono::ceil<Milliseconds>(then - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

std::string job_hash(const std::string& job) {
  const std::array<std::string_view, 1> pieces{job};
  return xxh3_128(pieces);
}

Join join_of(const World& world, const std::string& build, Purpose purpose) {
  Join join{.magic = join_magic,
            .version = join_version,
            .rank = world.rank,
            .size = world.size,
            .purpose = purpose,
            .build = {},
            .job = {}};
  put(join.build, build), put(join.job, job_hash(world.job));
  return join;
}

std::string own_build() {
  const os::SharedFile program = os::open_own_program();
  const FileDescriptor file(program.descriptor);
  if (program.bytes == 0) fail_call("reading /proc/self/exe", program.error);
  void* memory = nullptr;
  if (const int error = os::map_read_only(file.fd, program.bytes, memory))
    fail_call("mapping /proc/self/exe", error);
  const std::array<std::string_view, 1> pieces{
      std::string_view(static_cast<const char*>(memory), program.bytes)};
  std::string digits = xxh3_128(pieces);
  os::unmap(memory, program.bytes);
  return digits;
}

Meeting meet(const World& world, const JoinOptions& options, const std::string& build) {
  if (world.rank == 0) return Host(world, options, build).meet();
  return world.has_several_hosts() ? enter_network(world, options, build)
                                   : enter_local(world, options, build);
}

}  // namespace tg::parallel

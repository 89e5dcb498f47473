// Ranks of several hosts. Each other rank has two connections to rank 0. One transfers the data of share(),
// and the other transfers state messages.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <tilegrad/core/run/communicator.h>
#include "core/os/socket.h"
#include "parallel/rendezvous.h"
#include "parallel/shared_memory.h"

namespace tg::parallel {

// A communicator for small data: rank 0 receives the bytes of all ranks and sends them to all ranks. Not
// thread-safe. Lost ranks are recorded in `memory`, which is private to this process.
class NetworkCommunicator : public Communicator {
 public:
  NetworkCommunicator(std::shared_ptr<SharedMemory> memory, std::vector<Connection> connections, int rank);

  void share(std::span<const std::byte> own, const Reader& read) override;
  void check_lost() const override { memory_->check_lost(); }
  void note_wait(bool begins) override { memory_->state(rank()).note_wait(begins); }

 private:
  struct Head;
  void gather(std::span<const std::byte> own, Head& head);    // rank 0
  void exchange(std::span<const std::byte> own, Head& head);  // the other ranks
  void send(const Connection& to, std::span<const std::byte> bytes, bool more = false) const;
  void receive(const Connection& from, std::span<std::byte> bytes) const;
  void wait(os::Polled socket) const;
  [[noreturn]] void await_news(const Connection& of_whom) const;

  const std::shared_ptr<SharedMemory> memory_;
  const std::vector<Connection> connections_;
  std::vector<std::byte> all_;  // the bytes of all ranks, concatenated
  std::vector<const std::byte*> shown_;
};

// The interval between heartbeats: one second, or an eighth of `step_timeout` if that is less. A step_timeout
// of 0 means no timeout.
std::chrono::milliseconds beat_of(std::chrono::milliseconds step_timeout);

// State messages between ranks. Each rank sends its RankState to rank 0. Rank 0 sends its own RankState to
// each rank. If a rank is lost, all ranks are notified. Only the watchdog's thread calls these functions.
class Notes {
 public:
  // Sends a message at least once per `beat`.
  Notes(std::shared_ptr<SharedMemory> memory, std::vector<Connection> connections, int rank,
        std::chrono::milliseconds beat);

  void add_to(std::vector<os::Polled>& waited) const;  // the sockets to wait for
  void hear();
  void say();
  void say_goodbye();  // sends the last state, and waits for at most 1 s until all ranks have received it

 private:
  using Clock = std::chrono::steady_clock;
  struct State;
  struct Loss;
  struct Peer {
    Connection connection;
    std::string heard, unsent;
    bool knows_of_loss = false, is_open = true;
  };
  void hear(Peer& peer);
  void take(Peer& peer);  // processes the complete messages
  void send(Peer& peer);
  void lose(Peer& peer, const std::string& why);
  State own_state() const;

  const std::shared_ptr<SharedMemory> memory_;
  const int rank_;
  const std::chrono::milliseconds beat_;
  std::vector<Peer> peers_;
  std::string last_said_;
  Clock::time_point last_time_{};
};

}  // namespace tg::parallel

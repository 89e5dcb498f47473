#include "parallel/network.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "parallel/message.h"

namespace tg::parallel {

namespace {

constexpr Milliseconds wait_each{50};
// When a data connection ends, the reason may still arrive on the control connection. A rank waits for this
// time.
constexpr Milliseconds patience_with_news{5'000};
// Minimum interval between a rank's state messages. The watchdog runs at the same interval.
constexpr Milliseconds least_beat{100};

const char* const without_a_word = "is lost: its process exited without reporting an error, or was killed";

}  // namespace

// The header of rank 0's answer. It contains the number of bytes that each rank sent. If a rank sent a
// different number from rank 0, it contains that rank instead.
struct NetworkCommunicator::Head {
  std::uint64_t bytes = 0, other_bytes = 0;
  std::int64_t other = -1;
};

NetworkCommunicator::NetworkCommunicator(std::shared_ptr<SharedMemory> memory,
                                         std::vector<Connection> connections, int rank)
    : Communicator(rank, memory->ranks()), memory_(std::move(memory)), connections_(std::move(connections)) {}

void NetworkCommunicator::share(std::span<const std::byte> own, const Reader& read) {
  if (!read) fail("share: the reader is empty");
  if (own.size() > most_shared)
    fail("share: " + std::to_string(own.size()) + " bytes: expected at most " + std::to_string(most_shared));
  memory_->check_lost();
  RankState& state = memory_->state(rank());
  state.is_waiting.store(1, std::memory_order_relaxed);
  Head head{.bytes = own.size()};
  all_.resize(static_cast<std::size_t>(size()) * own.size());
  rank() == 0 ? gather(own, head) : exchange(own, head);
  state.note_wait(false);
  if (head.other >= 0)
    fail("share: rank 0 shows " + std::to_string(head.bytes) + " bytes and rank " +
         std::to_string(head.other) + " " + std::to_string(head.other_bytes) +
         ": expected the same number of all ranks");
  shown_.clear();
  for (std::size_t r = 0; r < static_cast<std::size_t>(size()); ++r)
    shown_.push_back(all_.data() + r * own.size());
  read(shown_);
}

void NetworkCommunicator::gather(std::span<const std::byte> own, Head& head) {
  std::copy(own.begin(), own.end(), all_.begin());
  std::vector<std::byte> of_another_size;
  for (const Connection& c : connections_) {
    std::uint64_t bytes = 0;
    receive(c, raw_bytes(bytes));
    std::span<std::byte> to =
        std::span(all_).subspan(static_cast<std::size_t>(c.rank) * own.size(), own.size());
    if (bytes != own.size()) {
      if (bytes > most_shared) {
        memory_->mark_lost(c.rank, "sent an invalid message", rank());
        memory_->check_lost();
      }
      if (head.other < 0 || c.rank < head.other) head.other = c.rank, head.other_bytes = bytes;
      of_another_size.resize(bytes);
      to = of_another_size;
    }
    receive(c, to);
  }
  const bool sends_all = head.other < 0 && !own.empty();
  for (const Connection& c : connections_) {
    send(c, raw_bytes(head), sends_all);
    if (sends_all) send(c, all_);
  }
}

void NetworkCommunicator::exchange(std::span<const std::byte> own, Head& head) {
  std::uint64_t bytes = own.size();
  send(connections_[0], raw_bytes(bytes), !own.empty());
  send(connections_[0], own);
  receive(connections_[0], raw_bytes(head));
  if (head.other >= 0) return;
  if (head.bytes != own.size()) {
    memory_->mark_lost(0, "sent an invalid message", rank());
    memory_->check_lost();
  }
  receive(connections_[0], all_);
}

void NetworkCommunicator::send(const Connection& to, std::span<const std::byte> bytes, bool more) const {
  while (!bytes.empty()) {
    const auto [n, error] = os::send(to.socket.fd, bytes, more);
    if (n > 0) {
      bytes = bytes.subspan(n);
      memory_->state(rank()).moves.fetch_add(1, std::memory_order_relaxed);
    } else if (os::is_temporary(error)) {
      wait({.descriptor = to.socket.fd, .for_room = true});
    } else {
      await_news(to);
    }
  }
}

void NetworkCommunicator::receive(const Connection& from, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const auto [n, error] = os::receive(from.socket.fd, bytes);
    if (n > 0) {
      bytes = bytes.subspan(n);
      memory_->state(rank()).moves.fetch_add(1, std::memory_order_relaxed);
    } else if (os::is_temporary(error)) {
      wait({from.socket.fd});
    } else {
      await_news(from);
    }
  }
}

void NetworkCommunicator::wait(os::Polled socket) const {
  os::poll(socket, static_cast<int>(wait_each.count()));
  memory_->check_lost();
}

void NetworkCommunicator::await_news(const Connection& of_whom) const {
  for (Milliseconds waited{}; waited < patience_with_news; waited += wait_each) {
    memory_->check_lost();
    std::this_thread::sleep_for(wait_each);
  }
  memory_->mark_lost(of_whom.rank, "is lost: its connection ended", rank());
  memory_->check_lost();
  // not reached, because the rank is marked as lost
  fail("rank " + std::to_string(of_whom.rank) + " is lost");
}

// Messages in both directions. The kind of a message determines its size, because all ranks run the same
// program.
struct Notes::State {
  std::uint64_t kind = 1;
  std::int64_t steps;
  std::uint32_t moves, is_waiting, pauses, beats, has_ended, unused;
};
struct Notes::Loss {
  std::uint64_t kind = 2;
  std::int64_t rank;
  std::array<char, 496> why;
};

Milliseconds beat_of(Milliseconds step_timeout) {
  const Milliseconds second(1'000);
  return step_timeout == Milliseconds(0) ? second : std::min(step_timeout / 8, second);
}

Notes::Notes(std::shared_ptr<SharedMemory> memory, std::vector<Connection> connections, int rank,
             Milliseconds beat)
    : memory_(std::move(memory)), rank_(rank), beat_(std::max(beat, least_beat)) {
  for (Connection& c : connections) peers_.push_back({.connection = std::move(c), .heard = {}, .unsent = {}});
}

void Notes::add_to(std::vector<os::Polled>& waited) const {
  for (const Peer& p : peers_)
    if (p.is_open) waited.push_back({p.connection.socket.fd});
}

void Notes::hear() {
  for (Peer& p : peers_)
    if (p.is_open) hear(p);
  // A rank receives messages only from rank 0. Rank 0 monitors all ranks.
  if (rank_ != 0)
    for (int r = 1; r < memory_->ranks(); ++r)
      if (r != rank_) memory_->state(r).beats.fetch_add(1, std::memory_order_relaxed);
}

void Notes::hear(Peer& peer) {
  std::array<char, 4096> bytes;
  for (;;) {
    const auto [n, error] = os::receive(peer.connection.socket.fd, raw_bytes(bytes));
    if (n > 0) {
      peer.heard.append(bytes.data(), n);
      take(peer);
      if (!peer.is_open) return;
    } else if (error == EINTR) {
    } else if (error == EAGAIN) {
      return;
    } else if (error == 0 || error == ECONNRESET || error == EPIPE) {
      return lose(peer, without_a_word);
    } else {
      return lose(peer, std::string("is lost: its host does not answer (") + std::strerror(error) + ")");
    }
  }
}

void Notes::take(Peer& peer) {
  for (;;) {
    std::uint64_t kind;
    if (peer.heard.size() < sizeof kind) return;
    std::memcpy(&kind, peer.heard.data(), sizeof kind);
    if (kind != State{}.kind && kind != Loss{}.kind) return lose(peer, "sent an invalid message");
    const std::size_t bytes = kind == State{}.kind ? sizeof(State) : sizeof(Loss);
    if (peer.heard.size() < bytes) return;
    if (kind == State{}.kind) {
      State said;
      std::memcpy(&said, peer.heard.data(), sizeof said);
      RankState& state = memory_->state(peer.connection.rank);
      state.steps = said.steps, state.moves = said.moves, state.is_waiting = said.is_waiting;
      state.pauses = said.pauses, state.beats = said.beats, state.has_ended = said.has_ended;
    } else {
      Loss said;
      std::memcpy(&said, peer.heard.data(), sizeof said);
      if (said.rank < 0 || said.rank >= memory_->ranks()) return lose(peer, "sent an invalid message");
      memory_->mark_lost(static_cast<int>(said.rank), text_of(said.why), rank_);
      peer.knows_of_loss = true;
    }
    peer.heard.erase(0, bytes);
  }
}

void Notes::lose(Peer& peer, const std::string& why) {
  if (memory_->state(peer.connection.rank).has_ended.load(std::memory_order_relaxed) == 0)
    memory_->mark_lost(peer.connection.rank, why, rank_);
  peer.is_open = false;
  os::shut_down(peer.connection.socket.fd);  // the peer may be waiting for this
}

Notes::State Notes::own_state() const {
  const RankState& s = memory_->state(rank_);
  return {.steps = s.steps,
          .moves = s.moves,
          .is_waiting = s.is_waiting,
          .pauses = s.pauses,
          .beats = s.beats,
          .has_ended = s.has_ended,
          .unused = 0};
}

void Notes::say() {
  const std::optional<LostRank> lost = memory_->lost();
  State state = own_state();
  const auto text = [](const auto& message) {
    return std::string(reinterpret_cast<const char*>(&message), sizeof message);
  };
  const Clock::time_point now = Clock::now();
  State without_beat = state;
  without_beat.beats = 0;
  const bool is_new = text(without_beat) != last_said_ && now - last_time_ >= least_beat;
  const bool says_state = is_new || now - last_time_ >= beat_ || state.has_ended != 0;
  if (says_state) last_said_ = text(without_beat), last_time_ = now;
  for (Peer& p : peers_) {
    if (!p.is_open) continue;
    // If a peer does not read, a state is not sent to it. A loss is always sent.
    if (says_state && p.unsent.empty()) p.unsent = text(state);
    if (lost && !std::exchange(p.knows_of_loss, true)) {
      Loss loss{.rank = lost->rank, .why = {}};
      put(loss.why, lost->why);
      p.unsent += text(loss);
    }
    send(p);
  }
}

void Notes::send(Peer& peer) {
  while (!peer.unsent.empty()) {
    const auto [n, error] = os::send(peer.connection.socket.fd, std::as_bytes(std::span(peer.unsent)));
    if (error != 0) return;  // full, or failed: hear() then finds the reason
    peer.unsent.erase(0, n);
  }
}

void Notes::say_goodbye() {
  say();
  for (Peer& p : peers_)
    if (p.is_open && p.unsent.empty()) os::shut_down_sending(p.connection.socket.fd);
  const Clock::time_point end = Clock::now() + Milliseconds(1'000);
  const auto is_open = [](const Peer& p) { return p.is_open; };
  while (std::any_of(peers_.begin(), peers_.end(), is_open) && Clock::now() < end) {
    std::vector<os::Polled> waited;
    add_to(waited);
    os::poll(waited, static_cast<int>(wait_each.count()));
    for (Peer& p : peers_) {  // ignore messages and wait until the connections end
      std::array<char, 4096> bytes;
      os::Transfer got{1};
      while (p.is_open && got.bytes > 0) got = os::receive(p.connection.socket.fd, raw_bytes(bytes));
      if (p.is_open && !os::is_temporary(got.error)) p.is_open = false;
    }
  }
}

}  // namespace tg::parallel

// Communicator: what the processes that run the same programs together, called ranks, have in common. Each
// rank has the same graph, programs and parameters, and data of its own.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include <tilegrad/core/base/error.h>

namespace tg {

// A rank that others wait for is gone, has failed or does not go on. The run's results are void; the process
// should end (exit code 75) and be started again from its last checkpoint.
struct RankLost : Error {
  using Error::Error;
};

class Communicator {
 public:
  Communicator(int rank, int size);
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;

  int rank() const { return rank_; }  // of this process, 0 to size() − 1
  int size() const { return size_; }

  // Shows `own` to all ranks, and calls `read` with what each of them shows, by rank, the own one included.
  // All ranks call it the same number of times with the same number of bytes, at most most_shared; it waits
  // until all have. The memory is valid during `read`, which must not throw. Throws RankLost; Error if
  // another rank shows another number of bytes, or if `read` is empty.
  static constexpr std::size_t most_shared = std::size_t{1} << 20;
  using Reader = std::function<void(std::span<const std::byte* const> shown)>;
  virtual void share(std::span<const std::byte> own, const Reader& read) = 0;

  // Throws the RankLost if a rank is lost: for what waits for other ranks somewhere else than in share(),
  // such as on a GPU.
  virtual void check_lost() const {}
  // Such a wait begins, or ends: meanwhile a rank that does nothing is one that this rank waits for.
  virtual void note_wait(bool /* begins */) {}
  // `f` ends such a wait. As long as the result exists it is called, once, by another thread, when a rank is
  // lost, or here if one is. It must not wait itself. To let the result go waits for a call that is under
  // way.
  [[nodiscard]] std::shared_ptr<void> on_lost(std::function<void()> f);
  void report_lost();  // that a rank is lost: calls those functions. For who watches over the ranks

 private:
  struct Listeners;
  const int rank_, size_;
  const std::shared_ptr<Listeners> listeners_;
};

}  // namespace tg

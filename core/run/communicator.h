// Communicator: the connection among ranks. Ranks are processes that run the same programs together. All
// ranks have the same graph, programs and parameters, but different data.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include <tilegrad/core/base/error.h>

namespace tg {

// Thrown if a rank has exited, has failed or makes no progress while others wait for it. The results of the
// run are invalid. The process should exit with code 75 and be restarted from its last checkpoint.
struct RankLost : Error {
  using Error::Error;
};

// The interface through which the ranks of a run exchange small amounts of data.
class Communicator {
 public:
  // For rank `rank` of `size` ranks.
  Communicator(int rank, int size);
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;

  int rank() const { return rank_; }  // rank of this process, 0 to size() − 1
  int size() const { return size_; }  // number of ranks

  // Maximum number of bytes that a rank can show in share().
  static constexpr std::size_t most_shared = std::size_t{1} << 20;
  // Reads the bytes shown by all ranks, in rank order.
  using Reader = std::function<void(std::span<const std::byte* const> shown)>;
  // Shows `own` to all ranks and calls `read` with the bytes of every rank, including this rank, in rank
  // order. All ranks must make the same number of calls, with the same size of at most most_shared bytes. A
  // call blocks until all ranks have called. The memory is valid only during `read`, and `read` must not
  // throw. Throws RankLost. Throws Error if a rank shows a different size, or if `read` is empty.
  virtual void share(std::span<const std::byte> own, const Reader& read) = 0;

  // Throws RankLost if a rank is lost. Code that waits for ranks outside of share(), for example on a GPU,
  // calls this function.
  virtual void check_lost() const {}
  // Marks the beginning or end of such a wait. During the wait, this rank counts as waiting for all other
  // ranks.
  virtual void note_wait(bool /* begins */) {}
  // Registers a function that ends such a wait. `f` must not block. When a rank is lost, `f` is called once,
  // from another thread. If a rank is already lost, `f` is called immediately. The destructor of the result
  // unregisters `f` and blocks until a running call returns.
  [[nodiscard]] std::shared_ptr<void> on_lost(std::function<void()> f);
  void report_lost();  // for the watchdog: a rank is lost; calls the registered functions

 private:
  struct Listeners;
  const int rank_, size_;
  const std::shared_ptr<Listeners> listeners_;
};

}  // namespace tg

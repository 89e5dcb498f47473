// SharedArena: memory for the intermediate results and the kernels' scratch of several programs.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

#include <tilegrad/core/base/device.h>

namespace tg {

class Backend;

// Programs that are compiled with the same arena (CompileOptions::arena) have their memory there: what the
// largest needs, not the sum. Only one of them can run at a time, and what it computed is there until another
// of them runs: fetch() throws Error after that (values taken by fetch_later() before are not affected).
class SharedArena {
 public:
  SharedArena() = default;
  // With room from the start for a program, compiled later, that needs these bytes for results and for
  // scratch.
  SharedArena(std::size_t results, std::size_t scratch) {
    results_.least = results, scratch_.least = scratch;
  }
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  // What the next program shares. One that needs more gets more, and those compiled before keep what they
  // have: compile the largest first.
  std::size_t bytes() const { return results_.bytes + scratch_.bytes; }

 private:
  friend class ArenaUse;
  struct Block {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes = 0;
    std::size_t least = 0;  // to be allocated
  };
  Block results_, scratch_;
  std::optional<Device> device_;  // of the first program
  std::atomic<bool> running_ = false;
  std::atomic<const void*> last_ = nullptr;  // the program that ran last
};

}  // namespace tg

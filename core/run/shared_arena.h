// SharedArena: memory for the intermediate results and the kernel scratch of several programs.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

#include <tilegrad/core/base/device.h>

namespace tg {

class Backend;

// Memory shared by programs that are compiled with the same arena (CompileOptions::arena). The size is the
// maximum of the programs' needs, not the sum. Only one of the programs can run at a time. Its results are
// valid until another program of the arena runs; after that, fetch() throws Error. Values that were requested
// earlier by fetch_later() are not affected.
class SharedArena {
 public:
  // An arena that grows as programs are compiled.
  SharedArena() = default;
  // An arena that is large enough for a later program with this many bytes of results and of scratch.
  SharedArena(std::size_t results, std::size_t scratch) {
    results_.least = results, scratch_.least = scratch;
  }
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  // Number of bytes that the next program can share. If the program needs more, the arena is replaced by a
  // larger one, and earlier programs keep the old memory. Therefore compile the largest program first.
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

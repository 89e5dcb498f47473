// SharedArena: memory for the intermediate results and the kernel scratch of several programs.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

#include <tilegrad/core/base/device.h>

namespace tg {

class Backend;

// Memory shared by programs that are compiled with the same arena (CompileOptions::arena). Its size is the
// maximum of the programs' needs, not the sum. Only one of them can run at a time, and its results are valid
// until another one runs. After that fetch() throws Error; values requested earlier by fetch_later() are not
// affected.
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

  // Bytes that the next program shares. If it needs more, the arena is replaced, and earlier programs keep
  // their memory: compile the largest program first.
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

// ArenaUse: the functions of a SharedArena for compile() and Program.
#pragma once

#include <algorithm>

#include <tilegrad/core/run/backend.h>
#include <tilegrad/core/run/shared_arena.h>

namespace tg {

class ArenaUse {
 public:
  explicit ArenaUse(SharedArena& arena) : arena_(arena) {}

  std::shared_ptr<std::byte> results(Backend& backend, Device device, std::size_t bytes, const char* what) {
    return take(arena_.results_, backend, device, bytes, what);
  }
  std::shared_ptr<std::byte> scratch(Backend& backend, Device device, std::size_t bytes, const char* what) {
    return take(arena_.scratch_, backend, device, bytes, what);
  }

  // The number of bytes that results() must allocate for a program of this size.
  std::size_t missing(std::size_t bytes) const {
    return bytes > arena_.results_.bytes ? std::max(bytes, arena_.results_.least) : 0;
  }
  // Announces a program that is compiled later and needs these bytes.
  void expect(std::size_t results, std::size_t scratch) {
    arena_.results_.least = std::max(arena_.results_.least, results);
    arena_.scratch_.least = std::max(arena_.scratch_.least, scratch);
  }
  // The number of bytes that earlier programs and announced programs need, for results and for kernel
  // scratch.
  std::size_t least_results() const { return std::max(arena_.results_.bytes, arena_.results_.least); }
  std::size_t least_scratch() const { return std::max(arena_.scratch_.bytes, arena_.scratch_.least); }

  // Returns false if another program of the arena is running.
  bool begin(const void* program) {
    if (arena_.running_.exchange(true, std::memory_order_acquire)) return false;
    arena_.last_.store(program, std::memory_order_relaxed);
    return true;
  }
  void end() { arena_.running_.store(false, std::memory_order_release); }
  bool ran_last(const void* program) const { return arena_.last_.load(std::memory_order_relaxed) == program; }

 private:
  std::shared_ptr<std::byte> take(SharedArena::Block& block, Backend& backend, Device device,
                                  std::size_t bytes, const char* what) {
    if (!arena_.device_) arena_.device_ = device;
    if (*arena_.device_ != device)
      throw Error("[compile] the arena is on " + arena_.device_->text() + ", the program on " +
                  device.text());
    if (const std::size_t all = std::max(bytes, block.least); all > block.bytes)
      block = {backend.allocate(all, what), all, block.least};
    return block.memory;
  }

  SharedArena& arena_;
};

}  // namespace tg

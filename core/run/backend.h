// Backend: what a device offers the compiler: memory, copies, and the means to run a planned list of steps.
// Nothing above this interface knows which backend runs.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/base/device.h>
#include <tilegrad/core/run/step.h>

namespace tg {

// A stretch of device memory.
struct Piece {
  const std::byte* from;
  std::size_t bytes;
};

// Pieces of device memory on their way to the host.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual bool done() = 0;  // without waiting
  // Waits until the bytes are there; throws what the runs before the transfer met (see Executable::run).
  virtual void wait() = 0;

  std::vector<Piece> pieces;           // what was asked for
  std::vector<const std::byte*> data;  // where on the host each piece lies, once wait() has returned
};

// One of the pool that nobody holds any more, or a new one.
template <class T>
std::shared_ptr<T> unused(std::vector<std::shared_ptr<T>>& pool) {
  for (const std::shared_ptr<T>& t : pool)
    if (t.use_count() == 1) return t;
  return pool.emplace_back(std::make_shared<T>());
}

// What a program gives its executable beside the steps.
struct ProgramMemory {
  std::byte* workspace;  // Executable::workspace_bytes()
  // Backend::status_bytes() for the executable's own use, then small results: read together in one copy.
  std::byte* results;
  std::size_t results_bytes;
};

// A prepared list of steps.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual std::size_t workspace_bytes() const = 0;  // scratch memory for all steps, 64-byte aligned
  // Hands over the addresses: `steps` as given to prepare, now with data set; both outlive the executable.
  virtual void bind(std::span<const Step> steps, const ProgramMemory& memory) = 0;
  // Writes to an input of the program, as Backend::write. Neighbours written one after another may be copied
  // in one piece, with the at most 63 bytes between them.
  virtual void feed(std::byte* input, const std::byte* host, std::size_t bytes) = 0;
  // Runs every step, or starts to: what a run met (an index out of range as an Error with step, index and
  // source line; what a user's function threw) is thrown here or, at the latest, by a Transfer or a read of
  // the backend that follows the run. No parameter is assigned after the step that met it.
  virtual void run() = 0;
  // Starts copying memory to the host as the last run leaves it. Runs that start later do not disturb it.
  // Nothing is allocated once as many transfers exist as are in use at a time.
  virtual std::shared_ptr<Transfer> transfer(std::span<const Piece> pieces) = 0;
  // Runs once and returns the seconds each step took, in the order of the steps.
  virtual std::vector<double> profile() = 0;
  // How a step is run, in a few words: kernel, algorithm, tiles. After bind.
  virtual std::string choice(std::size_t step) const = 0;
};

// How a program's steps are to be run; what a backend has no use for it ignores.
struct PrepareOptions {
  int threads = 0;        // 0 takes what the machine has
  bool tf32 = false;      // f32 products may round their operands to TF32 (10 bits of fraction)
  bool in_order = false;  // what may add in free order adds in order: for runs that are compared bit by bit
};

class Backend {
 public:
  virtual ~Backend() = default;
  // The processor or GPU, as its maker calls it.
  virtual std::string name() const = 0;
  // 64-byte aligned memory; throws OutOfMemory with `what`, the size wanted and, where known, the size free.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes, const std::string& what) = 0;
  // Bytes that could be allocated now; SIZE_MAX where that is not known.
  virtual std::size_t available_bytes() = 0;
  // In order with runs: seen by those that start later only. The host's bytes are taken before it returns.
  virtual void write(std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  // Waits for the runs before it, and throws what they met.
  virtual void read(std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  // See ProgramMemory; a multiple of 64.
  virtual std::size_t status_bytes() const { return 0; }
  // Chooses the kernels; throws DeviceError naming op, dtypes and source line where there is none.
  virtual std::unique_ptr<Executable> prepare(std::span<const Step> steps, const PrepareOptions& options) = 0;
};

// The backend of a device; throws DeviceError if it is not built in or the device is not there.
Backend& backend(Device device);

}  // namespace tg

// Backend: the interface between the compiler and a device: memory, copies, and running a planned list of
// steps. Nothing above it depends on which backend runs.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/base/device.h>
#include <tilegrad/core/run/communicator.h>
#include <tilegrad/core/run/step.h>

namespace tg {

class StepScheduler;  // core/compile/scheduler.h

// A range of device memory.
struct Piece {
  const std::byte* from;
  std::size_t bytes;
};

// A copy of device memory to the host, perhaps still under way.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual bool done() = 0;  // without waiting
  // Waits for the copy; throws the error of a run before it, if there was one (see Executable::run).
  virtual void wait() = 0;

  std::vector<Piece> pieces;           // what is copied
  std::vector<const std::byte*> data;  // where each piece lies on the host, after wait()
};

// An element of the pool that nothing else holds, or a new one.
template <class T>
std::shared_ptr<T> unused(std::vector<std::shared_ptr<T>>& pool) {
  for (const std::shared_ptr<T>& t : pool)
    if (t.use_count() == 1) return t;
  return pool.emplace_back(std::make_shared<T>());
}

// The memory that a program gives its executable, apart from the steps' operands.
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
  // Sets the addresses. `steps` are those given to prepare, now with `data`; steps and memory outlive the
  // executable.
  virtual void bind(std::span<const Step> steps, const ProgramMemory& memory) = 0;
  // Writes an input of the program, as Backend::write. Inputs that are adjacent in memory and written one
  // after another may be copied in one piece, with the padding (at most 63 bytes) between them.
  virtual void feed(std::byte* input, const std::byte* host, std::size_t bytes) = 0;
  // Runs every step, or starts to. The error of a run (an index out of range as an Error with step, index and
  // source line; the exception of a user's function) is thrown here or, at the latest, by the first Transfer
  // or Backend::read after it. Steps after the one that failed do not change parameters.
  virtual void run() = 0;
  // Starts to copy memory, as the last run leaves it, to the host. Later runs do not affect it. Allocates
  // nothing once there are as many transfers as are held at the same time.
  virtual std::shared_ptr<Transfer> transfer(std::span<const Piece> pieces) = 0;
  // Runs once and returns the seconds each step took, in the order of the steps.
  virtual std::vector<double> profile() = 0;
  // How a step is run, as a short text: kernel, algorithm, tiles.
  virtual std::string choice(std::size_t step) const = 0;
};

// How to run a program's steps. Backends ignore options they do not support.
struct PrepareOptions {
  int threads = 0;    // 0: all of the machine's
  bool tf32 = false;  // f32 products may round their operands to TF32 (10 bits of fraction)
  bool in_order =
      false;  // ops that may add in any order add in a fixed one, so that runs can be compared bit by bit
  bool batch_invariant = false;  // a row of a product has the same bits however many rows there are
  std::shared_ptr<Communicator> ranks = {};  // null: one rank
};

class Backend {
 public:
  virtual ~Backend() = default;
  // The product name of the processor or GPU.
  virtual std::string name() const = 0;
  // 64-byte aligned memory; throws OutOfMemory with `what`, the size needed and, if known, the size
  // available.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes, const std::string& what) = 0;
  // Bytes that could be allocated now; SIZE_MAX if unknown. The CPU's reads several files, which takes longer
  // than to compile a small program, so nobody asks for less than worth_asking.
  virtual std::size_t available_bytes() = 0;
  static constexpr std::size_t worth_asking = 64 << 20;
  // Copies to the device, after the runs started before and before those started later. The host's bytes may
  // change once it returns.
  virtual void write(std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  // Copies to the host after waiting for the runs started before; throws their error, if there was one.
  virtual void read(std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  // How the compiler orders and joins steps; by default for a device that computes one after the other.
  virtual const StepScheduler& scheduler() const;
  // See ProgramMemory; a multiple of 64.
  virtual std::size_t status_bytes() const { return 0; }
  // Chooses the kernels; throws DeviceError with op, dtypes and source line for a step that has none.
  virtual std::unique_ptr<Executable> prepare(std::span<const Step> steps, const PrepareOptions& options) = 0;
};

// The backend of a device; throws DeviceError if it is not built in or there is no such device.
Backend& backend(Device device);

}  // namespace tg

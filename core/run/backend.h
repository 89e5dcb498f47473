// Backend: the interface between the compiler and a device. It provides memory, copies, and the execution of
// a planned list of steps. Other code does not depend on the choice of backend.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/base/device.h>
#include <tilegrad/core/run/communicator.h>
#include <tilegrad/core/run/step.h>

namespace tg {

// How a backend orders and merges steps; see core/compile/scheduler.h.
class StepScheduler;

// A range of device memory.
struct Piece {
  const std::byte* from;  // device address
  std::size_t bytes;      // size in bytes
};

// A copy of device memory to the host. The copy may still be running.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual bool done() = 0;  // whether the copy is complete; does not wait
  // Waits for the copy. Throws the error of an earlier run if one failed (see Executable::run).
  virtual void wait() = 0;

  std::vector<Piece> pieces;           // the copied ranges
  std::vector<const std::byte*> data;  // host address of each range, valid after wait()
};

// Returns an element of the pool that is not in use, or adds a new one.
template <class T>
std::shared_ptr<T> unused(std::vector<std::shared_ptr<T>>& pool) {
  for (const std::shared_ptr<T>& t : pool)
    if (t.use_count() == 1) return t;
  return pool.emplace_back(std::make_shared<T>());
}

// The memory that a program provides to its executable, in addition to the operands of the steps.
struct ProgramMemory {
  std::byte* workspace;  // scratch memory of Executable::workspace_bytes()
  // Memory that starts with Backend::status_bytes() bytes for the executable. Small results follow. One copy
  // reads all of it.
  std::byte* results;
  std::size_t results_bytes;  // size of `results`
};

// A prepared list of steps.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual std::size_t workspace_bytes() const = 0;  // scratch memory for all steps, 64-byte aligned
  // Sets the addresses. `steps` are the steps given to prepare(), now with `data`. Steps and memory must
  // outlive the executable.
  virtual void bind(std::span<const Step> steps, const ProgramMemory& memory) = 0;
  // Writes an input of the program, as Backend::write() does. If adjacent inputs are written in the order of
  // their addresses, they may be copied together, including at most 63 bytes of padding between two inputs.
  virtual void feed(std::byte* input, const std::byte* host, std::size_t bytes) = 0;
  // Starts to run all steps, and may return before they have finished. If a run fails, its error is thrown by
  // run(), or at the latest by the first Transfer or Backend::read after it. For an index out of range, the
  // error is an Error with step, index and source line. Otherwise it is the exception of a user's function.
  // Steps after the failed step do not change parameters.
  virtual void run() = 0;
  // Starts to copy memory to the host, with the values of the last run. Later runs do not affect the copy.
  // Allocates memory only if the number of transfers that exist at the same time reaches a new maximum.
  virtual std::shared_ptr<Transfer> transfer(std::span<const Piece> pieces) = 0;
  // Runs once and returns the time of each step in seconds, in the order of the steps.
  virtual std::vector<double> profile() = 0;
  // Describes how a step runs, in a short string: kernel, algorithm, tiles.
  virtual std::string choice(std::size_t step) const = 0;
};

// How to run a program's steps. Backends ignore options that they do not support.
struct PrepareOptions {
  int threads = 0;    // number of threads; 0: default
  bool tf32 = false;  // whether f32 GEMMs may round their operands to TF32 (10 mantissa bits)
  // Ops that may sum in any order use a fixed order, so that runs can be compared bitwise.
  bool in_order = false;
  bool batch_invariant = false;  // a row of a GEMM result is bitwise independent of the number of rows
  std::shared_ptr<Communicator> ranks = {};  // null: one rank
};

// A device type: memory, copies and kernels.
class Backend {
 public:
  virtual ~Backend() = default;
  // The product name of the processor or GPU.
  virtual std::string name() const = 0;
  // Allocates 64-byte aligned memory. Throws OutOfMemory with `what`, the size needed and, if known, the size
  // available.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes, const std::string& what) = 0;
  // Number of bytes that can be allocated now; SIZE_MAX if unknown. On the CPU, the function reads several
  // files and is slower than compiling a small program. Callers therefore skip it for sizes below
  // worth_asking.
  virtual std::size_t available_bytes() = 0;
  // Minimum size in bytes for which available_bytes() is worth a call.
  static constexpr std::size_t worth_asking = 64 << 20;
  // Copies to the device. The copy is ordered after runs that were already started, and before later runs.
  // The caller may change the host memory after the return.
  virtual void write(std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  // Copies to the host after all earlier runs have finished. If one of them failed, throws its error.
  virtual void read(std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  // How the compiler orders and merges steps. The default is for a device that runs one step at a time.
  virtual const StepScheduler& scheduler() const;
  // Size of the status in ProgramMemory::results in bytes; a multiple of 64.
  virtual std::size_t status_bytes() const { return 0; }
  // Chooses the kernels. Throws DeviceError with op, dtypes and source line for a step without a kernel.
  virtual std::unique_ptr<Executable> prepare(std::span<const Step> steps, const PrepareOptions& options) = 0;
};

// Returns the backend of a device. Throws DeviceError if the backend is not built in or the device does not
// exist.
Backend& backend(Device device);

}  // namespace tg

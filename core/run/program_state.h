// The state of a compiled program. core/compile/ creates it, and program.cpp runs it. This header also tracks
// the runs in progress in this process, so that no thread uses a parameter while another thread changes it.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include <tilegrad/core/run/log.h>
#include <tilegrad/core/run/shared_arena.h>

namespace tg {

struct Program::State {
  struct Input {
    ValueId value;
    Arg arg;
    bool fed = false;  // also true if it has no elements
  };

  std::shared_ptr<const Graph> graph;
  Backend* backend = nullptr;
  std::vector<Step> steps;
  std::vector<std::pair<ValueId, Arg>> fetched;
  std::vector<Input> inputs;
  std::vector<Parameter> parameters;  // keeps them alive
  std::vector<Parameter> assigned;
  std::shared_ptr<std::byte> block, leaf_block, workspace;
  // owner of `block` and `workspace`; if null, the program owns them
  std::shared_ptr<SharedArena> arena;
  std::unique_ptr<Executable> executable, planned;  // planned: for a program that only describes itself
  MemoryReport memory;
  std::vector<ArenaBuffer> buffers;
  std::vector<ValueId> outputs;
  std::byte* rng = nullptr;  // device address of {seed, step}; null if no op is random
  std::int64_t rng_state[2] = {0, 0};
  Device device;
  PrepareOptions prepared;
  std::vector<Piece> pieces;        // scratch of fetch_later(), kept to avoid allocations
  std::unique_ptr<ProgramLog> log;  // null if TG_LOG does not request a log
  std::shared_ptr<State> twin;      // for CompileOptions::verify: the program with a buffer per tensor
  std::atomic<bool> running = false;
  std::atomic<std::uint64_t> runs = 0;               // number of started runs
  mutable std::atomic<std::uint64_t> void_runs = 0;  // runs 1 to void_runs are invalid
  std::vector<std::pair<const Transfer*, std::uint64_t>>
      transfers;                       // of fetch_later(), each with the number of runs started before it
  mutable std::mutex transfers_mutex;  // any thread may wait for a transfer

  Input* input_of(const Tensor& x);          // null if x is not an input or the program does not read it
  void check_memory(const char* who) const;  // throws Error if the program was only planned
  void check_arena(const Arg& arg) const;    // throws Error if another program has since written to the arena
  void check_inputs_fed(const char* who) const;  // throws Error with the first input that was never fed
  void check_results() const;                    // throws Error before the first run and after a failed run
  void wait_for(Transfer& t) const;              // records a failure of earlier runs
  Array value_of(const Tensor& t) const;         // t must be a fetched tensor
  void write_rng();
  void run_once();
  void run_verified();
  void run_logged();
  std::vector<double> run_timed();                // returns seconds per step
  const Arg& fetched_arg(const Tensor& t) const;  // throws Error for a tensor that is not fetched
};

// A run of `program` by this thread. Throws Error with `who` if another thread runs a conflicting program.
// Two programs conflict if one assigns a parameter that the other uses.
class RunInProgress {
 public:
  RunInProgress(const Program::State& program, const char* who);
  ~RunInProgress();
  RunInProgress(const RunInProgress&) = delete;

  const Program::State& program() const { return program_; }
  std::thread::id thread() const { return thread_; }

 private:
  const Program::State& program_;
  const std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace tg

// The state of a compiled program: core/compile/ fills it, program.cpp runs it. And the runs in progress in
// this process, so that two threads cannot use a parameter that one of them changes.
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
    bool fed = false;  // or without elements
  };

  std::shared_ptr<const Graph> graph;
  Backend* backend = nullptr;
  std::vector<Step> steps;
  std::vector<std::pair<ValueId, Arg>> fetched;
  std::vector<Input> inputs;
  std::vector<Parameter> parameters;  // keeps them alive
  std::vector<Parameter> assigned;
  std::shared_ptr<std::byte> block, leaf_block, workspace;
  std::shared_ptr<SharedArena> arena;  // that block and workspace belong to; null: they are its own
  std::unique_ptr<Executable> executable, planned;  // planned: of a program that is not to run
  MemoryReport memory;
  std::vector<ArenaBuffer> buffers;
  std::vector<ValueId> outputs;
  std::byte* rng = nullptr;  // device address of {seed, step}, null when nothing is random
  std::int64_t rng_state[2] = {0, 0};
  Device device;
  PrepareOptions prepared;
  std::vector<Piece> pieces;        // scratch of fetch_later, kept so that it allocates nothing
  std::unique_ptr<ProgramLog> log;  // null unless TG_LOG asks for one
  std::shared_ptr<State> twin;      // verify: the same program with a buffer per tensor
  std::atomic<bool> running = false;
  std::atomic<std::uint64_t> runs = 0;               // that were started
  mutable std::atomic<std::uint64_t> void_runs = 0;  // runs 1 to void_runs have no results: one failed
  std::vector<std::pair<const Transfer*, std::uint64_t>>
      transfers;                       // of fetch_later, and the runs before them
  mutable std::mutex transfers_mutex;  // any thread may wait for a transfer

  Input* input_of(const Tensor& x);              // null: it is none, or the program does not read it
  void check_memory(const char* who) const;      // throws Error if the program was only planned
  void check_arena(const Arg& arg) const;        // throws Error if another program has written there since
  void check_inputs_fed(const char* who) const;  // throws Error naming the first input that was never fed
  void check_results() const;             // throws Error before the first run, and after one that failed
  void wait_for(Transfer& t) const;       // notes a failure of the runs before it
  Array value_of(const Tensor& t) const;  // of a fetched tensor
  void write_rng();
  void run_once();
  void run_verified();
  void run_logged();
  std::vector<double> run_timed();                // the seconds of each step
  const Arg& fetched_arg(const Tensor& t) const;  // throws Error for a tensor that is not fetched
};

// A run of `program` by this thread. Throws Error with `who` if another thread runs a program that assigns a
// parameter of this one, or uses a parameter that this one assigns.
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

// What a compiled program holds: filled by compile.cpp, run by program.cpp.
#pragma once

#include <tilegrad/core/run/log.h>

namespace tg {

struct Program::State {
  const Graph* graph = nullptr;
  Backend* backend = nullptr;
  std::vector<Step> steps;
  std::vector<std::pair<ValueId, Arg>> fetched;
  std::vector<std::pair<ValueId, Arg>> inputs;
  std::vector<Parameter> parameters;  // keeps them alive
  std::vector<Parameter> assigned;
  std::shared_ptr<std::byte> block, leaf_block, workspace;
  std::unique_ptr<Executable> executable;
  MemoryReport memory;
  std::vector<ArenaBuffer> buffers;
  std::vector<ValueId> outputs;
  std::byte* rng = nullptr;  // device address of {seed, step}, null when nothing is random
  std::int64_t rng_state[2] = {0, 0};
  Device device;
  PrepareOptions prepared;
  std::vector<Piece> wanted;        // of a transfer, while it is started; kept so that runs allocate nothing
  std::unique_ptr<ProgramLog> log;  // null unless TG_LOG asks for one
  std::shared_ptr<State> twin;      // verify: the same program with a buffer per tensor

  void want_memory(const char* who) const;  // throws Error if the program was only planned
  void write_rng();
  void run_once();
  void run_verified();
  void run_logged();
  std::vector<double> run_timed();                // the seconds of each step
  const Arg& fetched_arg(const Tensor& t) const;  // throws Error for what was not asked for
};

}  // namespace tg

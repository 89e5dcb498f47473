// A textual record of launches, in one of two modes. Either programs do not run and their launches are
// recorded, for tests of kernel choices; or they run, and the instructions of each kernel are counted.
// Results depend on neither mode.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "tests/gpu_emulator/coverage.h"

namespace tg::emulator {

// After this call, the process runs no kernels and no cuBLASLt calls, compiles no source, and fills no
// memory.
void only_record();
bool only_records();
// After this call, each kernel of a program that ran adds a line: its grid and its Instructions (coverage.h).
void record_runs();

// Adds a line to the record if the stream is being captured. Kernels that are only tried and timed are not
// recorded.
void record(cudaStream_t, const std::string& line);
void record(const std::string& line);  // for any stream
void record_run(const void* kernel, dim3 grid, const Instructions& before);

// The lines since the last call.
std::vector<std::string> take_recorded();

// Counts existing streams, events, graphs, executable graphs, allocations of device and pinned memory, and
// cuBLASLt objects.
std::vector<int> live_objects();
int live_matmul_objects();

// "attend<float, 64>": without namespaces, parameters and result type.
std::string kernel_name(const void* kernel);

}  // namespace tg::emulator

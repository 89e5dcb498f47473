// A record of launches, in words. Either programs do not run and their launches are recorded, for tests of
// the choice of kernels; or they run, and the instructions of each kernel are counted. Results do not depend
// on either.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "tests/gpu_emulator/coverage.h"

namespace tg::emulator {

// From now on the process runs no kernel and no call of cuBLASLt, compiles no source, and fills no memory.
void only_record();
bool only_records();
// From now on each kernel of a program that ran adds a line: its grid, and its Instructions (coverage.h).
void record_runs();

// Adds a line to the record if the stream is being captured: what is tried and timed is not recorded.
void record(cudaStream_t, const std::string& line);
void record(const std::string& line);  // whatever the stream
void record_run(const void* kernel, dim3 grid, const Instructions& before);

// The lines since the last call.
std::vector<std::string> take_recorded();

// How many streams, events, graphs, executable graphs, allocations of device and of pinned memory, and
// objects of cuBLASLt there are.
std::vector<int> live_objects();
int live_matmul_objects();

// "attend<float, 64>": without namespaces, parameters and the type of its result.
std::string kernel_name(const void* kernel);

}  // namespace tg::emulator

// Records launches as text in one of two modes. In the first mode, programs do not run. The launches are
// recorded for tests of kernel choices. In the second mode, programs run. The instructions of each kernel are
// counted. Neither mode changes results.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "tests/gpu_emulator/coverage.h"

namespace tg::emulator {

// After this call, the process executes no kernels and no cuBLASLt calls. It compiles no source and fills no
// memory.
void only_record();
bool only_records();
// After this call, each kernel that runs adds a line. The line contains the grid and the Instructions
// (coverage.h).
void record_runs();

// Adds a line to the record if the stream is being captured. So kernels that run only to measure their time
// are not recorded.
void record(cudaStream_t, const std::string& line);
void record(const std::string& line);  // also if no stream is being captured
void record_run(const void* kernel, dim3 grid, const Instructions& before);

// Returns the lines since the last call.
std::vector<std::string> take_recorded();

// Counts the existing objects: streams, events, graphs, executable graphs, allocations of device and pinned
// memory, and cuBLASLt objects.
std::vector<int> live_objects();
int live_matmul_objects();

// Returns a name such as "attend<float, 64>". Namespaces, parameters and result type are omitted.
std::string kernel_name(const void* kernel);

}  // namespace tg::emulator

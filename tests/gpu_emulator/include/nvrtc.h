// Replaces CUDA's header of the same name. The host's compiler compiles the code.
#pragma once

#include <cstddef>

struct _nvrtcProgram;
using nvrtcProgram = _nvrtcProgram*;
enum nvrtcResult { NVRTC_SUCCESS = 0, NVRTC_ERROR_INVALID_INPUT = 3, NVRTC_ERROR_COMPILATION = 6 };

const char* nvrtcGetErrorString(nvrtcResult);
nvrtcResult nvrtcVersion(int* major, int* minor);
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char* source, const char* name, int headers,
                               const char* const* header_sources, const char* const* header_names);
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int count, const char* const* options);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, std::size_t*);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, std::size_t*);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*);

// Implements the runtime API: devices, memory, streams, events and graphs.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/runtime/graph.h"
#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/coverage.h"
#include "tests/gpu_emulator/early_reads.h"
#include "tests/gpu_emulator/memory.h"
#include "tests/gpu_emulator/recorder.h"

using Work = std::function<void()>;

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};
struct CUstream_st {
  int gpu;
  std::shared_ptr<CUgraph_st> recorded = nullptr;  // set during the capture
};
struct CUevent_st {
  std::shared_ptr<CUgraph_st> recorded;  // the captured work of the event's stream
  std::shared_ptr<bool> happened = std::make_shared<bool>(false);
};

namespace {

std::atomic<int> streams = 0, events = 0, graphs = 0, executables = 0, allocations = 0, pinned = 0;

thread_local cudaError_t last = cudaSuccess;
thread_local int device = 0;
std::string failure;  // error of the first failed kernel; afterward nothing runs, as on a GPU

cudaError_t note(cudaError_t e) {
  if (e != cudaSuccess) last = e;
  return e;
}

int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}
int devices() {
  static const int count = number_from("TG_EMULATOR_DEVICES", 1);
  return count;
}

// If the environment requests kernels of sm_90a, they run.
bool is_hopper() {
  const char* gpu = std::getenv("TG_EMULATED_GPU");
  return gpu && std::string(gpu) == "hopper";
}

cudaError_t do_now(const Work& work) {
  if (!failure.empty()) return note(cudaErrorLaunchFailure);
  try {
    work();
    return cudaSuccess;
  } catch (const std::exception& e) {
    failure = std::string("emulated GPU: ") + e.what();
    std::fprintf(stderr, "%s\n", failure.c_str());
    return note(cudaErrorLaunchFailure);
  }
}

std::string text_of(dim3 n) {
  return std::to_string(n.x) + "," + std::to_string(n.y) + "," + std::to_string(n.z);
}

// Returns the name of the kernel at an address, from its symbol. This is needed only after an error.
std::string name_of(const void* kernel) {
  char command[160], line[400] = "a kernel";
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  unsigned long from = 0;
  if (maps && std::fscanf(maps, "%lx", &from) != 1) from = 0;
  if (maps) std::fclose(maps);
  std::snprintf(command, sizeof command, "addr2line -f -C -s -e /proc/%d/exe 0x%lx 2>/dev/null", ::getpid(),
                reinterpret_cast<unsigned long>(kernel) - from);
  if (std::FILE* out = ::popen(command, "r")) {
    if (!std::fgets(line, sizeof line, out)) std::strcpy(line, "a kernel");
    ::pclose(out);
  }
  std::string name = line;
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

}  // namespace

namespace tg::emulator {

cudaError_t enqueue(cudaStream_t s, Work work) {
  if (!s || !s->recorded) return do_now(work);
  s->recorded->work.push_back(std::move(work));
  return cudaSuccess;
}

cudaError_t launch(cudaStream_t s, const void* kernel, dim3 grid, dim3 block, std::size_t shared, Work thread,
                   unsigned cluster) {
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 ||
      grid.z > 65535 || shared > most_shared || cluster == 0 || grid.x % cluster != 0)
    return note(cudaErrorInvalidValue);
  if (s && s->gpu != device) return note(cudaErrorInvalidDevice);
  if (only_records()) {
    const std::string name = kernel_name(kernel);
    record(s, name + " blocks " + text_of(grid) + " threads " + text_of(block) + " shared " +
                  std::to_string(shared) + (cluster > 1 ? " clusters of " + std::to_string(cluster) : ""));
    if ((s && s->recorded) || name != "short_copy") return cudaSuccess;  // copies data that the host reads
  }
  // Copies for the host, and kernels that run only to measure their time, are not recorded. They depend on
  // previous work of the process.
  const bool is_of_program = s && s->recorded;
  return enqueue(s, [=, thread = std::move(thread)] {
    try {
      const Instructions before = executed;
      begin_recorded_grid(kernel);
      run_grid({grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared, thread, cluster);
      end_recorded_grid();
      if (is_of_program) record_run(kernel, grid, before);
    } catch (const std::exception& e) {
      throw std::runtime_error(name_of(kernel) + ", " + e.what());
    }
  });
}

std::vector<int> live_objects() {
  return {streams, events, graphs, executables, allocations, pinned, live_matmul_objects()};
}

}  // namespace tg::emulator

using tg::emulator::enqueue;

const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorLaunchFailure:
      return failure.c_str();
    default:
      return "an error";
  }
}
cudaError_t cudaGetLastError() {
  return std::exchange(last, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last;
}

cudaError_t cudaGetDeviceCount(int* n) {
  *n = devices();
  return *n > 0 ? cudaSuccess : note(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int n) {
  if (n < 0 || n >= devices()) return note(cudaErrorInvalidDevice);
  device = n;
  tg::emulator::tell_faults();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* n) {
  *n = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int n) {
  if (n < 0 || n >= devices()) return note(cudaErrorInvalidDevice);
  *p = {};
  std::strcpy(p->name, "emulated GPU");
  p->totalGlobalMem = tg::emulator::total_memory();
  const int kib = number_from("TG_EMULATOR_SHARED", static_cast<int>(tg::emulator::most_shared >> 10));
  p->sharedMemPerBlockOptin = static_cast<std::size_t>(kib) << 10;
  is_hopper() ? (p->major = 9, p->minor = 0) : (p->major = 8, p->minor = 9);
  p->multiProcessorCount = number_from("TG_EMULATOR_SMS", 132);
  p->l2CacheSize = 50 << 20;
  p->memoryBusWidth = 6144;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int n) {
  std::snprintf(id, static_cast<std::size_t>(size), "%d:%d", static_cast<int>(::getpid()), n);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int n) {
  cudaDeviceProp p;
  if (const cudaError_t e = cudaGetDeviceProperties(&p, n)) return e;
  switch (what) {
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      return cudaSuccess;
  }
  return note(cudaErrorInvalidValue);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool known = std::string(name) == "cuTensorMapEncodeTiled";
  *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  return failure.empty() ? cudaSuccess : note(cudaErrorLaunchFailure);
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = tg::emulator::free_memory(), *total = tg::emulator::total_memory();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  *p = tg::emulator::allocate(bytes);
  allocations += *p != nullptr;
  return *p ? cudaSuccess : note(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  if (!tg::emulator::release(p)) return note(cudaErrorInvalidValue);
  --allocations;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, std::size_t bytes) {
  *p = std::malloc(bytes);
  pinned += *p != nullptr;
  return *p ? cudaSuccess : note(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* p) {
  pinned -= p != nullptr;
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t s) {
  tg::emulator::record(s, "copy " + std::to_string(bytes));
  return enqueue(s, [=] {
    tg::emulator::forget_writes();
    std::memmove(to, from, bytes);
  });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t s) {
  tg::emulator::record(s, "set " + std::to_string(bytes) + " to " + std::to_string(byte));
  return enqueue(s, [=] {
    tg::emulator::forget_writes();
    std::memset(to, byte, bytes);
  });
}
cudaError_t cudaMemset(void* to, int byte, std::size_t bytes) {
  return cudaMemsetAsync(to, byte, bytes, nullptr);
}

cudaError_t cudaStreamCreate(cudaStream_t* s) {
  *s = new CUstream_st{device};
  ++streams;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  return cudaStreamCreate(s);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  delete s;
  --streams;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaDeviceSynchronize();
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  return cudaDeviceSynchronize();
}
// If a stream waits for a captured stream, it joins the capture. The capture contains the calls in order.
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  if (s && e->recorded && !s->recorded) s->recorded = e->recorded;
  tg::emulator::record(s, "wait");
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* data) {
  tg::emulator::record(s, "host function");
  return enqueue(s, [=] { f(data); });
}

cudaError_t cudaEventCreate(cudaEvent_t* e) {
  *e = new CUevent_st;
  ++events;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  return cudaEventCreate(e);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete e;
  --events;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  e->recorded = s ? s->recorded : nullptr;
  tg::emulator::record(s, "event");
  return enqueue(s, [happened = e->happened] { *happened = true; });
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) {
  return cudaEventRecord(e, s);
}
// Waiting for an event that was never recorded is an error here. CUDA returns cudaSuccess, so a missing
// record would not be detected.
cudaError_t cudaEventQuery(cudaEvent_t e) {
  return *e->happened ? cudaDeviceSynchronize() : note(cudaErrorInvalidValue);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  return cudaEventQuery(e);
}
// The time is always a microsecond. So choices by measured time always select the first candidate.
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  if (!*from->happened || !*to->happened) return note(cudaErrorInvalidValue);
  *ms = 1e-3f;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  s->recorded = std::make_shared<CUgraph_st>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  if (!s->recorded) return note(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st(*s->recorded);
  ++graphs;
  s->recorded = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  *status = s && s->recorded ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = new CUgraphExec_st{graph->work};
  ++executables;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s) {
  if (s && s->gpu != device) return note(cudaErrorInvalidDevice);
  tg::emulator::forget_writes();
  for (const Work& w : graph->work)
    if (const cudaError_t e = enqueue(s, w)) return e;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  --graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  --executables;
  return cudaSuccess;
}

cudaError_t tg::cuda::memsets_to_kernels(cudaGraph_t) {
  return cudaSuccess;
}

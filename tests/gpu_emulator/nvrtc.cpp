// Emulates the run-time compiler. The host's compiler compiles the source to a shared object. One function in
// this object runs a kernel over a complete grid. Another function runs a single thread, for kernels whose
// threads synchronize. Memory accesses of these kernels are not checked (shadow.h).
#include <nvrtc.h>

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/coverage.h"
#include "tests/gpu_emulator/recorder.h"

struct _nvrtcProgram {
  std::string source, log;
  std::vector<char> code;  // the length of the shared object in 8 bytes, then the object
};

namespace {

// These parts of CUDA C++ are used by fused pointwise kernels without headers.
constexpr const char* before = R"(
#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static thread_local
struct Index3 { unsigned x, y, z; };
struct TgHere { Index3 thread, block, block_size, grid_size; };  // as in block.h
static thread_local TgHere tg_alone, *tg_here = &tg_alone;
static thread_local void (*tg_meet)();
static thread_local unsigned long long* tg_work;  // counts the basic blocks that the kernel enters
extern "C" __attribute__((visibility("hidden"), no_sanitize_coverage)) void __sanitizer_cov_trace_pc() { ++*tg_work; }
static thread_local unsigned long long (*tg_shuffle)(unsigned, unsigned long long, int, int);
#define threadIdx tg_here->thread
#define blockIdx tg_here->block
#define blockDim tg_here->block_size
#define gridDim tg_here->grid_size
#define __syncthreads() tg_meet()
template <class T> T __shfl_down_sync(unsigned mask, T v, int by, int width) {
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &v, sizeof v);
  bits = tg_shuffle(mask, bits, by, width);
  __builtin_memcpy(&v, &bits, sizeof v);
  return v;
}
#define TG_FUNCTION(name) \
  inline float name(float x) { return __builtin_##name##f(x); } \
  inline double name(double x) { return __builtin_##name(x); }
TG_FUNCTION(sqrt) TG_FUNCTION(exp) TG_FUNCTION(log) TG_FUNCTION(sin) TG_FUNCTION(cos) TG_FUNCTION(tanh)
TG_FUNCTION(erf) TG_FUNCTION(erfc) TG_FUNCTION(trunc) TG_FUNCTION(exp2) TG_FUNCTION(floor)
inline float fmod(float a, float b) { return __builtin_fmodf(a, b); }
inline double fmod(double a, double b) { return __builtin_fmod(a, b); }
inline float pow(float a, float b) { return __builtin_powf(a, b); }
inline double pow(double a, double b) { return __builtin_pow(a, b); }
inline long long trunc(long long x) { return x; }
inline double sqrt(long long x) { return __builtin_sqrt((double)x); }
template <class T> T from_bits(auto x) { T y; __builtin_memcpy(&y, &x, sizeof y); return y; }
inline float __uint_as_float(unsigned x) { return from_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return from_bits<unsigned>(x); }
inline int __float_as_int(float x) { return from_bits<int>(x); }
inline float __int_as_float(int x) { return from_bits<float>(x); }
inline double __longlong_as_double(long long x) { return from_bits<double>(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fabsf(float a) { return __builtin_fabsf(a); }
inline float truncf(float a) { return __builtin_truncf(a); }
inline float __log2f(float a) { return __builtin_log2f(a); }
inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
inline float copysignf(float a, float b) { return __builtin_copysignf(a, b); }
inline float exp2f(float a) { return __builtin_exp2f(a); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return a * b + c; }  // as the emulator's own kernels do
inline double __fma_rn(double a, double b, double c) { return a * b + c; }
inline double normcdf(double x) { return 0.5 * __builtin_erfc(-x * 0.70710678118654752); }
)";
constexpr const char* after = R"(
struct TgCall {  // arguments in braces are taken in order
  template <class... P> TgCall(void (*kernel)(P...), P... p) { kernel(p...); }
};
template <class... P> void tg_call(void (*kernel)(P...), void** args) { TgCall{kernel, *(P*)*args++...}; }
template <class... P> constexpr int tg_count(void (*)(P...)) { return sizeof...(P); }
extern "C" const int tg_arguments_KERNEL = tg_count(&KERNEL);
#define TG_SET __attribute__((no_sanitize_coverage))
extern "C" TG_SET void tg_thread_KERNEL(void** args, unsigned long long* work, void* here, void (*meet)(),
                                        decltype(tg_shuffle) shuffle) {
  tg_work = work, tg_here = (TgHere*)here, tg_meet = meet, tg_shuffle = shuffle;
  tg_call(&KERNEL, args);
}
extern "C" TG_SET void tg_run_KERNEL(void** args, unsigned long long* work, unsigned blocks, unsigned threads,
                                     void (*block_ended)()) {
  tg_work = work, gridDim = {blocks, 1, 1}, blockDim = {threads, 1, 1};
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x, block_ended())
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) tg_call(&KERNEL, args);
}
)";

std::string compiler() {
  const char* chosen = std::getenv("CXX");
  return chosen ? chosen : TG_EMULATOR_CXX;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

const char* nvrtcGetErrorString(nvrtcResult r) {
  return r == NVRTC_SUCCESS ? "no error" : "the host's compiler refused it";
}
nvrtcResult nvrtcVersion(int* major, int* minor) {  // not an NVIDIA version; part of cache keys
  *major = 0, *minor = 3;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram* made, const char* source, const char*, int, const char* const*,
                               const char* const*) {
  *made = new _nvrtcProgram{source, {}, {}};
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int, const char* const*) {
  const bool meets =
      p->source.find("__syncthreads") != std::string::npos || p->source.find("_sync(") != std::string::npos;
  std::smatch found;
  const std::regex kernel(R"(__global__[^{;]*?\bvoid[^{;]*?\b(\w+)\((?!\d+\)))");
  if (!std::regex_search(p->source, found, kernel)) {
    p->log = "no kernel found";
    return NVRTC_ERROR_COMPILATION;
  }
  const std::string name = found[1];
  if (tg::emulator::only_records()) {        // a checksum of the source instead of an object
    std::uint64_t sum = 0xcbf29ce484222325;  // FNV-1a
    for (const char c : p->source) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    char digits[20];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(sum));
    p->code.assign(digits, digits + 16);
    return NVRTC_SUCCESS;
  }
  std::string text = before + p->source + std::regex_replace(std::string(after), std::regex("KERNEL"), name) +
                     "extern \"C\" const bool tg_meets_" + name + " = " + (meets ? "true" : "false") + ";\n";
  char folder[] = "/tmp/tilegrad-XXXXXX";
  if (!::mkdtemp(folder)) return NVRTC_ERROR_COMPILATION;
  const std::filesystem::path at = folder;
  std::ofstream(at / "chain.cpp") << text;
  const std::string command =
      compiler() + " -std=c++20 -O1 -w -fPIC -shared -fsanitize-coverage=trace-pc -o " +
      (at / "chain.so").string() + " " + (at / "chain.cpp").string() + " 2> " + (at / "log").string();
  const bool done = std::system(command.c_str()) == 0;
  p->log = read(at / "log");
  const std::string object = done ? read(at / "chain.so") : "";
  std::filesystem::remove_all(at);
  if (!done) return NVRTC_ERROR_COMPILATION;
  const std::uint64_t size = object.size();
  p->code.resize(sizeof size + object.size());
  std::memcpy(p->code.data(), &size, sizeof size);
  std::memcpy(p->code.data() + sizeof size, object.data(), object.size());
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, std::size_t* n) {
  *n = p->log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char* to) {
  std::memcpy(to, p->log.c_str(), p->log.size() + 1);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, std::size_t* n) {
  *n = p->code.size();
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char* to) {
  std::memcpy(to, p->code.data(), p->code.size());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* p) {
  delete *p;
  *p = nullptr;
  return NVRTC_SUCCESS;
}

// ---- loading it ----

// Implements __shfl_down_sync for 8 bytes. Kernels that are compiled with the emulator use cuda_runtime.h
// instead.
static std::uint64_t shuffle_down(unsigned mask, std::uint64_t bits, int by, int width) {
  struct SideStream {
    std::uint64_t bits, result;
    int source;
  };
  const int lane = static_cast<int>(tg::emulator::lane()), from = lane + by;
  SideStream mine{bits, 0, from > (lane | (width - 1)) ? lane : from};
  tg::emulator::meet_warp(mask, &mine, [](void* const(&all)[32]) {
    for (void* one : all)
      if (one) {
        auto& to = *static_cast<SideStream*>(one);
        const auto* source = static_cast<const SideStream*>(all[to.source & 31]);
        to.result = source ? source->bits : ~std::uint64_t{0};
      }
  });
  return mine.result;
}

struct CUlib_st {
  void* handle;
  std::string source;  // a checksum if no kernel runs
};
struct CUkern_st {
  std::string name;
  void (*run)(void**, std::uint64_t*, unsigned, unsigned, void (*)());
  void (*thread)(void**, std::uint64_t*, void*, void (*)(), decltype(&shuffle_down));
  int arguments;
  bool meets;  // whether the kernel's threads synchronize
};

cudaError_t cudaLibraryLoadData(cudaLibrary_t* made, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  if (tg::emulator::only_records()) {
    *made = new CUlib_st{nullptr, std::string(static_cast<const char*>(code), 16)};
    return cudaSuccess;
  }
  std::uint64_t size;
  std::memcpy(&size, code, sizeof size);
  const int file = ::memfd_create("tilegrad-kernel", 0);
  if (file < 0 ||
      ::write(file, static_cast<const char*>(code) + sizeof size, size) != static_cast<ssize_t>(size))
    return cudaErrorInvalidValue;
  void* handle = ::dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) std::fprintf(stderr, "%s\n", ::dlerror());
  *made = new CUlib_st{handle, {}};
  return handle ? cudaSuccess : cudaErrorInvalidValue;  // the file stays open to keep file names unique
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* made, cudaLibrary_t library, const char* name) {
  if (tg::emulator::only_records()) {
    *made = new CUkern_st{std::string(name) + " of source " + library->source, nullptr, nullptr, 0, false};
    return cudaSuccess;
  }
  const auto find = [&](const char* what) {
    return ::dlsym(library->handle, (what + std::string(name)).c_str());
  };
  void *run = find("tg_run_"), *thread = find("tg_thread_"), *count = find("tg_arguments_"),
       *meets = find("tg_meets_");
  if (!run || !thread || !count || !meets) return cudaErrorInvalidValue;
  *made = new CUkern_st{name, reinterpret_cast<decltype(CUkern_st::run)>(run),
                        reinterpret_cast<decltype(CUkern_st::thread)>(thread),
                        *static_cast<const int*>(count), *static_cast<const bool*>(meets)};
  return cudaSuccess;
}
// Each argument of these kernels has at most 8 bytes.
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* kernel, void** args) {
  const auto& k = *static_cast<const CUkern_st*>(kernel);
  const dim3 grid = c->grid, block = c->block;
  if (tg::emulator::only_records()) {
    tg::emulator::record(c->stream, k.name + " blocks " + std::to_string(grid.x) + " threads " +
                                        std::to_string(block.x) + (c->numAttrs > 0 ? " early" : ""));
    return cudaSuccess;
  }
  std::vector<std::uint64_t> copied(static_cast<std::size_t>(k.arguments));
  for (std::size_t i = 0; i < copied.size(); ++i) std::memcpy(&copied[i], args[i], 8);
  return tg::emulator::enqueue(c->stream, [=, k = k] {
    std::vector<void*> pointers;
    for (const std::uint64_t& a : copied) pointers.push_back(const_cast<std::uint64_t*>(&a));
    tg::emulator::begin_recorded_grid(nullptr, k.name);
    std::uint64_t* const work = &tg::emulator::work_done;
    if (k.meets)
      tg::emulator::run_grid({grid.x, 1, 1}, {block.x, 1, 1}, 0, [&] {
        k.thread(
            pointers.data(), work, &tg::emulator::here, [] { tg::emulator::meet_block(); }, &shuffle_down);
      });
    else
      k.run(pointers.data(), work, grid.x, block.x, [] { tg::emulator::record_block(); });
    tg::emulator::end_recorded_grid();
  });
}

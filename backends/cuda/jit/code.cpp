#include "backends/cuda/jit/code.h"

#include <nvrtc.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include <tilegrad/core/base/error.h>
#include "backends/cuda/runtime/check.h"
#include "core/base/file_write.h"
#include "core/base/hash.h"

namespace tg::cuda {

namespace {

std::vector<char> compile_source(const std::string& source, const Gpu& gpu) {
  nvrtcProgram program = nullptr;
  const auto check_nvrtc = [&](nvrtcResult result, const char* what) {
    if (result == NVRTC_SUCCESS) return;
    std::string log;
    std::size_t size = 0;
    if (program && nvrtcGetProgramLogSize(program, &size) == NVRTC_SUCCESS && size > 1) {
      log.resize(size);
      nvrtcGetProgramLog(program, log.data());
    }
    throw DeviceError(std::string("[cuda] ") + what + ": " + nvrtcGetErrorString(result) + "\n" + log);
  };
  check_nvrtc(nvrtcCreateProgram(&program, source.c_str(), "chain.cu", 0, nullptr, nullptr),
              "a kernel's source");
  const std::string arch = "--gpu-architecture=sm_" + std::to_string(gpu.capability);
  const char* options[] = {arch.c_str(), "--std=c++17", "-default-device"};
  check_nvrtc(nvrtcCompileProgram(program, 3, options), "compiling a kernel");
  std::size_t size = 0;
  check_nvrtc(nvrtcGetCUBINSize(program, &size), "compiling a kernel");
  std::vector<char> binary(size);
  check_nvrtc(nvrtcGetCUBIN(program, binary.data()), "compiling a kernel");
  nvrtcDestroyProgram(&program);
  return binary;
}

// Saves a binary in the cache. If there is no space or permission, the next process compiles it again.
void save_cubin(const std::filesystem::path& path, const std::vector<char>& binary) {
  const std::string_view bytes(binary.data(), binary.size());
  try {
    replace_regular_file(path.string(), {&bytes, 1}, "cuda", Durable::no);
  } catch (const Error&) {
  }
}

// Loads the binary from the cache, or otherwise compiles it.
std::vector<char> binary_of(const std::string& source, const std::array<std::uint64_t, 2>& digest,
                            const Gpu& gpu) {
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return compile_source(source, gpu);
  const std::filesystem::path path = folder / (hexadecimal(digest[0]) + hexadecimal(digest[1]) + ".cubin");
  if (std::ifstream file(path, std::ios::binary); file) {
    std::vector<char> binary((std::istreambuf_iterator<char>(file)), {});
    if (!binary.empty()) return binary;
  }
  std::vector<char> binary = compile_source(source, gpu);
  save_cubin(path, binary);
  return binary;
}

int compiler_version() {
  int major = 0, minor = 0;
  nvrtcVersion(&major, &minor);
  return 1000 * major + minor;
}

}  // namespace

std::filesystem::path cache_folder() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  std::filesystem::path folder;
  if (cache && *cache) {
    folder = cache;
  } else if (home && *home) {
    folder = std::filesystem::path(home) / ".cache";
  } else {
    return {};
  }
  folder /= "tilegrad";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? std::filesystem::path() : folder;
}

std::string hexadecimal(std::uint64_t x) {
  char s[20];
  std::snprintf(s, sizeof s, "%016" PRIx64, x);
  return s;
}

cudaKernel_t compiled(const std::string& source, const std::string& name, const Gpu& gpu) {
  static std::mutex mutex;
  static auto& kernels = *new std::map<std::array<std::uint64_t, 2>, cudaKernel_t>;
  Hasher hash;
  hash.add(source);
  hash.add(static_cast<std::uint64_t>(gpu.capability));
  hash.add(static_cast<std::uint64_t>(compiler_version()));
  const std::array<std::uint64_t, 2> digest = hash.digest();
  const std::lock_guard lock(mutex);
  cudaKernel_t& kernel = kernels[digest];
  if (!kernel) {
    const std::vector<char> binary = binary_of(source, digest, gpu);
    cudaLibrary_t library;  // stays loaded
    check(cudaLibraryLoadData(&library, binary.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
          "loading a kernel");
    check(cudaLibraryGetKernel(&kernel, library, name.c_str()), "loading a kernel");
  }
  return kernel;
}

void launch_compiled(const Stream& s, cudaKernel_t kernel, unsigned grid, unsigned block,
                     std::vector<const void*> parameters, const char* what) {
  std::vector<void*> arguments;  // addresses of the parameters
  for (const void*& p : parameters) arguments.push_back(&p);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config{dim3(grid), dim3(block), 0, s.stream, &early, s.gpu.hopper ? 1u : 0u};
  check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments.data()), what);
}

}  // namespace tg::cuda

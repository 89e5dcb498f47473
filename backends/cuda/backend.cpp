// Memory, copies and programs of a GPU, all on one stream.
#include <algorithm>
#include <array>
#include <mutex>
#include <optional>

#include <tilegrad/core/base/error.h>
#include "backends/cuda/cuda.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/executable.h"
#include "backends/cuda/schedule/scheduler.h"

namespace tg::cuda {

namespace {

std::string mebibytes(std::size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int ordinal) {
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, ordinal), "GPU " + std::to_string(ordinal));
    name_ = p.name;
    gpu_ = {ordinal, p.multiProcessorCount, 10 * p.major + p.minor,
            static_cast<int>(p.sharedMemPerBlockOptin)};
#ifdef TILEGRAD_SM90A
    gpu_.hopper = gpu_.capability == 90;
#endif
    if (gpu_.capability < 80)
      throw DeviceError("[cuda] GPU " + std::to_string(ordinal) + " (" + p.name +
                        ") has compute capability " + std::to_string(p.major) + "." +
                        std::to_string(p.minor) + ", expected 8.0 or later");
    check(cudaSetDevice(ordinal), "a GPU");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    staging_.emplace(stream_);
  }

  std::string name() const override {
    return name_;
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes, const std::string& what) override {
    use_gpu(gpu_.ordinal);
    void* p = nullptr;
    const cudaError_t status = cudaMalloc(&p, std::max<std::size_t>(bytes, 256));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw OutOfMemory("[cuda] no memory for " + what + ": " + mebibytes(bytes) + " needed, " +
                        mebibytes(available_bytes()) + " free");
    }
    check(status, "memory for " + what);
    return {static_cast<std::byte*>(p), [this](std::byte* q) {  // errors were reported where they occurred
              cudaSetDevice(gpu_.ordinal);
              if (staging_->flush() == cudaSuccess) cudaStreamSynchronize(stream_);
              cudaFree(q);
            }};
  }
  std::size_t available_bytes() override {
    use_gpu(gpu_.ordinal);
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "free memory");
    return free;
  }
  void write(std::byte* device, const std::byte* host, std::size_t bytes) override {
    use_gpu(gpu_.ordinal);
    staging_->write(device, host, bytes, nullptr);
  }
  void read(std::byte* host, const std::byte* device, std::size_t bytes) override {
    use_gpu(gpu_.ordinal);
    check(staging_->flush(), "a copy to the GPU");
    if (bytes > 0)
      check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "a copy from the GPU");
    Communicator* ranks = nullptr;
    for (CudaExecutable* p : programs_)
      if (p->begin_read() && p->ranks()) ranks = p->ranks();
    {
      const RankWait waits(ranks);
      check(cudaStreamSynchronize(stream_), "running programs");
    }
    for (CudaExecutable* p : programs_) p->end_read();
  }
  const StepScheduler& scheduler() const override {
    static const auto& scheduler = *new CudaScheduler;
    return scheduler;
  }
  std::size_t status_bytes() const override {
    return cuda::status_bytes;
  }
  std::unique_ptr<Executable> prepare(std::span<const Step> steps, const PrepareOptions& options) override {
    use_gpu(gpu_.ordinal);
    return std::make_unique<CudaExecutable>(steps, options, gpu_, stream_, *staging_, programs_);
  }

 private:
  std::string name_;
  Gpu gpu_;
  cudaStream_t stream_ = nullptr;
  std::optional<Staging> staging_;
  std::vector<CudaExecutable*> programs_;
};

}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

Backend& backend(int ordinal) {
  static std::mutex mutex;
  static std::array<CudaBackend*, 64>
      backends{};  // never destroyed: CUDA may shut down before static objects are destroyed
  const std::lock_guard lock(mutex);
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice || count == 0) {
    cudaGetLastError();
    throw DeviceError("[cuda] no GPU here, or its driver is missing or too old: " +
                      std::string(cudaGetErrorString(status)));
  }
  check(status, "looking for GPUs");
  if (ordinal < 0 || ordinal >= std::min(count, static_cast<int>(backends.size())))
    throw DeviceError("[cuda] there is no GPU " + std::to_string(ordinal) + ": this machine has " +
                      std::to_string(count));
  CudaBackend*& b = backends[static_cast<std::size_t>(ordinal)];
  if (!b) b = new CudaBackend(ordinal);
  return *b;
}

}  // namespace tg::cuda

// Options that several tools share. An option has the same values and meaning in all of these tools. The test
// tool_options compares the output of --help.
#pragma once

#include <string>

#include <tilegrad/core/base/dtype.h>
#include <tilegrad/core/run/backend.h>
#include <tilegrad/nn/layers/autocast.h>
#include "backends/cpu/pool.h"
#include "tools/args.h"

namespace tg {

// Device and precision of a tool's computations.
struct DeviceOptions {
  std::string backend = "cpu", dtype = "f32";
  std::int64_t threads = 0;
  Device device;  // parsed from `backend` by take_device()

  nn::Precision precision() const { return nn::precision_named(dtype); }
  int thread_count() const { return static_cast<int>(threads); }
};

inline void declare_device_options(Args& args, DeviceOptions& o) {
  args.option("backend", "NAME", "device: cpu, cuda, or cuda:N for GPU N", o.backend);
  args.option("dtype", "TYPE",
              "precision of the forward and backward pass, but not of weights and optimizer state; tf32 is "
              "f32 with matmuls on a GPU's tensor cores (exact f32 on the CPU)",
              o.dtype, {.choices = {"f32", "tf32", "bf16", "f16"}});
  args.option("threads", "N", "number of CPU threads; 0: TG_THREADS if set, otherwise all cores", o.threads,
              {.min = 0, .max = cpu::max_threads});
}

// Sets the device from --backend. Throws UsageError for an unknown name, and DeviceError if this machine does
// not have the device.
inline void take_device(DeviceOptions& o, const std::string& name) {
  try {
    o.device = Device::parse(name);
  } catch (const DeviceError& e) {
    throw UsageError(std::string("--backend: ") + e.what());
  }
  backend(o.device);
}

// Declares --model, which accepts every format of a model.
inline void declare_model(Args& args, std::string& path, ArgLimits limits = {.required = true}) {
  args.option(
      "model", "MODEL",
      "model: a run of train, one of its checkpoints (RUN/best), a Hugging Face folder, or a GGUF file", path,
      std::move(limits));
}

// The dtype for a value of an option: "f32", "bf16" or "f16".
inline DType dtype_named(const std::string& name) {
  return name == "f32" ? f32 : name == "bf16" ? bf16 : f16;
}

}  // namespace tg

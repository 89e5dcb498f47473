// The options that several tools have. An option of one name has one value and one meaning in all of them:
// the test tool_options reads every --help.
#pragma once

#include <string>

#include <tilegrad/core/base/dtype.h>
#include <tilegrad/core/run/backend.h>
#include <tilegrad/nn/layers/autocast.h>
#include "backends/cpu/pool.h"
#include "tools/args.h"

namespace tg {

// Where and how precisely a tool computes.
struct DeviceOptions {
  std::string backend = "cpu", dtype = "f32";
  std::int64_t threads = 0;
  Device device;  // of `backend`, after take_device()

  nn::Precision precision() const { return nn::precision_named(dtype); }
  int thread_count() const { return static_cast<int>(threads); }
};

inline void declare_device_options(Args& args, DeviceOptions& o) {
  args.option("backend", "NAME", "device: cpu, cuda, or cuda:N for GPU N", o.backend);
  args.option(
      "dtype", "TYPE",
      "precision of forward and backward; weights and optimizer keep theirs; tf32: f32 with matmuls on "
      "a GPU's tensor cores, exact f32 on the CPU",
      o.dtype, {.choices = {"f32", "tf32", "bf16", "f16"}});
  args.option("threads", "N", "threads; 0: TG_THREADS or all cores", o.threads,
              {.min = 0, .max = cpu::max_threads});
}

// Takes the device that --backend names. Throws UsageError for another name, and DeviceError if this machine
// has no such device.
inline void take_device(DeviceOptions& o, const std::string& name) {
  try {
    o.device = Device::parse(name);
  } catch (const DeviceError& e) {
    throw UsageError(std::string("--backend: ") + e.what());
  }
  backend(o.device);
}

// A model to read, in every form in which a model is kept.
inline void declare_model(Args& args, std::string& path, ArgLimits limits = {.required = true}) {
  args.option("model", "MODEL",
              "a run of train, one of its checkpoints (RUN/best), a Hugging Face folder, or a GGUF file",
              path, std::move(limits));
}

// "f32", "bf16" or "f16", the choices of an option.
inline DType dtype_named(const std::string& name) {
  return name == "f32" ? f32 : name == "bf16" ? bf16 : f16;
}

}  // namespace tg

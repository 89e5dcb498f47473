// Hopper's instructions are not emulated: its kernels are not asked for, because the emulated GPU says it has
// none.
#include <tilegrad/core/base/error.h>
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_forward_sm90(const Stream&, const AttentionCall&, const Workspace&, const Powers*) {
  throw DeviceError("the emulator has no kernels of sm_90a");
}

void launch_backward_sm90(const Stream&, const AttentionCall&, const Workspace&, const Powers*) {
  throw DeviceError("the emulator has no kernels of sm_90a");
}

}  // namespace tg::cuda::attention

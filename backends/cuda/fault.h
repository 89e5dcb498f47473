// Indices out of range, met by a kernel, and exceptions of host functions: noted in device memory, told to
// the user by the host. From the first one on, nothing writes to parameters any more, until the host has been
// told.
#pragma once

#include <climits>
#include <cstddef>

namespace tg::cuda {

// What a program's memory begins its results with: a Fault, and nothing else beside it.
inline constexpr std::size_t status_bytes = 64;

struct alignas(status_bytes) Fault {
  static constexpr int none = INT_MAX;
  static constexpr long long thrown = -1;  // as a position: a host function threw
  int step;                                // that met it, the lowest of all; `none` if there was no fault
  unsigned lock;
  long long index, size, position;  // position: of the element among the indices
};

// A launch's view of its program's fault.
struct Faults {
  Fault* fault;
  int step;

#if defined(__CUDACC__)
  // True if 0 ≤ index < size, else notes it; the kernel then leaves out what the index names.
  __device__ bool check_index(long long index, long long size, long long position) const {
    if (static_cast<unsigned long long>(index) < static_cast<unsigned long long>(size)) return true;
    bool done = false;
    while (!done) {
      if (atomicCAS(&fault->lock, 0u, 1u) != 0u) continue;
      __threadfence();
      volatile Fault* f = fault;
      if (f->step > step || (f->step == step && f->position > position)) {
        f->index = index, f->size = size, f->position = position;
        f->step = step;
      }
      __threadfence();
      atomicExch(&fault->lock, 0u);
      done = true;
    }
    return false;
  }
  // Whether an earlier launch met a fault, so that parameters are to be left as they are. Read through the
  // cache: else all warps of a launch would queue for one address.
  __device__ bool any() const {
    return fault->step != Fault::none;
  }
#endif
};

static_assert(sizeof(Fault) == status_bytes);

}  // namespace tg::cuda

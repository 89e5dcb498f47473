// Faults: an index out of range in a kernel, or an exception of a host function. A fault is recorded in
// device memory and reported by the host. After the first fault, parameters are not written until the host
// has reported it.
#pragma once

#include <climits>
#include <cstddef>

namespace tg::cuda {

// Size of the Fault at the start of the results in a program's memory.
inline constexpr std::size_t status_bytes = 64;

struct alignas(status_bytes) Fault {
  static constexpr int none = INT_MAX;
  static constexpr long long thrown = -1;  // the position if a host function threw
  int step;                                // the lowest step with a fault, or `none`
  unsigned lock;
  long long index, size, position;  // position of the index among all indices
};

// A launch's view of its program's fault.
struct Faults {
  Fault* fault;
  int step;

#if defined(__CUDACC__)
  // Returns true if 0 ≤ index < size. Otherwise records a fault, and the kernel skips that index.
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
  // Whether an earlier launch recorded a fault, so that parameters must not change. The read is cached,
  // because otherwise all warps of a launch would queue for one address.
  __device__ bool any() const {
    return fault->step != Fault::none;
  }
#endif
};

static_assert(sizeof(Fault) == status_bytes);

}  // namespace tg::cuda

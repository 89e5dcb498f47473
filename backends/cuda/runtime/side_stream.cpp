#include "backends/cuda/runtime/side_stream.h"

#include <algorithm>

#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/written_memory.h"

namespace tg::cuda {

namespace {

bool meet(std::span<const Arg> a, std::span<const Arg> b) {
  return std::ranges::any_of(a, [&](const Arg& x) { return meets(x, b); });
}

}  // namespace

SideStream::~SideStream() {
  for (cudaEvent_t e : events_) cudaEventDestroy(e);
  if (own_) cudaStreamDestroy(own_);
}

cudaEvent_t SideStream::mark(cudaStream_t stream) {
  check(cudaEventCreateWithFlags(&events_.emplace_back(), cudaEventDisableTiming), "an event");
  check(cudaEventRecord(events_.back(), stream), "recording a program");
  return events_.back();
}

void SideStream::run(const Step& step, const std::function<void(cudaStream_t)>& f) {
  if (!own_) check(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking), "a stream");
  check(cudaStreamWaitEvent(own_, mark(main_), 0), "recording a program");
  f(own_);
  used_.push_back({step.in, step.out});
}

void SideStream::wait_before(std::span<const Step> steps) {
  for (const Step& s : steps)
    for (const Used& u : used_)
      if (meet(s.out, u.in) || meet(s.out, u.out) || meet(s.in, u.out)) return wait();
}

void SideStream::wait() {
  if (used_.empty()) return;
  check(cudaStreamWaitEvent(main_, mark(own_), 0), "recording a program");
  used_.clear();
}

}  // namespace tg::cuda

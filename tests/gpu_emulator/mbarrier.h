// mbarriers in shared memory, and the bulk copies that count their bytes at one. A copy's data arrives at the
// last moment: when a thread waits for the phase that the copy belongs to. Until then its destination is NaN.
#pragma once

#include <cstdint>
#include <functional>

namespace tg::emulator {

void mbarrier_init(std::uint32_t barrier, int arrivals);
void fence_mbarrier_init();
void mbarrier_arrive(std::uint32_t barrier);
void mbarrier_arrive_expect(std::uint32_t barrier, int bytes);
void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity);

// A copy to `bytes` of shared memory at `to`, which arrives by a call.
void copy_by(std::uint32_t barrier, std::uint32_t to, int bytes, std::function<void()> arrive);

void forget_mbarriers();
void insist_on_no_copies();  // that have not arrived

}  // namespace tg::emulator

// mbarriers in shared memory, and the bulk copies that count their bytes at one. A copy's data arrives at the
// last moment: when a thread waits for the phase that the copy belongs to. Until then its destination is NaN.
// Copies may go to another block of the cluster, whose barrier they then count at.
#pragma once

#include <cstdint>
#include <functional>

namespace tg::emulator {

void mbarrier_init(std::uint32_t barrier, int arrivals);
void fence_mbarrier_init();
void mbarrier_arrive(std::uint32_t barrier);
void mbarrier_arrive_expect(std::uint32_t barrier, int bytes);
// At a barrier of any block of the cluster, without release: what the thread itself has written or read is
// not ordered by it, copies and products that are over are.
void mbarrier_arrive_at(std::uint32_t barrier);
// In the scope of the block, which does not see arrivals of other blocks, or of the cluster.
enum class Scope { block, cluster };
void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity, Scope scope);

// A copy to `bytes` of shared memory at `to`, which arrives by a call; `from`: of this block's shared memory.
void copy_by(std::uint32_t barrier, std::uint32_t to, int bytes, std::function<void()> arrive,
             const unsigned char* from = nullptr);

void forget_mbarriers();
void insist_on_no_copies();  // that have not arrived

}  // namespace tg::emulator

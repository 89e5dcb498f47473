// mbarriers in shared memory, and the bulk copies whose bytes they count. The data of a copy arrives as late
// as possible: when a thread waits for the copy's phase. Until then its destination is NaN. A copy may go to
// another block of the cluster, and is then counted at that block's barrier.
#pragma once

#include <cstdint>
#include <functional>

namespace tg::emulator {

void mbarrier_init(std::uint32_t barrier, int arrivals);
void fence_mbarrier_init();
void mbarrier_arrive(std::uint32_t barrier);
void mbarrier_arrive_expect(std::uint32_t barrier, int bytes);
// Arrives at a barrier of any block of the cluster, without release. It does not order the thread's own reads
// and writes, but it orders finished copies and wgmma.
void mbarrier_arrive_at(std::uint32_t barrier);
// Block scope does not see arrivals of other blocks. Cluster scope does.
enum class Scope { block, cluster };
void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity, Scope scope);

// Copies to `bytes` bytes of shared memory at `to`. The data arrives with a call of `arrive`. `from`: the
// source, if it is this block's shared memory.
void copy_by(std::uint32_t barrier, std::uint32_t to, int bytes, std::function<void()> arrive,
             const unsigned char* from = nullptr);

void forget_mbarriers();
void insist_on_no_copies();  // that have not arrived

}  // namespace tg::emulator

// Emulates mbarriers in shared memory, and the bulk copies that they count. The data of a copy arrives as
// late as possible: when a thread waits for the copy's phase. Until then, the destination is NaN. If the
// destination is in another block of the cluster, that block's barrier counts the copy.
#pragma once

#include <cstdint>
#include <functional>

namespace tg::emulator {

void mbarrier_init(std::uint32_t barrier, int arrivals);
void fence_mbarrier_init();
void mbarrier_arrive(std::uint32_t barrier);
void mbarrier_arrive_expect(std::uint32_t barrier, int bytes);
// Arrives at a barrier of any block of the cluster, without release. This does not order the thread's own
// reads and writes. It orders finished copies and finished wgmma.
void mbarrier_arrive_at(std::uint32_t barrier);
// Arrivals of other blocks are visible in cluster scope, but not in block scope.
enum class Scope { block, cluster };
void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity, Scope scope);

// Copies to `bytes` bytes of shared memory at `to`. The data arrives with a call of `arrive`. If the source
// is this block's shared memory, `from` is its address.
void copy_by(std::uint32_t barrier, std::uint32_t to, int bytes, std::function<void()> arrive,
             const unsigned char* from = nullptr);

void forget_mbarriers();
void insist_on_no_copies();  // throws if a copy has not arrived

}  // namespace tg::emulator

#include "tests/gpu_emulator/hopper.h"

#include "tests/gpu_emulator/bulk_copy.h"
#include "tests/gpu_emulator/clocks.h"
#include "tests/gpu_emulator/cluster.h"
#include "tests/gpu_emulator/mbarrier.h"
#include "tests/gpu_emulator/named_barrier.h"
#include "tests/gpu_emulator/registers.h"
#include "tests/gpu_emulator/semaphore.h"
#include "tests/gpu_emulator/wgmma.h"

namespace tg::emulator {

void begin_hopper_blocks(unsigned threads, unsigned blocks, std::size_t shared_bytes) {
  forget_mbarriers();
  forget_stores();
  forget_named_barriers();
  forget_registers(threads, blocks, shared_bytes);
  forget_products(threads * blocks);
  forget_spins();
  if (blocks > 1) begin_cluster(threads, blocks);
}
void end_hopper_thread(unsigned thread) {
  if (has_clocks()) insist_on_no_products(thread);
}
void end_hopper_blocks() {
  if (!has_clocks()) return;
  insist_on_no_copies();
  insist_on_no_stores();
  insist_on_equal_registers();
}

}  // namespace tg::emulator

#include "tests/gpu_emulator/registers.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/clocks.h"

namespace tg::emulator {

namespace {

constexpr int all = 65536;             // registers of a multiprocessor
std::array<int, most_blocks> spare{};  // registers of each block without an owner
int at_launch = 0;                     // registers per thread at the launch
std::array<int, 32> of_warp{};
unsigned warps = 0;
std::vector<unsigned> waiting;

[[noreturn]] void fail(const std::string& what) {
  give_up("thread " + std::to_string(here.number) + ": " + what);
}
std::string state(const void* left) {
  return "setmaxnreg: no more than " + std::to_string(*static_cast<const int*>(left)) + " registers are left";
}

struct Change {
  int to;
  bool taking;
};
// Called once for each warp.
void insist(void* const (&lanes)[32]) {
  const Change c = *static_cast<const Change*>(lanes[static_cast<unsigned>(here.number) % 32]);
  const int now = of_warp[static_cast<unsigned>(here.number) / 32];
  for (const void* other : lanes)
    if (!other || static_cast<const Change*>(other)->to != c.to) fail("setmaxnreg is not that of all lanes");
  if (c.to < 24 || c.to > 256 || c.to % 8 != 0) fail("setmaxnreg to " + std::to_string(c.to) + " registers");
  if (c.taking ? c.to < now : c.to > now)
    fail("setmaxnreg from " + std::to_string(now) + (c.taking ? " up to " : " down to ") +
         std::to_string(c.to));
}
// The first lane that finds enough registers acquires them for the whole warp.
bool change(unsigned warp, int to) {
  const int more = (to - of_warp[warp]) * 32;
  if (more > spare[here.rank]) return false;
  spare[here.rank] -= more;
  of_warp[warp] = to;
  for (const unsigned t : std::exchange(waiting, {})) wake(t);
  return true;
}
void change_registers(Change c) {
  start_clocks();
  meet_warp(~0u, &c, insist);
  const auto me = static_cast<unsigned>(here.number);
  while (!change(me / 32, c.to)) {
    waiting.push_back(me);
    sleep(state, &spare[here.rank]);
  }
}

}  // namespace

void take_registers(int each) {
  change_registers({each, true});
}
void give_registers(int each) {
  change_registers({each, false});
}
void forget_registers(unsigned threads, unsigned blocks, std::size_t shared_bytes) {
  constexpr std::size_t shared = 228 << 10, reserved = 1 << 10;  // of a multiprocessor; of a block
  const std::size_t room = shared / (shared_bytes + reserved), most = std::max(2048 / threads, 1u),
                    sharing = std::clamp<std::size_t>(room, 1, most);
  warps = (threads * blocks + 31) / 32;
  at_launch = std::min(all / static_cast<int>(threads * sharing) / 8 * 8, 256);
  spare.fill(0);
  of_warp.fill(at_launch);
  waiting.clear();
}
void insist_on_equal_registers() {
  for (unsigned w = 0; w < warps; ++w)
    if (of_warp[w] != of_warp[w / 4 * 4])
      throw std::runtime_error("setmaxnreg: warps " + std::to_string(w / 4 * 4) + " and " +
                               std::to_string(w) + " of a warpgroup have different numbers of registers");
}

}  // namespace tg::emulator

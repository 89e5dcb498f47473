#include "tests/gpu_emulator/semaphore.h"

#include <map>
#include <string>
#include <utility>

#include "tests/gpu_emulator/block.h"

namespace tg::emulator {

namespace {

// The state of a thread that loads the same number repeatedly.
struct Spin {
  const int* p = nullptr;
  int value = 0;
  int times = 0;
};
std::map<int, Spin> spins;
constexpr int most = 10000;

}  // namespace

int load_acquire(const int* p) {
  Spin& s = spins[here.number];
  if (s.p != p || s.value != *p) s = {p, *p, 0};
  if (++s.times > most)
    give_up("thread " + std::to_string(here.number) + " waits for another value than " + std::to_string(*p) +
            " in global memory, which only a later block could write");
  if (s.times > 1) let_others_run();
  return *p;
}
void add_release(int* p, int n) {
  *p += n;
}
void forget_spins() {
  spins.clear();
}

}  // namespace tg::emulator

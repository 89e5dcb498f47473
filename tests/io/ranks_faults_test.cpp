// Tests that if a step fails on one rank, training ends on all ranks and no result of this step is saved.
#include "tests/support/ranks_faults.h"

namespace {

using namespace tg;
using namespace tg::testing;

Device on_cpu(const Communicator&) {
  return Device::cpu();
}

TEST(RanksFaults, AnIndexOutOfRangeEndsAll) {
  for (int n : {2, 4}) expect_faults_end_all(n, {.kind = InjectedFault::index}, on_cpu, 60);
}
TEST(RanksFaults, AFaultEndsAllRanksThatShardTheUpdate) {
  for (int n : {2, 4}) expect_faults_end_all(n, {.vocabulary = 1100}, on_cpu, 60);
}
TEST(RanksFaults, AnExceptionOfAHostFunctionEndsAll) {
  for (int n : {2, 4}) expect_faults_end_all(n, {.kind = InjectedFault::host_function}, on_cpu, 60);
}

}  // namespace

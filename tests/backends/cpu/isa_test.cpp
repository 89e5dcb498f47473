// Tests the choice of the instruction set, and kernels that users register.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include <tilegrad/core/base/error.h>
#include "backends/cpu/kernel.h"

namespace {

using namespace tg;
using namespace tg::cpu;

std::string names_of_sets() {
  std::string names;
  for (const KernelSet* set : runnable_sets()) names += (names.empty() ? "" : ", ") + std::string(set->isa);
  return names;
}

TEST(Isa, SetsAreInAscendingOrder) {
  const std::string all = "baseline, avx2, avx512";
  EXPECT_EQ(all.find(names_of_sets()), 0u) << names_of_sets();
}

// A process chooses its instruction set once. If the name is invalid, no instruction set is chosen.
TEST(Isa, FollowsTheEnvironmentVariable) {
  for (const char* name : {"mmx", "", "avx51", "baseline2"}) {
    setenv("TG_ISA", name, 1);
    try {
      kernel_set();
      ADD_FAILURE() << name;
    } catch (const DeviceError& e) {
      EXPECT_EQ(std::string(e.what()), "[cpu] TG_ISA is '" + std::string(name) +
                                           "': expected one that this machine supports, " + names_of_sets());
    }
  }
  setenv("TG_ISA", "baseline", 1);
  EXPECT_EQ(kernel_set().isa, "baseline");
  EXPECT_NE(bf16_unit(), Bf16Unit::tiles);
  unsetenv("TG_ISA");
  EXPECT_EQ(kernel_set().isa, "baseline");
}

TEST(Isa, RegisteredKernelsTakePrecedence) {
  const Kernel* own = find_kernel("softmax");
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(find_kernel("softmax_of_a_user"), nullptr);
  EXPECT_EQ(find_kernel("softma"), nullptr);
  const Kernel kernel{[](Worker&, const Call&) {}};
  for (const char* op : {"softmax", "softmax_of_a_user"}) {
    register_kernel(op, kernel);
    ASSERT_NE(find_kernel(op), nullptr) << op;
    EXPECT_EQ(find_kernel(op)->run, kernel.run) << op;
  }
  EXPECT_NE(own->run, kernel.run);
  EXPECT_NE(find_kernel("log_softmax")->run, kernel.run);
}

}  // namespace

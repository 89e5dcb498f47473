// Tests the memory that the backend allocates, and the limits of control groups. The limits are read from
// files in the kernel's format.
#include "core/os/memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <tilegrad/core/base/error.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include <tilegrad/core/run/backend.h>
#include "backends/cpu/kernel.h"
#include "core/os/linux/control_groups.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
namespace fs = std::filesystem;

class ControlGroups : public ::testing::Test {
 protected:
  void group(const std::string& path, const std::string& limit_file, const std::string& limit,
             const std::string& usage_file, const std::string& usage, const std::string& stat = "") {
    fs::create_directories(dir / path);
    dir.file(path + "/" + limit_file, limit + "\n");
    dir.file(path + "/" + usage_file, usage + "\n");
    dir.file(path + "/memory.stat", stat);
  }
  void first(const std::string& path, const std::string& limit, const std::string& usage,
             const std::string& stat = "") {
    group("memory" + path, "memory.limit_in_bytes", limit, "memory.usage_in_bytes", usage, stat);
  }
  void second(const std::string& path, const std::string& limit, const std::string& usage,
              const std::string& stat = "") {
    group("." + path, "memory.max", limit, "memory.current", usage, stat);
  }
  std::size_t left(const std::string& groups) {
    return os::left_in_cgroups(dir.file("groups", groups), dir.path.string());
  }
  tg::testing::TemporaryDirectory dir;
};

TEST_F(ControlGroups, AbsentGroupsDoNotLimit) {
  EXPECT_EQ(left(""), SIZE_MAX);
  EXPECT_EQ(left("0::/\n"), SIZE_MAX);
  EXPECT_EQ(left("nonsense\n5:memory\n"), SIZE_MAX);
  EXPECT_EQ(os::left_in_cgroups(dir / "none", dir / "none"), SIZE_MAX);
}

TEST_F(ControlGroups, FirstVersionUsesTheSmallestLimitUpToTheRoot) {
  first("", "9223372036854771712", "700");
  first("/a", "1000", "100");
  first("/a/b", "5000", "200", "cache 7\ntotal_inactive_file 50\n");
  const std::string other = "11:cpu,cpuacct:/a\n";
  EXPECT_EQ(left(other + "5:memory:/a/b\n"), 900u);
  first("/a", "8000", "100");
  EXPECT_EQ(left(other + "5:memory:/a/b\n"), 4850u);
  EXPECT_EQ(left(other + "5:hugetlb,memory:/a/b\n"), 4850u);
  EXPECT_EQ(left(other + "5:memory:/a\n"), 7900u);
  EXPECT_EQ(left(other + "5:memory:/\n"), 9223372036854771712u - 700u);
}

TEST_F(ControlGroups, ContainerUsesTheMountedRoot) {
  first("", "3000", "1000");
  EXPECT_EQ(left("5:memory:/docker/0123\n"), 2000u);
  EXPECT_EQ(left(""), 2000u);
}

TEST_F(ControlGroups, SecondVersionUsesTheSmallestLimitUpToTheRoot) {
  second("/a", "1000", "300", "inactive_file 100\n");
  second("/a/b", "max", "200");
  EXPECT_EQ(left("0::/a/b\n"), 800u);
  second("/a/b", "600", "200");
  EXPECT_EQ(left("0::/a/b\n"), 400u);
}

// Returns the first number after a name in a file, times 1024.
double kibibytes(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  double n = 0;
  while (file >> word)
    if (word == name) file >> n;
  return n * 1024;
}

TEST(Memory, AvailableIsLimitedBySystemAndControlGroups) {
  const double free = kibibytes("/proc/meminfo", "MemAvailable:");
  const double left = static_cast<double>(os::left_in_cgroups("/proc/self/cgroup", "/sys/fs/cgroup"));
  const double available = static_cast<double>(os::available_memory());
  EXPECT_GT(available, 0);
  // Other processes use and free memory between the two readings.
  if (free > 0) {
    EXPECT_NEAR(available / std::min(free, left), 1, 0.25);
  }
}

// Blocks of 2 MiB or more are aligned to 2 MiB. Smaller blocks are aligned to 64 bytes.
TEST(Memory, IsAligned) {
  constexpr std::size_t huge = std::size_t{2} << 20;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{65}, huge - 1, huge, huge + 1}) {
    const std::shared_ptr<std::byte> p = cpu::backend().allocate(bytes, "a test");
    ASSERT_NE(p, nullptr);
    const auto address = reinterpret_cast<std::uintptr_t>(p.get());
    EXPECT_EQ(address % (bytes >= huge ? huge : 64), 0u) << bytes;
    if (bytes > 0) p.get()[0] = p.get()[bytes - 1] = std::byte{1};
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The operating system would grant this allocation.
TEST(Memory, MoreThanAvailableIsRefused) {
  const std::size_t available = cpu::backend().available_bytes();
  if (available > std::size_t{1} << 60) GTEST_SKIP() << "no limit is known";
  const std::size_t more = available + (std::size_t{1} << 30);
  for (const std::size_t bytes : {more, std::size_t{1} << 60}) {
    try {
      cpu::backend().allocate(bytes, "a test");
      ADD_FAILURE() << bytes;
    } catch (const OutOfMemory& e) {
      const std::string what = e.what(), needed = std::to_string((bytes + (1 << 20) - 1) >> 20);
      EXPECT_EQ(what.find("[cpu] no memory for a test: " + needed + " MiB needed, "), 0u) << what;
      EXPECT_TRUE(what.ends_with(" MiB free")) << what;
    }
  }
}

TEST(Memory, AvailableIsLimitedByAddressSpace) {
  constexpr std::size_t more = std::size_t{300} << 20;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const double used = kibibytes("/proc/self/status", "VmSize:");
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(used) + more;
  if (before.rlim_max != RLIM_INFINITY && limit.rlim_cur > before.rlim_max)
    GTEST_SKIP() << "a lower limit is set";
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  const std::size_t left = os::available_memory();
  limit.rlim_cur = static_cast<rlim_t>(used) / 2;
  const bool is_lower = setrlimit(RLIMIT_AS, &limit) == 0;
  const std::size_t none = os::available_memory();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_LE(left, more);
  if (os::available_memory() > more) {
    EXPECT_GT(left, more - more / 8);
  }
  if (is_lower) {
    EXPECT_EQ(none, 0u);
  }
}
#endif

}  // namespace

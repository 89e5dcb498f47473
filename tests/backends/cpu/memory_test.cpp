// What control groups leave, read from files like those of the kernel.
#include "backends/cpu/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>

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
    return cpu::left_in_cgroups(dir.file("groups", groups), dir.path.string());
  }
  tg::testing::TemporaryDirectory dir;
};

TEST_F(ControlGroups, NoneLimitNothing) {
  EXPECT_EQ(left(""), SIZE_MAX);
  EXPECT_EQ(left("0::/\n"), SIZE_MAX);
  EXPECT_EQ(left("nonsense\n5:memory\n"), SIZE_MAX);
  EXPECT_EQ(cpu::left_in_cgroups(dir / "none", dir / "none"), SIZE_MAX);
}

TEST_F(ControlGroups, OfTheFirstVersionTheSmallestUpToTheRootCounts) {
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

TEST_F(ControlGroups, InAContainerTheRootIsTheOneThatIsMounted) {
  first("", "3000", "1000");
  EXPECT_EQ(left("5:memory:/docker/0123\n"), 2000u);
  EXPECT_EQ(left(""), 2000u);
}

TEST_F(ControlGroups, OfTheSecondVersionTheSmallestUpToTheRootCounts) {
  second("/a", "1000", "300", "inactive_file 100\n");
  second("/a/b", "max", "200");
  EXPECT_EQ(left("0::/a/b\n"), 800u);
  second("/a/b", "600", "200");
  EXPECT_EQ(left("0::/a/b\n"), 400u);
}

TEST(Memory, IsAvailable) {
  EXPECT_GT(cpu::available_memory(), 0u);
}

}  // namespace

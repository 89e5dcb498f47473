// Files that are opened for reading are regular ones, and a file that is written stays where its name is.
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/mapped_file.h>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;
namespace fs = std::filesystem;

void expect_refused(const std::string& path, const std::string& why) {
  const std::string expected = "[load] cannot read " + path + ": " + why;
  EXPECT_EQ(error_of([&] { io::read_file(path, "load"); }), expected);
  EXPECT_EQ(error_of([&] { const io::MappedFile file(path, "load"); }), expected);
}

TEST(InputFile, PipesDevicesAndDirectoriesAreRefusedAtOnce) {
  const tg::testing::TemporaryDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);  // nobody will ever write to it
  for (const std::string& path : {dir / "pipe", std::string("/dev/zero"), std::string("/dev/null")})
    expect_refused(path, "not a regular file");
  expect_refused(dir.path.string(), "Is a directory");
  expect_refused(dir / "none", "No such file or directory");
}

TEST(InputFile, ReadsWholeFilesThroughLinks) {
  const tg::testing::TemporaryDirectory dir;
  const std::string text(100'000, 'x');
  dir.file("file", text);
  fs::create_symlink("file", dir / "link");
  EXPECT_EQ(io::read_file(dir / "link", "load"), text);
  EXPECT_EQ(io::MappedFile(dir / "link", "load").bytes(), text);
  dir.file("empty", "");
  EXPECT_EQ(io::read_file(dir / "empty", "load"), "");
  EXPECT_FALSE(io::read_file("/proc/self/stat", "load").empty());  // whose size is said to be 0
}

TEST(OutputFile, LinksPipesAndOtherNamesOfAFileStayAsTheyAre) {
  const tg::testing::TemporaryDirectory dir;
  dir.file("outside", "precious");
  fs::create_symlink("outside", dir / "link");
  fs::create_symlink("nowhere", dir / "dangling");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const std::string_view piece = "new";
  for (const auto& [name, what] : {std::pair("link", "symbolic link"), std::pair("dangling", "symbolic link"),
                                   std::pair("pipe", "device, pipe or socket")}) {
    const std::string expected =
        "[test] cannot write " + (dir / name) + ": it is a " + what + ", expected a regular file";
    for (const auto start : {io::OutputFile::Start::empty, io::OutputFile::Start::append})
      EXPECT_EQ(error_of([&] { io::OutputFile(dir / name, "test", start); }), expected);
    EXPECT_EQ(error_of([&] { io::replace_file(dir / name, {&piece, 1}, "test"); }), expected);
    EXPECT_EQ(error_of([&] { io::require_replaceable(dir / name, "test"); }), expected);
    EXPECT_NE(error_of([&] { io::write_new_file(dir / name, {&piece, 1}, "test"); }), "no error");
  }
  EXPECT_EQ(io::read_file(dir / "outside", "test"), "precious");
  EXPECT_FALSE(fs::exists(dir / "nowhere"));
  // A hard link is another name of the same file, perhaps in a backup.
  fs::create_hard_link(dir / "outside", dir / "name");
  io::OutputFile(dir / "name", "test").write("one");
  EXPECT_EQ(io::read_file(dir / "outside", "test"), "precious");
  EXPECT_EQ(io::read_file(dir / "name", "test"), "one");
  fs::remove(dir / "name");
  fs::create_hard_link(dir / "outside", dir / "name");
  io::replace_file(dir / "name", {&piece, 1}, "test");
  EXPECT_EQ(io::read_file(dir / "outside", "test"), "precious");
}

TEST(OutputFile, ExistingFilesCanBeRefused) {
  const tg::testing::TemporaryDirectory dir;
  dir.file("file", "mine");
  EXPECT_EQ(error_of([&] { io::require_replaceable(dir / "file", "test"); }), "no error");
  EXPECT_EQ(error_of([&] { io::require_replaceable(dir / "new", "test", io::Existing::refuse); }),
            "no error");
  EXPECT_EQ(error_of([&] { io::require_replaceable("/dev/null", "test", io::Existing::refuse); }),
            "no error");
  EXPECT_EQ(error_of([&] { io::require_replaceable(dir / "file", "test", io::Existing::refuse); }),
            "[test] " + (dir / "file") + " exists: --overwrite replaces it");
}

TEST(OutputFile, SaysThatItsNameWasTaken) {
  const tg::testing::TemporaryDirectory dir;
  io::OutputFile file(dir / "rows", "metrics");
  file.write("one\n");
  EXPECT_NO_THROW(file.sync());
  fs::rename(dir / "rows", dir / "moved");
  file.write("two\n");
  EXPECT_EQ(
      error_of([&] { file.sync(); }),
      "[metrics] " + (dir / "rows") + " was removed while it was being written: what is written now is lost");
  fs::create_directory(dir / "rows");
  EXPECT_NE(error_of([&] { file.sync(); }).find("rows was replaced while"), std::string::npos);
  fs::remove(dir / "rows");
  fs::create_symlink("moved", dir / "rows");  // the same file again
  EXPECT_NO_THROW(file.sync());
}

}  // namespace

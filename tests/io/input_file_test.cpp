// Tests that only regular files are opened for reading, and that writing to a file keeps its links and other
// names.
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/mapped_file.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/os/file.h"
#include "tests/support/files.h"

namespace {

// The error numbers of this process's failing system calls. 0 means that the call succeeds.
struct {
  int fsync_of_directory = 0, fsync_of_file = 0, fchmod = 0, rename = 0, renameat2 = 0;
} errors;

int failed(int error) {
  errno = error;
  return -1;
}

}  // namespace

// These functions replace C library functions, including calls from the library under test.
extern "C" int fsync(int fd) {
  struct stat status {};
  const bool is_directory = ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
  if (const int error = is_directory ? errors.fsync_of_directory : errors.fsync_of_file) return failed(error);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
extern "C" int fchmod(int fd, mode_t mode) noexcept {
  return errors.fchmod ? failed(errors.fchmod) : static_cast<int>(::syscall(SYS_fchmod, fd, mode));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  return errors.rename ? failed(errors.rename)
                       : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
extern "C" int renameat2(int a, const char* from, int b, const char* to, unsigned flags) noexcept {
  return errors.renameat2 ? failed(errors.renameat2)
                          : static_cast<int>(::syscall(SYS_renameat2, a, from, b, to, flags));
}

namespace {

using namespace tg;
using tg::testing::error_of;
namespace fs = std::filesystem;

void expect_refused(const std::string& path, const std::string& why) {
  const std::string expected = "[load] cannot read " + path + ": " + why;
  EXPECT_EQ(error_of([&] { io::read_file(path, "load"); }), expected);
  EXPECT_EQ(error_of([&] { const io::MappedFile file(path, "load"); }), expected);
}

TEST(InputFile, PipesDevicesAndDirectoriesAreRefusedImmediately) {
  const tg::testing::TemporaryDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);  // no process ever writes to the pipe
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
  EXPECT_FALSE(io::read_file("/proc/self/stat", "load").empty());  // its reported size is 0
}

TEST(OutputFile, LinksPipesAndOtherNamesOfAFileArePreserved) {
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
  // A hard link is a second name of the same file, for example in a backup.
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

TEST(OutputFile, ReportsThatItsNameIsInUse) {
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
  fs::create_symlink("moved", dir / "rows");  // the original file again
  EXPECT_NO_THROW(file.sync());
}

std::string reason(int error) {
  return std::generic_category().message(error);
}

// EINVAL and EROFS mean that there is nothing to sync. Directories on some file systems and all devices
// return these errors.
TEST(OutputFile, AFailedSyncIsAnErrorUnlessThereIsNothingToSync) {
  const tg::testing::TemporaryDirectory dir;
  const std::string path = dir / "file", folder = path.substr(0, path.rfind('/') + 1);
  const std::string_view piece = "new";
  for (const int error : {EIO, ENOSPC, EDQUOT, EBADF, EINVAL, EROFS}) {
    const bool is_allowed = error == EINVAL || error == EROFS;
    const auto expected = [&](const std::string& what) {
      return is_allowed ? "no error" : "[test] cannot " + what + ": " + reason(error);
    };
    errors = {.fsync_of_directory = error};
    EXPECT_EQ(error_of([&] { io::sync_directory(dir.path.string(), "test"); }),
              expected("sync the directory " + dir.path.string()));
    EXPECT_EQ(error_of([&] {
                io::replace_file(path, {&piece, 1}, "test");
              }),
              expected("sync the directory " + folder));
    EXPECT_EQ(error_of([&] { replace_regular_file(path, {&piece, 1}, "test", Durable::no); }), "no error");
    errors = {.fsync_of_file = error};
    EXPECT_EQ(error_of([&] { io::overwrite_start(path, "old", "test"); }), expected("write " + path));
    EXPECT_EQ(error_of([&] { io::OutputFile(path, "test").sync(); }), expected("write " + path));
    EXPECT_EQ(error_of([&] { io::sync_directory(dir.path.string(), "test"); }), "no error");
    // A newly created regular file can be synced.
    const std::string cannot_write = "[test] cannot write ";
    EXPECT_EQ(error_of([&] {
                io::replace_file(path, {&piece, 1}, "test");
              }),
              cannot_write + path + ": " + reason(error));
    EXPECT_EQ(error_of([&] {
                io::write_new_file(dir / "other", {&piece, 1}, "test");
              }),
              cannot_write + (dir / "other") + ": " + reason(error));
    errors = {};
    fs::remove(dir / "other");
  }
}

TEST(OutputFile, AFileThatCannotBeReplacedStaysAndNoTemporaryIsLeft) {
  const tg::testing::TemporaryDirectory dir;
  const std::string path = dir.file("file", "old");
  const std::string_view piece = "new";
  const auto expect_unchanged = [&](const std::string& what) {
    const std::string error = error_of([&] { io::replace_file(path, {&piece, 1}, "test"); });
    errors = {};
    EXPECT_EQ(error, "[test] cannot " + what + " " + path + ": " + reason(EIO));
    EXPECT_EQ(io::read_file(path, "test"), "old");
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path), fs::directory_iterator()), 1);
  };
  errors = {.fsync_of_file = EIO}, expect_unchanged("write");
  errors = {.fchmod = EIO}, expect_unchanged("set the permissions of");
  errors = {.rename = EIO}, expect_unchanged("replace");
}

// Some file systems lack renameat2's flag.
TEST(OutputFile, ARenameNeverReplacesAFile) {
  const tg::testing::TemporaryDirectory dir;
  const auto rename_new_file = [&] { return os::rename_new(dir.file("from", "new"), dir / "to"); };
  for (const int error : {0, EINVAL, ENOSYS}) {
    errors = {.renameat2 = error};
    EXPECT_EQ(rename_new_file(), 0);
    EXPECT_EQ(io::read_file(dir / "to", "test"), "new");
    EXPECT_FALSE(fs::exists(dir / "from"));
    dir.file("to", "old");
    EXPECT_EQ(rename_new_file(), EEXIST);
    EXPECT_EQ(io::read_file(dir / "to", "test"), "old");
    fs::remove(dir / "to");
    errors = {.rename = EIO, .renameat2 = error};
    EXPECT_EQ(rename_new_file(), error == 0 ? 0 : EIO);
    errors = {};
    fs::remove(dir / "to");
  }
  for (const int error : {EACCES, EPERM, EIO}) {  // an error that is unrelated to the flag
    errors = {.renameat2 = error};
    EXPECT_EQ(rename_new_file(), error);
    errors = {};
  }
}

}  // namespace

// Tests that files are written completely or not at all (core/base/file_write.h, core/os/file.h). Covers
// errors, permissions and temporary files.
#include "core/base/file_write.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "core/os/file.h"
#include "tests/support/files.h"

namespace {

// Error numbers of these system calls. 0 means that the call succeeds.
struct Failures {
  int fsync = 0, fchmod = 0, rename = 0, renameat2 = 0;
  int fsyncs_before = 0;  // number of successful fsync calls before the error
  // One entry for each of the next write calls. A negative entry is an error number. A positive entry is the
  // maximum number of bytes that the call writes.
  std::vector<int> writes;
} failures;
int fsyncs = 0;

int failed(int error) {
  errno = error;
  return -1;
}

}  // namespace

// These functions replace functions of the C library, also for calls from the library under test.
extern "C" int fsync(int fd) {
  if (++fsyncs > failures.fsyncs_before && failures.fsync != 0) return failed(failures.fsync);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
extern "C" ssize_t write(int fd, const void* bytes, std::size_t size) {
  if (!failures.writes.empty()) {
    const int next = failures.writes.front();
    failures.writes.erase(failures.writes.begin());
    if (next < 0) return failed(-next);
    size = std::min(size, static_cast<std::size_t>(next));
  }
  return ::syscall(SYS_write, fd, bytes, size);
}
extern "C" int fchmod(int fd, mode_t mode) noexcept {
  return failures.fchmod != 0 ? failed(failures.fchmod) : static_cast<int>(::syscall(SYS_fchmod, fd, mode));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  if (failures.rename != 0) return failed(failures.rename);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
extern "C" int renameat2(int a, const char* from, int b, const char* to, unsigned flags) noexcept {
  if (failures.renameat2 != 0) return failed(failures.renameat2);
  return static_cast<int>(::syscall(SYS_renameat2, a, from, b, to, flags));
}

namespace {

using namespace tg;
using tg::testing::error_of;

struct FileWrite : ::testing::Test {
  FileWrite() { failures = {}, fsyncs = 0; }
  tg::testing::TemporaryDirectory directory;
  std::string path(const std::string& name) const { return directory / name; }
  void make(const std::string& name, const std::string& content) const {
    std::ofstream(path(name)) << content;
  }
  std::string content(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path))
      names.insert(entry.path().filename());
    return names;
  }
  static void replace(const std::string& path, std::vector<std::string_view> pieces,
                      Durable durable = Durable::no) {
    replace_regular_file(path, pieces, "save", durable);
  }
};

TEST_F(FileWrite, ReplacesAFileAndKeepsItsPermissions) {
  for (const Durable durable : {Durable::no, Durable::yes}) {
    replace(path("new"), {"ab", "", "cd"}, durable);
    EXPECT_EQ(content("new"), "abcd");
    ::chmod(path("new").c_str(), 0640);
    replace(path("new"), {"e"}, durable);
    EXPECT_EQ(content("new"), "e");
    struct stat now {};
    ASSERT_EQ(::stat(path("new").c_str(), &now), 0);
    EXPECT_EQ(now.st_mode & 07777, 0640u);
    EXPECT_EQ(files(), std::set<std::string>{"new"}) << "no temporary is left";
    ::unlink(path("new").c_str());
  }
}

TEST_F(FileWrite, RefusesAllExceptRegularFiles) {
  make("file", "x");
  std::filesystem::create_directory(path("folder"));
  std::filesystem::create_symlink(path("file"), path("link"));
  ::mkfifo(path("pipe").c_str(), 0600);
  EXPECT_TRUE(is_replaceable(path("file"), "save"));
  EXPECT_FALSE(is_replaceable(path("none"), "save"));
  EXPECT_EQ(error_of([&] { replace(path("folder"), {"x"}); }),
            "[save] cannot write " + path("folder") + ": Is a directory");
  EXPECT_EQ(error_of([&] { replace(path("link"), {"x"}); }),
            "[save] cannot write " + path("link") + ": it is a symbolic link, expected a regular file");
  EXPECT_EQ(
      error_of([&] { replace(path("pipe"), {"x"}); }),
      "[save] cannot write " + path("pipe") + ": it is a device, pipe or socket, expected a regular file");
  EXPECT_NE(
      error_of([&] { replace(path("none/file"), {"x"}); }).find("[save] cannot create " + path("none/file")),
      std::string::npos);
  EXPECT_EQ(files(), (std::set<std::string>{"file", "folder", "link", "pipe"}));
  EXPECT_EQ(content("file"), "x");
}

TEST_F(FileWrite, ErrorsOfTheSystemAreReported) {
  make("file", "x");
  {
    const FileDescriptor read_only(::open(path("file").c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(os::write_all(read_only.fd, "abc"), EBADF);
    EXPECT_EQ(os::write_all(read_only.fd, ""), 0);
  }
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (full.fd >= 0) {
    EXPECT_EQ(os::write_all(full.fd, "abc"), ENOSPC);
  }
  EXPECT_EQ(os::close(987654), EBADF);  // no open file has this descriptor
  EXPECT_EQ(error_of([] { check_file("save", "write", "FILE", EBADF); }),
            "[save] cannot write FILE: Bad file descriptor");
  EXPECT_EQ(error_of([] { check_file("save", "write", "FILE", 0); }), "no error");
  EXPECT_EQ(error_of([&] { sync_directory(path("none"), "save"); }),
            "[save] cannot open the directory " + path("none") + ": No such file or directory");
  EXPECT_EQ(error_of([&] { sync_directory(directory.path.string(), "save"); }), "no error");
  std::ofstream(path("file")) << "text";
  EXPECT_EQ(error_of([&] { sync_directory(path("file"), "save"); }),
            "[save] cannot open the directory " + path("file") + ": Not a directory");
}

// A call may write only a part of the data. A signal may interrupt the call. A call that writes nothing and
// reports no error also counts as an error. Otherwise, repeated calls might never end.
TEST_F(FileWrite, RepeatsPartialWrites) {
  const FileDescriptor file(::open(path("file").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  failures.writes = {-EINTR, 2, -EINTR, 1};
  EXPECT_EQ(os::write_all(file.fd, "abcdef"), 0);
  EXPECT_EQ(content("file"), "abcdef");
  failures.writes = {3, -EINTR, 0};
  EXPECT_EQ(os::write_all(file.fd, "ghijkl"), ENOSPC);
  EXPECT_EQ(content("file"), "abcdefghi");
}

// The old file stays unchanged. No temporary file is left.
TEST_F(FileWrite, AFailedReplacementChangesNothing) {
  make("file", "old");
  struct Case {
    int Failures::*call;
    Durable durable;
    const char* verb;  // null: no error is expected
  };
  for (const auto& [call, durable, verb] : {Case{&Failures::fsync, Durable::yes, "write"},
                                            {&Failures::fsync, Durable::no, nullptr},
                                            {&Failures::fchmod, Durable::no, "set the permissions of"},
                                            {&Failures::rename, Durable::no, "replace"}}) {
    failures = {};
    failures.*call = EIO;
    const std::string expected =
        verb ? "[save] cannot " + std::string(verb) + " " + path("file") + ": Input/output error"
             : "no error";
    EXPECT_EQ(error_of([&, d = durable] { replace(path("file"), {"new"}, d); }), expected);
    EXPECT_EQ(content("file"), verb ? "old" : "new");
    EXPECT_EQ(files(), std::set<std::string>{"file"});
    make("file", "old");
  }
  failures = {};
  failures.fchmod = EIO;  // a new file keeps no old permissions
  replace(path("other"), {"new"});
  EXPECT_EQ(content("other"), "new");
}

TEST_F(FileWrite, ADurableFileAndItsFolderAreSynced) {
  replace(path("a"), {"1"});
  EXPECT_EQ(fsyncs, 0);
  replace(path("a"), {"2"}, Durable::yes);
  EXPECT_EQ(fsyncs, 2);
  failures.fsyncs_before = 3, failures.fsync = EIO;
  EXPECT_EQ(error_of([&] { replace(path("a"), {"3"}, Durable::yes); }),
            "[save] cannot sync the directory " + directory.path.string() + "/: Input/output error");
  EXPECT_EQ(content("a"), "3");
  // A path without a folder belongs to the current folder.
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path);
  fsyncs = 0, failures.fsyncs_before = 1;
  EXPECT_EQ(error_of([&] { replace("a", {"4"}, Durable::yes); }),
            "[save] cannot sync the directory .: Input/output error");
  std::filesystem::current_path(before);
  EXPECT_EQ(content("a"), "4");
  failures.fsyncs_before = 0;
  for (const int error : {EINVAL, EROFS}) {  // some file systems cannot sync a folder and report this
    failures.fsync = error;
    EXPECT_EQ(error_of([&] { sync_directory(directory.path.string(), "save"); }), "no error");
  }
}

// Some file systems do not support renaming without replacement.
TEST_F(FileWrite, NewNamesAreCheckedIfTheSystemDoesNotCheck) {
  for (const int error : {EINVAL, ENOSYS}) {
    make("a", "1"), make("b", "2");
    failures = {.renameat2 = error};
    EXPECT_EQ(os::rename_new(path("a"), path("b")), EEXIST);
    EXPECT_EQ(content("a") + content("b"), "12");
    failures.rename = EIO;
    EXPECT_EQ(os::rename_new(path("a"), path("c")), EIO);
    failures.rename = 0;
    EXPECT_EQ(os::rename_new(path("a"), path("c")), 0);
    EXPECT_EQ(content("c"), "1");
    EXPECT_EQ(files(), (std::set<std::string>{"b", "c"}));
    std::filesystem::remove(path("c"));
  }
  make("a", "1");
  failures = {.renameat2 = EACCES};
  EXPECT_EQ(os::rename_new(path("a"), path("c")), EACCES);
  EXPECT_EQ(files(), (std::set<std::string>{"a", "b"}));
}

TEST_F(FileWrite, NewFilesDoNotReplaceOthers) {
  make("a", "1"), make("b", "2");
  EXPECT_EQ(os::rename_new(path("a"), path("b")), EEXIST);
  EXPECT_EQ(os::rename_new(path("none"), path("c")), ENOENT);
  EXPECT_EQ(os::rename_new(path("a"), path("c")), 0);
  EXPECT_EQ(content("c"), "1");
  EXPECT_EQ(files(), (std::set<std::string>{"b", "c"}));
}

TEST_F(FileWrite, TemporariesHaveNewNames) {
  std::string first, second, plain;
  {
    const FileDescriptor a = create_temporary(path("file"), first, "save"),
                         b = create_temporary(path("file"), second, "save");
    EXPECT_GE(a.fd, 0);
    EXPECT_NE(first, second);
    EXPECT_EQ(first.find(path(".file.tmp." + std::to_string(::getpid()) + ".")), 0u);
    // The next name is in use. An earlier process with the same process ID created this file.
    const std::size_t dot = second.rfind('.') + 1;
    const int next = std::stoi(second.substr(dot)) + 1;
    make(second.substr(directory.path.string().size() + 1, dot - directory.path.string().size() - 1) +
             std::to_string(next),
         "taken");
    std::string third;
    const FileDescriptor c = create_temporary(path("file"), third, "save");
    EXPECT_EQ(third, second.substr(0, dot) + std::to_string(next + 1));
  }
  EXPECT_EQ(files().size(), 4u);
}

}  // namespace

// Tests file functions if system calls fail or transfer less than requested, or if another process changes a
// file at the same time. Also tests how files are opened.
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/mapped_file.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>

#include <tilegrad/io/checkpoints/checkpoint_store.h>
#include "io/files/input_file.h"
#include "io/files/staged_folder.h"
#include "tests/support/child_process.h"
#include "tests/support/files.h"

namespace {

// The error numbers of this process's failing system calls. 0 means that the call succeeds.
struct Failures {
  int pread = 0, write = 0, close = 0, unlink = 0, fstat = 0, mmap = 0, symlink = 0;
  bool is_interrupted = false;  // every second call fails with EINTR; other calls transfer at most 7 bytes
  bool keeps_unlinked = false;  // unlink() succeeds without effect
  bool has_no_zeros = false;    // anonymous mmap() fails
  std::function<void()> after_lstat = {};  // acts as another process, after lstat()
} failures;
unsigned calls = 0;

int failed(int error) {
  errno = error;
  return -1;
}
bool is_interrupted_now() {
  return failures.is_interrupted && ++calls % 2 == 1;
}
std::size_t shortened(std::size_t count) {
  return failures.is_interrupted ? std::min<std::size_t>(count, 7) : count;
}

}  // namespace

// These functions replace C library functions, including calls from the library under test.
extern "C" ssize_t pread(int fd, void* to, std::size_t count, off_t at) {
  if (failures.pread != 0 || is_interrupted_now())
    return failed(failures.pread != 0 ? failures.pread : EINTR);
  return ::syscall(SYS_pread64, fd, to, shortened(count), at);
}
extern "C" ssize_t write(int fd, const void* from, std::size_t count) {
  if (failures.write != 0 || is_interrupted_now())
    return failed(failures.write != 0 ? failures.write : EINTR);
  return ::syscall(SYS_write, fd, from, shortened(count));
}
extern "C" int close(int fd) {
  const auto result = static_cast<int>(::syscall(SYS_close, fd));
  return failures.close != 0 ? failed(failures.close) : result;
}
extern "C" int unlink(const char* path) noexcept {
  if (failures.keeps_unlinked) return 0;
  return failures.unlink != 0 ? failed(failures.unlink)
                              : static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
extern "C" int symlink(const char* to, const char* path) noexcept {
  if (failures.symlink != 0) return failed(failures.symlink);
  return static_cast<int>(::syscall(SYS_symlinkat, to, AT_FDCWD, path));
}
extern "C" int fstat(int fd, struct stat* to) noexcept {
  if (failures.fstat != 0) return failed(failures.fstat);
  return static_cast<int>(::syscall(SYS_newfstatat, fd, "", to, AT_EMPTY_PATH));
}
extern "C" int lstat(const char* path, struct stat* to) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW));
  if (const auto then = std::exchange(failures.after_lstat, {})) {
    const int error = errno;
    then();
    errno = error;
  }
  return result;
}
extern "C" void* mmap(void* at, std::size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  if (failures.mmap != 0 && fd >= 0) return failed(failures.mmap), MAP_FAILED;
  if (failures.has_no_zeros && fd < 0) return failed(ENOMEM), MAP_FAILED;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, size, protection, flags, fd, offset));
}

namespace {

using namespace tg;
using tg::testing::error_of;
using tg::testing::TemporaryDirectory;
namespace fs = std::filesystem;

std::string failing(Failures how, const std::function<void()>& f) {
  failures = std::move(how);
  const std::string message = error_of(f);
  failures = {};
  return message;
}

const std::string_view pieces[] = {"first, ", "", "second and ", "last"};
const std::string all = "first, second and last";

TEST(FileCalls, InterruptedAndShortCallsAreContinued) {
  const TemporaryDirectory dir;
  const auto interrupted = [](const std::function<void()>& f) {
    return failing({.is_interrupted = true}, f);
  };
  const auto content = [&] { return io::read_file(dir / "file", "test"); };
  EXPECT_EQ(interrupted([&] { io::write_new_file(dir / "file", pieces, "test"); }), "no error");
  EXPECT_EQ(content(), all);
  std::string read;
  EXPECT_EQ(interrupted([&] { read = io::read_file(dir / "file", "test"); }), "no error");
  EXPECT_EQ(read, all);
  EXPECT_EQ(interrupted([&] { io::overwrite_start(dir / "file", "FIRST, SEC", "test"); }), "no error");
  EXPECT_EQ(content(), "FIRST, SECond and last");
  EXPECT_EQ(interrupted([&] { io::replace_file(dir / "file", pieces, "test"); }), "no error");
  EXPECT_EQ(content(), all);
  EXPECT_EQ(interrupted([&] {
              io::OutputFile file(dir / "file", "test", io::OutputFile::Start::append);
              file.write("; more than seven bytes");
              file.close();
            }),
            "no error");
  EXPECT_EQ(content(), all + "; more than seven bytes");
  const io::MappedFile mapped(dir / "file", "test");
  std::vector<std::byte> bytes(20);
  EXPECT_EQ(interrupted([&] { mapped.read(2, bytes); }), "no error");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 20), all.substr(2));
  EXPECT_EQ(failing({}, [&] { mapped.read(all.size() + 20, bytes); }),
            "[test] cannot read " + (dir / "file") + ": it ends at byte 45");
}

TEST(FileCalls, ErrorNamesTheFileAndTheReason) {
  const TemporaryDirectory dir;
  const std::string path = dir.file("file", all), none = dir / "none/file";
  const std::string reason = std::generic_category().message(EIO);
  const auto read = [&] { io::read_file(path, "test"); };
  EXPECT_EQ(failing({.pread = EIO}, read), "[test] cannot read " + path + ": " + reason);
  EXPECT_EQ(failing({.fstat = EIO}, read), "[test] cannot read " + path + ": " + reason);
  EXPECT_EQ(failing({.fstat = EIO}, [&] { io::MappedFile(path, "test"); }),
            "[test] cannot read " + path + ": " + reason);
  EXPECT_EQ(failing({.mmap = EIO}, [&] { io::MappedFile(path, "test"); }),
            "[test] cannot read " + path + ": " + reason);
  const io::MappedFile mapped(path, "test");
  std::byte byte;
  EXPECT_EQ(failing({.pread = EIO},
                    [&] {
                      mapped.read(0, {&byte, 1});
                    }),
            "[test] cannot read " + path + ": " + reason);
  EXPECT_EQ(failing({.fstat = EIO}, [&] { mapped.check(); }), "[test] cannot read " + path + ": " + reason);

  // An interrupted close() has closed the file. Any other error of close() means that a write was lost.
  const auto start = [&] { io::overwrite_start(path, "FI", "test"); };
  const auto create = [&] { io::write_new_file(dir / "new", pieces, "test"); };
  const auto replace = [&] { io::replace_file(path, pieces, "test"); };
  const auto append = [&] { io::OutputFile(path, "test", io::OutputFile::Start::append).close(); };
  for (const int error : {EIO, EINTR}) {
    const auto expected = [&](const std::string& name) {
      return error == EINTR ? "no error" : "[test] cannot write " + name + ": " + reason;
    };
    EXPECT_EQ(failing({.close = error}, start), expected(path));
    EXPECT_EQ(failing({.close = error}, create), expected(dir / "new"));
    EXPECT_EQ(failing({.close = error}, replace), expected(path));
    EXPECT_EQ(failing({.close = error}, append), expected(path));
    EXPECT_EQ(failing({.close = error}, [&] { io::replace_file("/dev/null", pieces, "test"); }),
              expected("/dev/null"));
    fs::remove(dir / "new");
  }
  for (const auto& f :
       {std::function<void()>(start), {replace}, {[&] { io::OutputFile(path, "test").write("x"); }}})
    EXPECT_EQ(failing({.write = EIO}, f), "[test] cannot write " + path + ": " + reason);
  EXPECT_EQ(failing({.write = EIO}, create), "[test] cannot write " + (dir / "new") + ": " + reason);
  EXPECT_EQ(failing({.unlink = EIO}, [&] { io::OutputFile(path, "test"); }),
            "[test] cannot replace " + path + ": " + reason);
  EXPECT_EQ(failing({},
                    [&] {
                      io::OutputFile file(path, "test");
                      file.write("x");
                      failures.fstat = EIO;
                      file.sync();
                    }),
            "[test] cannot write " + path + ": " + reason);

  const std::string missing = none + ": " + std::generic_category().message(ENOENT);
  EXPECT_EQ(error_of([&] { io::overwrite_start(none, "FI", "test"); }), "[test] cannot open " + missing);
  EXPECT_EQ(error_of([&] { io::write_new_file(none, pieces, "test"); }), "[test] cannot create " + missing);
  EXPECT_EQ(error_of([&] { io::OutputFile(none, "test"); }), "[test] cannot create " + missing);
  EXPECT_EQ(error_of([&] { io::require_replaceable(none, "test"); }), "[test] cannot write " + missing);
  EXPECT_EQ(
      error_of([&] { io::sync_directory(dir / "none", "test"); }),
      "[test] cannot open the directory " + (dir / "none") + ": " + std::generic_category().message(ENOENT));
}

// If a page is lost, zeros must replace it. If this is impossible, the signal ends the process, as without a
// handler. With the address sanitizer, the process reports the signal and exits with status 1.
TEST(FileCallsDeathTest, LostPageThatCannotBecomeZerosEndsTheProcess) {
  const TemporaryDirectory dir;
  const io::MappedFile file(dir.file("data", std::string(10'000, 'x')), "test");
  fs::resize_file(dir / "data", 0);
  const auto read = [&] {
    failures.has_no_zeros = true;
    const volatile char byte = file.bytes()[5000];
    ::_exit(byte == 0 ? 0 : 2);
  };
  EXPECT_EXIT(
      read(), [](int status) { return !WIFEXITED(status) || WEXITSTATUS(status) == 1; }, "");
  EXPECT_EQ(file.bytes()[5000], 0);
}

// If another process replaces a file between two calls, the new file is neither overwritten nor followed.
TEST(FileCalls, FilesOfAnotherProcessAreKept) {
  const TemporaryDirectory dir;
  const std::string path = dir / "file", exists = path + ": " + std::generic_category().message(EEXIST),
                    loop = path + ": " + std::generic_category().message(ELOOP);
  dir.file("theirs", "precious");
  const auto link = [&] { fs::remove(path), fs::create_symlink("theirs", path); };
  for (const auto start : {io::OutputFile::Start::empty, io::OutputFile::Start::append}) {
    const auto open = [&] { io::OutputFile(path, "test", start).write("x"); };
    fs::remove(path);
    EXPECT_EQ(failing({.after_lstat = [&] { dir.file("file", "precious"); }}, open),
              "[test] cannot create " + exists);
    EXPECT_EQ(io::read_file(path, "test"), "precious");
    fs::remove(path);
    EXPECT_EQ(failing({.after_lstat = link}, open), "[test] cannot create " + exists);
  }
  fs::remove(path), dir.file("file", "precious");
  EXPECT_EQ(failing({.keeps_unlinked = true}, [&] { io::OutputFile(path, "test").write("x"); }),
            "[test] cannot create " + exists);
  EXPECT_EQ(io::read_file(path, "test"), "precious");
  EXPECT_EQ(failing({.after_lstat = link},
                    [&] { io::OutputFile(path, "test", io::OutputFile::Start::append).write("x"); }),
            "[test] cannot create " + loop);
  EXPECT_EQ(error_of([&] { io::overwrite_start(path, "x", "test"); }), "[test] cannot open " + loop);
  EXPECT_EQ(error_of([&] { io::write_new_file(path, pieces, "test"); }), "[test] cannot create " + exists);
  EXPECT_EQ(io::read_file(dir / "theirs", "test"), "precious");
  EXPECT_EQ(error_of([&] { io::write_new_file(dir / "theirs", pieces, "test"); }),
            "[test] cannot create " + (dir / "theirs") + ": " + std::generic_category().message(EEXIST));
  EXPECT_EQ(io::read_file(dir / "theirs", "test"), "precious");
}

TEST(FileCalls, AFileThatChangedItsSizeIsReadCompletely) {
  const TemporaryDirectory dir;
  const std::string path = dir.file("file", "0123456789");
  for (const std::size_t size : {0, 9, 10, 11, 12, 65536, 65547, 65548, 300'000}) {
    const io::InputFile file(dir.file("file", "0123456789"), "test");
    EXPECT_EQ(file.size(), 10u);
    std::string content;
    for (std::size_t i = 0; i < size; ++i) content += static_cast<char>(i * i);
    dir.file("file", content);
    EXPECT_EQ(file.read(), content) << size;
  }
}

TEST(FileCalls, FilesOfAnOpenFolderAreRead) {
  const TemporaryDirectory dir;
  dir.file("file", "content");
  fs::create_symlink("loop", dir / "loop");
  const FileDescriptor folder(::open(dir.path.c_str(), O_RDONLY | O_DIRECTORY));
  const auto in = [&](const std::string& name) {
    return io::InputFile::in(folder.fd, name, "a path", "test");
  };
  EXPECT_FALSE(in("none"));
  ASSERT_TRUE(in("file"));
  EXPECT_EQ(in("file")->read(), "content");
  EXPECT_EQ(error_of([&] { in("loop"); }),
            "[test] cannot read a path: " + std::generic_category().message(ELOOP));
  EXPECT_EQ(error_of([&] { in("."); }), "[test] cannot read a path: Is a directory");
}

// ---- How files are opened

const Parameter weight("w", Array({2}, f32));
const std::vector<io::CheckpointFile> files = {{"w.safetensors", {weight}, {}}};

TEST(FileCalls, AFailedLinkIsAnError) {
  const TemporaryDirectory dir;
  io::CheckpointStore store(dir / "run");
  EXPECT_EQ(failing({.symlink = EIO}, [&] { store.save(1, 1, files); }),
            "[checkpoint] cannot link " + (dir / "run/.checkpoint-tmp-last") + ": " +
                std::generic_category().message(EIO));
  EXPECT_FALSE(store.has_checkpoint());
}

// Returns all functions that open a file in a folder. Each returns an object that keeps the file open.
std::vector<std::function<std::shared_ptr<void>()>> openings(const TemporaryDirectory& dir) {
  const auto path = [&dir](const std::string& name) { return dir / name; };
  return {
      [=] { return std::make_shared<io::InputFile>(path("file"), "test"); },
      [=] { return std::make_shared<io::MappedFile>(path("file"), "test"); },
      [=] { return std::make_shared<io::OutputFile>(path("file"), "test"); },
      [=] { return std::make_shared<io::OutputFile>(path("file"), "test", io::OutputFile::Start::append); },
      [=] { return std::make_shared<io::StagedFolder>(path("folder"), "test"); },
      [=] { return std::make_shared<io::CheckpointStore>(path("run")); },
      [=] { return std::make_shared<io::Checkpoint>(path("checkpoint")); },
      [=] { return io::replace_file(path("file"), pieces, "test"), nullptr; },
      [=] { return io::overwrite_start(path("file"), "x", "test"), nullptr; },
      [=] { return io::read_file(path("file"), "test"), nullptr; },
      [=] { return io::sync_directory(path("run"), "test"), nullptr; },
      [=, step = std::int64_t{0}]() mutable {
        return io::CheckpointStore(path("run")).save(++step, 1, files), nullptr;
      }};
}

void fill_folder(const TemporaryDirectory& dir) {
  dir.file("file", all);
  fs::create_directory(dir / "run");
  io::write_checkpoint(dir / "checkpoint", 1, 1, files);
}

// Returns the descriptors of this process that refer to files in the folder.
std::vector<int> descriptors_in(const TemporaryDirectory& dir) {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (fs::read_symlink(entry.path(), error).string().starts_with(dir.path.string()))
      found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

TEST(FileCalls, DescriptorsAreClosedAndNotInherited) {
  const TemporaryDirectory dir;
  fill_folder(dir);
  const std::size_t kept[] = {1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
  std::size_t i = 0;
  for (const auto& open : openings(dir)) {
    const std::shared_ptr<void> opened = open();
    const std::vector<int> now = descriptors_in(dir);
    EXPECT_EQ(now.size(), kept[i]) << i;
    for (const int fd : now) EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC) << i;
    ++i;
  }
  EXPECT_TRUE(descriptors_in(dir).empty());
  // After an error, no file stays open.
  const io::StagedFolder staged(dir / "folder", "test");
  const io::CheckpointStore store(dir / "run");
  fs::create_directories(dir / ".other.unfinished/theirs");
  const auto expect_error = [&](const std::function<void()>& f) {
    EXPECT_NE(error_of(f), "no error");
    EXPECT_EQ(descriptors_in(dir).size(), 2u);
  };
  expect_error([&] { io::StagedFolder(dir / "folder", "test"); });
  expect_error([&] { io::StagedFolder(dir / "other", "test"); });
  expect_error([&] { io::CheckpointStore(dir / "run"); });
  fs::create_directory(dir / "foreign"), fs::create_directory(dir / "foreign/last");
  expect_error([&] { io::CheckpointStore(dir / "foreign"); });
  expect_error([&] { io::read_file(dir / "run", "test"); });
  dir.file("empty", "");
  expect_error([&] { io::MappedFile(dir / "empty", "test"); });
  expect_error([&] { io::write_new_file(dir / "file", pieces, "test"); });
  failures.write = EIO;
  expect_error([&] { io::replace_file(dir / "file", pieces, "test"); });
  expect_error([&] { io::overwrite_start(dir / "file", "x", "test"); });
  expect_error([&] { io::write_new_file(dir / "more", pieces, "test"); });
  failures = {};
}

// A process may have closed its standard input.
TEST(FileCalls, DescriptorZeroIsValid) {
  const TemporaryDirectory dir;
  fill_folder(dir);
  const int kept = ::dup(0);
  ::close(0);
  std::size_t i = 0;
  for (auto& open : openings(dir)) {
    for (const int earlier :
         {0, EWOULDBLOCK, EINTR, ENOENT}) {  // errno of a previous call, which does not matter
      errno = earlier;
      EXPECT_EQ(error_of([&] { open(); }), "no error") << i << ", " << earlier;
      EXPECT_EQ(::fcntl(0, F_GETFD), -1) << i;
    }
    ++i;
  }
  EXPECT_EQ(error_of([&] { io::write_new_file(dir / "new", pieces, "test"); }), "no error");
  const auto file = std::make_shared<io::OutputFile>(dir / "file", "test");
  file->close();
  EXPECT_EQ(::fcntl(0, F_GETFD), -1);
  if (kept >= 0) ::dup2(kept, 0), ::close(kept);
}

TEST(FileCalls, NewFilesHaveThePermissionsOfTheUmask) {
  const TemporaryDirectory dir;
  const mode_t before = ::umask(0);
  for (const mode_t mask : {0, 022, 077}) {
    ::umask(mask);
    const std::string path = dir / std::to_string(mask);
    io::write_new_file(path + "new", pieces, "test");
    io::replace_file(path + "replaced", pieces, "test");
    for (const auto start : {io::OutputFile::Start::empty, io::OutputFile::Start::append})
      io::OutputFile(path + (start == io::OutputFile::Start::empty ? "output" : "appended"), "test", start);
    for (const char* name : {"new", "replaced", "output", "appended"})
      EXPECT_EQ(static_cast<unsigned>(fs::status(path + name).permissions()), 0666u & ~mask) << name;
  }
  ::umask(before);
}

TEST(FileCalls, StreamsAreWrittenInPlace) {
  const TemporaryDirectory dir;
  const FileDescriptor log(::open(dir.file("log", "old ").c_str(), O_RDWR)),
      folder(::open(dir.path.c_str(), O_RDONLY));
  const auto inode = [](const std::string& path) {
    struct stat s {};
    return ::stat(path.c_str(), &s) == 0 ? s.st_ino : 0;
  };
  const auto log_inode = inode(dir / "log");
  std::string expected = "old ";
  const auto expect_stream = [&](const std::string& path) {
    for (const auto existing : {io::Existing::replace, io::Existing::refuse})
      EXPECT_EQ(error_of([&] { io::require_replaceable(path, "test", existing); }), "no error") << path;
    EXPECT_EQ(error_of([&] { io::replace_file(path, pieces, "test"); }), "no error") << path;
    expected += all;
    EXPECT_EQ(io::read_file(dir / "log", "test"), expected) << path;
    EXPECT_EQ(inode(dir / "log"), log_inode);
  };
  for (const std::string base : {"/dev/fd/", "/proc/self/fd/"}) {
    expect_stream(base + std::to_string(log.fd));
    const std::string path = base + std::to_string(folder.fd);
    for (const auto& f : {std::function<void()>([&] { io::require_replaceable(path, "test"); }),
                          {[&] { io::replace_file(path, pieces, "test"); }}})
      EXPECT_EQ(error_of(f),
                "[test] cannot write " + path + ": it is a symbolic link, expected a regular file");
  }
  for (const auto& [number, path] : {std::pair(1, "/dev/stdout"), {2, "/dev/stderr"}}) {
    std::fflush(nullptr);
    const int kept = ::dup(number);
    ::dup2(log.fd, number);
    expect_stream(path);
    ::dup2(kept, number), ::close(kept);
  }
  // Regular files are replaced, also in /dev.
  const std::string shared = "/dev/shm/tg_test_" + std::to_string(::getpid());
  if (::access("/dev/shm", W_OK) == 0) {
    for (int i = 0; i < 2; ++i) {
      const auto before = inode(shared);
      io::replace_file(shared, pieces, "test");
      EXPECT_EQ(io::read_file(shared, "test"), all);
      EXPECT_NE(inode(shared), before);
    }
    EXPECT_NE(error_of([&] { io::require_replaceable(shared, "test", io::Existing::refuse); }), "no error");
    fs::remove(shared);
  }
}

// Runs f in a process of an unprivileged user. Returns the message of the error.
std::string as_nobody(const std::function<void()>& f) {
  return tg::testing::in_child([&] {
    const bool is_root = ::geteuid() == 0;
    const bool is_ready =
        !is_root || (::setresgid(65534, 65534, 65534) == 0 && ::setresuid(65534, 65534, 65534) == 0);
    return is_ready ? error_of(f) : "cannot become another user";
  });
}

TEST(FileCalls, PermissionsAreCheckedBeforehand) {
  const TemporaryDirectory dir;
  fs::permissions(dir.path, fs::perms::all);
  dir.file("file", all);
  const std::string denied = ": " + std::generic_category().message(EACCES);
  const std::string reached = as_nobody([&] {
    if (::access(dir.path.c_str(), W_OK | X_OK) != 0) throw Error("the folder of temporary files is private");
  });
  if (reached != "no error") GTEST_SKIP() << reached;
  const auto require = [](const std::string& path) {
    return as_nobody([&] { io::require_replaceable(path, "test"); });
  };
  fs::create_directory(dir / "sub");
  for (const int mode : {0777, 0555, 0666, 0333}) {  // a new file needs permission to write and to enter
    ::chmod((dir / "sub").c_str(), static_cast<mode_t>(mode));
    const std::string path = dir / "sub/file";
    EXPECT_EQ(require(path),
              mode == 0777 || mode == 0333 ? "no error" : "[test] cannot write " + path + denied)
        << mode;
  }
  ::chmod((dir / "sub").c_str(), 0777);
  // A stream needs only permission to write.
  for (const int mode : {0444, 0222}) {
    ::chmod((dir / "file").c_str(), 0666);
    const FileDescriptor fd(::open((dir / "file").c_str(), O_RDWR));
    ::chmod((dir / "file").c_str(), static_cast<mode_t>(mode));
    const std::string path = "/proc/self/fd/" + std::to_string(fd.fd);
    EXPECT_EQ(require(path), mode == 0222 ? "no error" : "[test] cannot write " + path + denied) << mode;
  }
  EXPECT_EQ(as_nobody([&] { io::read_file(dir / "file", "test"); }),
            "[test] cannot read " + (dir / "file") + denied);
  // A name without a folder belongs to the current folder.
  EXPECT_EQ(as_nobody([&] {
              fs::current_path(dir / "sub");
              io::require_replaceable("file", "test");
              io::replace_file("file", pieces, "test");
              if (io::read_file(dir / "sub/file", "test") != all) throw Error("another content");
            }),
            "no error");
  ::chmod((dir / "sub").c_str(), 0555);
  EXPECT_EQ(as_nobody([&] {
              fs::current_path(dir / "sub");
              io::require_replaceable("name", "test");
            }),
            "[test] cannot write name" + denied);
  EXPECT_EQ(as_nobody([] { io::require_replaceable("/file", "test"); }),
            "[test] cannot write /file" + denied);
  ::chmod((dir / "sub").c_str(), 0777);
}

}  // namespace

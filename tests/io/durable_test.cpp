// Checks that saved files are on the disk when the call returns. After a crash at any time, files must be
// valid. So a file must be synced before it is renamed, and its folder afterward.
#include <gtest/gtest.h>

#include <cstdarg>
#include <filesystem>
#include <functional>
#include <set>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <tilegrad/io/checkpoints/checkpoint_store.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/io/text/text.h>
#include <tilegrad/io/text/token_file.h>
#include <tilegrad/nn/models/model.h>
#include "core/base/file_write.h"
#include "tests/support/files.h"

namespace {

namespace fs = std::filesystem;

// The inodes and paths that still need an fsync(). These are written files, and folders with new names.
// `too_early` lists files that were renamed before their fsync().
std::set<std::pair<ino_t, std::string>> unsynced;
std::vector<std::string> too_early;
bool is_watching = false;

struct stat status_of(int fd) {
  struct stat s {};
  ::fstat(fd, &s);
  return s;
}
ino_t inode_of(const fs::path& path) {
  struct stat s {};
  return ::lstat(path.c_str(), &s) == 0 ? s.st_ino : 0;
}
fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}
void before_rename(const fs::path& from) {
  const auto check = [](const fs::path& path) {
    const auto at = unsynced.lower_bound({inode_of(path), ""});
    if (at != unsynced.end() && at->first == inode_of(path)) too_early.push_back(path.string());
  };
  check(from);
  if (fs::is_symlink(fs::symlink_status(from))) check(folder_of(from));  // the folder of its target
  if (fs::is_directory(fs::symlink_status(from)))
    for (const auto& entry : fs::recursive_directory_iterator(from)) check(entry.path());
}

}  // namespace

// These functions replace the system's functions and call them.
extern "C" ssize_t write(int fd, const void* bytes, std::size_t count) {
  if (is_watching)
    if (const struct stat s = status_of(fd); S_ISREG(s.st_mode))
      unsynced.emplace(s.st_ino, fs::read_symlink("/proc/self/fd/" + std::to_string(fd)).string());
  return ::syscall(SYS_write, fd, bytes, count);
}
extern "C" int open(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  const bool is_new = is_watching && (flags & O_CREAT) != 0 && inode_of(path) == 0;
  const auto fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (is_new && fd >= 0) unsynced.emplace(inode_of(folder_of(path)), path);
  return fd;
}
extern "C" int fsync(int fd) {
  if (is_watching) std::erase_if(unsynced, [&](const auto& u) { return u.first == status_of(fd).st_ino; });
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned flags) noexcept {
  if (is_watching) before_rename(from);
  const long result = ::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  if (is_watching && result == 0) unsynced.emplace(inode_of(folder_of(to)), to);
  return static_cast<int>(result);
}
extern "C" int rename(const char* from, const char* to) noexcept {
  return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

namespace {

using namespace tg;

// Calls f. Returns the files with unsynced bytes or names, and the files that were renamed too early.
std::vector<std::string> faults_of(const std::function<void()>& f) {
  unsynced.clear(), too_early.clear();
  is_watching = true;
  f();
  is_watching = false;
  std::vector<std::string> faults = too_early;
  for (const auto& [inode, path] : unsynced)
    if (inode_of(path) != 0) faults.push_back(path);  // otherwise it was removed
  return faults;
}

TEST(Durable, SavedFilesAreOnTheDisk) {
  using Faults = std::vector<std::string>;
  const tg::testing::TemporaryDirectory dir;
  const std::string_view content = "content";
  for (const char* which : {"a new file", "an old one"})
    EXPECT_EQ(faults_of([&] { io::replace_file(dir / "file", {&content, 1}, "test"); }), Faults{}) << which;
  // After all files of a folder are written, the caller makes their names durable.
  EXPECT_EQ(faults_of([&] { io::write_new_file(dir / "new", {&content, 1}, "test"); }), Faults{dir / "new"});
  EXPECT_EQ(faults_of([&] {
              io::OutputFile file(dir / "output", "test", io::OutputFile::Start::append);
              file.write(content);
              file.sync();
              io::sync_directory(dir.path, "test");
            }),
            Faults{});
  EXPECT_EQ(faults_of([&] {
              text::TokenFileWriter writer(dir / "tokens", text::NumberTokenizer(9));
              writer.write(std::vector<std::int32_t>{1, 2, 3});
              writer.close();
            }),
            Faults{});

  const Parameter p("p", Array::of<float>({2}, {1, 2}));
  const io::CheckpointFile file{"model.safetensors", {p}, {}};
  io::CheckpointStore store(dir / "run");
  for (const std::int64_t step : {1, 2, 3})
    EXPECT_EQ(faults_of([&] {
                store.save(step, std::min<std::int64_t>(step, 2), {&file, 1});
              }),
              Faults{})
        << step;

  const nn::ModelConfig config{.vocabulary = 13, .context = 16, .layers = 1, .heads = 2, .width = 8};
  nn::Params params(1);
  const nn::Model model(params, config);
  EXPECT_EQ(faults_of([&] { nn::save_gguf(dir / "model.gguf", model, config); }), Faults{});
  EXPECT_EQ(faults_of([&] { nn::save_pretrained(dir / "folder", model, config); }), Faults{});
}

// Checks that this test detects a missing sync.
TEST(Durable, WriteWithoutSyncIsDetected) {
  const tg::testing::TemporaryDirectory dir;
  const std::string path = dir.file("x", "");
  const auto writes = [&](bool syncs) {
    const FileDescriptor fd(::open(path.c_str(), O_WRONLY));
    EXPECT_EQ(::write(fd.fd, "abc", 3), 3);
    if (syncs) ::fsync(fd.fd);
    ::rename(path.c_str(), (path + "2").c_str());
  };
  EXPECT_EQ(faults_of([&] { writes(false); }).size(), 2u);  // the file and its folder
  fs::rename(path + "2", path);
  EXPECT_EQ(faults_of([&] { writes(true); }).size(), 1u);
}

}  // namespace

// Tests that folders appear completely or not at all.
#include "io/files/staged_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <optional>

#include <tilegrad/io/checkpoints/checkpoint_store.h>
#include <tilegrad/io/files/file.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;
using tg::testing::TemporaryDirectory;
namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}
using Names = std::vector<std::string>;

void write(const std::string& path, std::string_view content) {
  io::write_new_file(path, {&content, 1}, "test");
}

TEST(StagedFolder, AppearsWithItsFilesWhenItIsPublished) {
  const TemporaryDirectory dir;
  for (const std::string slash : {"", "/", "///"}) {
    io::StagedFolder folder(dir / "new" + slash, "test");
    write(folder.path("a"), "one"), write(folder.path("b"), "two");
    EXPECT_EQ(names_in(dir.path), Names{".new.unfinished"});
    EXPECT_EQ(names_in(dir / ".new.unfinished"), (Names{".unfinished", "a", "b"}));
    EXPECT_EQ(folder.path("a"), dir / ".new.unfinished/a");
    folder.publish();
    EXPECT_EQ(names_in(dir.path), Names{"new"});
    EXPECT_EQ(names_in(dir / "new"), (Names{"a", "b"}));
    fs::remove_all(dir / "new");
  }
}

TEST(StagedFolder, ASingleFileIsPublishedInItsPlace) {
  const TemporaryDirectory dir;
  {
    io::StagedFolder folder(dir / "model.gguf", "test");
    write(folder.path("data"), "one"), write(folder.path("rest"), "two");
    folder.publish_file("data");
    EXPECT_EQ(io::read_file(dir / "model.gguf", "test"), "one");
  }
  EXPECT_EQ(names_in(dir.path), Names{"model.gguf"});
}

TEST(StagedFolder, IsRemovedIfItIsNotPublished) {
  const TemporaryDirectory dir;
  {
    const io::StagedFolder folder(dir / "new", "test");
    write(folder.path("a"), "one");
  }
  EXPECT_TRUE(fs::is_empty(dir.path));
}

// Tests names with and without a parent folder.
TEST(StagedFolder, IsNextToItsFinalFolder) {
  const TemporaryDirectory dir;
  const fs::path before = fs::current_path();
  fs::current_path(dir.path);
  fs::create_directory("sub");
  for (const std::string name : {"new", "./new", "sub/new", "sub/../new"}) {
    io::StagedFolder folder(name, "test");
    const std::string around = name.substr(0, name.rfind('/') + 1);
    EXPECT_EQ(folder.path("x"), around + ".new.unfinished/x");
    EXPECT_TRUE(fs::is_directory(around + ".new.unfinished"));
    folder.publish();
    EXPECT_TRUE(fs::remove(name));
  }
  if (::access("/", W_OK) == 0) {
    const std::string name = "tg_test_" + std::to_string(::getpid());
    io::StagedFolder folder("/" + name, "test");
    EXPECT_EQ(folder.path("x"), "/." + name + ".unfinished/x");
    folder.publish();
    EXPECT_TRUE(fs::remove("/" + name));
  }
  fs::current_path(before);
}

TEST(StagedFolder, NameMustBeUnusedAndValidForAFolder) {
  const TemporaryDirectory dir;
  dir.file("file", "x");
  fs::create_directory(dir / "folder"), fs::create_symlink("nowhere", dir / "link");
  for (const std::string name : {"", ".", "..", "/", "//"}) {
    const std::string path = name.empty() || name[0] == '/' ? name : dir / name;
    EXPECT_EQ(error_of([&] { io::require_new_folder(path, "test"); }),
              "[test] expected the name of a new folder, got '" + path + "'");
  }
  for (const std::string name : {"file", "folder", "folder/", "link"})
    for (const auto& f : {std::function<void()>([&] { io::require_new_folder(dir / name, "test"); }),
                          {[&] { io::StagedFolder(dir / name, "test"); }}})
      EXPECT_EQ(error_of(f).substr(0, 7 + (dir / "link").size()),
                ("[test] " + (dir / name)).substr(0, 7 + (dir / "link").size()));
  EXPECT_EQ(error_of([&] { io::require_new_folder(dir / "folder", "test"); }),
            "[test] " + (dir / "folder") + " exists: choose another name, or remove it first");
  EXPECT_EQ(error_of([&] { io::require_new_folder(dir / "new", "test"); }), "no error");
  EXPECT_EQ(error_of([&] { io::require_new_folder(dir / "a", "test"); }), "no error");
  EXPECT_EQ(error_of([&] { io::StagedFolder(dir / "none/new", "test"); }),
            "[test] cannot create " + (dir / "none/new") + ": No such file or directory");
  dir.file(".in.unfinished", "x");  // a file has the staged folder's name
  EXPECT_EQ(
      error_of([&] { io::StagedFolder(dir / "in", "test"); }).find("[test] cannot create " + (dir / "in")),
      0u);
  EXPECT_EQ(names_in(dir.path), (Names{".in.unfinished", "file", "folder", "link"}));
}

TEST(StagedFolder, AFileCreatedUnderTheNameInTheMeantimeStays) {
  const TemporaryDirectory dir;
  for (const bool is_file : {false, true}) {
    {
      io::StagedFolder folder(dir / "new", "test");
      write(folder.path("a"), "one");
      dir.file("new", "theirs");
      EXPECT_EQ(error_of([&] { is_file ? folder.publish_file("a") : folder.publish(); }),
                "[test] " + (dir / "new") + " exists: choose another name, or remove it first");
      EXPECT_EQ(io::read_file(dir / "new", "test"), "theirs");
      EXPECT_TRUE(fs::exists(folder.path(".unfinished")));
    }
    EXPECT_EQ(names_in(dir.path), Names{"new"});
    fs::remove(dir / "new");
  }
  io::StagedFolder folder(dir / "new", "test");
  EXPECT_EQ(error_of([&] { folder.publish_file("none"); }),
            "[test] cannot create " + (dir / "new") + ": No such file or directory");
}

TEST(StagedFolder, OneProcessAtATimeWritesAFolder) {
  const TemporaryDirectory dir;
  std::optional<io::StagedFolder> first(std::in_place, dir / "new", "test");
  write(first->path("a"), "one");
  EXPECT_EQ(error_of([&] { io::StagedFolder(dir / "new", "test"); }),
            "[test] another process is writing " + (dir / "new"));
  EXPECT_EQ(io::read_file(first->path("a"), "test"), "one");
  const io::StagedFolder other(dir / "another", "test");
  first.reset();
  EXPECT_EQ(error_of([&] { io::StagedFolder(dir / "new", "test"); }), "no error");
}

TEST(StagedFolder, LeftoversOfAKilledProcessAreRemoved) {
  const TemporaryDirectory dir;
  const std::string left = dir / ".new.unfinished";
  for (const bool is_marked : {true, false}) {
    fs::create_directories(left + "/sub");
    write(left + "/a", "one"), write(left + "/sub/b", "two");
    if (is_marked) write(left + "/.unfinished", "");
    const std::string error = error_of([&] {
      io::StagedFolder folder(dir / "new", "test");
      EXPECT_EQ(names_in(left), Names{".unfinished"});
      folder.publish();
    });
    if (is_marked) {
      EXPECT_EQ(error, "no error");
      EXPECT_TRUE(fs::is_empty(dir / "new"));
      fs::remove(dir / "new");
    } else {
      EXPECT_EQ(error, "[test] " + left +
                           " is in the way: no file .unfinished marks it as unfinished; move it away");
      EXPECT_EQ(names_in(left), (Names{"a", "sub"}));
      fs::remove_all(left);
    }
  }
  fs::create_directory(dir / "theirs"), fs::create_symlink("theirs", left);
  EXPECT_EQ(
      error_of([&] { io::StagedFolder(dir / "new", "test"); }).find("[test] cannot create " + (dir / "new")),
      0u);
  EXPECT_TRUE(fs::is_empty(dir / "theirs"));
  fs::remove(left);
  {
    io::StagedFolder folder(dir / "new", "test");
    folder.publish();
    fs::create_directory(left), write(left + "/a", "theirs");  // another process recreates it
  }
  EXPECT_EQ(names_in(left), Names{"a"});
  fs::remove_all(left), fs::remove(dir / "new");
  fs::create_directory(left);  // that process was killed before it created the mark
  io::StagedFolder folder(dir / "new", "test");
  EXPECT_EQ(names_in(left), Names{".unfinished"});
}

TEST(StagedFolder, NothingStaysOpen) {
  const TemporaryDirectory dir;
  const auto open_files = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = open_files();
  std::optional<io::StagedFolder> folder(std::in_place, dir / "new", "test");
  std::optional<io::CheckpointStore> store(dir / "run");
  EXPECT_EQ(open_files(), before + 2);
  EXPECT_THROW(io::StagedFolder(dir / "new", "test"), Error);
  EXPECT_THROW(io::CheckpointStore(dir / "run"), Error) << "another process is training";
  fs::create_directory(dir / ".theirs.unfinished"), dir.file(".theirs.unfinished/a", "x");
  EXPECT_THROW(io::StagedFolder(dir / "theirs", "test"), Error);
  fs::create_directory(dir / "other"), dir.file("other/last", "x");
  EXPECT_THROW(io::CheckpointStore(dir / "other"), Error) << "a file is in the way";
  EXPECT_EQ(open_files(), before + 2);
  folder.reset(), store.reset();
  EXPECT_EQ(open_files(), before);
  io::CheckpointStore(dir / "run");
  EXPECT_EQ(open_files(), before);
}

}  // namespace

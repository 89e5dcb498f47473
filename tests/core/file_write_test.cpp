// Files that are written whole or not at all (core/base/file_write.h): errors, permissions, temporaries.
#include "core/base/file_write.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

struct FileWrite : ::testing::Test {
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

TEST_F(FileWrite, RefusesAllButRegularFiles) {
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
    EXPECT_EQ(error_of([&] { write_all(read_only.fd, "abc", "FILE", "save"); }),
              "[save] cannot write FILE: Bad file descriptor");
    EXPECT_EQ(error_of([&] { write_all(read_only.fd, "", "FILE", "save"); }), "no error");
  }
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (full.fd >= 0) {
    EXPECT_EQ(error_of([&] { write_all(full.fd, "abc", "FILE", "save"); }),
              "[save] cannot write FILE: No space left on device");
  }
  int closed = 987654;  // no file has this number
  EXPECT_EQ(error_of([&] { close_checked(closed, "FILE", "save"); }),
            "[save] cannot write FILE: Bad file descriptor");
  EXPECT_EQ(closed, -1);
  EXPECT_EQ(error_of([&] { sync_directory(path("none"), "save"); }),
            "[save] cannot open the directory " + path("none") + ": No such file or directory");
  EXPECT_EQ(error_of([&] { sync_directory(directory.path.string(), "save"); }), "no error");
}

TEST_F(FileWrite, NewNamesDoNotHideFiles) {
  make("a", "1"), make("b", "2");
  EXPECT_EQ(error_of([&] { rename_new(path("a"), path("b"), "save"); }),
            "[save] cannot create " + path("b") + ": File exists");
  EXPECT_EQ(error_of([&] { rename_new(path("none"), path("c"), "save"); }),
            "[save] cannot create " + path("c") + ": No such file or directory");
  rename_new(path("a"), path("c"), "save");
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
    // The next name is taken: by a process that had this number before.
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

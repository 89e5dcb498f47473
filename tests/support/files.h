// Helpers for tests of files: a temporary folder, and the message of an error.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <tilegrad/core/base/error.h>

namespace tg::testing {

// A temporary folder. It is removed with its contents when the test ends.
struct TemporaryDirectory {
  std::filesystem::path path;
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "tg_test_XXXXXX").string();
    path = mkdtemp(name.data());
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  // Writes a file in the folder and returns its path.
  std::string file(const std::string& name, std::string_view content) const {
    std::ofstream(path / name, std::ios::binary) << content;
    return *this / name;
  }
};

// Returns the message of the tg::Error that f throws, or "no error".
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace tg::testing

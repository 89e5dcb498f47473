// Runs a target on its corpus, without libFuzzer. The arguments are the files of the corpus. The inputs are
// these files, all their prefixes, and copies in which one byte is replaced. The new byte is one that parsers
// treat specially.
#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include <tilegrad/io/files/file.h>
#include "tests/fuzz/target.h"

namespace {

std::size_t run(const std::string& bytes) {
  // The input is on the heap without spare bytes, so that the address sanitizer detects reads past the end.
  const std::vector<char> exact(bytes.begin(), bytes.end());
  fuzz_one({exact.data(), exact.size()});
  return 1;
}

std::size_t run_variants(std::string bytes) {
  std::size_t runs = run(bytes);
  for (std::size_t n = 0; n < bytes.size(); ++n) runs += run(bytes.substr(0, n));
  constexpr std::string_view replacements("\0\x01\x7f\x80\xff\"\\{}[],:-0 9e", 18);
  for (char& byte : bytes) {
    const char kept = byte;
    for (const char other : replacements) {
      byte = other;
      runs += run(bytes);
    }
    byte = kept;
  }
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS\n", argv[0]);
    return 2;
  }
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1]))
    files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  std::size_t runs = 0;
  for (const std::string& file : files) {
    try {
      runs += run_variants(tg::io::read_file(file, "replay"));
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s: %s\n", file.c_str(), e.what());
      return 1;
    }
  }
  std::printf("%zu files, %zu runs\n", files.size(), runs);
  return files.empty() ? 1 : 0;
}

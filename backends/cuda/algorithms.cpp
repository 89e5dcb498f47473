#include "backends/cuda/algorithms.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "backends/cuda/cache.h"

namespace tg::cuda {

namespace {

using Key = std::array<std::uint64_t, 2>;
using Words = std::array<std::uint64_t, sizeof(cublasLtMatmulAlgo_t) / 8>;

std::string hex(std::uint64_t x) {
  char s[20];
  std::snprintf(s, sizeof s, "%016" PRIx64, x);
  return s;
}

// A line is the key's two words and the algorithm's eight, in hexadecimal.
class Memory {
 public:
  explicit Memory(const Gpu& gpu) {
    const std::filesystem::path folder = cache_folder();
    if (folder.empty()) return;
    path_ = folder / ("matmul-sm" + std::to_string(gpu.capability) + "-" + std::to_string(gpu.processors) +
                      "-" + std::to_string(cublasLtGetVersion()));
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      std::istringstream in(line);
      in >> std::hex;
      Key key;
      Words words;
      for (std::uint64_t& w : key) in >> w;
      for (std::uint64_t& w : words) in >> w;
      if (in) chosen_.emplace(key, words);  // the first entry holds
    }
  }
  std::optional<Words> find(const Key& key) const {
    const auto at = chosen_.find(key);
    return at == chosen_.end() ? std::nullopt : std::optional(at->second);
  }
  void add(const Key& key, const Words& words) {
    if (!chosen_.insert_or_assign(key, words).second || path_.empty()) return;
    std::string line;
    for (std::uint64_t w : key) line += hex(w) + " ";
    for (std::uint64_t w : words) line += hex(w) + " ";
    line.back() = '\n';
    if (std::FILE* file = std::fopen(path_.c_str(), "a")) {  // whole lines, also from several processes
      std::fwrite(line.data(), 1, line.size(), file);
      std::fclose(file);
    }
  }

 private:
  std::filesystem::path path_;
  std::map<Key, Words> chosen_;
};

std::mutex mutex;

Memory& memory_of(const Gpu& gpu) {
  static std::map<int, Memory> memories;  // by ordinal
  return memories.try_emplace(gpu.ordinal, gpu).first->second;
}

}  // namespace

std::optional<cublasLtMatmulAlgo_t> known_algorithm(const Key& key, const Gpu& gpu) {
  const std::lock_guard lock(mutex);
  const std::optional<Words> words = memory_of(gpu).find(key);
  if (!words) return std::nullopt;
  cublasLtMatmulAlgo_t algorithm;
  std::memcpy(&algorithm, words->data(), sizeof algorithm);
  return algorithm;
}

void keep_algorithm(const Key& key, const Gpu& gpu, const cublasLtMatmulAlgo_t& algorithm) {
  Words words;
  std::memcpy(words.data(), &algorithm, sizeof algorithm);
  const std::lock_guard lock(mutex);
  memory_of(gpu).add(key, words);
}

}  // namespace tg::cuda

#include "backends/cuda/gemm/algorithms.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

#include "backends/cuda/jit/code.h"
#include "backends/cuda/runtime/check.h"
#include "core/run/ranks.h"

namespace tg::cuda {

namespace {

// The choices for one GPU, in memory and in the file of this GPU. A line of the file is a key (two words) and
// an algorithm (eight words), in hexadecimal.
class AlgorithmCache {
 public:
  std::set<ChoiceKey> shared;  // choices that all ranks received from rank 0

  explicit AlgorithmCache(const Gpu& gpu) {
    const std::filesystem::path folder = cache_folder();
    if (folder.empty()) return;
    path_ = folder / ("matmul-sm" + std::to_string(gpu.capability) + "-" + std::to_string(gpu.processors) +
                      "-" + std::to_string(cublasLtGetVersion()));
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      std::istringstream in(line);
      in >> std::hex;
      ChoiceKey key;
      SavedChoice bits;
      for (std::uint64_t& w : key) in >> w;
      for (std::uint64_t& w : bits) in >> w;
      if (in) chosen_.emplace(key, bits);  // the first entry of a key is used
    }
  }
  std::optional<SavedChoice> find(const ChoiceKey& key) const {
    const auto at = chosen_.find(key);
    return at == chosen_.end() ? std::nullopt : std::optional(at->second);
  }
  // Ranks other than 0 do not append to the file, because all ranks receive rank 0's choices.
  void add(const ChoiceKey& key, const SavedChoice& bits, bool is_saved) {
    if (!chosen_.insert_or_assign(key, bits).second || !is_saved || path_.empty()) return;
    std::string line;
    for (std::uint64_t w : key) line += hexadecimal(w) + " ";
    for (std::uint64_t w : bits) line += hexadecimal(w) + " ";
    line.back() = '\n';
    if (std::FILE* file = std::fopen(path_.c_str(), "a")) {  // appends keep lines of several processes intact
      std::fwrite(line.data(), 1, line.size(), file);
      std::fclose(file);
    }
  }

 private:
  std::filesystem::path path_;
  std::map<ChoiceKey, SavedChoice> chosen_;
};

std::mutex mutex;
thread_local Communicator* ranks = nullptr;

AlgorithmCache& cache_of(const Gpu& gpu) {
  static auto& caches = *new std::map<int, AlgorithmCache>;  // by device ordinal
  return caches.try_emplace(gpu.ordinal, gpu).first->second;
}

// Returns rank 0's choice on all ranks.
std::optional<SavedChoice> of_first_rank(const std::optional<SavedChoice>& own) {
  struct Shown {
    std::uint64_t is_there;
    SavedChoice bits;
  };
  const Shown shown = gather_one(*ranks, Shown{own.has_value(), own.value_or(SavedChoice{})})[0];
  return shown.is_there ? std::optional(shown.bits) : std::nullopt;
}

}  // namespace

SharedChoices::SharedChoices(Communicator* of) {
  ranks = of;
}
SharedChoices::~SharedChoices() {
  ranks = nullptr;
}

std::optional<SavedChoice> known_choice(const ChoiceKey& key, const Gpu& gpu) {
  const std::lock_guard lock(mutex);
  AlgorithmCache& cache = cache_of(gpu);
  std::optional<SavedChoice> bits = cache.find(key);
  if (!ranks || cache.shared.contains(key)) return bits;
  bits = of_first_rank(bits);
  if (bits) cache.add(key, *bits, false), cache.shared.insert(key);
  return bits;
}

std::optional<SavedChoice> save_choice(const ChoiceKey& key, const Gpu& gpu,
                                       std::optional<SavedChoice> bits) {
  const std::lock_guard lock(mutex);
  AlgorithmCache& cache = cache_of(gpu);
  if (ranks) bits = of_first_rank(bits);
  if (bits) cache.add(key, *bits, !ranks || ranks->rank() == 0);
  if (bits && ranks) cache.shared.insert(key);
  return bits;
}

bool is_same_algorithm(const cublasLtMatmulAlgo_t& a, const SavedChoice& choice) {
  const auto b = std::bit_cast<cublasLtMatmulAlgo_t>(choice);
  const auto value = [](const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t what) {
    std::uint32_t v = 0;  // value of two or four bytes
    std::size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&algorithm, what, &v, sizeof v, &written);
    return v;
  };
  constexpr std::array all{CUBLASLT_ALGO_CONFIG_ID,
                           CUBLASLT_ALGO_CONFIG_TILE_ID,
                           CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                           CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                           CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
                           CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
                           CUBLASLT_ALGO_CONFIG_STAGES_ID,
                           CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID,
                           CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID};
  return std::ranges::all_of(all, [&](auto what) { return value(a, what) == value(b, what); });
}

Stopwatch::Stopwatch() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  check(cudaEventCreate(&start_), "an event");
  check(cudaEventCreate(&end_), "an event");
}

Stopwatch::~Stopwatch() {
  if (start_) cudaEventDestroy(start_);
  if (end_) cudaEventDestroy(end_);
  if (stream_) cudaStreamDestroy(stream_);
}

float Stopwatch::time(const std::function<void()>& launch, float best) const {
  float least = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 3; ++round) {
    cudaEventRecord(start_, stream_);
    for (int i = 0; i < 3; ++i) launch();
    cudaEventRecord(end_, stream_);
    float ms = 0;
    if (cudaEventSynchronize(end_) != cudaSuccess || cudaEventElapsedTime(&ms, start_, end_) != cudaSuccess)
      break;
    least = std::min(least, ms), best = std::min(best, ms);
    if (ms > 1.2f * best) break;
  }
  return least;
}

}  // namespace tg::cuda

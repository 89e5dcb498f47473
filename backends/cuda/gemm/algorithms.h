// Caches which cuBLASLt algorithm is fastest for each matmul, and whether one of our kernels is faster than
// several steps. The cache is saved to a file, so later runs choose the same algorithms and are bitwise
// identical. There is one file for each GPU model and cuBLASLt version, in $XDG_CACHE_HOME/tilegrad (or
// ~/.cache/tilegrad). If it cannot be written, choices last for the life of the process. This header also has
// the stopwatch that compares launches.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include <tilegrad/core/run/communicator.h>
#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// A choice: the bytes of an algorithm, or a flag in the first word.
using SavedChoice = std::array<std::uint64_t, sizeof(cublasLtMatmulAlgo_t) / 8>;
using ChoiceKey = std::array<std::uint64_t, 2>;

std::optional<SavedChoice> known_choice(const ChoiceKey& key, const Gpu& gpu);
// Saves a choice and returns the choice to use. nullopt means that there was no memory to time any algorithm.
std::optional<SavedChoice> save_choice(const ChoiceKey& key, const Gpu& gpu,
                                       std::optional<SavedChoice> choice);

// While an instance exists, this thread uses rank 0's choices. All ranks must then make the same choices in
// the same order. Otherwise two GPUs of the same model might measure different algorithms as fastest, and
// results would differ bitwise between ranks. `ranks` is null if there is only one rank.
class SharedChoices {
 public:
  explicit SharedChoices(Communicator* ranks);
  ~SharedChoices();
  SharedChoices(const SharedChoices&) = delete;
};

// Whether the choice is this algorithm. Comparing bytes is not enough, because cuBLASLt leaves some bytes
// uninitialized.
bool is_same_algorithm(const cublasLtMatmulAlgo_t& a, const SavedChoice& choice);

// Times launches, to choose the fastest of several kernels for a step.
class Stopwatch {
 public:
  Stopwatch();
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  cudaStream_t stream() const { return stream_; }  // the stream of the launches
  // Returns the shortest of three rounds of three launches, in ms. Stops after a round longer than 1.2 ×
  // `best`. Returns infinity if the launches failed.
  float time(const std::function<void()>& launch, float best) const;

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

}  // namespace tg::cuda

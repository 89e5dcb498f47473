// A cache of the fastest cuBLASLt algorithm for each matmul, and of whether a kernel of our own is faster
// than several steps'. It is saved to a file, so that later runs choose the same algorithm and give the same
// bits: in $XDG_CACHE_HOME/tilegrad (or ~/.cache/tilegrad), one file for each kind of GPU and version of
// cuBLASLt. If the file cannot be written, choices last as long as the process. And the stopwatch that
// compares launches.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include <tilegrad/core/run/communicator.h>
#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// A choice: an algorithm's bytes, or whether something was chosen, in the first word.
using SavedChoice = std::array<std::uint64_t, sizeof(cublasLtMatmulAlgo_t) / 8>;
using ChoiceKey = std::array<std::uint64_t, 2>;

std::optional<SavedChoice> known_choice(const ChoiceKey& key, const Gpu& gpu);
// Returns what is to be used. None: there was no memory to time any.
std::optional<SavedChoice> save_choice(const ChoiceKey& key, const Gpu& gpu,
                                       std::optional<SavedChoice> choice);

// While one exists, this thread's choices are those of rank 0, which all ranks must make in the same order:
// two GPUs of a kind may find different algorithms the fastest, and then ranks would have different bits.
// Null: there is one rank.
class SharedChoices {
 public:
  explicit SharedChoices(Communicator* ranks);
  ~SharedChoices();
  SharedChoices(const SharedChoices&) = delete;
};

// Whether the choice is this algorithm. Their bytes do not say: cuBLASLt leaves whatever was in memory in
// some of them.
bool is_same_algorithm(const cublasLtMatmulAlgo_t& a, const SavedChoice& choice);

// Times launches, to choose the fastest of several kernels for a step.
class Stopwatch {
 public:
  Stopwatch();
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  cudaStream_t stream() const { return stream_; }  // that of the launches
  // The shortest of three rounds of three launches, in ms; it ends after a round that took 1.2 times `best`.
  // Infinity if they failed.
  float time(const std::function<void()>& launch, float best) const;

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

}  // namespace tg::cuda

// KvCache: keys and values of the tokens that a model has read, so that each further token costs one row of
// everything except attention's reads. Its tensors are parameters that programs extend at the end of a run.
#pragma once

#include <map>

#include <tilegrad/core/compile/compile.h>

namespace tg::nn {

class KvCache {
 public:
  // Room for `capacity` tokens in each of `batch` rows. A tensor is allocated when the first graph extends
  // it. Throws ShapeError for sizes that are not positive.
  KvCache(std::int64_t batch, std::int64_t capacity, Device device = Device::cpu());
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  std::int64_t batch() const { return batch_; }
  std::int64_t capacity() const { return capacity_; }
  std::size_t bytes() const;
  const std::map<std::string, Parameter>& tensors() const { return tensors_; }  // [batch, heads, capacity, n]

 private:
  friend class CacheCall;
  std::int64_t batch_, capacity_;
  Device device_;
  std::map<std::string, Parameter> tensors_;
};

// One call of a model on the tokens that follow those in a cache: attention layers append to the cache and
// read all of it. The number of tokens already cached is an input, so one program serves every position in a
// text.
class CacheCall {
 public:
  // `length` new tokens in each row. The graph gets the input "cached" (i32 [1]); a run in which cached +
  // length exceeds the capacity fails with an Error. Throws ShapeError for a length outside 1 … capacity.
  CacheCall(Graph& graph, KvCache& cache, std::int64_t length);

  const Tensor& cached() const { return cached_; }        // i32 [1], to be fed: tokens in the cache so far
  const Tensor& positions() const { return positions_; }  // i32 [length]: of the new tokens
  const Tensor& lengths() const { return lengths_; }  // i32 [batch]: cached + length, flash_attn's kv_lengths

  // Throws ShapeError for x [batch, length, …] of another batch or length than the call's.
  void check(TensorArg x) const;
  // Appends rows [batch, heads, length, n] to the cache's tensor of this name and returns all of it, [batch,
  // heads, capacity, n], of which the first lengths() tokens are valid.
  Tensor append(const std::string& name, TensorArg rows);
  // For CompileOptions::assign: compile() throws Error for a program that computes an append() but does not
  // assign it.
  const std::vector<Assign>& assign() const { return assign_; }

 private:
  KvCache& cache_;
  Tensor cached_, positions_, lengths_;
  std::vector<Assign> assign_;
};

}  // namespace tg::nn

#include <tilegrad/nn/layers/kv_cache.h>

#include <limits>
#include <numeric>

#include <tilegrad/ops/ops.h>

namespace tg::nn {

KvCache::KvCache(std::int64_t batch, std::int64_t capacity, Device device)
    : batch_(batch), capacity_(capacity), device_(device) {
  if (batch < 1 || capacity < 1 || capacity > std::numeric_limits<std::int32_t>::max())
    throw ShapeError("[kv_cache] expected a positive batch and a capacity of 1 to 2^31 - 1, got " +
                     std::to_string(batch) + " and " + std::to_string(capacity));
}

std::size_t KvCache::bytes() const {
  std::size_t n = 0;
  for (const auto& [name, tensor] : tensors_) n += tensor.bytes();
  return n;
}

CacheCall::CacheCall(Graph& graph, KvCache& cache, std::int64_t length)
    : cache_(cache), cached_(graph.input("cached", {1}, i32)) {
  if (length < 1 || length > cache.capacity())
    throw ShapeError("[kv_cache] a call of " + std::to_string(length) +
                     " tokens, expected 1 to the capacity " + std::to_string(cache.capacity()));
  const Scope scope("cache");
  std::vector<std::int32_t> steps(static_cast<std::size_t>(length));
  std::iota(steps.begin(), steps.end(), 0);
  positions_ = cached_ + graph.constant(Array::of(steps));
  lengths_ = expand(cached_, {cache.batch()}) + length;
}

void CacheCall::check(TensorArg x) const {
  const Shape& shape = x.tensor().shape();
  const std::int64_t length = positions_.size(0);
  if (shape.size() < 2 || shape[0] != cache_.batch() || shape[1] != length)
    throw ShapeError(in_context("[kv_cache] the call is for " + std::to_string(length) +
                                    " tokens in each of " + std::to_string(cache_.batch()) + " rows, got " +
                                    x.tensor().text(),
                                x.where()));
}

Tensor CacheCall::append(const std::string& name, TensorArg in) {
  const Scope scope("cache", in.where());
  const Tensor& rows = in.tensor();
  if (rows.rank() != 4 || rows.size(0) != cache_.batch() || rows.size(2) != positions_.size(0))
    throw ShapeError(in_context("[kv_cache] expected rows [" + std::to_string(cache_.batch()) + ", heads, " +
                                    std::to_string(positions_.size(0)) + ", n] of " + name + ", got " +
                                    rows.text(),
                                in.where()));
  const Shape shape{rows.size(0), rows.size(1), cache_.capacity(), rows.size(3)};
  auto place = cache_.tensors_.find(name);
  if (place == cache_.tensors_.end())
    place =
        cache_.tensors_.emplace(name, Parameter("cache." + name, Array(shape, rows.dtype()), cache_.device_))
            .first;
  const Parameter& held = place->second;
  if (held.shape() != shape || held.dtype() != rows.dtype())
    throw ShapeError(in_context(
        "[kv_cache] " + name + " holds " + held.shape().text() + ", which does not fit rows " + rows.text(),
        in.where()));
  const Tensor extended = slice_assign(rows.graph().param(held), rows, 2, cached_);
  assign_.push_back({held, extended});
  rows.graph().must_assign(held, extended);
  return extended;
}

}  // namespace tg::nn

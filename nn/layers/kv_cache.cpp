#include <tilegrad/nn/layers/kv_cache.h>

#include <limits>

#include <tilegrad/nn/layers/context_parallel.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();

// Returns the constant 0, step, 2·step, ….
Tensor multiples(Graph& graph, const Shape& shape, std::int64_t step) {
  Array a(shape, i32);
  for (std::int64_t i = 0; i < a.numel(); ++i)
    a.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * step);
  return graph.constant(a);
}

}  // namespace

KvCache::KvCache(std::int64_t pages, std::int64_t page_size, Device device, std::optional<DType> dtype)
    : pages_(pages), page_size_(page_size), device_(device), dtype_(dtype) {
  if (dtype && !is_float(*dtype))
    throw DTypeError("[kv_cache] expected a floating dtype, got " + std::string(name_of(*dtype)));
  if (pages < 1 || page_size < 1 || pages > largest / page_size)
    throw ShapeError(
        "[kv_cache] expected positive numbers of pages and of tokens in a page, of 2^31 - 1 "
        "tokens at most, got " +
        std::to_string(pages) + " and " + std::to_string(page_size));
}

std::size_t KvCache::bytes() const {
  std::size_t n = 0;
  for (const auto& [name, tensor] : tensors_) n += tensor.bytes();
  return n;
}

CacheCall::CacheCall(Graph& graph, KvCache& cache, std::int64_t length)
    : cache_(cache), cached_(graph.input("cached", {cache.pages()}, i32)) {
  if (length < 1 || length > cache.page_size())
    throw ShapeError("[kv_cache] a call of " + std::to_string(length) + " tokens, expected 1 to " +
                     std::to_string(cache.page_size()) + ", the size of a page");
  const Scope scope("cache");
  const std::int64_t sequences = cache.pages(), size = cache.page_size();
  const Tensor first = view(cached_, {sequences, 1});
  positions_ = first + multiples(graph, {1, length}, 1);
  lengths_ = cached_ + length;
  // A token beyond its page gets an invalid row, which index_assign rejects.
  const Tensor row = multiples(graph, {sequences, 1}, size) + positions_;
  rows_ = where(less(positions_, size), row, sequences * size);
}

CacheCall::CacheCall(Graph& graph, KvCache& cache, const InPages& call) : cache_(cache), parts_(call) {
  const auto refuse = [&] {
    throw ShapeError("[kv_cache] a call of " + std::to_string(call.singles) + " tokens and of " +
                     std::to_string(call.groups) + " groups of " + std::to_string(call.length) +
                     " with room for " + std::to_string(call.room) + " pages, expected positive sizes");
  };
  if (call.singles < 0 || call.groups < 0 || call.length < 1 || call.room < 1) refuse();
  if (call.singles > largest || call.groups > largest / call.length) refuse();
  const std::int64_t rows = call.singles + call.groups * call.length, entries = call.singles + call.groups;
  if (rows == 0) refuse();
  rows_ = graph.input("rows", {rows, 1}, i32);
  positions_ = graph.input("positions", {rows, 1}, i32);
  lengths_ = graph.input("lengths", {entries}, i32);
  table_ = graph.input("table", {entries, call.room}, i32);
}

void CacheCall::check(TensorArg x) const {
  if (ContextParallel::ranks(x.tensor().graph()) > 1)
    throw Error(in_context("[kv_cache] sequences that are divided among ranks have no cache", x.where()));
  const Shape &shape = x.tensor().shape(), &call = positions_.shape();
  if (shape.size() < 2 || shape[0] != call[0] || shape[1] != call[1])
    throw ShapeError(in_context("[kv_cache] the call is for " + std::to_string(call[1]) +
                                    " tokens in each of " + std::to_string(call[0]) + " sequences, got " +
                                    x.tensor().text(),
                                x.where()));
}

CacheCall::Rows CacheCall::rows_of(const std::string& name, const TensorArg& in) {
  const Scope scope("cache", in.where());
  const Tensor x = cache_.dtype_ ? cast(in, *cache_.dtype_) : in.tensor();
  const Shape& call = positions_.shape();
  if (x.rank() != 4 || x.size(0) != call[0] || x.size(2) != call[1])
    throw ShapeError(in_context("[kv_cache] expected " + name + " [" + std::to_string(call[0]) + ", heads, " +
                                    std::to_string(call[1]) + ", n], got " + x.text(),
                                in.where()));
  const Shape shape{cache_.pages() * cache_.page_size(), x.size(1), x.size(3)};
  auto place = cache_.tensors_.find(name);
  if (place == cache_.tensors_.end())
    place = cache_.tensors_.emplace(name, Parameter("cache." + name, Array(shape, x.dtype()), cache_.device_))
                .first;
  const Parameter& held = place->second;
  if (held.shape() != shape || held.dtype() != x.dtype())
    throw ShapeError(in_context(
        "[kv_cache] " + name + " holds " + held.shape().text() + ", which does not fit rows " + x.text(),
        in.where()));
  return {held, transpose(x, 1, 2)};
}

// Appends the new rows to the tensors. Tensors of the same dtype need one step.
std::vector<Tensor> CacheCall::append(const std::vector<Rows>& tensors) {
  const Scope scope("cache");
  std::vector<Tensor> held, added;
  for (const Rows& r : tensors) {
    held.push_back(r.added.graph().param(r.held));
    added.push_back(r.added);
  }
  const std::vector<Tensor> extended = index_assign_each(held, 0, rows_, added);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    assign_.push_back({tensors[i].held, extended[i]});
    added[i].graph().must_assign(tensors[i].held, extended[i]);
  }
  return extended;
}

// Computes attention for single tokens, then for groups. All rows of q [rows, H, 1, d] in a group belong to
// one sequence.
Tensor CacheCall::attention_in_pages(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const PagedAttentionOptions& o) const {
  const auto [singles, groups, length, room] = parts_;
  const std::int64_t rows = q.size(0), heads = q.size(1), entries = singles + groups;
  std::vector<Tensor> parts;
  if (singles > 0)
    parts.push_back(paged_attn(slice(q, 0, 0, singles), k, v, slice(table_, 0, 0, singles),
                               slice(lengths_, 0, 0, singles), o)
                        .o);
  if (groups > 0) {
    const Tensor of_groups = transpose(
        reshape(transpose(slice(q, 0, singles, rows), 1, 2), {groups, length, heads, q.size(3)}), 1, 2);
    const Tensor out = paged_attn(of_groups, k, v, slice(table_, 0, singles, entries),
                                  slice(lengths_, 0, singles, entries), o)
                           .o;  // [groups, H, length, dv]
    parts.push_back(transpose(reshape(transpose(out, 1, 2), {groups * length, 1, heads, out.size(3)}), 1, 2));
  }
  return parts.size() == 1 ? parts[0] : concat(parts, 0);
}

// Shapes: k [rows of the cache, Hk, d], v [rows of the cache, Hk, dv].
Tensor CacheCall::attention(const Tensor& in, const Tensor& k, const Tensor& v,
                            const PagedAttentionOptions& o) const {
  const auto in_pages = [&](const Tensor& rows) {
    return view(rows, {cache_.pages(), cache_.page_size(), rows.size(1), rows.size(2)});
  };
  const Tensor q = cast(in, k.dtype());
  const Tensor result = table_.defined()
                            ? attention_in_pages(q, in_pages(k), in_pages(v), o)
                            : flash_attn(q, transpose(in_pages(k), 1, 2), transpose(in_pages(v), 1, 2),
                                         {.scale = o.scale,
                                          .causal = true,
                                          .window_left = o.window_left,
                                          .softcap = o.softcap,
                                          .sink = o.sink,
                                          .kv_lengths = lengths_})
                                  .o;
  return cast(result, in.dtype());
}

Tensor CacheCall::attend(const std::string& name, TensorArg q, TensorArg k, TensorArg v,
                         const PagedAttentionOptions& options) {
  const Scope scope(q);
  const Rows keys = rows_of(name + ".k", k), values = rows_of(name + ".v", v);
  std::vector<Tensor> extended;
  if (keys.added.dtype() == values.added.dtype())
    extended = append({keys, values});
  else
    extended = {append({keys})[0], append({values})[0]};
  return attention(q.tensor(), extended[0], extended[1], options);
}

Tensor CacheCall::attend(const std::string& name, TensorArg q, TensorArg k, std::int64_t value_width,
                         const PagedAttentionOptions& options) {
  const Scope scope(q);
  if (k.tensor().rank() > 0 && (value_width < 1 || value_width > k.tensor().size(-1)))
    throw ShapeError(in_context("[kv_cache] the first " + std::to_string(value_width) +
                                    " numbers of a key as its value, of keys " + k.tensor().text(),
                                k.where()));
  const Tensor keys = append({rows_of(name, k)})[0];
  return attention(q.tensor(), keys, slice(keys, 2, 0, value_width), options);
}

}  // namespace tg::nn

#include <tilegrad/nn/optimizers/shards.h>

#include <algorithm>

#include <tilegrad/ops/ops.h>
#include <tilegrad/ops/ranks.h>

namespace tg::optim::detail {

namespace {

// Returns the number of leading elements that are divided among ranks. Each rank gets complete blocks.
std::int64_t divided(std::int64_t elements, int ranks) {
  constexpr int most = 16;
  const std::int64_t granule = norm_block * (most % ranks == 0 ? most : ranks);
  return elements / granule * granule;
}

Tensor flat(const Tensor& x) {
  return reshape(x, {x.numel()});
}

std::size_t bytes_of(const Tensor& x) {
  return static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
}

// Reduces gradients, in f32 for 16-bit types. An early reduction combines adjacent parameters until they have
// a quarter of all bytes, or 16 MiB. Transferring that amount takes longer than the fixed cost of a separate
// step.
TensorList scattered(const TensorList& gradients, int ranks, bool early) {
  std::size_t enough = SIZE_MAX, bytes = 0;
  if (early) {
    for (const Tensor& z : gradients) bytes += bytes_of(z);
    enough = std::min(std::size_t{16} << 20, bytes / 4);
    bytes = 0;
  }
  TensorList sums, some;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    some.push_back(gradients[i]);
    bytes += bytes_of(gradients[i]);
    if (i + 1 < gradients.size() && bytes < enough) continue;
    for (const Tensor& s : reduce_scatter(some, ranks, 0, {.wide = true})) sums.push_back(s);
    some.clear(), bytes = 0;
  }
  return sums;
}

}  // namespace

bool is_by_copy(const WeightReading& r, std::size_t place) {
  return !r.only_copies.empty() && r.only_copies[place];
}

std::optional<DType> copy_type(const WeightReading& r, std::size_t place) {
  if (r.copies.empty() || !r.copies[place].key()) return std::nullopt;
  return r.copies[place].dtype();
}

Shards::Shards(std::vector<Parameter> parameters, std::shared_ptr<Communicator> ranks,
               const std::function<bool(const Parameter&)>& is_divisible)
    : parameters_(std::move(parameters)), ranks_(std::move(ranks)) {
  const int n = ranks_count();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    const std::int64_t all = numel(p.shape());
    const std::int64_t first = n > 1 && (!is_divisible || is_divisible(p)) ? divided(all, n) : 0;
    if (first == 0) {
      list_.push_back({i, Shard::Kind::whole, 0, all});
      continue;
    }
    list_.push_back({i, Shard::Kind::piece, first / n * ranks_->rank(), first / n});
    if (first < all) list_.push_back({i, Shard::Kind::rest, first, all - first});
  }
  for (const Shard& s : list_)
    parts_.push_back(s.kind == Shard::Kind::whole ? Parameter()
                                                  : parameters_[s.place].part(s.first, s.count));
}

Shape Shards::shape_of(std::size_t shard) const {
  const Shard& s = list_[shard];
  return s.kind == Shard::Kind::whole ? parameters_[s.place].shape() : Shape{s.count};
}

Tensor Shards::slice_of(const Tensor& x, std::size_t shard) const {
  const Shard& s = list_[shard];
  return s.kind == Shard::Kind::whole ? x : slice(flat(x), 0, s.first, s.first + s.count);
}

Shards::Sums Shards::sums(const Tensor& loss, const std::vector<Tensor>& gradients, bool early) const {
  if (ranks_count() == 1) return {loss, gradients};
  TensorList divided, others;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const Tensor& z = gradients[list_[i].place];
    if (list_[i].kind == Shard::Kind::piece)
      divided.push_back(slice(flat(z), 0, 0, list_[i].count * ranks_count()));
    else
      others.push_back(slice_of(z, i));
  }
  others.push_back(loss);
  const ReduceOptions wide{.wide = true};
  if (!divided.empty()) divided = scattered(divided, ranks_count(), early);
  others = all_reduce(others, ranks_count(), wide);
  Sums sums{others.back(), {}};
  auto next_piece = divided.begin(), next = others.begin();
  for (const Shard& s : list_)
    sums.gradients.push_back(s.kind == Shard::Kind::piece ? *next_piece++ : *next++);
  return sums;
}

// Even with one rank, the divided elements and the remaining elements are two tensors of blocks. The order of
// additions in global_norm depends on its tensor list, so the list must be the same for every number of
// ranks.
Tensor Shards::norm(const std::vector<Tensor>& gradients) const {
  TensorList parts, pieces;
  std::vector<bool> is_piece;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const Tensor z = flat(gradients[i]);
    const std::int64_t n = z.numel();
    const bool is_whole = list_[i].kind == Shard::Kind::whole;
    if (const std::int64_t first = is_whole ? divided(n, ranks_count()) : 0; first > 0 && first < n) {
      parts.insert(parts.end(), {slice(z, 0, 0, first), slice(z, 0, first, n)});
      is_piece.insert(is_piece.end(), {false, false});
    } else {
      parts.push_back(z), is_piece.push_back(list_[i].kind == Shard::Kind::piece);
    }
  }
  parts = block_norms(parts);
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (is_piece[i]) pieces.push_back(parts[i]);
  if (!pieces.empty()) pieces = all_gather(pieces, ranks_count());
  auto next = pieces.begin();
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (is_piece[i]) parts[i] = *next++;
  return global_norm(parts);
}

std::vector<Tensor> Shards::weights(Graph& graph, const WeightReading& reading) const {
  std::vector<Tensor> all;
  for (std::size_t i = 0; i < list_.size(); ++i)
    all.push_back(parts_[i].key() && is_by_copy(reading, list_[i].place)
                      ? graph.param(parts_[i])
                      : slice_of(graph.param(parameter_of(i)), i));
  return all;
}

std::vector<Tensor> Shards::joined(const std::vector<Tensor>& by_shard) const {
  TensorList pieces;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (!by_shard[i].defined() || list_[i].kind != Shard::Kind::piece) continue;
    // The shards consist of complete rows, so that the gather writes directly to the parameter.
    Shape rows = parameter_of(i).shape();
    const bool is_all = !has_rest(i) && rows[0] % ranks_count() == 0;
    rows[0] /= ranks_count();
    pieces.push_back(is_all ? view(by_shard[i], rows) : by_shard[i]);
  }
  if (!pieces.empty()) pieces = all_gather(pieces, ranks_count());
  std::vector<Tensor> all(parameters_.size());
  auto next = pieces.begin();
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (!by_shard[i].defined()) continue;
    Tensor& x = all[list_[i].place];
    if (list_[i].kind == Shard::Kind::piece)
      x = *next++;
    else
      x = concat({x, by_shard[i]}, 0);
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].defined() && all[i].shape() != parameters_[i].shape())
      all[i] = view(all[i], parameters_[i].shape());
  return all;
}

void Shards::assign(const std::vector<NewWeight>& news, const WeightReading& reading,
                    std::vector<Assign>& assign) const {
  const auto copy_of = [&](std::size_t i, DType dtype) {
    return news[i].copy.defined() ? news[i].copy : cast(news[i].weight, dtype);
  };
  std::vector<Tensor> apart(list_.size());
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const std::size_t place = list_[i].place;
    const std::optional<DType> copy = copy_type(reading, place);
    if (list_[i].kind == Shard::Kind::whole) {
      assign.push_back({parameters_[place], news[i].weight});
      if (copy) assign.push_back({reading.copies[place], copy_of(i, *copy)});
    } else if (is_by_copy(reading, place)) {
      assign.push_back({parts_[i], news[i].weight});
      apart[i] = copy_of(i, *copy);
    } else {
      apart[i] = news[i].weight;
    }
  }
  const std::vector<Tensor> whole = joined(apart);
  for (std::size_t place = 0; place < whole.size(); ++place) {
    const Tensor& x = whole[place];
    if (!x.defined()) continue;
    const bool is_copy = is_by_copy(reading, place);
    assign.push_back({is_copy ? reading.copies[place] : parameters_[place], x});
    if (const auto copy = copy_type(reading, place); copy && !is_copy)
      assign.push_back({reading.copies[place], cast(x, *copy)});
  }
}

std::vector<Assign> Shards::whole_weights(Graph& graph, const WeightReading& reading) const {
  std::vector<Tensor> apart(list_.size());
  for (std::size_t i = 0; i < list_.size(); ++i)
    if (parts_[i].key() && is_by_copy(reading, list_[i].place))
      apart[i] = slice_of(graph.param(parameter_of(i)), i);
  const std::vector<Tensor> whole = joined(apart);
  std::vector<Assign> assign;
  for (std::size_t place = 0; place < whole.size(); ++place)
    if (whole[place].defined()) assign.push_back({parameters_[place], whole[place]});
  return assign;
}

Parameter Shards::whole(std::size_t shard, const std::vector<Parameter>& kept) const {
  const Parameter& k = kept[shard];
  return list_[shard].kind == Shard::Kind::whole
             ? k
             : Parameter(k.name(), parameter_of(shard).shape(), k.dtype(), Device::cpu());
}

void Shards::gather(std::size_t shard, const std::vector<Parameter>& kept, Parameter to) const {
  if (list_[shard].kind == Shard::Kind::whole) return;
  const auto write = [&](std::size_t offset, std::span<const std::byte> part) {
    if (to.key()) to.write_bytes(offset, part);
  };
  const Array own = kept[shard].read();
  const std::span<const std::byte> bytes(own.raw(), own.bytes());
  for (std::size_t at = 0; at < bytes.size(); at += Communicator::most_shared) {
    const auto part = bytes.subspan(at, std::min(Communicator::most_shared, bytes.size() - at));
    ranks_->share(part, [&](std::span<const std::byte* const> shown) {
      for (std::size_t r = 0; r < shown.size(); ++r) write(r * bytes.size() + at, {shown[r], part.size()});
    });
  }
  if (!has_rest(shard)) return;
  const Array rest = kept[shard + 1].read();
  write(bytes.size() * static_cast<std::size_t>(ranks_count()), {rest.raw(), rest.bytes()});
}

void check_value(const Parameter& to, const Shape& shape, const Array& value) {
  if (value.shape() != shape)
    throw ShapeError("[set_state] " + to.name() + " is of " + shape.text() + ", got " + value.shape().text());
  if (value.dtype() != to.dtype())
    throw DTypeError("[set_state] " + to.name() + " is " + std::string(name_of(to.dtype())) + ", got " +
                     std::string(name_of(value.dtype())));
}

void Shards::check(std::size_t shard, const std::vector<Parameter>& kept, const Array& value) const {
  check_value(kept[shard], parameter_of(shard).shape(), value);
}

void Shards::scatter(std::size_t shard, const std::vector<Parameter>& kept, const Array& value) const {
  check(shard, kept, value);
  for (std::size_t i = shard; i <= shard + has_rest(shard); ++i) {
    const std::size_t first = static_cast<std::size_t>(list_[i].first) * size_of(value.dtype());
    Parameter to = kept[i];
    to.write_bytes(0, {value.raw() + first, to.bytes()});
  }
}

bool Shards::has_rest(std::size_t shard) const {
  return shard + 1 < list_.size() && list_[shard + 1].kind == Shard::Kind::rest;
}

}  // namespace tg::optim::detail

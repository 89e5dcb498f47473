#include "tests/hostile/world.h"

#include <cmath>
#include <limits>

namespace tg::hostile {

namespace {

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

Dims ordinary_shape(World& w) {
  Dims shape;
  for (std::uint64_t rank = w.below(4); rank > 0; --rank)
    shape.push_back(w.chance(0.05) ? 0 : static_cast<std::int64_t>(1 + w.below(4)));
  return shape;
}

template <class T>
T moved_from(T x) {
  [[maybe_unused]] const T taken = std::move(x);
  return x;
}

// Returns a stored value or a hostile value. A hostile value is null or moved from.
template <class T>
T kept(World& w, const std::vector<T>& all) {
  if (all.empty()) return T();
  const T& x = all[w.below(all.size())];
  if (!w.hostile()) return x;
  return w.chance(0.5) ? T() : moved_from(x);
}

}  // namespace

Array filled(World& w, const Shape& shape, DType dtype) {
  Array a(shape, dtype);
  const bool special = w.hostile();
  for (std::int64_t i = 0; i < a.numel(); ++i)
    a.set(i, special && is_float(dtype) ? Draw<double>::of(w)
             : is_float(dtype)          ? std::normal_distribution<>()(w.random)
             : dtype == DType::boolean  ? static_cast<double>(w.below(2))
                                        : static_cast<double>(w.below(4)));
  return a;
}

World::World(std::uint64_t seed) : random(seed), hostility(one_of({0., 0.01, 0.05, 0.3})) {
  for (std::uint64_t n = 3 + below(5); n > 0; --n) {
    const DType dtype = chance(0.6) ? f32 : Draw<DType>::of(*this);
    tensors.push_back(graph.input("x" + std::to_string(n), ordinary_shape(*this), dtype));
  }
  for (const DType dtype : {f32, f64, bf16, i64})
    arrays.push_back(filled(*this, ordinary_shape(*this), dtype));
  for (int n = 0; n < 3; ++n)
    parameters.emplace_back("w" + std::to_string(n), arrays[static_cast<std::size_t>(n)]);
  tensors.push_back(graph.param(parameters[0]));
  tensors.push_back(graph.constant(arrays[1]));
  layouts.push_back(row_major(ordinary_shape(*this)));
}

bool Draw<bool>::of(World& w) {
  return w.chance(0.5);
}
std::int64_t Draw<std::int64_t>::of(World& w) {
  if (!w.hostile()) return static_cast<std::int64_t>(w.below(7)) - 2;
  return w.one_of<std::int64_t>({0, -1, 8, 9, 65537, 1LL << 31, (1LL << 31) - 1, -(1LL << 31), 1LL << 32,
                                 1LL << 61, 1LL << 62, (1LL << 62) + 4, most - 1, most, -most, -most - 1});
}
int Draw<int>::of(World& w) {
  return w.hostile()
             ? w.one_of({-1, 0, 4097, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()})
             : static_cast<int>(1 + w.below(3));
}
std::uint32_t Draw<std::uint32_t>::of(World& w) {
  return w.hostile() ? ~0u : static_cast<std::uint32_t>(w.below(8));
}
std::uint64_t Draw<std::uint64_t>::of(World& w) {
  return w.hostile() ? ~std::uint64_t{0} : w.below(8);
}
double Draw<double>::of(World& w) {
  if (!w.hostile())
    return w.chance(0.5) ? w.one_of({0., 1., 0.5, 2., -1., 0.1}) : std::normal_distribution<>()(w.random);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return w.one_of(
      {std::nan(""), infinity, -infinity, 1e300, -1e300, -0., 5e-324, 0x1p63, -0x1p63, 3e9, 1e-40, 65520.});
}
float Draw<float>::of(World& w) {
  return static_cast<float>(Draw<double>::of(w));
}
std::string Draw<std::string>::of(World& w) {
  return w.hostile() ? w.one_of<std::string>({"", "a/b", "..", "\xff\xfe", std::string(3, '\0'), "a\nb",
                                              std::string(300, 'x'), "/", "\U0001F600"})
                     : w.one_of<std::string>({"a", "b", "weight", "h.0"});
}
DType Draw<DType>::of(World& w) {
  return all_dtypes[w.below(std::size(all_dtypes))];
}
Device Draw<Device>::of(World& w) {
  return w.hostile() ? Device::cuda(Draw<int>::of(w)) : Device::cpu();
}
Dims Draw<Dims>::of(World& w) {
  if (!w.hostile()) return ordinary_shape(w);
  std::vector<std::int64_t> sizes;
  for (std::uint64_t rank = w.below(10); rank > 0; --rank) sizes.push_back(Draw<std::int64_t>::of(w));
  return sizes;  // nine axes throw ShapeError
}
Layout Draw<Layout>::of(World& w) {
  return kept(w, w.layouts);
}
Array Draw<Array>::of(World& w) {
  return w.chance(0.5) ? kept(w, w.arrays) : filled(w, ordinary_shape(w), Draw<DType>::of(w));
}
Tensor Draw<Tensor>::of(World& w) {
  if (!w.hostile()) return w.tensors[w.below(w.tensors.size())];
  return w.chance(0.5) ? Tensor() : w.other.input("y", ordinary_shape(w), Draw<DType>::of(w));
}
TensorArg Draw<TensorArg>::of(World& w) {
  if (w.chance(0.05)) return w.chance(0.5) ? TensorArg() : TensorArg(w.below(3));
  return w.chance(0.1) ? TensorArg(Draw<double>::of(w)) : TensorArg(Draw<Tensor>::of(w));
}
Parameter Draw<Parameter>::of(World& w) {
  return kept(w, w.parameters);
}
Program Draw<Program>::of(World& w) {
  if (!w.programs.empty()) {
    const Program p = w.programs[w.below(w.programs.size())];
    if (!w.hostile()) return p;
    return moved_from(p);
  }
  return Program(nullptr);
}
Pending Draw<Pending>::of(World& w) {
  return kept(w, w.pendings);
}
Feed Draw<Feed>::of(World& w) {
  const Tensor t = Draw<Tensor>::of(w);
  if (w.chance(0.2)) return {t, Draw<double>::of(w)};
  if (w.chance(0.2)) return {t, Draw<std::int64_t>::of(w)};
  if (w.chance(0.2)) return {t, std::vector<float>(w.below(5))};
  if (w.hostile() || !t.defined()) return {t, Draw<Array>::of(w)};
  if (t.numel() > 1 << 16) return {t, Array()};
  return {t, filled(w, t.shape(), t.dtype())};
}
Assign Draw<Assign>::of(World& w) {
  return {Draw<Parameter>::of(w), Draw<Tensor>::of(w)};
}
Graph& Draw<Graph&>::of(World& w) {
  return w.hostile() ? w.other : w.graph;
}
std::source_location Draw<std::source_location>::of(World&) {
  return std::source_location::current();
}
Reduction Draw<Reduction>::of(World& w) {
  return w.one_of({Reduction::mean, Reduction::sum, Reduction::none});
}
CrossEntropyOptions Draw<CrossEntropyOptions>::of(World& w) {
  return {Draw<std::int64_t>::of(w), Draw<Reduction>::of(w), Draw<double>::of(w)};
}
LinearCrossEntropyOptions Draw<LinearCrossEntropyOptions>::of(World& w) {
  return {Draw<std::int64_t>::of(w), Draw<Reduction>::of(w),    Draw<double>::of(w),
          Draw<double>::of(w),       Draw<std::int64_t>::of(w), Draw<std::int64_t>::of(w)};
}
ReduceOptions Draw<ReduceOptions>::of(World& w) {
  return {.wide = Draw<bool>::of(w)};
}

RopeOptions Draw<RopeOptions>::of(World& w) {
  RopeOptions o{.interleaved = w.chance(0.5)};
  if (w.chance(0.5)) o.theta = Draw<double>::of(w);
  if (w.chance(0.3)) o.dims = Draw<std::int64_t>::of(w);
  if (w.chance(0.3)) o.start = Draw<std::int64_t>::of(w);
  if (w.chance(0.2)) o.frequencies = Draw<std::vector<double>>::of(w);
  return o;
}
AdamWOptions Draw<AdamWOptions>::of(World& w) {
  return w.chance(0.5) ? AdamWOptions{}
                       : AdamWOptions{Draw<double>::of(w), Draw<double>::of(w), Draw<double>::of(w),
                                      Draw<double>::of(w)};
}
AdamWTensors Draw<AdamWTensors>::of(World& w) {
  return {Draw<Tensor>::of(w), Draw<Tensor>::of(w),
          Draw<Tensor>::of(w), Draw<Tensor>::of(w),
          Draw<double>::of(w), w.chance(0.3) ? std::optional(Draw<DType>::of(w)) : std::nullopt};
}
// A function that combines arguments, captured tensors and, sometimes, tensors that it must not use.
ScoreFunction Draw<ScoreFunction>::of(World& w) {
  return [&w](const ScoreAt& x) {
    std::vector<Tensor> terms{x.score, x.b, x.h, x.i, x.t};
    const auto any = [&] { return terms[static_cast<std::size_t>(w.below(std::ssize(terms)))]; };
    const auto term = [&]() -> TensorArg {
      if (w.chance(0.2)) return Draw<double>::of(w);
      if (w.chance(0.05)) return Draw<Tensor>::of(w);
      return any();
    };
    for (int n = 0; n < 6; ++n) {
      const Tensor captured = Draw<Tensor>::of(w);
      if (w.chance(0.1)) terms.push_back(x.at(captured, {}));
      if (w.chance(0.2)) terms.push_back(x.at(captured, {term()}));
      if (w.chance(0.2)) terms.push_back(x.at(captured, {term(), term()}));
      if (w.chance(0.1)) terms.push_back(x.at(captured, {term(), term(), term(), term()}));
      if (w.chance(0.7)) terms.push_back(any() * term());
      if (w.chance(0.3)) terms.push_back(where(less(any(), term()), any(), term()));
      if (w.chance(0.05)) terms.push_back(sum(any()));
      if (w.chance(0.2)) terms.push_back(equal(remainder(any(), term()), term()));
    }
    return terms.back();
  };
}
AttentionOptions Draw<AttentionOptions>::of(World& w) {
  AttentionOptions o{.causal = w.chance(0.5),
                     .alignment = w.one_of({AttentionOptions::bottom_right, AttentionOptions::top_left}),
                     .nondeterministic = w.chance(0.2)};
  if (w.chance(0.2)) o.scale = Draw<double>::of(w);
  if (w.chance(0.2)) o.window_left = Draw<std::int64_t>::of(w);
  if (w.chance(0.2)) o.window_right = Draw<std::int64_t>::of(w);
  if (w.chance(0.2)) o.bias = Draw<Tensor>::of(w);
  if (w.chance(0.2)) o.softcap = Draw<double>::of(w);
  if (w.chance(0.2)) o.sink = Draw<Tensor>::of(w);
  if (w.chance(0.2)) o.cu_seqlens_q = Draw<Tensor>::of(w);
  if (w.chance(0.1)) o.cu_seqlens_k = Draw<Tensor>::of(w);
  if (w.chance(0.2)) o.kv_lengths = Draw<Tensor>::of(w);
  if (w.chance(0.2)) o.dropout = Draw<double>::of(w);
  if (w.chance(0.2)) o.score = Draw<ScoreFunction>::of(w);
  if (w.chance(0.2)) o.mask = Draw<ScoreFunction>::of(w);
  return o;
}
PagedAttentionOptions Draw<PagedAttentionOptions>::of(World& w) {
  PagedAttentionOptions o;
  if (w.chance(0.2)) o.scale = Draw<double>::of(w);
  if (w.chance(0.2)) o.window_left = Draw<std::int64_t>::of(w);
  if (w.chance(0.2)) o.softcap = Draw<double>::of(w);
  if (w.chance(0.2)) o.sink = Draw<Tensor>::of(w);
  if (w.chance(0.2)) o.score = Draw<ScoreFunction>::of(w);
  if (w.chance(0.2)) o.mask = Draw<ScoreFunction>::of(w);
  return o;
}
CompileOptions Draw<CompileOptions>::of(World& w) {
  CompileOptions o{.threads = Draw<int>::of(w),
                   .tf32 = w.chance(0.2),
                   .batch_invariant = w.chance(0.3),
                   .fuse = w.chance(0.7),
                   .reuse = w.chance(0.7),
                   .verify = w.chance(0.5),
                   .plan_only = w.chance(0.1),
                   .allow_unassigned = w.chance(0.2)};
  if (w.chance(0.2)) o.assign = Draw<std::vector<Assign>>::of(w);
  if (w.hostile()) o.device = Draw<Device>::of(w);
  if (w.chance(0.2)) o.arena = std::make_shared<SharedArena>(), (void)o.arena->bytes();
  return o;
}

namespace {

std::vector<Tensor> doubled(const std::vector<Tensor>& in) {
  std::vector<Tensor> out;
  for (const Tensor& t : in) out.push_back(t * 2);
  return out;
}

}  // namespace

std::function<std::vector<Tensor>(const std::vector<Tensor>&)>
Draw<std::function<std::vector<Tensor>(const std::vector<Tensor>&)>>::of(World& w) {
  if (!w.hostile()) return doubled;
  const Tensor foreign = Draw<Tensor>::of(w);
  switch (w.below(5)) {
    case 0:
      return {};
    case 1:
      return [](const auto&) { return std::vector<Tensor>{}; };
    case 2:
      return [](const auto&) { return std::vector<Tensor>{Tensor()}; };
    case 3:
      return [foreign](const auto&) { return std::vector{foreign}; };
    default:
      return [](const auto&) -> std::vector<Tensor> { throw Error("[user] on purpose"); };
  }
}
GraphFunctions Draw<GraphFunctions>::of(World& w) {
  const auto forward = Draw<std::function<std::vector<Tensor>(const std::vector<Tensor>&)>>::of(w),
             backward = Draw<std::function<std::vector<Tensor>(const std::vector<Tensor>&)>>::of(w);
  GraphFunctions f{.forward = forward, .backward = {}};
  if (backward) f.backward = [backward](const auto&, const auto&, const auto& z) { return backward(z); };
  return f;
}
HostOp Draw<HostOp>::of(World& w) {
  static int number = 0;
  HostOp op{.name = w.hostile() ? Draw<std::string>::of(w) : "hostile_" + std::to_string(++number)};
  const std::uint64_t kind = w.hostile() ? 1 + w.below(4) : 0;
  if (kind == 1) op.infer = [](auto) { return std::vector<OutSpec>{}; };
  if (kind == 2) {
    const Dims shape = Draw<Dims>::of(w);
    op.infer = [shape](auto) {
      return std::vector<OutSpec>{{f32, Layout{shape, row_major_strides(shape), 0}}};
    };
  }
  const bool throws = kind == 3;
  if (kind != 4)
    op.forward = [throws](std::span<const HostView> in, std::span<const HostView> out) {
      if (throws) throw std::runtime_error("on purpose");
      for (std::int64_t i = 0; i < out[0].numel(); ++i)
        out[0].set(i, in.empty() || in[0].numel() <= i ? 1 : in[0].at(i));
    };
  if (w.chance(0.5))
    op.backward = [](const HostGradient& g) {
      for (const HostView& z : g.z_in)
        for (std::int64_t i = 0; i < z.numel(); ++i) z.set(i, 1);
    };
  return op;
}

std::string text_of(bool x) {
  return x ? "true" : "false";
}
std::string text_of(std::int64_t x) {
  return std::to_string(x);
}
std::string text_of(double x) {
  return std::to_string(x);
}
std::string text_of(const std::string& s) {
  return '"' + s.substr(0, 20) + '"';
}
std::string text_of(DType t) {
  return std::string(name_of(t));
}
std::string text_of(const Dims& d) {
  return d.text();
}
std::string text_of(const Tensor& t) {
  return t.defined() ? "%" + std::to_string(t.id()) + " " + t.text() : "undefined";
}
std::string text_of(const TensorArg& t) {
  return t.is_number() ? text_of(t.number()) : t.is_absent() ? "absent" : text_of(t.tensor());
}
std::string text_of(const Array& a) {
  return a.raw() ? "Array " + a.shape().text() : "empty Array";
}

}  // namespace tg::hostile

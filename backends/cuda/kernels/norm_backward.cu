// Gradients of layer_norm and rms_norm (formulas: ops/norm.cpp). z_w and z_b are sums over rows. Each block
// sums its rows, and then a second launch sums the results of all blocks. If there are few blocks, one launch
// sums the results of several norms (KernelPlan::deferred_sums).
#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/kernels/norm_short.cuh"
#include "backends/cuda/kernels/reductions.h"
#include "backends/cuda/runtime/memory.h"

namespace tg::cuda {

namespace {

struct Gradient {
  RowLayout x, z, z_x, mean, scale;
  RowLayout other, total;  // total = z_x + other, if this step is fused; z_x may then be null
  NormVector weight;
  void* partial;  // [blocks, sums, n] of the compute type
  i64 n, rows;
  bool weight_gradient, bias, across;
};

// Returns the number of blocks for which a multiprocessor has registers. A block has four warps, and each
// lane has `slots` elements of a row. Each element needs registers for the sums of z ⊛ x̂ and of z, and for x
// and z in the compute type. It also needs registers for the next row's x and z in the storage type.
constexpr int short_gradient_threads = 128, short_gradient_warps = short_gradient_threads / 32;
constexpr int most_short_gradient_blocks = 4;
template <class S, int slots>
constexpr int short_gradient_blocks() {
  constexpr int registers = 44 + slots * (4 + static_cast<int>(sizeof(S)) / 2);
  return registers <= 128 ? most_short_gradient_blocks : registers <= 168 ? 3 : 2;
}

// x becomes z_x + other. z_x is rounded before the addition, as in separate steps.
template <class S, class C, int V>
__device__ __forceinline__ void add_other(C (&x)[V], const Words<S, V>& other) {
  const Words<S, V> rounded = packed<S>(x);
  C more[V];
  unpack(rounded, x), unpack(other, more);
#pragma unroll
  for (int e = 0; e < V; ++e) x[e] += more[e];
}

// Adds sum `which` of a block's teams into the block's partial sum, in the order of the teams.
template <class C, class Row, class T>
__device__ __forceinline__ void put_sum(const Gradient& a, const T& team, const C (&held)[Row::slots],
                                        int which, int pack) {
  TG_DYNAMIC_SHARED(shared, 16);
  C* total = reinterpret_cast<C*>(shared);  // [n]
  C* to = static_cast<C*>(a.partial) + (i64(blockIdx.x) * (a.weight_gradient + a.bias) + which) * a.n;
  for (int t = 0; t < blockDim.y; ++t) {
    if (team.index == t)
#pragma unroll
      for (int slot = 0; slot < Row::slots; ++slot) {
        const int i = (team.rank + slot / pack * team.size) * pack + slot % pack;
        if (i >= a.n) continue;
        const C sum = t == 0 ? held[slot] : total[i] + held[slot];
        if (t + 1 == blockDim.y)
          to[i] = sum;
        else
          total[i] = sum;
      }
    __syncthreads();
  }
}

// A row of x and z, with the sums z_w and z_b for each of a thread's elements.
constexpr int per_thread = 16;
template <class S>
using GradientRow = HeldRow<S, 2, per_thread / pack_of<S>>;

// g = z ⊛ w, x̂ = (x - μ)/σ:  z_x = (g - mean(g) - x̂ ⊛ mean(g ⊛ x̂))/σ; rms_norm: μ = 0, without mean(g).
template <class S, bool centred, class Row>
__global__ void __launch_bounds__(most_threads) differentiate(const __grid_constant__ Gradient a) {
  begin_early();
  using C = compute_t<S>;
  constexpr int V = pack_of<S>;
  constexpr bool ahead = Row::held && sizeof(S) == 2;  // there are registers for a second row
  TG_DYNAMIC_SHARED(shared, 16);
  Team<!Row::held> team(a.across);
  const StagedVector<C, V> weight(a.weight, reinterpret_cast<C*>(shared), Row::held ? a.n : 0);
  __syncthreads();
  C z_w[Row::slots] = {}, z_b[Row::slots] = {};
  const i64 per_block = team.across ? 32 : blockDim.y, step = gridDim.x * per_block;
  const C part = C(1) / static_cast<C>(a.n);
  struct Loaded {
    Row row;
    C mu, scale;
  };
  const auto load = [&](i64 r) -> Loaded {
    const bool none = r >= a.rows;
    return {load_row<S, Row>(team, r, a.rows, a.n, a.x, a.z),
            !centred || none ? C(0) : *a.mean.at<C, Row::held>(r),
            none ? C(0) : *a.scale.at<C, Row::held>(r)};
  };
  const i64 start = blockIdx.x * per_block;
  Loaded next = load(ahead ? start + team.index : a.rows);
  for (i64 first = start; first < a.rows; first += step) {
    const i64 r = first + team.index;
    const Loaded now = ahead ? next : load(r);
    if (ahead) next = load(r + step);
    const auto hat = [&](C x) { return (x - now.mu) * now.scale; };
    Two<C> mean{};  // means of g and of g ⊛ x̂
    if constexpr (Row::held)
      mean = now.row.sum_packs([&](const C(&x)[V], const C(&z)[V], int k, int p) {
        C g[V];
        Two<C> sum{};
#pragma unroll
        for (int e = 0; e < V; ++e) g[e] = z[e];
        weight.multiply(g, p);
#pragma unroll
        for (int e = 0; e < V; ++e) {
          const C h = hat(x[e]);
          sum += {g[e], g[e] * h};
          z_w[k * V + e] += z[e] * h, z_b[k * V + e] += z[e];
        }
        return sum;
      });
    else
      mean = now.row.sum([&](C x, C z, i64 i) {
        const C g = a.weight.data ? z * element<C>(a.weight, i) : z;
        return Two<C>{g, g * hat(x)};
      });
    mean.b *= part, mean.a *= part;
    mean = centred ? team.sum(mean) : Two<C>{0, team.sum(mean.b)};
    if (r >= a.rows) continue;
    const auto slope = [&](C g, C x) { return (g - mean.a - hat(x) * mean.b) * now.scale; };
    if constexpr (Row::held)
      now.row.write_packs((a.total.data ? a.total : a.z_x).template at<S, true>(r),
                          [&](C(&x)[V], C(&g)[V], int p) {
                            weight.multiply(g, p);
#pragma unroll
                            for (int e = 0; e < V; ++e) x[e] = slope(g[e], x[e]);
                            if (!a.total.data || p * V >= a.n) return;
                            if (a.z_x.data)
                              reinterpret_cast<Words<S, V>*>(a.z_x.at<S, true>(r))[p] = packed<S>(x);
                            add_other<S>(x, reinterpret_cast<const Words<S, V>*>(a.other.at<S, true>(r))[p]);
                          });
    else
      now.row.write(a.z_x.at<S>(r), a.z_x.step, [&](C x, C z, i64 i) {
        return slope(a.weight.data ? z * element<C>(a.weight, i) : z, x);
      });
  }
  if constexpr (Row::held) {
    __syncthreads();  // the sums overwrite the weights
    if (a.weight_gradient) put_sum<C, Row>(a, team, z_w, 0, V);
    if (a.bias) put_sum<C, Row>(a, team, z_b, a.weight_gradient, V);
  }
}

// Computes z_w = Σ z ⊛ x̂ and z_b = Σ z over each range of rows. Rows are not held in registers. A block has
// 32 columns by 8 rows of threads.
template <class S, bool centred>
__global__ void __launch_bounds__(256) sum_columns(const __grid_constant__ Gradient a, i64 stretches) {
  begin_early();
  using C = compute_t<S>;
  __shared__ C of_thread[2][8][32];
  const i64 blocks = (a.n + 31) / 32;
  for (i64 b = blockIdx.x; b < blocks * stretches; b += gridDim.x) {
    const i64 i = b % blocks * 32 + threadIdx.x, part = b / blocks;
    C z_w = 0, z_b = 0;
    if (i < a.n)
      for (i64 r = a.rows * part / stretches + threadIdx.y; r < a.rows * (part + 1) / stretches; r += 8) {
        const C x = widen(a.x.at<S>(r)[i * a.x.step]), z = widen(a.z.at<S>(r)[i * a.z.step]);
        const C mu = centred ? *a.mean.at<C>(r) : C(0);
        z_w += z * ((x - mu) * *a.scale.at<C>(r)), z_b += z;
      }
    of_thread[0][threadIdx.y][threadIdx.x] = z_w, of_thread[1][threadIdx.y][threadIdx.x] = z_b;
    __syncthreads();
    if (threadIdx.y == 0 && i < a.n) {
      for (int k = 1; k < 8; ++k) z_w += of_thread[0][k][threadIdx.x], z_b += of_thread[1][k][threadIdx.x];
      const int sums = a.weight_gradient + a.bias;
      C* to = static_cast<C*>(a.partial) + part * sums * a.n + i;
      if (a.weight_gradient) to[0] = z_w;
      if (a.bias) to[a.weight_gradient * a.n] = z_b;
    }
    __syncthreads();
  }
}

// Number of deferred sums per launch, columns per block, and threads that share the parts of a column.
constexpr int most_sums = 32, sum_columns_of_block = 32, sum_groups = 8;
struct DeferredSums {
  int count;
  struct {
    DeferredSum sum;
    int first;  // index of its first block
  } at[most_sums];
};
__global__ void __launch_bounds__(sum_columns_of_block* sum_groups)
    add_up_parts(const __grid_constant__ DeferredSums all) {
  begin_early();
  __shared__ float of_group[sum_groups][sum_columns_of_block];
  int nth = 0;
  while (nth + 1 < all.count && all.at[nth + 1].first <= static_cast<int>(blockIdx.x)) ++nth;
  const DeferredSum& s = all.at[nth].sum;
  const int x = threadIdx.x % sum_columns_of_block, group = threadIdx.x / sum_columns_of_block,
            i = (static_cast<int>(blockIdx.x) - all.at[nth].first) * sum_columns_of_block + x;
  float sum = 0;
  if (i < s.n) {
    const int end = s.parts * (group + 1) / sum_groups;
#pragma unroll 8
    for (int p = s.parts * group / sum_groups; p < end; ++p) sum += s.partial[i64{p} * s.stride + i];
  }
  of_group[group][x] = sum;
  __syncthreads();
  if (group > 0 || i >= s.n) return;
  for (int g = 1; g < sum_groups; ++g) sum += of_group[g][x];
  store_as(s.to, s.type, i * s.step, sum);
}

// Computes the gradients of short rows. Each row has one warp. A warp starts to load its next row before it
// processes the current row.
template <class S, bool centred, int V, int K>
__global__ void __launch_bounds__(short_gradient_threads, short_gradient_blocks<S, V * K>())
    differentiate_short(const __grid_constant__ Gradient a) {
  begin_early();
  using C = compute_t<S>;
  TG_DYNAMIC_SHARED(shared, 16);
  const int n = static_cast<int>(a.n), warp = threadIdx.x / 32;
  C* of_warp = reinterpret_cast<C*>(shared) + n;  // [warps, n], after the weights
  struct Loaded {
    ShortRow<S, V, K> x, z;
    C mu = 0, scale = 0;
  };
  const auto load = [&](i64 r) {
    Loaded l;
    if (r >= a.rows) return l;
    l.x.load(even_row<S>(a.x, r), n);
    l.z.load(even_row<S>(a.z, r), n);
    l.scale = *even_row<C>(a.scale, r);
    if (centred) l.mu = *even_row<C>(a.mean, r);
    return l;
  };
  C z_w[K][V] = {}, z_b[K][V] = {};
  const C part = C(1) / static_cast<C>(n);
  const i64 step = i64(gridDim.x) * short_gradient_warps,
            first = i64(blockIdx.x) * short_gradient_warps + warp;
  Loaded next = load(first);
  const StagedVector<C, V> weight(a.weight, reinterpret_cast<C*>(shared), n);
  __syncthreads();
  for (i64 r = first; r < a.rows; r += step) {
    const Loaded row = next;
    next = load(r + step);
    const auto hat = [&](C x) { return (x - row.mu) * row.scale; };
    C mean_g = 0, mean_gx = 0;
    row.x.each(n, [&](int k, int p) {
      C x[V], z[V];
      unpack(row.x.pack[k], x), unpack(row.z.pack[k], z);
#pragma unroll
      for (int e = 0; e < V; ++e) z_w[k][e] += z[e] * hat(x[e]), z_b[k][e] += z[e];
      weight.multiply(z, p);
#pragma unroll
      for (int e = 0; e < V; ++e) mean_g += z[e], mean_gx += z[e] * hat(x[e]);
    });
    ShortRow<S, V, K> other;
    if (a.total.data) other.load(even_row<S>(a.other, r), n);
    mean_g = centred ? sum_of_warp(mean_g) * part : C(0);
    mean_gx = sum_of_warp(mean_gx) * part;
    row.x.each(n, [&](int k, int p) {
      C x[V], g[V];
      unpack(row.x.pack[k], x), unpack(row.z.pack[k], g);
      weight.multiply(g, p);
#pragma unroll
      for (int e = 0; e < V; ++e) x[e] = (g[e] - mean_g - hat(x[e]) * mean_gx) * row.scale;
      if (a.z_x.data) row.x.store(even_row<S>(a.z_x, r), k, x);
      if (!a.total.data) return;
      add_other<S>(x, other.pack[k]);
      row.x.store(even_row<S>(a.total, r), k, x);
    });
  }
  // Adds the warps' sums in order.
  const int sums = a.weight_gradient + a.bias;
  for (int which = 0; which < sums; ++which) {
    const bool of_weight = a.weight_gradient && which == 0;
    next.x.each(n, [&](int k, int p) {
#pragma unroll
      for (int e = 0; e < V; ++e) of_warp[warp * n + p * V + e] = of_weight ? z_w[k][e] : z_b[k][e];
    });
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += short_gradient_threads) {
      C sum = of_warp[i];
      for (int w = 1; w < short_gradient_warps; ++w) sum += of_warp[w * n + i];
      static_cast<C*>(a.partial)[(i64(blockIdx.x) * sums + which) * n + i] = sum;
    }
    __syncthreads();
  }
}

// Number of blocks that share the rows. Each column has the same number of partial sums.
i64 short_parts(int blocks, i64 rows, const Gpu& gpu) {
  return std::min<i64>((rows + short_gradient_warps - 1) / short_gradient_warps, blocks * gpu.processors);
}
// Minimum number of threads in a block. Rows of 16-bit elements need as many registers as f32 rows but half
// the time. More threads therefore share the weights.
constexpr unsigned least_threads(std::size_t element_size) {
  return element_size == 2 ? 512 : 256;
}
i64 parts_of(i64 n, i64 rows, std::size_t element_size, const Gpu& gpu) {
  const Teams teams(n, per_thread, false, least_threads(element_size));
  const i64 per_processor = most_threads / (teams.block.x * teams.block.y);
  return teams.grid(rows, gpu.processors * per_processor);
}

bool is_short(const Gradient& a) {
  for (const RowLayout* r : {&a.x, &a.z, &a.z_x, &a.mean, &a.scale, &a.other, &a.total})
    if (!evenly_spaced(*r)) return false;
  return true;
}

// Returns true if the rows are short enough and aligned. Sets `parts` to the number of blocks.
template <class S, bool centred>
bool run_short_backward(const Stream& s, const Gradient& a, i64& parts) {
  if (!is_short(a)) return false;
  return with_short<S>(a.n, [&](auto V, auto K) {
    parts = short_parts(short_gradient_blocks<S, V * K>(), a.rows, s.gpu);
    const auto shared = static_cast<std::size_t>(a.n) * (1 + short_gradient_warps) * sizeof(compute_t<S>);
    launch_early(s, {static_cast<unsigned>(parts), short_gradient_threads, shared},
                 differentiate_short<S, centred, V, K>, a);
  });
}

// Whether rows are held in registers.
template <class S>
bool is_held(const Gradient& a) {
  return fits<S, GradientRow<S>>(a.n, a.rows, {&a.x, &a.z, &a.z_x}) && a.mean.quick_to_find(a.rows) &&
         a.scale.quick_to_find(a.rows) && staged_bytes<S>(a.n, 1) <= most_staged;
}

// Returns the arguments of a launch, except for its workspace and the fused sum.
template <bool centred>
Gradient gradient_of(const Call& c) {
  const auto& attrs = c.attrs->as<NormAttrs>();
  const Layout& layout = c.in[0].layout;
  const int last = layout.rank() - 1;
  Gradient a{.x = RowLayout(c.in[0], last),
             .z = RowLayout(c.in[1], last),
             .z_x = RowLayout(c.out[0], last),
             .mean = RowLayout(c.in[2], -1),
             .scale = RowLayout(c.in[centred ? 3 : 2], -1)};
  if (attrs.weight) a.weight = NormVector(c.in[centred ? 4 : 3], c.in[0].dtype);
  a.n = layout.shape.back(), a.rows = c.in[2].layout.numel();
  a.weight_gradient = attrs.weight_gradient, a.bias = attrs.bias;
  a.across = a.x.step != 1;
  return a;
}

struct GradientPlan final : KernelPlan {
  // The sum of z_x and another tensor, both contiguous. nullopt means that there is no such sum.
  struct WithSum {
    Arg other, total;
    bool writes_z_x;
  };
  std::optional<WithSum> with;
  i64 parts = 0;                  // number of parts of the deferred sums; 0: no deferred sums
  std::shared_ptr<void> partial;  // [parts, sums, n], f32

  void launch(const Stream& s, const Call& c) const override;
  std::size_t workspace(const Call& c) const override;
  std::string choice(const Call& c) const override;
  std::vector<DeferredSum> deferred_sums(const Call& c) const override;
};

bool is_centred(const Call& c) {
  return c.in.size() == std::size_t{4} + c.attrs->as<NormAttrs>().weight;
}

template <class S>
i64 parts_left(const Gradient& a, const Gpu& gpu) {
  constexpr i64 most = 16384;  // elements of each norm
  if (sizeof(compute_t<S>) > 4 || a.n == 0 || a.rows == 0 || !is_held<S>(a) || !is_short(a)) return 0;
  i64 parts = 0;
  with_short<S>(a.n,
                [&](auto V, auto K) { parts = short_parts(short_gradient_blocks<S, V * K>(), a.rows, gpu); });
  const i64 numbers = parts * (a.weight_gradient + a.bias) * a.n;
  return numbers <= most ? numbers > 0 ? parts : 0 : 0;
}

std::unique_ptr<GradientPlan> plan_of(const Call& c) {
  const Gradient a = is_centred(c) ? gradient_of<true>(c) : gradient_of<false>(c);
  auto p = std::make_unique<GradientPlan>();
  with_float(c.in[0].dtype, [&](auto* type) { p->parts = parts_left<pointee_t<decltype(type)>>(a, c.gpu); });
  if (p->parts > 0)
    p->partial = zeros_on_device(static_cast<std::size_t>(p->parts * (a.weight_gradient + a.bias) * a.n) * 4);
  return p;
}
PlanPtr plan(const Call& c) {
  return plan_of(c);
}

template <bool centred>
void run_norm_backward(const Stream& s, const Call& c, const GradientPlan& plan) {
  Gradient a = gradient_of<centred>(c);
  a.partial = plan.parts > 0 ? plan.partial.get() : s.workspace;
  if (plan.with) {
    const int last = c.out[0].layout.rank() - 1;
    a.other = RowLayout(plan.with->other, last), a.total = RowLayout(plan.with->total, last);
    if (!plan.with->writes_z_x) a.z_x.data = nullptr;
  }
  if (a.n == 0) return;
  const int sums = a.weight_gradient + a.bias;
  i64 parts = parts_of(a.n, a.rows, size_of(c.in[0].dtype), s.gpu);
  const bool wide = c.in[0].dtype == DType::f64;
  if (a.rows > 0)
    with_float(c.in[0].dtype, [&](auto* type) {
      using S = pointee_t<decltype(type)>;
      using Row = GradientRow<S>;
      const bool held = is_held<S>(a);
      Teams teams(a.n, per_thread, !held && a.across, least_threads(sizeof(S)));
      a.across = teams.across;
      if (held && run_short_backward<S, centred>(s, a, parts)) return;
      if (held) {
        teams.shared = staged_bytes<S>(a.n, 1);  // space for the weight, later for sums
        launch_early(s, {static_cast<unsigned>(parts), teams.block, teams.shared},
                     differentiate<S, centred, Row>, a);
        return;
      }
      if (sums > 0)  // must run before z_x overwrites x or z
        launch_early(s, {blocks_for((a.n + 31) / 32 * parts, 1), dim3(32, 8)}, sum_columns<S, centred>, a,
                     parts);
      launch_early(s, {teams.grid(a.rows, 8ll * s.gpu.processors), teams.block},
                   differentiate<S, centred, ReadRow<S, 2>>, a);
    });
  if (plan.parts > 0) return;
  const i64 bytes = wide ? 8 : 4;
  for (int which = 0; which < sums; ++which)
    sum_parts(s, s.workspace + which * a.n * bytes, wide, a.n, parts, sums * a.n,
              c.out[static_cast<std::size_t>(1 + which)]);
}

void GradientPlan::launch(const Stream& s, const Call& c) const {
  is_centred(c) ? run_norm_backward<true>(s, c, *this) : run_norm_backward<false>(s, c, *this);
}

// Returns the workspace for the partial sums of the weights' gradients.
std::size_t GradientPlan::workspace(const Call& c) const {
  const auto& attrs = c.attrs->as<NormAttrs>();
  const i64 n = c.in[0].layout.shape.back(), rows = c.in[2].layout.numel();
  const i64 parts = std::max(parts_of(n, rows, size_of(c.in[0].dtype), c.gpu),
                             short_parts(most_short_gradient_blocks, rows, c.gpu));
  return static_cast<std::size_t>(parts * (attrs.weight_gradient + attrs.bias) * n) *
         (c.in[0].dtype == DType::f64 ? 8 : 4);
}

std::string GradientPlan::choice(const Call&) const {
  return !with ? "" : with->writes_z_x ? "with the sum after it" : "with the sum after it, without z_x";
}

std::vector<DeferredSum> GradientPlan::deferred_sums(const Call& c) const {
  if (parts == 0) return {};
  const auto& attrs = c.attrs->as<NormAttrs>();
  const int sums = attrs.weight_gradient + attrs.bias, n = static_cast<int>(c.in[0].layout.shape.back());
  std::vector<DeferredSum> left;
  for (int i = 0; i < sums; ++i) {
    const Arg& to = c.out[static_cast<std::size_t>(1 + i)];
    left.push_back({static_cast<const float*>(partial.get()) + i * n, to.data, to.dtype, to.layout.strides[0],
                    n, static_cast<int>(parts), sums * n});
  }
  return left;
}

}  // namespace

PlanPtr plan_with_sum(const Call& c, const Step& sum, bool writes_z_x) {
  const Gradient a = is_centred(c) ? gradient_of<true>(c) : gradient_of<false>(c);
  bool held = false;
  with_float(c.in[0].dtype, [&](auto* type) { held = is_held<pointee_t<decltype(type)>>(a); });
  // Each thread reads a row's elements and then writes the same elements. Memory that all threads read, or
  // that is written in a different order, must not overlap with other operands.
  const Arg &z_x = c.out[0], &other = sum.in[sum.in[0].data == z_x.data], &total = sum.out[0];
  const bool apart = !crosses(c.in[0], total) && !crosses(c.in[1], total) && !crosses(other, total) &&
                     !crosses(other, z_x) && !meets(total, c.in.subspan(2)) &&
                     !meets(total, c.out.subspan(writes_z_x ? 0 : 1));
  if (!held || !apart) return nullptr;
  const Layout rows = row_major(z_x.layout.shape);
  auto p = plan_of(c);
  p->with = {{other.dtype, rows, other.data}, {total.dtype, rows, total.data}, writes_z_x};
  return p;
}

void add_up(const Stream& s, std::span<const DeferredSum> sums) {
  for (; !sums.empty(); sums = sums.subspan(std::min<std::size_t>(sums.size(), most_sums))) {
    DeferredSums all{};
    unsigned blocks = 0;
    for (const DeferredSum& sum : sums.first(std::min<std::size_t>(sums.size(), most_sums))) {
      all.at[all.count++] = {sum, static_cast<int>(blocks)};
      blocks += blocks_for(sum.n, sum_columns_of_block);
    }
    launch_early(s, {blocks, sum_columns_of_block * sum_groups}, add_up_parts, all);
  }
}

extern const Kernel layer_norm_backward_kernel{&plan};
extern const Kernel rms_norm_backward_kernel{&plan};

extern const FusionRule norm_backward_sum_rule{
    "the gradient of a norm and a sum with it",
    [](const Upcoming& next) { return FusionMatch{next.is_next(is_sum_of, 1) ? std::size_t{2} : 0}; },
    [](const Upcoming& next, const FusionMatch&) {
      return plan_with_sum(next.call(0), next.steps[1], next.steps[0].reads[0] > 1);
    }};

}  // namespace tg::cuda

// adamw (formula: ops/adamw.cpp) in one pass over p, g, m and v of all parameters. One launch updates all
// parameters except f64 parameters. A second launch updates the f64 parameters.
#include "ops/adamw.h"

#include "backends/cuda/kernels/tensor_list.cuh"

namespace tg::cuda {

namespace {

// How a parameter's elements are read. If p, m and v have the same dtype, they are read in packs, otherwise
// one at a time.
enum class Read : int { any, f32, f32_bf16, f32_f16, bf16 };

struct Tensors {
  ListOperand p, g, m, v;
  void *new_p, *new_m, *new_v;
  void* copy;  // copy of p' in a 16-bit type; null: none
  DType copy_type;
  double weight_decay;
  i64 count;
  Read read;

  Tensors(const Arg* in, const Arg* out, double weight_decay)
      : p(in[0]),
        g(in[1]),
        m(in[2]),
        v(in[3]),
        new_p(out[0].data),
        new_m(out[1].data),
        new_v(out[2].data),
        copy(out[3].layout.numel() > 0 ? out[3].data : nullptr),
        copy_type(out[3].dtype),
        weight_decay(weight_decay),
        count(in[0].layout.numel()),
        read(Read::any) {
    if (p.type != m.type || p.type != v.type) return;
    Read packs = Read::any;
    if (p.type == DType::f32)
      packs = g.type == DType::f32    ? Read::f32
              : g.type == DType::bf16 ? Read::f32_bf16
              : g.type == DType::f16  ? Read::f32_f16
                                      : Read::any;
    else if (p.type == DType::bf16 && g.type == DType::bf16)
      packs = Read::bf16;
    const std::size_t pack = packs == Read::bf16 ? 8 : 4;
    for (const ListOperand* o : {&p, &g, &m, &v})
      if (!o->takes_packs(pack)) return;
    for (const void* result : {new_p, new_m, new_v})
      if (reinterpret_cast<std::uintptr_t>(result) % (pack * size_of(p.type)) != 0) return;
    if (reinterpret_cast<std::uintptr_t>(copy) % (pack * sizeof(std::uint16_t)) != 0) return;
    read = packs;
  }
};

struct Scalars {
  const void *rate, *t, *scale;
  DType rate_type, t_type, scale_type;
  double beta1, beta2, eps;
};

__device__ __forceinline__ double scalar(const void* data, DType type) {
  return is_float(type) ? load_as<double>(data, type, 0) : static_cast<double>(load_as<i64>(data, type, 0));
}

// Factors that are the same for all elements. Two threads compute them in f64, because powers are slow, and
// round them.
template <class C>
struct Factors {
  double rate;
  C scale, pace, correction, b1, b2, c1, c2, eps;
  bool taken;

  __device__ void make_correction(const Scalars& a) {
    correction = static_cast<C>(1 / sqrt(1 - pow(a.beta2, scalar(a.t, a.t_type))));
  }
  __device__ void make_others(const Scalars& a) {
    const double t = scalar(a.t, a.t_type), factor = scalar(a.scale, a.scale_type);
    rate = scalar(a.rate, a.rate_type);
    taken = factor != 0;
    scale = static_cast<C>(factor);
    pace = static_cast<C>(rate / (1 - pow(a.beta1, t)));
    b1 = static_cast<C>(a.beta1), c1 = static_cast<C>(1 - a.beta1);
    b2 = static_cast<C>(a.beta2), c2 = static_cast<C>(1 - a.beta2);
    eps = static_cast<C>(a.eps);
  }
  // m' = β₁·m + (1 - β₁)·g,  v' = β₂·v + (1 - β₂)·g²,  p' = keep·p - pace·m'/(√v'·correction + eps),
  // keep = 1 - ηλ
  __device__ __forceinline__ void step(C keep, C& p, C g, C& m, C& v) const {
    if (!taken) return;
    g *= scale;
    m = b1 * m + c1 * g;
    v = b2 * v + c2 * g * g;
    p = keep * p - pace * m / (sqrt(v) * correction + eps);
  }
};

template <class C>
__device__ void update_each(const Factors<C>& f, C keep, const Tensors& a, i64 begin, i64 end) {
  for (i64 i = begin + threadIdx.x; i < end; i += list_block) {
    C p = load_as<C>(a.p.data, a.p.type, a.p.offset(i)), m = load_as<C>(a.m.data, a.m.type, a.m.offset(i)),
      v = load_as<C>(a.v.data, a.v.type, a.v.offset(i));
    f.step(keep, p, load_as<C>(a.g.data, a.g.type, a.g.offset(i)), m, v);
    store_as(a.new_p, a.p.type, i, p);
    if (a.copy) store_as(a.copy, a.copy_type, i, p);
    store_as(a.new_m, a.m.type, i, m);
    store_as(a.new_v, a.v.type, i, v);
  }
}

// Updates p, m and v of type P with g of type G, V adjacent elements at a time. The remaining elements at the
// end are updated individually.
template <class P, class G, int V = 4>
__device__ __forceinline__ void update_packs(const Factors<float>& f, float keep, const Tensors& a, i64 begin,
                                             i64 end) {
  const i64 packs = end / V;
#pragma unroll 2
  for (i64 i = begin / V + threadIdx.x; i < packs; i += list_block) {
    const auto p = static_cast<const Words<P, V>*>(a.p.data)[i],
               m = static_cast<const Words<P, V>*>(a.m.data)[i],
               v = static_cast<const Words<P, V>*>(a.v.data)[i];
    const auto g = static_cast<const Words<G, V>*>(a.g.data)[i];
    float pe[V], ge[V], me[V], ve[V];
    unpack(p, pe), unpack(g, ge), unpack(m, me), unpack(v, ve);
#pragma unroll
    for (int e = 0; e < V; ++e) f.step(keep, pe[e], ge[e], me[e], ve[e]);
    static_cast<Words<P, V>*>(a.new_p)[i] = packed<P>(pe);
    if (a.copy && a.copy_type == DType::bf16)
      static_cast<Words<__nv_bfloat16, V>*>(a.copy)[i] = packed<__nv_bfloat16>(pe);
    else if (a.copy)
      static_cast<Words<__half, V>*>(a.copy)[i] = packed<__half>(pe);
    static_cast<Words<P, V>*>(a.new_m)[i] = packed<P>(me);
    static_cast<Words<P, V>*>(a.new_v)[i] = packed<P>(ve);
  }
  update_each(f, keep, a, packs * V, end);
}

// Prefetches the thread's first packs of four into the L1 cache.
__device__ __forceinline__ void ask_for_packs(const Tensors& a, i64 begin) {
  const i64 i = begin + 4 * threadIdx.x;
  if (a.read == Read::any || i >= a.count) return;
  for (const ListOperand* o : {&a.p, &a.g, &a.m, &a.v})
    ptx::prefetch_line(static_cast<const char*>(o->data) + i * (o->type == DType::f32 ? 4 : 2));
}

// Rows of the tables. A launch has `chunks` chunks of `size` elements.
template <class C>
__global__ void __launch_bounds__(list_block)
    update(const Tensors* tensors, const Chunk* chunks, int count, i64 size,
           const __grid_constant__ Scalars scalars, Faults faults) {
  let_next_kernel_begin();
  ask_for_row(tensors, chunks, count);
  wait_for_kernel_before();
  __shared__ Factors<C> f;
  const bool stopped = faults.any();
  if (threadIdx.x == 0) f.make_others(scalars);
  if (threadIdx.x == 32) f.make_correction(scalars);
  if (size == short_chunk && static_cast<int>(blockIdx.x) < count)
    ask_for_packs(tensors[chunks[blockIdx.x].tensor], chunks[blockIdx.x].number * size);
  __syncthreads();
  if (stopped) return;
  for (int c = blockIdx.x; c < count; c += gridDim.x) {
    const Tensors& a = tensors[chunks[c].tensor];
    const i64 begin = chunks[c].number * size;
    const i64 end = begin + size < a.count ? begin + size : a.count;
    const C keep = static_cast<C>(1 - f.rate * a.weight_decay);
    if constexpr (std::is_same_v<C, float>) {
      switch (a.read) {
        case Read::f32:
          update_packs<float, float>(f, keep, a, begin, end);
          continue;
        case Read::f32_bf16:
          update_packs<float, __nv_bfloat16>(f, keep, a, begin, end);
          continue;
        case Read::f32_f16:
          update_packs<float, __half>(f, keep, a, begin, end);
          continue;
        case Read::bf16:
          update_packs<__nv_bfloat16, __nv_bfloat16, 8>(f, keep, a, begin, end);
          continue;
        default:
          break;
      }
    }
    update_each(f, keep, a, begin, end);
  }
}

struct AdamWPlan final : KernelPlan {
  std::shared_ptr<const Tensors> tensors;
  std::shared_ptr<const Chunk> chunks;  // those computed in f32, then those in f64
  std::size_t single = 0, wide = 0;     // number of chunks of each kind
  i64 size = list_chunk;                // of a chunk

  explicit AdamWPlan(const Call& c);
  void launch(const Stream& s, const Call& c) const override;
};

AdamWPlan::AdamWPlan(const Call& c) {
  const auto& attrs = c.attrs->as<AdamWAttrs>();
  std::vector<Tensors> all;
  std::vector<Chunk> of_f32, of_f64;
  i64 elements = 0;
  for (std::size_t i = 0; i < attrs.weight_decay.size(); ++i) elements += c.in[i * adamw_ins].layout.numel();
  size = chunk_of(elements, c.gpu);
  for (std::size_t i = 0; i < attrs.weight_decay.size(); ++i) {
    const Arg *in = &c.in[i * adamw_ins], *out = &c.out[i * adamw_outs];
    all.emplace_back(in, out, attrs.weight_decay[i]);
    add_chunks(in->dtype == DType::f64 ? of_f64 : of_f32, i, all[i].count, size);
  }
  single = of_f32.size(), wide = of_f64.size();
  of_f32.insert(of_f32.end(), of_f64.begin(), of_f64.end());
  tensors = on_device(all), chunks = on_device(of_f32);
}

void AdamWPlan::launch(const Stream& s, const Call& c) const {
  const auto& attrs = c.attrs->as<AdamWAttrs>();
  const Arg* scalars = &c.in[attrs.weight_decay.size() * adamw_ins];
  const Scalars a{scalars[0].data,  scalars[1].data, scalars[2].data, scalars[0].dtype, scalars[1].dtype,
                  scalars[2].dtype, attrs.beta1,     attrs.beta2,     attrs.eps};
  const auto run = [&](auto kernel, std::size_t first, std::size_t count) {
    if (count > 0)
      launch_early(s, {list_grid(count, s.gpu), list_block}, kernel, tensors.get(), chunks.get() + first,
                   static_cast<int>(count), size, a, s.faults);
  };
  run(update<float>, 0, single);
  run(update<double>, single, wide);
}

}  // namespace

extern const Kernel adamw_kernel{&plan_as<AdamWPlan>};

}  // namespace tg::cuda

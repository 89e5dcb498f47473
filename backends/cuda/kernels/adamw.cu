// adamw (formula: ops/adamw.cpp) in one pass over p, g, m and v.
#include "ops/adamw.h"

#include "backends/cuda/kernels/any.cuh"

namespace tg::cuda {

namespace {

struct Operand {
  void* data;
  DType type;
  Strides at;
  bool linear;  // in one piece, row-major

  Operand() = default;
  explicit Operand(const Arg& a)
      : data(a.data), type(a.dtype), at(a.layout), linear(a.layout.is_contiguous()) {}
  __device__ __forceinline__ i64 offset(i64 i) const {
    if (linear) return i;
    return i < (1ll << 31) ? at.offset(static_cast<unsigned>(i)) : at.offset(i);
  }
};

struct Step {
  Operand p, g, m, v, new_p, new_m, new_v;
  const void *rate, *t, *scale;
  DType rate_type, t_type, scale_type;
  double beta1, beta2, eps, weight_decay;
  i64 count;
};

__device__ __forceinline__ double scalar(const void* data, DType type) {
  return is_float(type) ? load_as<double>(data, type, 0) : static_cast<double>(load_as<i64>(data, type, 0));
}

// What is the same for all elements: computed in f64 by one thread, then rounded.
template <class C>
struct Factors {
  C scale, keep, pace, correction, b1, b2, c1, c2, eps;
  bool taken;

  __device__ void make(const Step& a) {
    const double rate = scalar(a.rate, a.rate_type), t = scalar(a.t, a.t_type),
                 factor = scalar(a.scale, a.scale_type);
    taken = factor != 0;
    scale = static_cast<C>(factor), keep = static_cast<C>(1 - rate * a.weight_decay);
    pace = static_cast<C>(rate / (1 - pow(a.beta1, t)));
    correction = static_cast<C>(1 / sqrt(1 - pow(a.beta2, t)));
    b1 = static_cast<C>(a.beta1), c1 = static_cast<C>(1 - a.beta1);
    b2 = static_cast<C>(a.beta2), c2 = static_cast<C>(1 - a.beta2);
    eps = static_cast<C>(a.eps);
  }
  // m' = β₁·m + (1 - β₁)·g,  v' = β₂·v + (1 - β₂)·g²,  p' = (1 - ηλ)·p - pace·m'/(√v'·correction + eps)
  __device__ __forceinline__ void step(C& p, C g, C& m, C& v) const {
    if (!taken) return;
    g *= scale;
    m = b1 * m + c1 * g;
    v = b2 * v + c2 * g * g;
    p = keep * p - pace * m / (sqrt(v) * correction + eps);
  }
};

constexpr int block = 256;

template <class C>
__global__ void __launch_bounds__(block) update(const __grid_constant__ Step a, Faults faults) {
  __shared__ Factors<C> f;
  if (faults.any()) return;
  if (threadIdx.x == 0) f.make(a);
  __syncthreads();
  for (i64 i = i64(blockIdx.x) * block + threadIdx.x; i < a.count; i += i64(gridDim.x) * block) {
    C p = load_as<C>(a.p.data, a.p.type, a.p.offset(i)), m = load_as<C>(a.m.data, a.m.type, a.m.offset(i)),
      v = load_as<C>(a.v.data, a.v.type, a.v.offset(i));
    f.step(p, load_as<C>(a.g.data, a.g.type, a.g.offset(i)), m, v);
    store_as(a.new_p.data, a.new_p.type, a.new_p.offset(i), p);
    store_as(a.new_m.data, a.new_m.type, a.new_m.offset(i), m);
    store_as(a.new_v.data, a.new_v.type, a.new_v.offset(i), v);
  }
}

// Everything in one piece, p, m and v of type P and g of G: four neighbours at a time.
template <class P, class G>
__global__ void __launch_bounds__(block) update_packs(const __grid_constant__ Step a, Faults faults) {
  __shared__ Factors<float> f;
  if (faults.any()) return;
  if (threadIdx.x == 0) f.make(a);
  __syncthreads();
  for (i64 i = i64(blockIdx.x) * block + threadIdx.x; i < a.count / 4; i += i64(gridDim.x) * block) {
    auto p = static_cast<const Pack<P, 4>*>(a.p.data)[i], m = static_cast<const Pack<P, 4>*>(a.m.data)[i],
         v = static_cast<const Pack<P, 4>*>(a.v.data)[i];
    const auto g = static_cast<const Pack<G, 4>*>(a.g.data)[i];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float pe = widen(p.at[e]), me = widen(m.at[e]), ve = widen(v.at[e]);
      f.step(pe, widen(g.at[e]), me, ve);
      p.at[e] = narrow<P>(pe), m.at[e] = narrow<P>(me), v.at[e] = narrow<P>(ve);
    }
    static_cast<Pack<P, 4>*>(a.new_p.data)[i] = p;
    static_cast<Pack<P, 4>*>(a.new_m.data)[i] = m;
    static_cast<Pack<P, 4>*>(a.new_v.data)[i] = v;
  }
}

bool takes_packs(const Step& a) {
  bool fits = a.count % 4 == 0 && a.p.type == a.m.type && a.p.type == a.v.type;
  for (const Operand* o : {&a.p, &a.g, &a.m, &a.v, &a.new_p, &a.new_m, &a.new_v})
    fits = fits && o->linear && reinterpret_cast<std::uintptr_t>(o->data) % 16 == 0;
  return fits;
}

void launch(const Stream& s, const Call& c) {
  const auto& attrs = c.attrs->as<AdamWAttrs>();
  Step a;
  a.p = Operand(c.in[0]), a.g = Operand(c.in[1]), a.m = Operand(c.in[2]), a.v = Operand(c.in[3]);
  a.new_p = Operand(c.out[0]), a.new_m = Operand(c.out[1]), a.new_v = Operand(c.out[2]);
  a.rate = c.in[4].data, a.t = c.in[5].data, a.scale = c.in[6].data;
  a.rate_type = c.in[4].dtype, a.t_type = c.in[5].dtype, a.scale_type = c.in[6].dtype;
  a.beta1 = attrs.beta1, a.beta2 = attrs.beta2, a.eps = attrs.eps, a.weight_decay = attrs.weight_decay;
  a.count = c.in[0].layout.numel();
  if (a.count == 0) return;
  const auto grid = [&](i64 threads) {
    return static_cast<unsigned>(std::min<i64>((threads + block - 1) / block, 16ll * s.gpu.processors));
  };
  const bool packs = takes_packs(a), single = a.p.type == DType::f32, half = a.p.type == DType::bf16;
  if (packs && single && a.g.type == DType::f32)
    launch_kernel(s, {grid(a.count / 4), block}, update_packs<float, float>, a, s.faults);
  else if (packs && single && a.g.type == DType::bf16)
    launch_kernel(s, {grid(a.count / 4), block}, update_packs<float, __nv_bfloat16>, a, s.faults);
  else if (packs && half && a.g.type == DType::bf16)
    launch_kernel(s, {grid(a.count / 4), block}, update_packs<__nv_bfloat16, __nv_bfloat16>, a, s.faults);
  else if (a.p.type == DType::f64)
    launch_kernel(s, {grid(a.count), block}, update<double>, a, s.faults);
  else
    launch_kernel(s, {grid(a.count), block}, update<float>, a, s.faults);
}

}  // namespace

const Kernel adamw_kernel{&launch};

}  // namespace tg::cuda

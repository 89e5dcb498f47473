// layer_norm and rms_norm over the last axis, forward and backward (formulas: ops/norm.cpp). A row is read
// from memory once and stays in the L1 cache during its two or three passes. The gradients of weight and bias
// are sums over rows. Rows are divided into ranges of fixed size. The first phase sums the rows of each
// range, and the second phase sums the ranges in order.
#include "ops/norm.h"

#include "backends/cpu/kernels/rows.h"

namespace tg::cpu::TG_ISA {

namespace {

template <class C, bool centred>
void forward(Worker& w, const Call& call) {
  using V = vector_t<C>;
  const auto& attrs = call.attrs->as<NormAttrs>();
  const int last = call.in[0].layout.rank() - 1;
  const AxisRows<C> x(call.in[0], last), y(call.out[0], last, call.in[0].data);
  const i64 n = x.n;
  C* buffer = reinterpret_cast<C*>(w.scratch);  // [4, n]: weight, bias, x, y
  const C* weight = attrs.weight ? AxisRows<C>(call.in[1], 0).read(0, buffer) : nullptr;
  const C* bias = attrs.bias ? AxisRows<C>(call.in[2], 0).read(0, buffer + n) : nullptr;
  C* mean = centred ? reinterpret_cast<C*>(call.out[1].data) : nullptr;  // [rows]
  C* scale = reinterpret_cast<C*>(call.out[centred ? 2 : 1].data);       // [rows]: 1/σ
  each_row(w, x.count, n, [&](i64 r) {
    const C* in = x.read(r, buffer + 2 * n);
    C* out = y.target(r, buffer + 3 * n);
    C mu = 0;
    if (centred) mu = sum_of<C>(n, [=](i64 i, int k) { return load_n(in + i, k); }) / static_cast<C>(n);
    const C squares = sum_of<C>(n, [=](i64 i, int k) {
      V d = load_n(in + i, k);
      if (centred) d = first_n<C>(d - splat<V>(mu), k, 0);
      return d * d;
    });
    const C s =
        static_cast<C>(1 / __builtin_sqrt(static_cast<double>(squares) / static_cast<double>(n) + attrs.eps));
    for_vectors<C>(n, [&](i64 i, int k) {
      V v = load_n(in + i, k);
      if (centred) v = v - splat<V>(mu);
      v = v * splat<V>(s);
      if (weight) v = v * load_n(weight + i, k);
      if (bias) v = v + load_n(bias + i, k);
      store_n(out + i, v, k);
    });
    y.finish(r, out);
    if (centred) mean[r] = mu;
    scale[r] = s;
  });
  y.end();
}

constexpr i64 columns_at_once = piece_size(256, 32);
// Number of rows that are summed before their sum is added to the total. This bounds the rounding error.
constexpr i64 rows_at_once = piece_size(128, 4);

// Number of row ranges with separate sums for z_weight and z_bias.
i64 stretches(i64 rows, i64 n) {
  i64 s = rows * n / 8192 < rows / 8 ? rows * n / 8192 : rows / 8;
  return s < 1 ? 1 : s > 64 ? 64 : s;
}

template <class C>
TG_INLINE void add_to(C* to, const C* from, i64 n) {
  for_vectors<C>(n, [&](i64 i, int k) { store_n(to + i, load_n(to + i, k) + load_n(from + i, k), k); });
}

template <class C, bool centred>
void backward(Worker& w, const Call& call) {
  using V = vector_t<C>;
  const auto& attrs = call.attrs->as<NormAttrs>();
  const int last = call.in[0].layout.rank() - 1;
  const AxisRows<C> x(call.in[0], last), z(call.in[1], last),
      z_x(call.out[0], last, call.in[0].data, call.in[1].data);
  const AxisRows<C> mean(call.in[2], -1), scale(call.in[centred ? 3 : 2], -1);
  const i64 n = x.n, parts = stretches(x.count, n);
  C* buffer = reinterpret_cast<C*>(w.scratch);  // [6, n]: weight, x, z, z_x, z_weight, z_bias
  const C* weight = attrs.weight ? AxisRows<C>(call.in[centred ? 4 : 3], 0).read(0, buffer) : nullptr;
  const int sums = attrs.weight_gradient + attrs.bias;
  C* z_w = attrs.weight_gradient ? buffer + 4 * n : nullptr;
  C* z_b = attrs.bias ? buffer + (4 + attrs.weight_gradient) * n : nullptr;
  C* partial = reinterpret_cast<C*>(w.shared);  // [parts, sums, n]
  w.each(parts, [&](i64 part) {
    const i64 begin = x.count * part / parts, end = x.count * (part + 1) / parts;
    C* total = partial + part * sums * n;
    for (i64 i = 0; i < sums * n; ++i) total[i] = buffer[4 * n + i] = 0;
    for (i64 r = begin; r < end; ++r) {
      const C *xr = x.read(r, buffer + n), *zr = z.read(r, buffer + 2 * n);
      C* out = z_x.target(r, buffer + 3 * n);
      const V s = splat<V>(scale.one(r)), mu = centred ? splat<V>(mean.one(r)) : V{};
      C all_g = 0, all_gx = 0;
      const auto add_block = [&](i64 first, i64 count) __attribute__((always_inline)) {
        const C *xb = xr + first, *zb = zr + first, *weight_b = weight ? weight + first : nullptr;
        C *z_wb = z_w ? z_w + first : nullptr, *z_bb = z_b ? z_b + first : nullptr;
        V sum_g = {}, sum_gx = {};
        for_vectors<C>(count, [&](i64 i, int k) {
          const V zi = load_n(zb + i, k), hat = (load_n(xb + i, k) - mu) * s;
          const V g = weight ? zi * load_n(weight_b + i, k) : zi;
          sum_g += g, sum_gx += g * hat;  // z is 0 for elements beyond k
          if (z_w) store_n(z_wb + i, load_n(z_wb + i, k) + zi * hat, k);
          if (z_b) store_n(z_bb + i, load_n(z_bb + i, k) + zi, k);
        });
        all_g = reduce_add(sum_g), all_gx = reduce_add(sum_gx);
      };
      add_block(0, n < summed_block ? n : summed_block);
      if (__builtin_expect(n > summed_block, 0)) {  // sums of long rows are accumulated in f64
        double whole_g = static_cast<double>(all_g), whole_gx = static_cast<double>(all_gx);
        for (i64 first = summed_block; first < n; first += summed_block) {
          add_block(first, n - first < summed_block ? n - first : summed_block);
          whole_g += static_cast<double>(all_g), whole_gx += static_cast<double>(all_gx);
        }
        all_g = static_cast<C>(whole_g), all_gx = static_cast<C>(whole_gx);
      }
      const V mean_g = splat<V>(centred ? all_g / static_cast<C>(n) : C{0});
      const V mean_gx = splat<V>(all_gx / static_cast<C>(n));
      for_vectors<C>(n, [&](i64 i, int k) {
        const V zi = load_n(zr + i, k), hat = (load_n(xr + i, k) - mu) * s;
        const V g = weight ? zi * load_n(weight + i, k) : zi;
        store_n(out + i, (g - mean_g - hat * mean_gx) * s, k);
      });
      z_x.finish(r, out);
      if ((r - begin) % rows_at_once == rows_at_once - 1 || r + 1 == end) {
        add_to(total, buffer + 4 * n, sums * n);
        for (i64 i = 0; i < sums * n; ++i) buffer[4 * n + i] = 0;
      }
    }
  });
  z_x.end();
  if (sums == 0) return;
  if (!w.barrier()) return;
  const i64 blocks = (n + columns_at_once - 1) / columns_at_once;
  w.each(sums * blocks, [&](i64 job) {
    const i64 which = job / blocks, first = job % blocks * columns_at_once;
    const i64 m = n - first < columns_at_once ? n - first : columns_at_once;
    C* to = partial + which * n + first;  // the sum of the first range, and then the total
    for (i64 part = 1; part < parts; ++part) add_to(to, partial + (part * sums + which) * n + first, m);
    const Arg& out = call.out[static_cast<std::size_t>(1 + which)];
    block_store(dtype_of<C>, out.dtype)(out.data + first * static_cast<i64>(size_of(out.dtype)), to, 1, m);
  });
}

std::size_t row_bytes(const Call& call) {
  return static_cast<std::size_t>(call.in[0].layout.shape.back()) * size_of(compute_type(call.in[0].dtype));
}
Scratch forward_scratch(const Call& call, int) {
  return {4 * row_bytes(call), 0};
}
Scratch backward_scratch(const Call& call, int) {
  const Layout& x = call.in[0].layout;
  const i64 n = x.shape.back(), rows = n > 0 ? x.numel() / n : 0;
  return {6 * row_bytes(call), 2 * row_bytes(call) * static_cast<std::size_t>(stretches(rows, n))};
}

}  // namespace

extern const Kernel layer_norm_kernel{&run_float<forward<double, true>, forward<float, true>>,
                                      &forward_scratch};
extern const Kernel rms_norm_kernel{&run_float<forward<double, false>, forward<float, false>>,
                                    &forward_scratch};
extern const Kernel layer_norm_backward_kernel{&run_float<backward<double, true>, backward<float, true>>,
                                               &backward_scratch};
extern const Kernel rms_norm_backward_kernel{&run_float<backward<double, false>, backward<float, false>>,
                                             &backward_scratch};

}  // namespace tg::cpu::TG_ISA

// flash_attn and flash_attn_backward: from operands and attributes to kernels, what the backward starts from,
// and checks of sequences and lengths.
#include "backends/cuda/kernels/attention_halves.cuh"

namespace tg::cuda {

namespace {

Attention::Operand operand(const Arg* x) {
  if (!x) return {};
  const tg::Strides& s = x->layout.strides;
  return {x->data, s[0], s[1], s[2]};
}

Attention::Bias broadcast(const Arg* x) {
  if (!x) return {};
  const Layout& l = x->layout;
  const auto stride = [&](int axis) -> i64 { return l.shape[axis] == 1 ? 0 : l.strides[axis]; };
  return {x->data, stride(0), stride(1), stride(2), stride(3)};
}

std::byte* address(const Arg* x) {
  return x ? x->data : nullptr;
}

// Sequences and lengths come from outside at every run: where they leave the tensors the run is refused.
__global__ void check_sequences(const __grid_constant__ Attention x, Faults faults) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (x.cu_q && at <= x.segments) {
    for (const auto& [cu, rows] : {std::pair{x.cu_q, x.L}, std::pair{x.cu_k, x.T}}) {
      const i64 before = at > 0 ? cu[at - 1] : 0;
      if (faults.check_index(cu[at], rows + i64{1}, at))
        faults.check_index(cu[at] - before, rows + i64{1}, at);
    }
  }
  if (x.lengths && at < x.B) {
    const i64 n =
        x.lengths_are_i64 ? static_cast<const i64*>(x.lengths)[at] : static_cast<const int*>(x.lengths)[at];
    faults.check_index(n, x.T + i64{1}, at);
  }
}

void launch_checks(const Stream& s, const Attention& x) {
  const i64 n = x.cu_q ? x.segments + i64{1} : x.lengths ? x.B : 0;
  if (n > 0) launch_kernel(s, {blocks_for(n, 256), 256}, check_sequences, x, s.faults);
}

// This lane's part of (a ⊛ b).sum, rows of `size` shared by `lanes` lanes, V elements at a time.
template <int V, class S>
__device__ compute_t<S> partial_dot(const S* a, const S* b, int size, int lane, int lanes) {
  struct alignas(V * sizeof(S)) Piece {
    S e[V];
  };
  compute_t<S> sum = 0;
  for (int n = lane * V; n < size; n += lanes * V) {
    const Piece x = *reinterpret_cast<const Piece*>(a + n), y = *reinterpret_cast<const Piece*>(b + n);
#pragma unroll
    for (int e = 0; e < V; ++e) sum += widen(x.e[e]) * widen(y.e[e]);
  }
  return sum;
}

// u = (O ⊛ z_O).sum − z_ξ, for tensor cores as Halves want it, a row [dv] by some lanes, V elements at a
// time; the first warp of head 0 also notes the keys of its tile, and sums for z_Q begin with zeros.
template <class S, int V>
__global__ void __launch_bounds__(256) prepare(const __grid_constant__ Attention x, const Work work) {
  using C = compute_t<S>;
  const int tiles = (x.L + range_tile - 1) / range_tile, tile = blockIdx.x % tiles,
            h = blockIdx.x / tiles % x.H, b = blockIdx.x / tiles / x.H;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i0 = tile * range_tile;
  for (int w = 0; work.z_q && w < work.walkers; ++w) {
    float4* sums =
        reinterpret_cast<float4*>(work.z_q_part(x, i64(w * x.B + b) * x.H + h, tile * (range_tile / 16), 0));
    for (int n = threadIdx.x; n < range_tile * x.d / 4; n += blockDim.x) sums[n] = float4{0, 0, 0, 0};
  }
  const S* o = x.o.at<S>(b, h);
  const S* z = x.z_o.at<S>(b, h);
  const int lanes = x.dv <= 8 * V ? 8 : x.dv <= 16 * V ? 16 : 32, rows = 32 / lanes;
  for (int r = warp * rows; r < range_tile && i0 + r < x.L; r += 8 * rows) {
    const int i = i0 + r + lane / lanes;
    C sum = 0;
    if (i < x.L) sum = partial_dot<V>(o + i * x.o.row, z + i * x.z_o.row, x.dv, lane % lanes, lanes);
    for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    const i64 row = (i64(b) * x.H + h) * x.L + i;
    if (i >= x.L || lane % lanes > 0) continue;
    if (x.z_lse) sum -= static_cast<const C*>(x.z_lse)[row];
    static_cast<C*>(work.u)[row] = sum;
    if constexpr (sizeof(S) <= 4) {
      const float lse = static_cast<const float*>(x.lse)[row];
      float u = sum;
      if (x.powers) {
        const Powers& p = x.powers[b * x.Hk + h / (x.H / x.Hk)];
        u *= static_cast<float>(1 - x.dropout) * attn::power_of_two(p.z_o + p.v);
      }
      work.stats[row] = {lse == -INFINITY ? INFINITY : lse * static_cast<float>(log2_e), u};
    }
  }
  if (h == 0 && warp == 0) {
    const bool second = i0 + 32 + lane < x.L;
    const KeyRange one = keys_of_query(x, b, min(i0 + lane, x.L - 1)),
                   two = second ? keys_of_query(x, b, i0 + 32 + lane) : one;
    const auto low = [](const KeyRange& r) { return r.from < r.to ? r.from : INT_MAX; };
    const int from = __reduce_min_sync(~0u, min(low(one), low(two))),
              to = __reduce_max_sync(~0u, max(one.to, two.to)),
              all_from = __reduce_max_sync(~0u, max(one.from, two.from)),
              all_to = __reduce_min_sync(~0u, min(one.to, two.to));
    if (lane == 0) {
      work.some[b * tiles + tile] = from < to ? make_int2(from, to) : make_int2(0, 0);
      work.every[b * tiles + tile] = {all_from, all_to};
    }
  }
}

// Whether rows begin at multiples of 16 bytes, V elements.
bool in_pieces(const Attention::Operand& a, int V) {
  return reinterpret_cast<std::uintptr_t>(a.data) % 16 == 0 && a.batch % V == 0 && a.head % V == 0 &&
         a.row % V == 0;
}

void launch_prepare(const Stream& s, const Attention& x, const Work& work) {
  const i64 blocks = i64(x.B) * x.H * ((x.L + range_tile - 1) / range_tile);
  if (blocks == 0) return;
  with_float(x.type, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    constexpr int V = 16 / sizeof(S);
    const LaunchShape shape{blocks_for(blocks, 1), 256};
    const bool pieces = x.dv % V == 0 && in_pieces(x.o, V) && in_pieces(x.z_o, V);
    pieces ? launch_kernel(s, shape, prepare<S, V>, x, work)
           : launch_kernel(s, shape, prepare<S, 1>, x, work);
  });
}

bool in_halves(const Attention& x) {
  return x.type == DType::f32 && fits_mma(x);
}

// The kernels there are: by plain multiply-adds for anything, the others on tensor cores.
enum class Path { plain, halves, mma, wide, one_pass };

Path forward_path(const Attention& x, const Gpu& gpu) {
  if (!fits_mma(x)) return Path::plain;
  if (in_halves(x)) return Path::halves;
  if (!is_wide(x)) return Path::mma;
  return fits_wide_forward(x, gpu) ? Path::wide : Path::plain;
}

Path backward_path(const Attention& x, const Gpu& gpu) {
  if (!fits_mma(x) || (is_wide(x) && !fits_wide_backward(x, gpu))) return Path::plain;
  if (in_halves(x)) return Path::halves;
  if (one_pass_walkers(x, gpu) > 0) return Path::one_pass;
  return is_wide(x) ? Path::wide : Path::mma;
}

void launch_halves_forward(const Stream& s, const Attention& x) {
  const Halves halves(x, false, s.workspace);
  launch_halves(s, x, halves);
  const Attention y = halves.in_place_of(x);
  x.tf32 ? launch_tf32_forward(s, y) : launch_f32_forward(s, y);
}

void launch_forward(const Stream& s, const Call& call) {
  const Attention x = attention_of(call);
  launch_checks(s, x);
  if (x.B == 0 || x.H == 0 || x.L == 0) return;
  switch (forward_path(x, s.gpu)) {
    case Path::halves:
      return launch_halves_forward(s, x);
    case Path::mma:
      return launch_mma_forward(s, x);
    case Path::wide:
      return launch_wide_forward(s, x);
    default:
      return launch_plain_forward(s, x);
  }
}

Work work_of(const Attention& x, const Gpu& gpu, std::byte* base) {
  const bool one_pass = backward_path(x, gpu) == Path::one_pass;
  return {x, one_pass ? one_pass_walkers(x, gpu) : 0, base};
}

void launch_backward(const Stream& s, const Call& call) {
  Attention x = attention_of(call);
  const Work work = work_of(x, s.gpu, s.workspace);
  const Path path = backward_path(x, s.gpu);
  launch_checks(s, x);
  if (path == Path::halves) {
    const Halves halves(x, true, s.workspace + work.bytes);
    launch_halves(s, x, halves);
    x.powers = halves.powers;
    launch_prepare(s, x, work);
    const Attention y = halves.in_place_of(x);
    x.tf32 ? launch_tf32_backward(s, y, work) : launch_f32_backward(s, y, work);
    return launch_bias_and_sink(s, x, work);
  }
  launch_prepare(s, x, work);
  if (path == Path::plain)
    launch_plain_backward(s, x, work);
  else if (path == Path::one_pass)
    launch_one_pass(s, x, work);
  else if (path == Path::wide)
    launch_wide_key_gradients(s, x, work), launch_wide_query_gradients(s, x, work);
  else
    launch_mma_backward(s, x, work);
  launch_bias_and_sink(s, x, work);
}

std::size_t forward_workspace(const Call& call) {
  const Attention x = attention_of(call);
  return in_halves(x) ? Halves(x, false, nullptr).bytes : 0;
}

std::size_t backward_workspace(const Call& call) {
  const Attention x = attention_of(call);
  return work_of(x, call.gpu, nullptr).bytes + (in_halves(x) ? Halves(x, true, nullptr).bytes : 0);
}

std::string words_of(Path path, const Attention& x) {
  switch (path) {
    case Path::halves:
      return x.tf32 ? "tensor cores, f32 as halves of one term" : "tensor cores, f32 as halves of two terms";
    case Path::mma:
      return "tensor cores";
    case Path::wide:
      return "tensor cores, wide heads";
    case Path::one_pass:
      return x.free_order ? "tensor cores, one pass in free order" : "tensor cores, one pass in order";
    default:
      return "plain multiply-adds";
  }
}

std::string forward_choice(const Call& call) {
  const Attention x = attention_of(call);
  return words_of(forward_path(x, call.gpu), x);
}

std::string backward_choice(const Call& call) {
  const Attention x = attention_of(call);
  return words_of(backward_path(x, call.gpu), x);
}

}  // namespace

bool fits_mma(const Attention& x) {
  if (x.type == DType::f64) return false;
  const int piece = 16 / static_cast<int>(size_of(x.type)), most = x.type == DType::f32 ? 128 : 576,
            most_v = x.type == DType::f32 ? 128 : 512;
  if (x.d % piece != 0 || x.dv % piece != 0 || x.d > most || x.dv > most_v || x.dv == 0) return false;
  for (const Attention::Operand& a : {x.q, x.k, x.v, x.o, x.z_o, x.z_q, x.z_k, x.z_v})
    if (!in_pieces(a, piece)) return false;
  return true;
}

Attention attention_of(const Call& call) {
  const auto& a = call.attrs->as<AttentionAttrs>();
  const tg::detail::AttentionOperands<Arg> x(call.in, a);
  const auto size = [](std::int64_t n) {
    if (n > INT_MAX) throw DeviceError("attention takes lengths below 2^31");
    return static_cast<int>(n);
  };
  Attention n;
  const Shape &q = x.q->layout.shape, &v = x.v->layout.shape;
  n.type = x.q->dtype, n.tf32 = call.tf32;
  n.B = size(q[0]), n.H = size(q[1]), n.L = size(q[2]), n.d = size(q[3]);
  n.Hk = size(v[1]), n.T = size(v[2]), n.dv = size(v[3]);
  n.q = operand(x.q), n.k = operand(x.k), n.v = operand(x.v);
  n.scale = a.scale, n.softcap = a.softcap;
  n.causal = a.causal, n.top_left = a.top_left, n.free_order = a.free_order && !call.in_order;
  n.window_left = a.window_left > INT_MAX ? -1 : static_cast<int>(a.window_left);
  n.window_right = a.window_right > INT_MAX ? -1 : static_cast<int>(a.window_right);
  n.bias = broadcast(x.bias);
  n.sink = address(x.sink);
  if (a.packed) {
    n.cu_q = reinterpret_cast<const int*>(address(x.cu_q));
    n.cu_k = reinterpret_cast<const int*>(address(x.cu_k));
    n.segments = size(x.cu_q->layout.shape[0] - 1);
  }
  n.lengths = address(x.lengths);
  n.lengths_are_i64 = x.lengths && x.lengths->dtype == DType::i64;
  if (x.rng) {
    n.dropout = a.dropout, n.stream = a.stream, n.dropout_bound = dropout_bound(a.dropout);
    n.rng = reinterpret_cast<const i64*>(x.rng->data), n.rng_stride = x.rng->layout.strides[0];
  }
  if (!a.backward) {
    n.o = operand(&call.out[0]);
    n.lse = address(&call.out[1]);
    return n;
  }
  n.o = operand(x.o), n.lse = address(x.lse);
  n.z_o = operand(x.z_o), n.z_lse = address(x.z_lse);
  n.z_q = operand(&call.out[0]), n.z_k = operand(&call.out[1]), n.z_v = operand(&call.out[2]);
  if (a.wants_z_bias) n.z_bias = broadcast(&call.out[3]);
  if (a.wants_z_sink) n.z_sink = address(&call.out[call.out.size() - 1]);
  return n;
}

extern const Kernel flash_attn_kernel{&launch_forward, &forward_workspace, nullptr, &forward_choice};
extern const Kernel flash_attn_backward_kernel{&launch_backward, &backward_workspace, nullptr,
                                               &backward_choice};

}  // namespace tg::cuda

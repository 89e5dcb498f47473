// flash_attn and flash_attn_backward: from operands and attributes to kernels, what the backward starts from,
// and checks of sequences and lengths.
#include "backends/cuda/attention/split_terms.cuh"

namespace tg::cuda {

namespace {

Attention attention_of(const Call& call) {
  Attention x{attention_call(call.in, call.out, call.attrs->as<AttentionAttrs>())};
  x.tf32 = call.tf32;
  x.free_order = x.free_order && !call.in_order;
  return x;
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

extern const Kernel flash_attn_kernel{&launch_forward, &forward_workspace, nullptr, &forward_choice};
extern const Kernel flash_attn_backward_kernel{&launch_backward, &backward_workspace, nullptr,
                                               &backward_choice};

}  // namespace tg::cuda

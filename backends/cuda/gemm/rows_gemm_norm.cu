// Computes y = norm(x)·w + d for a single row x. Each block normalizes the row itself, which is faster than a
// separate kernel before the GEMM. The norm is computed as in norm.cu (for batch-invariant rows). The GEMM is
// computed as in rows_gemm.cu. Results are bitwise identical to the results of these kernels.
#include "backends/cuda/gemm/rows_gemm_tensor.cuh"
#include "backends/cuda/kernels/norm.cuh"

namespace tg::cuda {

namespace {

// All copies of a warp's weights are in flight at the same time. x is stored after the weights of all warps.
// It is padded with zeros to a whole number of chunk pairs.
template <class Rows>
std::size_t bytes_of_weights(const RowsGemm& p) {
  return static_cast<std::size_t>(p.longest_slice() / 2 * Rows::w_bytes);
}

template <class Rows, bool centred>
__global__ void __launch_bounds__(k_slice_threads, Rows::blocks)
    rows_gemm_with_norm(const __grid_constant__ RowsGemm p, const __grid_constant__ RowNorm norm) {
  using S = typename Rows::type;
  constexpr Form form = Rows::form;
  constexpr int V = pack_of<S>, outputs = Rows::outputs;
  TG_DYNAMIC_SHARED(memory, 1024);
  __shared__ float sums[k_slices][outputs];
  let_next_kernel_begin();
  const int warp = threadIdx.x / 32, j0 = blockIdx.x * outputs, first = p.slice(warp),
            stages = (p.slice(warp + 1) - first) / 2, longest = p.longest_slice() / 2;
  const u32 weights = ptx::shared_address(memory) + warp * longest * Rows::w_bytes,
            row = ptx::shared_address(memory) + k_slices * longest * Rows::w_bytes;
  if (!p.constant[p.w] || !norm.constant) wait_for_kernel_before();

  // First read everything that no step writes: the thread's pack of the norm's vectors, the weights of the
  // warp's slice, and the addends for the thread's part of y. Then read the rest.
  const int i = V * threadIdx.x;
  const bool here = i < p.k;
  const auto pack = [&](const std::byte* of) {
    return reinterpret_cast<const Words<S, V>*>(reinterpret_cast<const S*>(of) + (here ? i : 0))[0];
  };
  Words<S, V> gain{}, shift{};
  if (norm.weight) gain = pack(norm.weight);
  if (norm.bias) shift = pack(norm.bias);
  Rows rows(p, 0, 0, j0, first, first + 2 * stages);
  u32 at = weights;
#pragma unroll 1
  for (int n = 0; n < stages; ++n, at += Rows::w_bytes) {
    if (p.resident) ptx::cp_async_wait<0>();  // see TensorRows::multiply
    rows.ask_w(at);
    ptx::cp_async_commit();
  }
  constexpr int W = 2;  // number of elements of y
  const bool writes = W * static_cast<int>(threadIdx.x) < outputs;
  const int j = W * threadIdx.x;
  Added<W> added;
  if (writes) p.read_added<S, form>(added, true, 0, 0, j0 + j);
  wait_for_kernel_before();
  Words<S, V> words{};
  if (here) words = pack(norm.x);
  if (writes) p.read_added<S, form>(added, false, 0, 0, j0 + j);

  float x[V], w[V], b[V], mu, scale;
  unpack<S>(words, x), unpack<S>(gain, w), unpack<S>(shift, b);
#pragma unroll
  for (float& e : w) e = norm.weight ? e : 1.f;
  Team<false> team(false);
  normalise_pack<centred>(
      x, w, b, here, norm.part, norm.eps, [&](float v) { return team.sum(v); }, mu, scale);
  if (i < 2 * k_chunk * static_cast<int>(p.pairs_of_chunks())) {
    words = here ? packed<S>(x) : Words<S, V>{};
    unsigned char* const to = memory + k_slices * longest * Rows::w_bytes + Rows::place_in_row(i);
#pragma unroll
    for (int n = 0; n < V / 2; ++n)
      *reinterpret_cast<unsigned*>(to + n * 16) = reinterpret_cast<const unsigned*>(&words)[n];
  }
  if (blockIdx.x == 0) {
    if (here && norm.y) *reinterpret_cast<Words<S, V>*>(reinterpret_cast<S*>(norm.y) + i) = words;
    if (centred && i == 0 && norm.mean) *reinterpret_cast<float*>(norm.mean) = mu;
    if (i == 0 && norm.scale) *reinterpret_cast<float*>(norm.scale) = scale;
  }
  ptx::cp_async_wait<0>();
  __syncthreads();

  u32 x_at = row + first * k_chunk * sizeof(S);
  at = weights;
#pragma unroll 1
  for (int n = 0; n < stages; ++n, at += Rows::w_bytes, x_at += 2 * k_chunk * sizeof(S)) {
    rows.add_chunk_of_row(at, x_at, 0);
    rows.add_chunk_of_row(at, x_at, 1);
  }
  rows.each([&](int i, int j, float sum) {
    if (i == 0) sums[warp][j] = sum;
  });
  __syncthreads();
  if (!writes) return;
  float sum[W], half[W];
#pragma unroll
  for (int slice = 0; slice < k_slices; ++slice)
#pragma unroll
    for (int v = 0; v < W; ++v) add_slice(slice, sums[slice][j + v], half[v], sum[v]);
  p.write<S, form>(0, 0, j0 + j, sum, added);
}

template <class Rows>
void launch(const Stream& s, RowsGemm p, const RowNorm& norm) {
  LaunchShape shape{static_cast<unsigned>(p.tiles(1, Rows::outputs)), k_slice_threads,
                    k_slices * bytes_of_weights<Rows>(p) + 2 * k_chunk * sizeof(short) * p.pairs_of_chunks()};
  p.resident = begins_early(shape, p.tiles(1, Rows::outputs), s.gpu);
  norm.centred ? launch_kernel(s, shape, rows_gemm_with_norm<Rows, true>, p, norm)
               : launch_kernel(s, shape, rows_gemm_with_norm<Rows, false>, p, norm);
}

template <class S, int outputs>
void launch_form(const Stream& s, const RowsGemm& p, const RowNorm& norm) {
  with_usual_form(p, [&](auto form) { launch<TensorRows<S, true, 1, outputs, form.value>>(s, p, norm); });
}

template <int outputs>
bool has_room(const RowsGemm& p, const Gpu& gpu) {
  using Rows = TensorRows<__half, true, 1, outputs, Form::usual>;
  return bytes_of_weights<Rows>(p) <= static_cast<std::size_t>(Rows::room(gpu.hopper)) &&
         p.tiles(1, outputs) <= i64{Rows::blocks} * gpu.processors;
}

}  // namespace

bool has_room_for_norm(const RowsGemm& p, const Gpu& gpu) {
  if (p.k > k_slice_threads * pack_of<__half>) return false;  // one pack per thread
  return computes_16_outputs(p, gpu, 8) ? has_room<16>(p, gpu) : has_room<32>(p, gpu);
}

void launch_with_norm(const Stream& s, const RowsGemm& p, const RowNorm& norm, DType t) {
  with_half(t, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    computes_16_outputs(p, s.gpu, 8) ? launch_form<S, 16>(s, p, norm) : launch_form<S, 32>(s, p, norm);
  });
}

}  // namespace tg::cuda

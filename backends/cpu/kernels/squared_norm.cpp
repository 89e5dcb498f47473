// Norms of a list of tensors. squared_norm is Σ x², and global_norm is √Σ x². Each chunk is summed block by
// block, and the sums of the chunks are added in order in f64. Results are therefore bitwise identical for
// any number of threads. block_norms is √Σ x² of each block.
#include <tilegrad/ops/block_norms.h>
#include "backends/cpu/kernels/rows.h"
#include "ops/square_sums.h"

namespace tg::cpu::TG_ISA {

namespace {

constexpr i64 block = norm_block;
static_assert(block <= Flat<float>::block && list_chunk % block == 0);

// Adds Σ v² of n ≤ block elements.
template <class C>
void add_block(SquareSums& to, const C* v, i64 n) {
  const C squares = sum_of<C>(n, [=](i64 at, int k) {
    const auto e = load_n(v + at, k);
    return e * e;
  });
  if (is_in_range(squares)) return to.add(static_cast<double>(squares), 1);
  const double factor = SquareSums::factor_for(squares);
  constexpr i64 beside = 8;  // independent sums, in vectors
  double again[beside] = {};
  const auto add = [&](i64 i, i64 k) {
    const double e = static_cast<double>(v[i]) * factor;
    again[k] += e * e;
  };
  i64 i = 0;
  for (; i + beside <= n; i += beside)
    for (i64 k = 0; k < beside; ++k) add(i + k, k);
  for (; i < n; ++i) add(i, 0);
  for (i64 k = 1; k < beside; ++k) again[0] += again[k];
  to.add(again[0], factor);
}

template <class C>
void run_as(Worker& w, const Call& call, bool root) {
  C* buffer = reinterpret_cast<C*>(w.scratch);           // [block]
  auto* sums = reinterpret_cast<SquareSums*>(w.shared);  // [chunks]
  const auto tensors = static_cast<i64>(call.in.size());
  const auto count = [&](i64 i) { return call.in[static_cast<std::size_t>(i)].layout.numel(); };
  each_chunk(w, tensors, count, [&](i64 i, i64 chunk, i64 begin, i64 end) {
    const Flat<C> x(call.in[static_cast<std::size_t>(i)]);
    SquareSums sum;
    for (i64 start = begin; start < end; start += block) {
      const i64 n = end - start < block ? end - start : block;
      add_block(sum, x.read(start, n, buffer), n);
    }
    sums[chunk] = sum;
  });
  if (!w.barrier()) return;
  w.each(1, [&](i64) {
    i64 chunks = 0;
    for (i64 i = 0; i < tensors; ++i) chunks += chunks_of(count(i));
    SquareSums total;
    for (i64 c = 0; c < chunks; ++c) total.add(sums[c]);
    *reinterpret_cast<C*>(call.out[0].data) = static_cast<C>(root ? total.norm() : total.total());
  });
}

template <class C>
void norms_of(const Arg& x, i64 begin, i64 end, const Arg& out, std::byte* scratch) {
  const Flat<C> from(x);
  for (i64 start = begin; start < end; start += block) {
    const i64 n = end - start < block ? end - start : block;
    SquareSums sum;
    add_block(sum, from.read(start, n, reinterpret_cast<C*>(scratch)), n);
    reinterpret_cast<C*>(out.data)[start / block] = static_cast<C>(sum.norm());
  }
}

void run_block_norms(Worker& w, const Call& call) {
  const auto tensor = [&](i64 i) -> const Arg& { return call.in[static_cast<std::size_t>(i)]; };
  each_chunk(
      w, static_cast<i64>(call.in.size()), [&](i64 i) { return tensor(i).layout.numel(); },
      [&](i64 i, i64, i64 begin, i64 end) {
        const Arg& out = call.out[static_cast<std::size_t>(i)];
        out.dtype == DType::f64 ? norms_of<double>(tensor(i), begin, end, out, w.scratch)
                                : norms_of<float>(tensor(i), begin, end, out, w.scratch);
      });
}

template <bool root>
void run(Worker& w, const Call& call) {
  call.out[0].dtype == DType::f64 ? run_as<double>(w, call, root) : run_as<float>(w, call, root);
}

Scratch scratch(const Call& call, int) {
  i64 chunks = 0;
  for (const Arg& a : call.in) chunks += chunks_of(a.layout.numel());
  return {Flat<double>::block * sizeof(double), static_cast<std::size_t>(chunks) * sizeof(SquareSums)};
}

}  // namespace

extern const Kernel squared_norm_kernel{&run<false>, &scratch};
extern const Kernel global_norm_kernel{&run<true>, &scratch};
extern const Kernel block_norms_kernel{&run_block_norms, [](const Call&, int) -> Scratch {
                                         return {block * sizeof(double), 0};
                                       }};

}  // namespace tg::cpu::TG_ISA

// squared_norm: Σ x² over a list of tensors. Each chunk is summed block by block, and the chunks' sums in
// their order in f64: the same bits for any number of threads.
#include "backends/cpu/kernels/tensor_list.h"

namespace tg::cpu::TG_ISA {

namespace {

template <class C>
void run_as(Worker& w, const Call& call) {
  constexpr i64 block = Flat<C>::block;
  C* buffer = reinterpret_cast<C*>(w.scratch);         // [block]
  double* sums = reinterpret_cast<double*>(w.shared);  // [chunks]
  const auto tensors = static_cast<i64>(call.in.size());
  const auto count = [&](i64 i) { return call.in[static_cast<std::size_t>(i)].layout.numel(); };
  each_chunk(w, tensors, count, [&](i64 i, i64 chunk, i64 begin, i64 end) {
    const Flat<C> x(call.in[static_cast<std::size_t>(i)]);
    double sum = 0;
    for (i64 start = begin; start < end; start += block) {
      const i64 n = end - start < block ? end - start : block;
      const C* v = x.read(start, n, buffer);
      sum += static_cast<double>(sum_of<C>(n, [&](i64 at, int k) {
        const auto e = load_n(v + at, k);
        return e * e;
      }));
    }
    sums[chunk] = sum;
  });
  w.barrier();
  if (w.thread > 0) return;
  i64 chunks = 0;
  for (i64 i = 0; i < tensors; ++i) chunks += chunks_of(count(i));
  double total = 0;
  for (i64 c = 0; c < chunks; ++c) total += sums[c];
  *reinterpret_cast<C*>(call.out[0].data) = static_cast<C>(total);
}

void run(Worker& w, const Call& call) {
  call.out[0].dtype == DType::f64 ? run_as<double>(w, call) : run_as<float>(w, call);
}

Scratch scratch(const Call& call, int) {
  i64 chunks = 0;
  for (const Arg& a : call.in) chunks += chunks_of(a.layout.numel());
  return {Flat<double>::block * sizeof(double), static_cast<std::size_t>(chunks) * sizeof(double)};
}

}  // namespace

extern const Kernel squared_norm_kernel{&run, &scratch};

}  // namespace tg::cpu::TG_ISA

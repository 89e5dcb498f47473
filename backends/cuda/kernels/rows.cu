#include "backends/cuda/kernels/rows.cuh"

namespace tg::cuda {

RowLayout::RowLayout(const Arg& a, int axis) : data(a.data), step(1) {
  const Layout& l = a.layout;
  for (int i = 0; i < l.rank(); ++i) {
    if (i == axis) {
      step = l.strides[i];
      continue;
    }
    const i64 size = l.shape[i], stride = l.strides[i];
    if (size == 1) continue;
    const int last = outer.rank - 1;
    if (last >= 0 && outer.stride[last] == size * stride)
      outer.size[last] *= size, outer.stride[last] = stride;
    else
      outer.size[outer.rank] = size, outer.stride[outer.rank++] = stride;
  }
  if (axis >= 0 && l.shape[axis] == 1) step = 1;
}

bool takes_packs(const RowLayout& r, i64 n, int pack, int element_size) {
  bool fits = r.step == 1 && n % pack == 0 &&
              reinterpret_cast<std::uintptr_t>(r.data) % (static_cast<std::size_t>(pack) * element_size) == 0;
  for (int a = 0; a < r.outer.rank; ++a) fits = fits && r.outer.stride[a] % pack == 0;
  return fits;
}

Teams::Teams(i64 n, i64 per_thread, bool across_rows, unsigned least) : across(across_rows) {
  unsigned threads = 32;
  while (threads < most_threads && threads * per_thread < n) threads *= 2;
  block = across ? dim3(32, 8) : dim3(threads, threads < least ? least / threads : 1);
  rows_per_block = across ? 32 : block.y;
}

unsigned Teams::grid(i64 rows, i64 most) const {
  return static_cast<unsigned>(std::min((rows + rows_per_block - 1) / rows_per_block, most));
}

}  // namespace tg::cuda

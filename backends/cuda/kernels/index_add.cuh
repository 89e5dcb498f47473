// Sums of slices by sorted key: the common part of index_add and scatter_add.
#pragma once

#include "backends/cuda/kernels/region.cuh"

namespace tg::cuda {

using Key = unsigned long long;

// out[keys[k]·step + u] += Σ src[number(positions[k]) + u] for the units u of a slice. Keys are sorted.
struct Sums {
  const Key* keys;
  const unsigned* positions;
  i64 count;          // number of keys and of positions
  Key limit;          // this key and larger ones are skipped
  i64 step;           // stride between keys in out
  Region<1> number;   // offset of a position's slice in src
  Region<2> columns;  // units of a slice: in out and in src
  i64 chunk, chunks;  // sorted entries per thread; number of chunks

  // Converts from elements to units of v, and chooses the chunks. There are enough chunks to fill any GPU, so
  // their number does not depend on the GPU.
  void cut(int v) {
    columns.group(v);
    step /= v;
    for (int a = 0; a < number.rank; ++a) number.stride[a][0] /= v;
    constexpr i64 threads = 1 << 18, shortest = 16;
    const i64 groups = columns.numel < threads && columns.numel > 0 ? threads / columns.numel : 1;
    chunk = (count + groups - 1) / groups;
    if (chunk < shortest) chunk = shortest;
    chunks = (count + chunk - 1) / chunk;
  }
  // Bytes of partial sums for keys that span chunks: two sums for each chunk and each element of a slice.
  std::size_t partial_bytes(DType t, int v) const {
    return chunks > 1 ? static_cast<std::size_t>(chunks * 2 * columns.numel * v) * size_of(compute_type(t))
                      : 0;
  }
};

// Sums of few slices for index_add, without a sort: out[indices[j]·step + u] += Σ src[j, u] in the order of
// j. The steps are strides between keys, indices, slices and elements of a slice.
constexpr i64 most_few = 1024;
struct FewSlices {
  int count;
  i64 limit, columns, step, index_step, src_step, out_column, src_column;
};
void add_few(const Stream& s, const Arg& indices, const Arg& src, const Arg& out, const FewSlices& m);

// Returns the number of elements in the largest unit that is summed at a time.
inline int sums_unit(DType t) {
  const std::size_t loaded = 16 / size_of(t), held = 32 / size_of(compute_type(t));
  return static_cast<int>(loaded < held ? loaded : held);
}

// `v` is the number of elements in a unit, 1 or sums_unit.
void sum_up(const Stream& s, const Arg& out, const Arg& src, const Sums& m, int v, std::byte* partial);

// out[a, indices[a, b, c], c] += src[a, b, c]. The axis of b has size 1, so each element receives at most one
// addition.
void add_single(const Stream& s, const Arg& indices, const Arg& src, const Arg& out, int axis);

}  // namespace tg::cuda

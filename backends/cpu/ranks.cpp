#include "backends/cpu/kernel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include <tilegrad/core/run/communicator.h>
#include "core/graph/op_attrs.h"
#include "core/run/ranks.h"

namespace tg::cpu {

namespace {

using Bytes = std::span<const std::byte>;
using Shown = std::span<const std::byte* const>;  // the data of each rank

Communicator& ranks_of(const Call& c) {
  static auto& alone = *new OneRank;
  // The plan is the communicator in CompileOptions. Programs keep it alive, and only one program at a time
  // uses it.
  return c.plan ? *static_cast<Communicator*>(const_cast<void*>(c.plan)) : alone;
}

std::size_t bytes_in(const Arg& a) {
  return static_cast<std::size_t>(a.layout.numel()) * size_of(a.dtype);
}

// Returns the bytes of an operand in row-major order, in place or in `copy`.
const std::byte* row_major_bytes(const Arg& a, std::vector<std::byte>& copy) {
  if (a.layout.is_contiguous()) return a.data;
  const std::size_t size = size_of(a.dtype);
  const Layout& l = a.layout;
  copy.resize(bytes_in(a));
  std::vector<std::int64_t> at(static_cast<std::size_t>(l.rank()), 0);
  for (std::byte* to = copy.data(); to != copy.data() + copy.size(); to += size) {
    std::int64_t offset = 0;
    for (int axis = 0; axis < l.rank(); ++axis)
      offset += at[static_cast<std::size_t>(axis)] * l.strides[axis];
    std::memcpy(to, a.data + offset * static_cast<std::int64_t>(size), size);
    for (int axis = l.rank(); axis-- > 0 && ++at[static_cast<std::size_t>(axis)] == l.shape[axis];)
      at[static_cast<std::size_t>(axis)] = 0;
  }
  return copy.data();
}

// Calls f(operand, bytes of the input in row-major order, result) for each tensor of the list.
template <class F>
void each_tensor(const Call& c, F f) {
  std::vector<std::byte> copy;
  for (std::size_t i = 0; i < c.in.size(); ++i)
    f(c.in[i], Bytes(row_major_bytes(c.in[i], copy), bytes_in(c.in[i])), c.out[i]);
}

// Shares `own` in parts and calls read(shown, offset, bytes) for each part. A part consists of whole
// elements, because most_shared is a multiple of all element sizes.
template <class F>
void share_all(Communicator& ranks, Bytes own, F read) {
  for (std::size_t at = 0; at < own.size(); at += Communicator::most_shared) {
    const std::size_t bytes = std::min(Communicator::most_shared, own.size() - at);
    ranks.share(own.subspan(at, bytes), [&](Shown shown) { read(shown, at, bytes); });
  }
}

// out[i] is the sum of element i over all ranks, computed in C in the order of a binary tree. The left half
// of the tree has the largest power of two below the number of ranks.
constexpr std::size_t block = piece_size(256, 16);
template <class T, class C>
void add_tree(Shown shown, std::size_t first, std::size_t count, C* out) {
  if (shown.size() == 1) {
    const T* x = reinterpret_cast<const T*>(shown[0]) + first;
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<C>(x[i]);
    return;
  }
  const std::size_t left = std::bit_floor(shown.size() - 1);
  C right[block];
  add_tree<T>(shown.first(left), first, count, out);
  add_tree<T>(shown.subspan(left), first, count, right);
  for (std::size_t i = 0; i < count; ++i) out[i] += right[i];
}

template <class T, class Out>
void add_as(Shown shown, std::size_t count, std::byte* to) {
  using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
  C sum[block];
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t n = std::min(block, count - first);
    add_tree<T>(shown, first, n, sum);
    for (std::size_t i = 0; i < n; ++i) reinterpret_cast<Out*>(to)[first + i] = static_cast<Out>(sum[i]);
  }
}

// Sums `bytes` bytes of all ranks, with elements of type `in`, into `to`, with elements of type `out`.
void add(DType in, DType out, Shown shown, std::size_t bytes, std::byte* to) {
  const std::size_t count = bytes / size_of(in);
  if (in == f64) return add_as<double, double>(shown, count, to);
  if (in == f32) return add_as<float, float>(shown, count, to);
  if (in == bf16)
    return out == bf16 ? add_as<bfloat16, bfloat16>(shown, count, to)
                       : add_as<bfloat16, float>(shown, count, to);
  return out == f16 ? add_as<float16, float16>(shown, count, to) : add_as<float16, float>(shown, count, to);
}

// Sums `own` over all ranks and writes the sums to `out`, starting at the first element. A rank that does not
// receive this part writes nothing.
void add_shown(Communicator& ranks, const Arg& x, Bytes own, const Arg& out, bool is_own) {
  share_all(ranks, own, [&](Shown shown, std::size_t at, std::size_t bytes) {
    if (is_own) add(x.dtype, out.dtype, shown, bytes, out.data + at / size_of(x.dtype) * size_of(out.dtype));
  });
}

}  // namespace

void all_reduce(Worker&, const Call& c) {
  each_tensor(c, [&](const Arg& x, Bytes own, const Arg& out) { add_shown(ranks_of(c), x, own, out, true); });
}

void reduce_scatter(Worker&, const Call& c) {
  Communicator& ranks = ranks_of(c);
  each_tensor(c, [&](const Arg& x, Bytes own, const Arg& out) {
    const std::size_t piece = own.size() / static_cast<std::size_t>(ranks.size());
    for (int r = 0; r < ranks.size(); ++r)
      add_shown(ranks, x, own.subspan(static_cast<std::size_t>(r) * piece, piece), out, r == ranks.rank());
  });
}

void all_gather(Worker&, const Call& c) {
  each_tensor(c, [&](const Arg&, Bytes own, const Arg& out) {
    share_all(ranks_of(c), own, [&](Shown shown, std::size_t at, std::size_t bytes) {
      for (std::size_t s = 0; s < shown.size(); ++s)
        std::memcpy(out.data + s * own.size() + at, shown[s], bytes);
    });
  });
}

void all_to_all(Worker&, const Call& c) {
  Communicator& ranks = ranks_of(c);
  each_tensor(c, [&](const Arg&, Bytes own, const Arg& out) {
    const std::size_t piece = own.size() / static_cast<std::size_t>(ranks.size());
    for (int r = 0; r < ranks.size(); ++r)
      share_all(ranks, own.subspan(static_cast<std::size_t>(r) * piece, piece),
                [&](Shown shown, std::size_t at, std::size_t bytes) {
                  for (std::size_t s = 0; s < shown.size() && r == ranks.rank(); ++s)
                    std::memcpy(out.data + s * piece + at, shown[s], bytes);
                });
  });
}

void ppermute(Worker&, const Call& c) {
  Communicator& ranks = ranks_of(c);
  const int n = ranks.size(), from = ((ranks.rank() - c.attrs->as<RankAttrs>().shift) % n + n) % n;
  each_tensor(c, [&](const Arg&, Bytes own, const Arg& out) {
    share_all(ranks, own, [&](Shown shown, std::size_t at, std::size_t bytes) {
      std::memcpy(out.data + at, shown[static_cast<std::size_t>(from)], bytes);
    });
  });
}

void local_shard(Worker&, const Call& c) {
  const auto rank = static_cast<std::size_t>(ranks_of(c).rank());
  each_tensor(c, [&](const Arg&, Bytes own, const Arg& out) {
    const std::size_t piece = bytes_in(out);
    if (piece > 0) std::memcpy(out.data, own.data() + rank * piece, piece);
  });
}

}  // namespace tg::cpu

// A thread's work on a fused elementwise step: a block of elements passes through all instructions while it
// is in the L1 cache.
#pragma once

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/pack.h"
#include "backends/cpu/pointwise.h"

namespace tg::cpu::TG_ISA {

// Divides elements [start, start + n) of the iteration space into runs along the innermost axis. Calls
// f(first element of the run within the block, offset in the operand, length) for each run.
template <class F>
TG_INLINE void for_runs(const PointwisePlan& p, const PointwisePlan::Access& o, i64 start, i64 n, F f) {
  i64 index[max_rank], offset = 0;
  const int last = p.rank - 1;
  for (int a = last; a >= 0; --a) {
    index[a] = start % p.shape[a];
    start /= p.shape[a];
    offset += index[a] * o.strides[a];
  }
  for (i64 done = 0; done < n;) {
    const i64 left = p.shape[last] - index[last], run = left < n - done ? left : n - done;
    f(done, offset, run);
    done += run;
    index[last] += run;
    offset += run * o.strides[last];
    for (int a = last; a > 0 && index[a] == p.shape[a]; --a) {
      offset += o.strides[a - 1] - index[a] * o.strides[a];
      index[a] = 0;
      ++index[a - 1];
    }
  }
}

// One thread's execution of a fused elementwise step.
struct Chain {
  using Plan = PointwisePlan;
  const Plan& p;
  const Call& call;
  std::byte* scratch;

  std::byte* slot(int s) const {
    return scratch + static_cast<std::size_t>(s) * Plan::block * static_cast<std::size_t>(p.compute_size);
  }

  bool streams() const {
    for (int o = 0; o < p.stored; ++o)
      if (p.output[o].streams) return true;
    return false;
  }

  // Runs all instructions on n elements. An instruction without a slot writes to its output.
  void compute(const std::byte* const* in, std::byte* const* out, i64 n) const {
    for (int c = 0; c < p.code_size; ++c) {
      const Plan::Instruction& instruction = p.code[c];
      const std::byte* source[3] = {};
      for (int k = 0; k < 3; ++k) {
        const Plan::Source s = instruction.source[k];
        if (s.kind == Plan::Source::input)
          source[k] = in[s.index];
        else if (s.kind == Plan::Source::constant)
          source[k] = p.constant[s.index];
        else if (s.kind == Plan::Source::slot)
          source[k] = slot(s.index);
      }
      std::byte* to = instruction.slot < 0 ? out[-1 - instruction.slot] : slot(instruction.slot);
      instruction.run(to, source[0], source[1], source[2], n);
    }
  }

  // Computes elements start … start + n - 1 of the iteration.
  void run_stretch(i64 start, i64 n) const {
    const std::byte* in[Plan::max_inputs];
    for (int i = 0; i < p.inputs; ++i) {
      const Plan::Access& o = p.input[i];
      if (o.direct) {
        in[i] = call.in[i].data + start * p.compute_size;
        continue;
      }
      std::byte* to = slot(p.input_slot[i]);
      for_runs(p, o, start, n, [&](i64 at, i64 offset, i64 length) {
        o.load(to + at * p.compute_size, call.in[i].data + offset * o.size, o.strides[p.rank - 1], length);
      });
      in[i] = to;
    }
    std::byte* out[Plan::max_outputs];
    for (int o = 0; o < p.stored; ++o)
      out[o] = call.out[o].data + (p.output[o].direct ? start * p.compute_size : 0);
    compute(in, out, n);
    for (int o = 0; o < p.stored; ++o) {
      const Plan::Access& to = p.output[o];
      if (to.direct) continue;
      const std::byte* from = slot(p.output_slot[o]);
      for_runs(p, to, start, n, [&](i64 at, i64 offset, i64 length) {
        write(to, out[o] + offset * to.size, from + at * p.compute_size, length);
      });
    }
  }

  // Computes the same elements. Returns the elements that a reduction reads, in the compute type. They are
  // valid until the next call.
  const std::byte* reduced_stretch(i64 start, i64 n) const {
    run_stretch(start, n);
    return slot(p.output_slot[p.reduced]);
  }

  // Writes n elements of a block to output o, along the last axis.
  void write(const Plan::Access& o, std::byte* to, const std::byte* from, i64 n) const {
    const auto bytes = n * p.compute_size;
    if (o.streams && reinterpret_cast<std::uintptr_t>(to) % TG_VECTOR_BYTES == 0 &&
        bytes % TG_VECTOR_BYTES == 0)
      stream_copy(to, from, bytes);
    else
      o.store(to, from, o.strides[p.rank - 1], n);
  }

  // Computes tile number t. A tile has at most Plan::tile indices along tile_axis and along the last axis.
  // The last axis is the inner axis of the block.
  void run_tile(i64 t) const {
    const int last = p.rank - 1, axis = p.tile_axis;
    i64 index[max_rank];
    const auto take = [&](int a, i64 width) {  // the digits of t are the tile's indices
      const i64 steps = (p.shape[a] + width - 1) / width;
      index[a] = t % steps * width;
      t /= steps;
    };
    take(axis, Plan::tile);  // consecutive tiles are adjacent along the input's contiguous axis
    take(last, Plan::tile);
    for (int a = last - 1; a >= 0; --a)
      if (a != axis) take(a, 1);
    const auto first = [&](const Plan::Access& o, const Arg& arg) {
      i64 offset = 0;
      for (int a = 0; a <= last; ++a) offset += index[a] * o.strides[a];
      return arg.data + offset * o.size;
    };
    const auto left = [&](int a) {
      const i64 n = p.shape[a] - index[a];
      return n < Plan::tile ? n : static_cast<i64>(Plan::tile);
    };
    const i64 rows = left(axis), columns = left(last);
    const std::byte* in[Plan::max_inputs];
    for (int i = 0; i < p.inputs; ++i) {
      const Plan::Access& o = p.input[i];
      const std::byte* from = first(o, call.in[i]);
      std::byte* to = slot(p.input_slot[i]);
      in[i] = to;
      if (o.across) {
        if (p.compute_size == 4)
          transpose_tile<float>(i, from, to, rows, columns);
        else
          transpose_tile<double>(i, from, to, rows, columns);
        continue;
      }
      for (i64 r = 0; r < rows; ++r)
        o.load(to + r * columns * p.compute_size, from + r * o.strides[axis] * o.size, o.strides[last],
               columns);
    }
    compute(in, nullptr, rows * columns);
    for (int k = 0; k < p.outputs; ++k) {
      const Plan::Access& o = p.output[k];
      std::byte* to = first(o, call.out[k]);
      for (i64 r = 0; r < rows; ++r)
        write(o, to + r * o.strides[axis] * o.size, slot(p.output_slot[k]) + r * columns * p.compute_size,
              columns);
    }
  }

  static i64 tiles(i64 n) { return (n + Plan::tile - 1) / Plan::tile; }

  // Transposes a tile of input i into a block [rows, columns]. The tile's columns are contiguous in memory. T
  // has the size of the compute type.
  template <class T>
  void transpose_tile(int i, const std::byte* from, std::byte* to, i64 rows, i64 columns) const {
    const Plan::Access& o = p.input[i];
    i64 pitch = o.strides[p.rank - 1];
    if (o.converts) {
      for (i64 c = 0; c < columns; ++c)
        o.load(slot(p.tile_slot) + c * rows * p.compute_size, from + c * pitch * o.size, 1, rows);
      from = slot(p.tile_slot);
      pitch = rows;
    }
    const T* x = reinterpret_cast<const T*>(from);
    T* y = reinterpret_cast<T*>(to);
    if (rows == Plan::tile && columns == Plan::tile) {
      copy_transposed(columns, rows, x, pitch, y, columns);
    } else {
      for (i64 r = 0; r < rows; ++r)
        for (i64 c = 0; c < columns; ++c) y[r * columns + c] = x[c * pitch + r];
    }
  }
};

}  // namespace tg::cpu::TG_ISA

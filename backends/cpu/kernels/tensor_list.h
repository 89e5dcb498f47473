// The elements of a list of tensors, divided between threads as if they were one tensor.
#pragma once

#include "backends/cpu/kernels/rows.h"

namespace tg::cpu::TG_ISA {

inline constexpr i64 list_chunk = piece_size(8, 1) * Flat<float>::block;

inline i64 chunks_of(i64 count) {
  return (count + list_chunk - 1) / list_chunk;
}

// f(tensor, chunk's number among all, first element, one past the last) for each chunk of each tensor;
// count(i) is the number of elements of tensor i. Chunks depend on shapes alone.
template <class Count, class F>
TG_INLINE void each_chunk(Worker& w, i64 tensors, Count count, F f) {
  i64 chunks = 0;
  for (i64 i = 0; i < tensors; ++i) chunks += chunks_of(count(i));
  i64 tensor = 0, first = 0;  // `first`: of this tensor; a stretch's chunks come in increasing order
  w.each(chunks, [&](i64 chunk) {
    if (chunk < first) tensor = first = 0;
    for (i64 own; chunk >= first + (own = chunks_of(count(tensor))); ++tensor) first += own;
    const i64 begin = (chunk - first) * list_chunk, n = count(tensor);
    f(tensor, chunk, begin, begin + list_chunk < n ? begin + list_chunk : n);
  });
}

}  // namespace tg::cpu::TG_ISA

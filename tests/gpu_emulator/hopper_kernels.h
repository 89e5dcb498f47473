// Helpers for tests of the emulated GPU. They make matrices and tensor maps, run kernels and report errors.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/tile/ptx_sm90.cuh"

namespace tg::cuda {

using Half = __nv_bfloat16;

// Runs a kernel in one cluster of `blocks` blocks with `threads` threads each. Returns the kernel's error, or
// "".
template <class... P>
std::string run_cluster(unsigned blocks, void (*kernel)(P...), unsigned threads,
                        std::type_identity_t<P>... args) {
  try {
    emulator::run_grid(
        {blocks, 1, 1}, {threads, 1, 1}, std::size_t{128} << 10, [&] { kernel(args...); }, blocks);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}
// Runs a kernel in a single block.
template <class... P>
std::string run(void (*kernel)(P...), unsigned threads, std::type_identity_t<P>... args) {
  return run_cluster(1, kernel, threads, args...);
}
#define EXPECT_FAULT(fault, part)                                         \
  do {                                                                    \
    const std::string found = fault;                                      \
    EXPECT_NE(found.find(part), std::string::npos) << "found: " << found; \
  } while (false)

struct Matrix {
  int rows, columns;
  std::vector<Half> x;
  Matrix(int rows, int columns, int seed)
      : rows(rows), columns(columns), x(static_cast<std::size_t>(rows * columns)) {
    for (std::size_t n = 0; n < x.size(); ++n)
      x[n] = static_cast<float>((static_cast<int>(n) * 7 + seed) % 13 - 6);
  }
  float operator()(int i, int j) const { return x[static_cast<std::size_t>(i * columns + j)]; }
};

struct Map {
  CUtensorMap map{};
  cuuint64_t size[4], stride[3];
  cuuint32_t box[4], step[4] = {1, 1, 1, 1};
  void* data;
  Map(Matrix& m, int box_rows)
      : size{cuuint64_t(m.columns), cuuint64_t(m.rows), 1, 1},
        stride{cuuint64_t(m.columns) * 2, 16, 16},
        box{64, cuuint32_t(box_rows), 1, 1},
        data(m.x.data()) {}
  CUresult encode() {
    return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, data, size, stride, box, step,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }
  CUtensorMap encoded() {
    EXPECT_EQ(encode(), CUDA_SUCCESS);
    return map;
  }
};

}  // namespace tg::cuda

// Matrix multiplication on raw pointers and strides: C = A·B + D, batched. The graph's matmul and linear ops
// call it.
#pragma once

#include "backends/cpu/kernel.h"
#include "backends/cpu/kernels/micro.h"

namespace tg::cpu {

struct Gemm {
  static constexpr int max_batch_rank = 6;

  // Element (batch…, i, j) is data[Σ batch·batch_strides + i·row + j·col], in elements. A stride may be 0,
  // except in C.
  struct Matrix {
    void* data = nullptr;
    std::int64_t row = 0, col = 0;
    std::int64_t batch_strides[max_batch_rank] = {};
  };

  DType type = DType::f32;        // of A and B: f32, f64 (computed in f64), bf16 or f16 (computed in f32)
  DType out_type = DType::f32;    // type of C and D: `type`, or f32 for 16-bit inputs; rounded once
  Bf16Unit bf16 = Bf16Unit::f32;  // the processor must have it; instruction sets without it use f32
  std::int64_t m = 0, n = 0, k = 0;
  // The summation order of an element of C depends only on k, the types and the layout of B. It does not
  // depend on m or on the layouts of A, C and D. A row of C is therefore bitwise identical in any GEMM with
  // the same B.
  bool batch_invariant = false;
  int batch_rank = 0;
  std::int64_t batch[max_batch_rank] = {};
  Matrix a, b;  // [batch…, m, k], [batch…, k, n]
  Matrix c;     // [batch…, m, n], written
  Matrix d;     // addend; data may be C's (accumulates), have strides 0 (a bias row), or be null (none)
};

namespace TG_ISA {

// Returns the scratch sizes. They depend on shapes, strides, types and on which pointers are null, but not on
// the data.
Scratch gemm_scratch(const Gemm& g, int threads);

// Every thread of the team calls this function. A barrier must follow before C is read. The result does not
// depend on the number of threads. If m, n or batch is 0, it does nothing. If k = 0, the result is D or
// zeros. A and B may alias each other, but not C.
void gemm(const Gemm& g, Worker& worker);

// Describes how gemm computes the result, for Kernel::choice.
void gemm_choice(const Gemm& g, int threads, char* text, std::size_t size);

}  // namespace TG_ISA
}  // namespace tg::cpu

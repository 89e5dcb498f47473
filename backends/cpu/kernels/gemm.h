// Matrix product on raw pointers and strides: C = A·B + D, batched. The graph's matmul and linear ops call
// it.
#pragma once

#include "backends/cpu/kernel.h"
#include "backends/cpu/kernels/micro.h"

namespace tg::cpu {

struct Gemm {
  static constexpr int max_batch_rank = 6;

  // Element (batch…, i, j) at data[Σ batch·batch_strides + i·row + j·col], in elements. A stride may be 0,
  // except in C.
  struct Matrix {
    void* data = nullptr;
    std::int64_t row = 0, col = 0;
    std::int64_t batch_strides[max_batch_rank] = {};
  };

  DType type = DType::f32;        // of A and B: f32, f64, bf16, f16; computed in f32, f64 for f64
  DType out_type = DType::f32;    // of C and D: `type`, or f32 for half inputs; rounded once
  Bf16Unit bf16 = Bf16Unit::f32;  // one that the processor has; instruction sets without it use f32
  std::int64_t m = 0, n = 0, k = 0;
  // The additions of an element of C are in an order that depends on k, the types and how B lies, not on m or
  // on how A, C and D lie: a row has the same bits in any product.
  bool batch_invariant = false;
  int batch_rank = 0;
  std::int64_t batch[max_batch_rank] = {};
  Matrix a, b;  // [batch…, m, k], [batch…, k, n]
  Matrix c;     // [batch…, m, n], written
  Matrix d;     // added; data may be C's own (accumulates), have strides 0 (a bias row), or be null (absent)
};

namespace TG_ISA {

// Depends on shapes, strides, types and on which of the pointers are null, never on their values.
Scratch gemm_scratch(const Gemm& g, int threads);

// Every thread of the team calls it; a barrier must follow before C is read. The result does not depend on
// the number of threads. Empty m, n or batch: nothing; k = 0: D or zeros. A, B may alias each other, not C.
void gemm(const Gemm& g, Worker& worker);

// Describes how gemm computes the product, for Kernel::choice.
void gemm_choice(const Gemm& g, int threads, char* text, std::size_t size);

}  // namespace TG_ISA
}  // namespace tg::cpu

// Emulates cuBLASLt: D = epilogue(α·op(A)·op(B) + β·C). Matrices are column-major unless a layout specifies
// otherwise. All types are computed in f64.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/gpu_emulator/early_reads.h"
#include "tests/gpu_emulator/recorder.h"

struct cublasLtMatmulDescOpaque {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::array<std::uint64_t, CUBLASLT_MATMUL_DESC_ATTRIBUTES> attribute{};
};
struct cublasLtMatrixLayoutOpaque {
  cudaDataType_t type;
  std::uint64_t rows, cols;
  std::int64_t ld;
  std::int32_t order = CUBLASLT_ORDER_COL, batch = 1;
  std::int64_t batch_stride = 0;

  std::int64_t at(std::int64_t r, std::int64_t c) const {
    return order == CUBLASLT_ORDER_ROW ? r * ld + c : c * ld + r;
  }
};
struct cublasLtMatmulPreferenceOpaque {
  std::array<std::uint64_t, 5> attribute{};  // bytes of workspace; alignments of A, B, C and D
};

namespace {

double load(const void* p, cudaDataType_t t, std::int64_t i) {
  switch (t) {
    case CUDA_R_64F:
      return static_cast<const double*>(p)[i];
    case CUDA_R_32F:
      return static_cast<const float*>(p)[i];
    case CUDA_R_16F:
      return static_cast<const __half*>(p)[i];
    default:
      return static_cast<const __nv_bfloat16*>(p)[i];
  }
}
void store(void* p, cudaDataType_t t, std::int64_t i, double x) {
  switch (t) {
    case CUDA_R_64F:
      static_cast<double*>(p)[i] = x;
      return;
    case CUDA_R_32F:
      static_cast<float*>(p)[i] = static_cast<float>(x);
      return;
    case CUDA_R_16F:
      static_cast<__half*>(p)[i] = static_cast<float>(x);
      return;
    default:
      static_cast<__nv_bfloat16*>(p)[i] = static_cast<float>(x);
  }
}
std::int64_t size_of(cudaDataType_t t) {
  return t == CUDA_R_64F ? 8 : t == CUDA_R_32F ? 4 : 2;
}
double rounded(double x, cudaDataType_t t) {
  double stored = 0;
  store(&stored, t, 0, x);
  return load(&stored, t, 0);
}
double tf32(double x) {
  const unsigned u = __float_as_uint(static_cast<float>(x));
  return std::isfinite(x) ? __uint_as_float((u + 0x1000u) & 0xffffe000u) : x;
}

// Computes gelu with tanh, and its derivative.
double inner(double x) {
  return 0.79788456080286535588 * (x + 0.044715 * x * x * x);
}
double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(inner(x)));
}
double gelu_slope(double x) {
  const double t = std::tanh(inner(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
}

// Stores a call's arguments, because the call may run later.
struct MatmulCall {
  cublasLtMatmulDescOpaque desc;
  cublasLtMatrixLayoutOpaque la, lb, lc, ld;
  double alpha, beta;
  const void *a, *b, *c;
  void* d;

  // If the host knows that β is 1, CUDA's library first rounds the GEMM result and then adds it to D.
  bool rounds_first() const {
    return c == d && beta == 1 && value(CUBLASLT_MATMUL_DESC_POINTER_MODE) == CUBLASLT_POINTER_MODE_HOST;
  }
  std::uint64_t value(cublasLtMatmulDescAttributes_t what) const { return desc.attribute[what]; }
  bool has(unsigned bit) const { return value(CUBLASLT_MATMUL_DESC_EPILOGUE) & bit; }
  cudaDataType_t type(cublasLtMatmulDescAttributes_t what) const {  // default: D's type
    return value(what) ? static_cast<cudaDataType_t>(value(what) - 1) : ld.type;
  }
  void run() const;
  void run(std::int64_t batch) const;
  std::string text() const;
  // Returns op(x) as a row-major matrix [rows, columns].
  std::vector<double> read(const void* x, const cublasLtMatrixLayoutOpaque& l, bool transposed,
                           std::int64_t batch) const {
    const auto rows = static_cast<std::int64_t>(transposed ? l.cols : l.rows),
               cols = static_cast<std::int64_t>(transposed ? l.rows : l.cols);
    std::vector<double> all;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t k = 0; k < cols; ++k) {
        const double e = load(x, l.type, batch * l.batch_stride + (transposed ? l.at(k, r) : l.at(r, k)));
        all.push_back(desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? tf32(e) : e);
      }
    return all;
  }
};

std::string MatmulCall::text() const {
  std::string text = "cublasLtMatmul " + std::to_string(desc.compute) + " " + std::to_string(desc.scale) +
                     " " + std::to_string(alpha) + " " + std::to_string(beta);
  for (std::size_t i = 0; i < desc.attribute.size(); ++i) {
    const auto what = static_cast<cublasLtMatmulDescAttributes_t>(i);
    const bool is_address =
        what == CUBLASLT_MATMUL_DESC_BIAS_POINTER || what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
    text += " " + std::to_string(is_address ? desc.attribute[i] != 0 : desc.attribute[i]);
  }
  for (const cublasLtMatrixLayoutOpaque* l : {&la, &lb, &lc, &ld})
    text += ", type " + std::to_string(l->type) + " of " + std::to_string(l->rows) + " " +
            std::to_string(l->cols) + " ld " + std::to_string(l->ld) + " order " + std::to_string(l->order) +
            " batch " + std::to_string(l->batch) + " " + std::to_string(l->batch_stride);
  return text + (c == d ? ", in place" : "");
}

void MatmulCall::run() const {
  tg::emulator::forget_writes();
  for (std::int64_t i = 0; i < ld.batch; ++i) run(i);
}

void MatmulCall::run(std::int64_t batch) const {
  const bool ta = value(CUBLASLT_MATMUL_DESC_TRANSA) != CUBLAS_OP_N,
             tb = value(CUBLASLT_MATMUL_DESC_TRANSB) != CUBLAS_OP_N;
  const auto m = static_cast<std::int64_t>(ld.rows), n = static_cast<std::int64_t>(ld.cols),
             k = static_cast<std::int64_t>(ta ? la.rows : la.cols);
  const std::vector<double> x = read(a, la, ta, batch), y = read(b, lb, !tb, batch);  // [m, k], [n, k]
  auto* bias = reinterpret_cast<void*>(value(CUBLASLT_MATMUL_DESC_BIAS_POINTER));
  auto* aux = reinterpret_cast<void*>(value(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER));
  const cudaDataType_t bias_type = type(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE),
                       aux_type = type(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE);
  const auto aux_ld = static_cast<std::int64_t>(value(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD)),
             aux_batch = static_cast<std::int64_t>(value(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE)),
             bias_at = batch * static_cast<std::int64_t>(value(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE));
  for (std::int64_t i = 0; i < m; ++i) {
    double of_row = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t e = 0; e < k; ++e)
        sum += x[static_cast<std::size_t>(i * k + e)] * y[static_cast<std::size_t>(j * k + e)];
      sum *= alpha;
      if (rounds_first()) sum = rounded(sum, ld.type);
      if (beta != 0) sum += beta * load(c, lc.type, batch * lc.batch_stride + lc.at(i, j));
      const std::int64_t at = batch * aux_batch + j * aux_ld + i;
      if (has(4)) sum += load(bias, bias_type, bias_at + i);
      if (has(32) && has(128)) store(aux, aux_type, at, sum);
      if (has(32)) sum = gelu(sum);
      if (has(64)) sum *= gelu_slope(load(aux, aux_type, at));
      if (has(2)) sum = sum > 0 ? sum : 0;
      const std::int64_t to = batch * ld.batch_stride + ld.at(i, j);
      store(d, ld.type, to, sum);
      if (tg::emulator::tracks_writes)
        tg::emulator::mark_written(static_cast<std::byte*>(d) + to * size_of(ld.type), 2);
      of_row += sum;
    }
    if (has(16)) store(bias, bias_type, bias_at + i, of_row);
  }
  const auto sums = [&](const std::vector<double>& of, std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i) {
      double sum = 0;
      for (std::int64_t e = 0; e < k; ++e) sum += of[static_cast<std::size_t>(i * k + e)];
      store(bias, bias_type, bias_at + i, sum);
    }
  };
  if (has(256)) sums(x, m);
  if (has(512)) sums(y, n);
}

double scale(const void* p, cudaDataType_t t) {
  return load(p, t, 0);
}

// Returns the workspace of an algorithm in bytes. The number is within the limit. It is not a multiple of
// 256.
std::size_t workspace_of(std::uint64_t most) {
  return std::min<std::uint64_t>(most, 1000);
}

std::atomic<int> objects = 0;

}  // namespace

int tg::emulator::live_matmul_objects() {
  return objects;
}

const char* cublasLtGetStatusString(cublasStatus_t s) {
  return s == CUBLAS_STATUS_SUCCESS         ? "success"
         : s == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported"
                                            : "a failure";
}
std::size_t cublasLtGetVersion() {  // not an NVIDIA version; part of cache keys
  return 1;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) {
  *h = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *made = new cublasLtMatmulDescOpaque{compute, scale};
  ++objects;
  (*made)->attribute[CUBLASLT_MATMUL_DESC_EPILOGUE] = CUBLASLT_EPILOGUE_DEFAULT;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete d;
  --objects;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                                              const void* value, std::size_t size) {
  std::uint64_t& to = d->attribute[what];
  to = 0;
  std::memcpy(&to, value, size < 8 ? size : 8);
  if (what == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE || what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE)
    ++to;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  *made = new cublasLtMatrixLayoutOpaque{type, rows, cols, ld};
  ++objects;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  delete l;
  --objects;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t what, const void* value,
                                                std::size_t size) {
  switch (what) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      std::memcpy(&l->order, value, size);
      return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      std::memcpy(&l->batch, value, size);
      return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      std::memcpy(&l->batch_stride, value, size);
      return CUBLAS_STATUS_SUCCESS;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = new cublasLtMatmulPreferenceOpaque;
  ++objects;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete p;
  --objects;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, std::size_t size) {
  std::memcpy(&p->attribute[what], value, std::min(size, sizeof(std::uint64_t)));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* result, int* found) {
  *found = 0;
  const bool ta = desc->attribute[CUBLASLT_MATMUL_DESC_TRANSA] != CUBLAS_OP_N,
             tb = desc->attribute[CUBLASLT_MATMUL_DESC_TRANSB] != CUBLAS_OP_N;
  if ((ta ? a->cols : a->rows) != d->rows || (tb ? b->rows : b->cols) != d->cols ||
      (ta ? a->rows : a->cols) != (tb ? b->cols : b->rows) || c->rows != d->rows || c->cols != d->cols)
    return CUBLAS_STATUS_INVALID_VALUE;
  for (const cublasLtMatrixLayoutOpaque* l : {a, b, c, d})
    if (l->ld < static_cast<std::int64_t>(l->order == CUBLASLT_ORDER_ROW ? l->cols : l->rows))
      return CUBLAS_STATUS_INVALID_VALUE;
  // CUDA's library may list algorithms in a different order each time. It may leave arbitrary data in unused
  // bytes. This function does both.
  static std::atomic<std::uint64_t> calls = 0;
  const std::uint64_t call = ++calls * 0x9E3779B97F4A7C15;
  *found = std::min(most, 2);
  const auto& told = preference->attribute;
  for (int i = 0; i < *found; ++i)
    result[i] = {{{((call >> 40) + static_cast<std::uint64_t>(i)) % 2, call, told[0], told[1], told[2],
                   told[3], told[4]}},
                 workspace_of(told[0]),
                 CUBLAS_STATUS_SUCCESS,
                 1};
  return CUBLAS_STATUS_SUCCESS;
}
// The algorithms have different numbers. All other attributes are 0. The words after the second word contain
// the preference.
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t what, void* value,
                                                    std::size_t size, std::size_t* written) {
  std::memset(value, 0, size);
  if (what == CUBLASLT_ALGO_CONFIG_ID)
    std::memcpy(value, algorithm->data, std::min(size, sizeof(std::uint64_t)));
  *written = size;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t la, const void* b, cublasLtMatrixLayout_t lb,
                              const void* beta, const void* c, cublasLtMatrixLayout_t lc, void* d,
                              cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t* algorithm, void* memory,
                              std::size_t workspace, cudaStream_t stream) {
  const std::uint64_t* const told = algorithm->data + 2;
  const void* const operands[] = {a, b, c, d};
  for (std::size_t i = 0; i < 4; ++i)
    if (reinterpret_cast<std::uintptr_t>(operands[i]) % std::max<std::uint64_t>(told[i + 1], 1) != 0)
      return CUBLAS_STATUS_INVALID_VALUE;
  if (workspace < workspace_of(told[0])) return CUBLAS_STATUS_INVALID_VALUE;
  const MatmulCall call{*desc, *la, *lb, *lc, *ld, scale(alpha, desc->scale), scale(beta, desc->scale),
                        a,     b,   c,   d};
  if (tg::emulator::only_records()) {
    std::string line = call.text() + ", workspace " + std::to_string(workspace) + ", told";
    for (int i = 0; i < 5; ++i) line += " " + std::to_string(told[i]);
    tg::emulator::record(stream, line);
    return CUBLAS_STATUS_SUCCESS;
  }
  const auto run = [call, memory, workspace] {
    if (workspace > 0) std::memset(memory, 0xff, workspace);  // NaN shows reads of the workspace
    call.run();
  };
  return tg::emulator::enqueue(stream, run) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                           : CUBLAS_STATUS_EXECUTION_FAILED;
}

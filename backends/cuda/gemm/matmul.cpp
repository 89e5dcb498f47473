// matmul by cuBLASLt: C = A·B, or A·B + D, with an optional gelu_tanh epilogue. cuBLASLt is column-major, so
// it computes Cᵀ = Bᵀ·Aᵀ. A transposed operand sets a flag. A broadcast operand has a batch stride of 0.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <mutex>

#include <tilegrad/core/base/error.h>
#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/gemm/algorithms.h"
#include "backends/cuda/gemm/matmul.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/kernel.h"
#include "backends/cuda/runtime/memory.h"
#include "core/base/hash.h"
#include "core/compile/lower.h"
#include "ops/norm.h"

namespace tg::cuda {

namespace {

void check_lt(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(std::string("[matmul] ") + what + ": " + cublasLtGetStatusString(status));
}

cublasLtHandle_t handle() {
  static cublasLtHandle_t h = [] {
    cublasLtHandle_t made;
    check_lt(cublasLtCreate(&made), "starting cuBLASLt");
    return made;
  }();
  return h;
}

cudaDataType_t type_of(DType t) {
  return t == f64 ? CUDA_R_64F : t == f32 ? CUDA_R_32F : t == bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

// A matrix [rows, columns] of a batch. Row i begins at data + i·row, and its elements have stride `col`.
struct Matrix {
  std::int64_t rows, columns, row, col;
  bool row_major() const { return (col == 1 || columns == 1) && (row >= columns || rows == 1); }
  bool column_major() const { return (row == 1 || rows == 1) && (col >= rows || columns == 1); }
};

// The last two axes of x as a matrix, and the strides of the leading axes. The leading axes are broadcast to
// the leading axes of the GEMM.
struct View {
  Matrix matrix;
  std::array<std::int64_t, max_rank> batch{};
};
View view_of(const Arg& x, const Shape& out, std::int64_t rows, std::int64_t columns) {
  const tg::Strides strides = product_strides(x, out, rows, columns);
  const int leading = out.size() - 2;
  View v{{rows, columns, strides[leading], strides[leading + 1]}};
  std::copy_n(strides.begin(), leading, v.batch.begin());
  return v;
}

struct Product {
  std::int64_t m, n, k;
  View a, b, c, d;
  bool has_d;
  std::vector<std::int64_t> batch;  // the leading axes
};

Product product_of(const Call& call) {
  const Shape& out = call.out[0].layout.shape;
  const int r = out.size();
  Product p;
  p.m = out[r - 2], p.n = out[r - 1];
  p.k = call.in[0].layout.shape[call.in[0].layout.rank() - 1];
  p.a = view_of(call.in[0], out, p.m, p.k);
  p.b = view_of(call.in[1], out, p.k, p.n);
  p.c = view_of(call.out[0], out, p.m, p.n);
  p.has_d = call.in.size() == 3;
  if (p.has_d) p.d = view_of(call.in[2], out, p.m, p.n);
  for (int a = 0; a + 2 < r; ++a) p.batch.push_back(out[a]);
  return p;
}

// Merges leading axes. Two adjacent axes are merged if, in all operands, the outer stride equals the inner
// stride times the inner size. The innermost axis becomes the strided batch of a cuBLASLt call. Each index of
// the remaining axes needs a separate call.
void merge_batch(Product& p) {
  View* views[] = {&p.a, &p.b, &p.c, &p.d};
  std::size_t n = 0;
  for (std::size_t a = 0; a < p.batch.size(); ++a) {
    if (p.batch[a] == 1) continue;
    bool merges = n > 0;
    for (const View* v : views) merges = merges && v->batch[n - 1] == p.batch[a] * v->batch[a];
    if (!merges) ++n;
    p.batch[n - 1] = merges ? p.batch[n - 1] * p.batch[a] : p.batch[a];
    for (View* v : views) v->batch[n - 1] = v->batch[a];
  }
  p.batch.resize(n);
}

// α and β.
struct Scales {
  const void *alpha, *beta;
};

struct Plan final : KernelPlan {
  Product product;
  bool own = false;           // use our own kernel, for any strides
  bool rows = false;          // use rows_gemm
  RowsContext of_rows;        // the additional ops that rows_gemm computes
  bool small = false;         // use multiply_small
  bool bias = false;          // D is one row for all rows
  std::byte* gelu = nullptr;  // output of gelu_tanh
  bool keeps = false;         // the result before gelu_tanh is also needed
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algo{};
  std::size_t bytes = 0;  // size of the workspace
  Scales scales{};

  void launch(const Stream& s, const Call& call) const override;
  std::size_t workspace(const Call&) const override { return bytes; }
  std::string choice(const Call& call) const override;
  ~Plan() override {
    for (cublasLtMatrixLayout_t l : {a, b, c, d})
      if (l) cublasLtMatrixLayoutDestroy(l);
    if (desc) cublasLtMatmulDescDestroy(desc);
  }
};

// The cuBLASLt layout of a matrix, column-major, with the innermost leading axis as its batch.
cublasLtMatrixLayout_t layout_of(DType t, const Product& p, const View& v) {
  const Matrix& m = v.matrix;
  const bool rows = m.row_major();
  cublasLtMatrixLayout_t l;
  const std::int64_t ld = rows ? std::max(m.row, m.columns) : std::max(m.col, m.rows);
  check_lt(cublasLtMatrixLayoutCreate(&l, type_of(t), static_cast<std::uint64_t>(rows ? m.columns : m.rows),
                                      static_cast<std::uint64_t>(rows ? m.rows : m.columns), ld),
           "a layout");
  const auto count = static_cast<std::int32_t>(p.batch.empty() ? 1 : p.batch.back());
  const std::int64_t stride = p.batch.empty() ? 0 : v.batch[p.batch.size() - 1];
  check_lt(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
           "a layout");
  check_lt(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                            sizeof stride),
           "a layout");
  return l;
}

constexpr std::size_t most_workspace = std::size_t{32} << 20;
constexpr int candidates = 32;

Scales without_sum(DType t) {
  static const double wide[] = {1, 0};
  static const float narrow[] = {1, 0};
  return t == f64 ? Scales{&wide[0], &wide[1]} : Scales{&narrow[0], &narrow[1]};
}

// α and β are ones in the GPU's memory. cuBLASLt cannot read them when it selects a kernel. If it knew that β
// is 1, and C and D were the same buffer, it would round the product before the addition in memory. Whether
// they are the same buffer depends on the arena, so the result would depend on the arena too.
Scales with_sum(DType t, const Gpu& gpu) {
  static std::mutex mutex;
  static auto& ones = *new std::map<int, std::shared_ptr<void>>;  // by device ordinal; never freed
  const struct {
    double wide = 1;
    float narrow = 1;
  } values;
  const std::lock_guard lock(mutex);
  std::shared_ptr<void>& own = ones[gpu.ordinal];
  if (!own) own = on_device(&values, sizeof values);
  const std::byte* one = static_cast<const std::byte*>(own.get());
  if (t != f64) one += sizeof(double);
  return {one, one};
}

// The alignment that cuBLASLt is given, in bytes. It is at most 16, because that is enough for the longest
// loads. The choice determines the result bitwise. An operand's offset in the arena must therefore not
// influence the choice in any other way.
std::uint32_t alignment_of(std::uintptr_t place) {
  std::uint32_t bytes = 16;
  while (place % bytes != 0) bytes /= 2;
  return bytes;
}
std::uint32_t alignment_of(const std::byte* data) {
  return alignment_of(reinterpret_cast<std::uintptr_t>(data));
}

// Returns a hash of everything that the choice of an algorithm may depend on.
ChoiceKey key_of(const Plan& p, const Call& call) {
  const Product& x = p.product;
  Hasher h;
  const auto add = [&](auto n) { h.add(static_cast<std::uint64_t>(static_cast<std::int64_t>(n))); };
  add(x.m), add(x.n), add(x.k), add(p.bias), add(x.has_d), add(call.tf32), add(call.in[0].dtype);
  add(call.out[0].dtype), add(p.gelu ? 1 + p.keeps : 0);
  for (const View* v : {&x.a, &x.b, &x.c, &x.d}) {
    if (v == &x.d && !x.has_d) continue;
    add(v->matrix.row), add(v->matrix.col);
    for (std::size_t a = 0; a < x.batch.size(); ++a) add(v->batch[a]);
  }
  for (std::int64_t n : x.batch) add(n);
  for (const Arg& a : call.in) h.add(alignment_of(a.data));
  h.add(alignment_of(call.out[0].data));
  return h.digest();
}

template <class T>
void set(Plan& p, cublasLtMatmulDescAttributes_t what, const T& value) {
  check_lt(cublasLtMatmulDescSetAttribute(p.desc, what, &value, sizeof value), "a product");
}

// Uses the algorithm that was chosen before. If there is none, times each algorithm on the real operands,
// with a separate output, and uses the fastest one. Returns false if no algorithm ran.
bool choose(Plan& p, const Call& call, std::span<const cublasLtMatmulHeuristicResult_t> found,
            const ChoiceKey& key) {
  const auto take = [&](const cublasLtMatmulHeuristicResult_t& r) {
    p.algo = r.algo, p.bytes = r.workspaceSize;
  };
  take(found[0]);
  if (!call.out[0].data) {  // planned without memory: enough workspace for any later choice
    for (const auto& r : found) p.bytes = std::max(p.bytes, r.workspaceSize);
    return true;
  }
  if (found.size() == 1 && !p.gelu) return true;
  const auto take_if_found = [&](const std::optional<SavedChoice>& wanted) {
    for (const auto& r : found)
      if (wanted && is_same_algorithm(r.algo, *wanted)) {
        take(r);
        return true;
      }
    return false;
  };
  if (take_if_found(known_choice(key, call.gpu))) return true;
  const Layout& l = call.out[0].layout;
  const DType t = call.out[0].dtype;
  const bool adds = p.product.has_d && !p.bias;
  const std::size_t bytes = (static_cast<std::size_t>(l.extent()) * size_of(t) + 255) / 256 * 256;
  bool ran = false;
  const ScratchMemory out(bytes * (p.keeps ? 2 : 1)), workspace(most_workspace);
  if (out.data() && workspace.data()) {
    const Stopwatch watch;
    if (p.keeps) set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, out.data() + bytes);
    float best = std::numeric_limits<float>::infinity();
    for (const auto& r : found) {
      const auto run = [&] {
        return cublasLtMatmul(handle(), p.desc, p.scales.alpha, call.in[1].data, p.b, call.in[0].data, p.a,
                              p.scales.beta, adds ? call.in[2].data : out.data(), p.d, out.data(), p.c,
                              &r.algo, workspace.data(), r.workspaceSize, watch.stream());
      };
      if (run() != CUBLAS_STATUS_SUCCESS) continue;
      const float ms = watch.time([&] { run(); }, best);
      if (ms < best) best = ms, ran = true, take(r);
    }
    if (p.keeps) set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.out[0].data);
  }
  take_if_found(
      save_choice(key, call.gpu, ran ? std::optional(std::bit_cast<SavedChoice>(p.algo)) : std::nullopt));
  cudaGetLastError();
  return ran;
}

// Sets the cuBLASLt epilogue. If the result before gelu is kept, its row length must be a multiple of 8.
void set_epilogue(Plan& p, const Call& call) {
  if (p.bias) {
    set(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(call.out[0].dtype));
    set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(call.in[2].data));
  }
  if (p.keeps) {
    set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.out[0].data);
    set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.product.n);
  }
  set(p, CUBLASLT_MATMUL_DESC_EPILOGUE,
      p.keeps  ? p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX
      : p.gelu ? p.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU
      : p.bias ? CUBLASLT_EPILOGUE_BIAS
               : CUBLASLT_EPILOGUE_DEFAULT);
}

std::unique_ptr<Plan> make_plan(const Call& call, std::byte* gelu) {
  auto made = std::make_unique<Plan>();
  Plan& p = *made;
  if (is_gemm_of_rows(call)) {
    p.rows = is_for_rows_gemm(call), p.own = !p.rows;
    if (p.rows) p.bytes = rows_gemm_workspace(call);
    if (call.written) p.of_rows.written = *call.written;
    return made;
  }
  p.small = !gelu && is_grouped_gemm(call);
  if (p.small) return made;
  Product& x = p.product;
  x = product_of(call);
  merge_batch(x);
  const DType t = call.in[0].dtype, of_result = call.out[0].dtype;
  const auto lies_well = [](const View& v) { return v.matrix.row_major() || v.matrix.column_major(); };
  p.bias = x.has_d && x.d.matrix.row == 0 && x.d.matrix.col == 1;
  for (std::size_t a = 0; a < x.batch.size(); ++a) p.bias = p.bias && x.d.batch[a] == 0;
  p.own = x.m == 0 || x.n == 0 || x.k == 0 || !lies_well(x.a) || !lies_well(x.b) || !x.c.matrix.row_major() ||
          (x.has_d && !p.bias && !x.d.matrix.row_major());
  if (p.own) return made;

  const cublasComputeType_t compute = t == f64                ? CUBLAS_COMPUTE_64F
                                      : t == f32 && call.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                              : CUBLAS_COMPUTE_32F;
  check_lt(cublasLtMatmulDescCreate(&p.desc, compute, t == f64 ? CUDA_R_64F : CUDA_R_32F), "a product");
  set(p, CUBLASLT_MATMUL_DESC_TRANSA, x.b.matrix.row_major() ? CUBLAS_OP_N : CUBLAS_OP_T);
  set(p, CUBLASLT_MATMUL_DESC_TRANSB, x.a.matrix.row_major() ? CUBLAS_OP_N : CUBLAS_OP_T);
  const bool adds = x.has_d && !p.bias;
  p.scales = adds ? with_sum(t, call.gpu) : without_sum(t);
  set(p, CUBLASLT_MATMUL_DESC_POINTER_MODE, adds ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST);
  p.gelu = gelu, p.keeps = gelu && gelu != call.out[0].data;
  set_epilogue(p, call);
  p.b = layout_of(t, x, x.b), p.a = layout_of(t, x, x.a), p.c = layout_of(of_result, x, x.c);
  p.d = layout_of(of_result, x, x.has_d && !p.bias ? x.d : x.c);

  cublasLtMatmulPreference_t preference;
  check_lt(cublasLtMatmulPreferenceCreate(&preference), "a product");
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most_workspace,
                                       sizeof most_workspace);
  // The alignment must hold for each cuBLASLt call. The offset of a call's operand is a sum of multiples of
  // strides, for all leading axes except the innermost.
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t what, const std::byte* data, const View& v,
                         DType type) {
    std::uint32_t bytes = alignment_of(data);
    for (std::size_t a = 0; a + 1 < x.batch.size(); ++a)
      bytes = std::min(bytes, alignment_of(static_cast<std::uintptr_t>(v.batch[a]) * size_of(type)));
    cublasLtMatmulPreferenceSetAttribute(preference, what, &bytes, sizeof bytes);
  };
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, call.in[1].data, x.b, t);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, call.in[0].data, x.a, t);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (adds ? call.in[2] : call.out[0]).data, adds ? x.d : x.c,
        of_result);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, gelu ? gelu : call.out[0].data, x.c, of_result);
  cublasLtMatmulHeuristicResult_t found[candidates];
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle(), p.desc, p.b, p.a, p.d, p.c,
                                                               preference, candidates, found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    p.own = true;  // cuBLASLt has no kernel for this shape or alignment
    return made;
  }
  if (!choose(p, call, std::span(found, static_cast<std::size_t>(count)), key_of(p, call)) && gelu)
    p.own = true;
  return made;
}

PlanPtr plan(const Call& call) {
  return make_plan(call, nullptr);
}

void Plan::launch(const Stream& s, const Call& call) const {
  const Plan& p = *this;
  const Product& x = p.product;
  if (p.rows) return rows_gemm(s, call, p.of_rows);
  if (p.small) return multiply_small(s, call);
  if (p.own) return multiply_strided(s, call);
  const bool adds = x.has_d && !p.bias;
  std::int64_t calls = 1;
  for (std::size_t a = 0; a + 1 < x.batch.size(); ++a) calls *= x.batch[a];
  for (std::int64_t i = 0; i < calls; ++i) {
    const auto at = [&](const Arg& arg, const View& v) {
      std::int64_t offset = 0, rest = i;
      for (std::size_t a = x.batch.size() < 2 ? 0 : x.batch.size() - 1; a-- > 0; rest /= x.batch[a])
        offset += rest % x.batch[a] * v.batch[a];
      return arg.data + offset * static_cast<std::int64_t>(size_of(arg.dtype));
    };
    std::byte* c = p.gelu ? p.gelu : at(call.out[0], x.c);
    const std::byte* d = adds ? at(call.in[2], x.d) : c;
    check_lt(cublasLtMatmul(handle(), p.desc, p.scales.alpha, at(call.in[1], x.b), p.b, at(call.in[0], x.a),
                            p.a, p.scales.beta, d, p.d, c, p.c, &p.algo, s.workspace, p.bytes, s.stream),
             "multiplying");
  }
}

std::string Plan::choice(const Call& call) const {
  const Plan& p = *this;
  if (p.rows) return rows_gemm_choice(call, p.of_rows);
  if (p.small) return "one small product";
  if (p.own) return "plain kernel for any strides";
  std::string s = "cuBLASLt";
  const auto add = [&](const char* name, cublasLtMatmulAlgoConfigAttributes_t what) {
    std::int32_t value = 0;
    std::size_t written = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(&p.algo, what, &value, sizeof value, &written) ==
        CUBLAS_STATUS_SUCCESS)
      s += std::string(" ") + name + " " + std::to_string(value);
  };
  add("algorithm", CUBLASLT_ALGO_CONFIG_ID);
  add("tile", CUBLASLT_ALGO_CONFIG_TILE_ID);
  add("stages", CUBLASLT_ALGO_CONFIG_STAGES_ID);
  add("splits of k", CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  if (call.in[0].dtype == f32) s += call.tf32 ? ", in TF32" : ", in f32";
  if (p.bias) s += ", with the bias";
  if (p.gelu) s += p.keeps ? ", with the product and gelu_tanh" : ", with gelu_tanh";
  return s;
}

}  // namespace

extern const Kernel matmul_kernel{&plan};

namespace {

// Whether a step that is fused with the GEMM would overwrite the GEMM's operands or part of its result.
bool overwrites(const Step& other, const Call& product) {
  const Arg& out = other.out[0];
  return overlap(range_of(product.in[0]), range_of(out)) || overlap(range_of(product.in[1]), range_of(out)) ||
         crosses(product.out[0], out);
}

// Returns the norm that the GEMM kernel computes for its row. All blocks read the norm's inputs, while one
// block writes the norm's outputs. Returns nullopt if the norm's memory is laid out differently.
std::optional<RowNorm> norm_of_row(const Step& norm, const Call& product, const Step* gelu) {
  const auto& attrs = norm.attrs.as<NormAttrs>();
  const std::int64_t k = norm.out[0].layout.shape.back();
  const auto overwritten = [&](const Arg& out) {  // true: no later step reads it
    return overlap(range_of(product.out[0]), range_of(out)) ||
           (gelu && overlap(range_of(gelu->out[0]), range_of(out)));
  };
  for (const Arg& in : norm.in)
    if (in.dtype != product.in[0].dtype || in.layout.numel() != k || !in.layout.is_contiguous() ||
        reinterpret_cast<std::uintptr_t>(in.data) % 16 != 0 || overwritten(in))
      return std::nullopt;
  for (const Arg& out : norm.out)
    if (meets(out, norm.in) || meets(out, product.in.subspan(1))) return std::nullopt;
  const bool centred = norm.out.size() == 3;  // layer_norm has a mean
  const auto unless_overwritten = [&](const Arg& out) { return overwritten(out) ? nullptr : out.data; };
  RowNorm n{};
  n.x = norm.in[0].data;
  if (attrs.weight) n.weight = norm.in[1].data;
  if (attrs.bias) n.bias = norm.in[2].data;
  n.y = norm.out[0].data;
  if (centred) n.mean = unless_overwritten(norm.out[1]);
  n.scale = unless_overwritten(norm.out[centred ? 2 : 1]);
  n.part = static_cast<float>(1. / static_cast<double>(k)), n.eps = static_cast<float>(attrs.eps);
  n.centred = centred;
  n.constant =
      std::all_of(norm.in.begin() + 1, norm.in.end(), [&](const Arg& v) { return is_constant(v, product); });
  return n;
}

}  // namespace

tg::Strides product_strides(const Arg& x, const Shape& product, std::int64_t rows, std::int64_t columns) {
  const Layout& l = x.layout;
  const int rank = product.size();
  tg::Strides strides;
  for (int a = 0; a < rank; ++a) {
    const int own = a - (rank - l.rank());
    const std::int64_t size = a + 2 == rank ? rows : a + 1 == rank ? columns : product[a];
    strides.push_back(own < 0 || (l.shape[own] == 1 && size != 1) ? 0 : l.strides[own]);
  }
  return strides;
}

// cuBLASLt's summation order depends on the number of rows.
bool is_gemm_of_rows(const Call& call) {
  return call.batch_invariant || (call.written && is_faster_by_rows_gemm(call) && !is_grouped_gemm(call));
}

namespace {

// Returns a plan that also computes gelu_tanh, the step after the GEMM. Returns null in these cases:
// - cuBLASLt has no kernel for it.
// - cuBLASLt does not document its accuracy (f32, f64).
// - One step would overwrite memory that the other step still reads.
PlanPtr plan_with_gelu(const Call& call, const Step& gelu) {
  if (epilogue_of(gelu) != Epilogue::gelu_tanh || overwrites(gelu, call)) return nullptr;
  if (call.in.size() == 3 && overlap(range_of(call.in[2]), range_of(gelu.out[0]))) return nullptr;
  const Product x = product_of(call);
  const DType t = call.out[0].dtype;
  if ((t != bf16 && t != f16) || x.n % 8 != 0 || call.out[0].layout.rank() != 2) return nullptr;
  if (x.has_d && (x.d.matrix.row != 0 || x.d.matrix.col != 1)) return nullptr;
  auto p = make_plan(call, gelu.out[0].data);
  return p->own ? nullptr : std::move(p);
}

// Returns a plan for a GEMM of few rows. Its kernel also computes the previous step `before` (a sum or norm)
// and the next step `gelu`. Either may be null. Results are bitwise identical to those of separate steps.
// Returns null if the kernel cannot compute one of these steps, or if one step would overwrite memory that
// another step still reads.
PlanPtr plan_of_rows(const Call& call, const Step* before, const Step* gelu) {
  auto p = make_plan(call, nullptr);
  const Step *norm = before && before->op != &fused_op ? before : nullptr, *sum = norm ? nullptr : before;
  const auto is_separate = [&](const Step* other) {
    if (!other) return true;
    bool separate = !overwrites(*other, call) && (call.in.size() < 3 || !crosses(call.in[2], other->out[0]));
    if (sum)
      for (const Arg& in : sum->in)
        separate = separate && !crosses(in, other->out[0]) && !crosses(in, call.out[0]);
    return separate;
  };
  if (p->own || !is_separate(sum) || !is_separate(gelu)) return nullptr;
  RowsContext& context = p->of_rows;
  if (gelu) {
    context.function = epilogue_of(*gelu);
    context.result = gelu->out[0].data;
  }
  if (sum)
    context.sum = {*in_shape_of(sum->in[0], call.out[0]), *in_shape_of(sum->in[1], call.out[0]), sum->out[0]};
  if (norm) {
    context.norm = norm_of_row(*norm, call, gelu);
    if (!context.norm || !normalises_row(call, context)) return nullptr;
  }
  return p;
}

bool is_matmul_of_rows(const Upcoming& next, std::size_t i) {
  return next.steps[i].op->product && is_gemm_of_rows(next.call(i));
}

}  // namespace

extern const FusionRule gemm_of_rows_rule{
    "a product of few rows, the sum or norm before it and gelu after it",
    [](const Upcoming& next) {
      const bool prepares = next.is_next(is_sum_for, 1) || next.is_next(is_norm_for, 1);
      const std::size_t product = prepares, count = product + 1 + next.is_next(is_epilogue_of, product + 1);
      return count > 1 && is_matmul_of_rows(next, product) ? FusionMatch{count, product} : FusionMatch{};
    },
    [](const Upcoming& next, const FusionMatch& match) {
      const std::size_t product = match.made_by;
      return plan_of_rows(next.call(product), product > 0 ? &next.steps[0] : nullptr,
                          product + 1 < match.count ? &next.steps[product + 1] : nullptr);
    }};

extern const FusionRule product_gelu_rule{
    "a product and gelu of it",
    [](const Upcoming& next) {
      const bool matches = next.is_next(is_epilogue_of, 1) && !is_gemm_of_rows(next.call(0));
      return FusionMatch{matches ? std::size_t{2} : 0};
    },
    [](const Upcoming& next, const FusionMatch&) { return plan_with_gelu(next.call(0), next.steps[1]); }};

}  // namespace tg::cuda

// Elementwise kernels with a fused reduction over rows (core/compile/fused_reductions.h). Each op sequence
// and layout has a kernel, whose source is generated. Teams of threads process rows in the same way as the
// reduction kernels. Results are therefore bitwise identical to a separate reduction.
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tilegrad/core/base/error.h>
#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/jit/code.h"
#include "backends/cuda/jit/fused_source.h"
#include "backends/cuda/kernels/reductions.h"
#include "backends/cuda/runtime/kernel.h"
#include "core/compile/fused_reductions.h"

namespace tg::cuda {

namespace {

// The code of a reduction: the initial value, the addition of a value v to a total s, and the merge of totals
// a and b. Totals have type R. Sums and products are rounded separately.
struct Ending {
  std::string_view op;
  const char *none, *add, *merge;
  bool in_packs;         // whether its reduction kernel reads packs
  bool divides = false;  // the total is divided by the number of elements
};
constexpr Ending endings[] = {
    {"sum", "R(0)", "plus(s, v)", "plus(a, b)", true},
    {"mean", "R(0)", "plus(s, v)", "plus(a, b)", true, true},
    {"sum_squares", "R(0)", "plus_square(s, v)", "plus(a, b)", true},
    {"prod", "R(1)", "times(s, v)", "times(a, b)", false},
    {"max", "least(R(0))", "larger(s, v)", "larger(a, b)", true},
    {"min", "most(R(0))", "smaller(s, v)", "smaller(a, b)", true},
};

const Ending& ending_of(const Op& op) {
  const auto found = std::ranges::find(endings, op.name, &Ending::op);
  if (found == std::end(endings)) throw DeviceError("no CUDA code for fused kernels that end in " + op.name);
  return *found;
}

constexpr const char* reduction_source = R"(
__device__ float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ double plus(double a, double b) { return __dadd_rn(a, b); }
__device__ i64 plus(i64 a, i64 b) { return a + b; }
__device__ float plus_square(float a, float b) { return __fmaf_rn(b, b, a); }
__device__ double plus_square(double a, double b) { return __fma_rn(b, b, a); }
__device__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ double times(double a, double b) { return __dmul_rn(a, b); }
__device__ i64 times(i64 a, i64 b) { return a * b; }
__device__ float least(float) { return -__int_as_float(0x7f800000); }
__device__ double least(double) { return -__longlong_as_double(0x7ff0000000000000ll); }
__device__ i64 least(i64) { return -9223372036854775807ll - 1; }
template <class T> T most(T x) { return -least(x); }
__device__ i64 most(i64) { return 9223372036854775807ll; }
__device__ float larger(float a, float b) { return a != a ? a : b != b ? b : fmaxf(a, b); }
__device__ float smaller(float a, float b) { return a != a ? a : b != b ? b : fminf(a, b); }
template <class T> T larger(T a, T b) { return b > a || (b != b && a == a) ? b : a; }
template <class T> T smaller(T a, T b) { return b < a || (b != b && a == a) ? b : a; }
)";

// The input of the code generator.
struct Rows {
  const FusedReduction& r;
  std::span<const Arg> in, out;  // operands of the step; the last output is the reduced result
  // The results of the elementwise ops. If the result to be reduced is not stored, it is the last element.
  std::vector<Arg> made;
  Step reduction;  // the reduction as if it were a separate step
  RowOrder order;
  int vector = 1;  // elements that are loaded at a time, at most a pack

  explicit Rows(const Call& c)
      : r(c.attrs->as<FusedReduction>()),
        in(c.in),
        out(c.out),
        made(c.out.begin(), c.out.end() - 1),
        reduction{r.op, r.reduce, {Arg{r.dtype, r.read}}, {c.out.back()}, {}, {}},
        order(row_order(reduction.in[0], out.back(), r.reduce, ending_of(*r.op).in_packs, c.gpu)) {
    if (r.stored() < 0) made.push_back({r.dtype, r.made});
    const bool is_of_few = !c.in_order && is_sum_of_few(reduction);
    const int most = is_of_few ? 16 : order.pack;
    for (vector = vector_of(Space(in, made), in, made); vector > most || length() % vector != 0;) vector /= 2;
    if (is_of_few) order = {1, vector, RowOrder::in_turn};
    if (r.stored() < 0) made.back().dtype = compute_type(r.dtype);
  }
  // Returns the expression for element e of a vector, as input to the reduction.
  std::string number() const {
    const int stored = r.stored();
    if (stored < 0) return numbered("result", made.size() - 1) + ".at[e]";
    return "(R)widen(" + numbered("result", static_cast<std::size_t>(stored)) + ".at[e])";
  }
  std::int64_t rows() const { return out.back().layout.numel(); }
  std::int64_t jobs() const { return rows() * order.pieces; }
  std::int64_t length() const { return r.made.numel() / rows(); }
  std::int64_t packs() const { return length() / order.pack; }
};

int block_of(int threads) {
  return std::max(threads, fused_block);
}
std::int64_t blocks_of(std::int64_t jobs, int threads) {
  const int teams = block_of(threads) / threads;
  return (jobs + teams - 1) / teams;
}

// Returns the code that adds a thread's elements of a row, or of a piece of a row, to `total`.
std::string row_loop(const Rows& w) {
  const Space s(w.in, w.made);
  const int parts = w.order.pack / w.vector;  // per pack
  const std::size_t operands = w.in.size() + w.out.size() - 1;
  const std::int64_t each = (w.packs() + w.order.threads - 1) / w.order.threads,
                     most = operands <= 1   ? 8
                            : operands <= 3 ? 4
                            : operands <= 8 ? 2
                                            : 1,
                     times = std::max<std::int64_t>(std::min(most / parts, each), 1);
  const std::string loads = digits(times * parts), threads = digits(w.order.threads), of_pack = digits(parts),
                    packs = "(I)" + digits(w.packs());
  const std::string each_part = "      #pragma unroll\n      for (int n = 0; n < " + loads +
                                "; ++n) {\n      const I pack = at + n / " + of_pack + " * " + threads +
                                ";\n      if (pack >= end) break;\n      const I i = (row * " + packs +
                                " + pack) * " + of_pack + " + n % " + of_pack + ";\n" +
                                (s.is_linear() ? "" : indices(s, w.vector));
  const VectorAccess access(s, w.made.size(), w.vector, loads, w.in, w.out.first(w.out.size() - 1),
                            "if (!stopped) ");
  const std::string number = w.number(), vector = digits(w.vector),
                    each_number = "      #pragma unroll\n      for (int e = 0; e < " + vector + "; ++e) ";
  std::string added;
  if (w.order.way == RowOrder::by_packs)
    added = "      if (n % " + of_pack + " == 0) part = none();\n" + each_number + "part = add(part, " +
            number + ");\n      if (n % " + of_pack + " == " + of_pack +
            " - 1) total[0] = merge(total[0], part);\n";
  else
    added = each_number + "{\n        R& t = total[" +
            (w.order.way == RowOrder::in_turn ? "0" : "n % " + of_pack + " * " + vector + " + e") +
            "];\n        t = add(t, " + number + ");\n      }\n";
  const std::string pieces = digits(w.order.pieces), wide = "(unsigned long long)" + digits(w.packs());
  const std::string bounds = w.order.pieces == 1
                                 ? "    const I row = job, begin = 0, end = " + packs + ";\n"
                                 : "    const I row = job / (I)" + pieces + ", piece = job % (I)" + pieces +
                                       ";\n    const I begin = " + wide + " * piece / " + pieces +
                                       ", end = " + wide + " * (piece + 1) / " + pieces + ";\n";
  return bounds + "    for (I at = begin + lane; job < jobs && at < end; at += " + threads + " * " +
         digits(times) + ") {\n      R part = none();\n" + access.declared +
         (w.in.empty() ? "" : each_part + access.loads + "      }\n") + each_part +
         fused_vector(w.r.chain, w.in, w.made, w.vector, [&](std::size_t i) { return access.element(i); }) +
         access.stores + added + "      }\n    }\n";
}

// Returns the code that merges the totals of a team's threads into one total `all`. Each thread has `totals`
// of them.
std::string team_total(int threads, int totals) {
  const int width = std::min(threads, 32);
  std::string code;
  for (int half = totals / 2; half > 0; half /= 2)
    for (int e = 0; e < half; ++e)
      code += "    total[" + digits(e) + "] = merge(total[" + digits(e) + "], total[" + digits(e + half) +
              "]);\n";
  code += "    R all = total[0];\n";
  for (int by = width / 2; by > 0; by /= 2)
    code += "    all = merge(all, __shfl_down_sync(0xffffffffu, all, " + digits(by) + ", " + digits(width) +
            "));\n";
  if (threads > 32)
    code += "    __shared__ R of_warp[" + digits(block_of(threads) / 32) +
            "];\n    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = all;\n    __syncthreads();\n"
            "    if (lane == 0)\n      for (int k = 1; k < " +
            digits(threads / 32) +
            "; ++k) all = merge(all, of_warp[threadIdx.x / 32 + k]);\n    __syncthreads();\n";
  return code;
}

// The first thread of a team writes the result of row `job`.
std::string put_result(const Rows& w) {
  const Arg row = without_reduced(w.reduction, w.reduction.in[0]),
            result = without_reduced(w.reduction, w.out.back());
  const Space s({&result, 1}, {&row, 1});
  return (ending_of(*w.r.op).divides && w.length() > 1
              ? "    all = (R)((double)all / " + digits(w.length()) + ".0);\n"
              : std::string()) +
         "    if (lane == 0 && job < jobs && !stopped) {\n      const I i = job;\n" + indices(s, 1) +
         "      result[" + offset(s, 1, 1) + "] = narrow<" + storage(w.out.back().dtype) +
         ">::of(all);\n    }\n";
}

// Returns the source up to the parameters of kernel `name`.
std::string source_begin(const Rows& w, bool narrow_index, int threads, const char* name) {
  const Ending& ending = ending_of(*w.r.op);
  return fused_library() + reduction_source + fused_types(w.r.chain.compute, w.vector, narrow_index) +
         "typedef " + storage(compute_type(w.r.dtype)) + " R;\n__device__ R none() { return " + ending.none +
         "; }\n__device__ R add(R s, R v) { return " + ending.add +
         "; }\n__device__ R merge(R a, R b) { return " + ending.merge +
         "; }\nextern \"C\" __global__ void __launch_bounds__(" + digits(block_of(threads)) + ") " + name +
         "(";
}

// Returns the kernel's main loop. Each job has one team, and starts with `totals` empty totals.
std::string each_job(std::int64_t jobs, int threads, int totals, const std::string& work) {
  const std::string teams = "(I)" + digits(block_of(threads) / threads), team = digits(threads);
  return std::string(fused_begins_early) + fused_stopped + "  const I jobs = " + digits(jobs) +
         ";\n  const int lane = threadIdx.x % " + team + ";\n  for (I first = blockIdx.x * " + teams +
         "; first < jobs; first += gridDim.x * " + teams + ") {\n    const I job = first + threadIdx.x / " +
         team + ";\n    R total[" + digits(totals) + "];\n    #pragma unroll\n    for (int e = 0; e < " +
         digits(totals) + "; ++e) total[e] = none();\n" + work + "  }\n}\n";
}

std::string fused_reduction_source(const Rows& w, bool narrow_index) {
  const int threads = w.order.threads, totals = w.order.way == RowOrder::in_lanes ? w.order.pack : 1;
  std::string code = source_begin(w, narrow_index, threads, "fused_reduction");
  for (std::size_t o = 0; o + 1 < w.out.size(); ++o)
    code += std::string(storage(w.out[o].dtype)) + "* " + numbered("out", o) + ", ";
  const bool whole = w.order.pieces == 1;
  code += (whole ? storage(w.out.back().dtype) : "R") + std::string("* result, const int* fault");
  for (std::size_t i = 0; i < w.in.size(); ++i)
    code += std::string(", const ") + storage(w.in[i].dtype) + "* " + numbered("in", i);
  return code + ") {" +
         each_job(w.jobs(), threads, totals,
                  row_loop(w) + team_total(threads, totals) +
                      (whole ? put_result(w) : "    if (lane == 0 && job < jobs) result[job] = all;\n"));
}

// Returns the source of the second kernel, which merges the pieces of rows.
std::string merge_source(const Rows& w) {
  const int threads = w.order.merging;
  const std::string pieces = "(I)" + digits(w.order.pieces);
  return source_begin(w, false, threads, "merge_pieces") + storage(w.out.back().dtype) +
         "* result, const int* fault, const R* piece) {" +
         each_job(w.rows(), threads, 1,
                  "    for (I at = lane; job < jobs && at < " + pieces + "; at += " + digits(threads) +
                      ") total[0] = merge(total[0], piece[job * " + pieces + " + at]);\n" +
                      team_total(threads, 1) + put_result(w));
}

struct Launch {
  cudaKernel_t kernel = nullptr;
  unsigned grid = 0, block = 0;

  Launch() = default;
  Launch(const std::string& source, const char* name, std::int64_t jobs, int threads, const Gpu& gpu)
      : kernel(compiled(source, name, gpu)),
        grid(static_cast<unsigned>(std::min(blocks_of(jobs, threads), std::int64_t{64} * gpu.processors))),
        block(static_cast<unsigned>(block_of(threads))) {}
};
struct FusedReductionPlan final : KernelPlan {
  Launch rows, merge;  // merge: if rows are split into pieces
  std::int64_t pieces;
  int threads;            // per row or piece
  std::size_t bytes = 0;  // size of the pieces' totals

  explicit FusedReductionPlan(const Call& c);
  void launch(const Stream& s, const Call& c) const override;
  std::size_t workspace(const Call&) const override { return bytes; }
  std::string choice(const Call&) const override;
};

FusedReductionPlan::FusedReductionPlan(const Call& c) {
  const Rows w(c);
  const std::int64_t reach = std::max(w.r.made.numel(), reach_of(c.in, c.out));  // upper bound of all indices
  const bool is_narrow = reach + (1 << 20) < (1ll << 31);
  rows = {fused_reduction_source(w, is_narrow), "fused_reduction", w.jobs(), w.order.threads, c.gpu};
  pieces = w.order.pieces, threads = w.order.threads;
  if (pieces > 1) {
    merge = {merge_source(w), "merge_pieces", w.rows(), w.order.merging, c.gpu};
    bytes = static_cast<std::size_t>(w.jobs()) * size_of(compute_type(w.r.dtype));
  }
}

void FusedReductionPlan::launch(const Stream& s, const Call& c) const {
  const void *result = c.out.back().data, *fault = &s.faults.fault->step;
  std::vector<const void*> data;  // the arguments, in the order of the kernel's parameters
  for (const Arg& a : c.out.first(c.out.size() - 1)) data.push_back(a.data);
  data.push_back(pieces > 1 ? s.workspace : result);
  data.push_back(fault);
  for (const Arg& a : c.in) data.push_back(a.data);
  launch_compiled(s, rows.kernel, rows.grid, rows.block, std::move(data),
                  "an elementwise kernel with a fused reduction");
  if (pieces > 1)
    launch_compiled(s, merge.kernel, merge.grid, merge.block, {result, fault, s.workspace},
                    "the pieces of a reduction");
}

std::string FusedReductionPlan::choice(const Call&) const {
  return "compiled by NVRTC, " + std::to_string(threads) + " threads a row" +
         (pieces > 1 ? " in " + std::to_string(pieces) + " pieces" : "") + ", " + std::to_string(rows.grid) +
         " blocks of " + std::to_string(rows.block) + " threads";
}

}  // namespace

extern const Kernel fused_reduction_kernel{&plan_as<FusedReductionPlan>};

}  // namespace tg::cuda

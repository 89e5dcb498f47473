#include "backends/cuda/gemm/matmul.h"
#include "backends/cuda/runtime/memory.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <vector>

#include <tilegrad/core/graph/graph.h>
#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/gemm/algorithms.h"
#include "core/base/hash.h"
#include "core/compile/lower.h"

namespace tg::cuda {

namespace {

const Kernel& matmul() {
  return *find_kernel("matmul");
}
const Kernel& chain() {
  return *find_kernel(fused_op.name);
}

// Whether the rows of a matrix are contiguous and do not overlap.
bool has_rows(const Layout& l) {
  return l.strides[1] == 1 && l.strides[0] >= l.shape[1];
}
Layout transposed(const Layout& l) {
  Layout t = l;
  std::swap(t.shape[0], t.shape[1]), std::swap(t.strides[0], t.strides[1]);
  return t;
}

struct OperandCopy {
  std::size_t operand;  // 0 or 1
  bool along;           // rows of the copy are contiguous along k, otherwise along the other axis
};

// Returns the operand that is in the unfavorable layout. If both operands are, returns the smaller one.
std::optional<OperandCopy> copy_of(const Call& call) {
  if (call.in[0].dtype != f32 || call.out[0].dtype != f32) return std::nullopt;
  if (call.tf32 && !call.gpu.hopper) return std::nullopt;
  for (const auto& operands : {call.in, call.out})
    for (const Arg& a : operands)
      if (a.layout.rank() != 2) return std::nullopt;
  const Layout &a = call.in[0].layout, &b = call.in[1].layout;
  // The minimum number of multiplications, and the maximum size of the copy. A smaller GEMM needs only a few
  // µs.
  constexpr double least = 1e8, most_bytes = 1 << 28;
  const auto size = [](std::int64_t n) { return static_cast<double>(n); };
  if (size(a.shape[0]) * size(a.shape[1]) * size(b.shape[1]) < least) return std::nullopt;
  const bool along = call.tf32;
  const auto is_wrong = [&](const Layout& l, bool is_along) {
    return has_rows(is_along == along ? transposed(l) : l);
  };
  const bool copies_a = is_wrong(a, true) && !is_wrong(a, false),
             copies_b = is_wrong(b, false) && !is_wrong(b, true);
  if (!copies_a && !copies_b) return std::nullopt;
  const std::size_t operand = copies_a && (!copies_b || a.numel() < b.numel()) ? 0 : 1;
  if (size(call.in[operand].layout.numel()) * sizeof(float) > most_bytes) return std::nullopt;
  return OperandCopy{operand, along};
}

// A GEMM that copies one of its operands first.
class TransposedGemm final : public KernelPlan {
 public:
  TransposedGemm(const Call& call, OperandCopy operand_copy)
      : operand_copy_(operand_copy), is_transposed_(operand_copy.along != (operand_copy.operand == 0)) {
    const Layout& l = call.in[operand_copy.operand].layout;
    from_ = is_transposed_ ? transposed(l) : l;
    to_ = row_major(from_.shape);
    copies_ = FusedAttrs{f32, {{&copy_op, f32, 1, {{FusedAttrs::Source::input, 0}}}}, {}};
    // The algorithm is chosen by timing, with a copy that is allocated for this purpose.
    const ScratchMemory scratch(call.out[0].data ? size_of_copy() : 0);
    with_copy(call, scratch.data(), [&](const Call& copy, const Call& product) {
      copy_plan_ = chain().plan(copy);
      product_plan_ = matmul().plan(product);
    });
    with_copy(call, nullptr, [&](const Call&, const Call& product) {
      copy_at_ = (product_plan_->workspace(product) + 255) / 256 * 256;
    });
  }

  std::size_t workspace(const Call&) const override { return std::max(least_, copy_at_ + size_of_copy()); }
  void need_at_least(std::size_t bytes) { least_ = bytes; }

  void launch(const Stream& s, const Call& call) const override {
    with_copy(call, s.workspace + copy_at_, [&](const Call& copy, const Call& product) {
      copy_plan_->launch(s, copy);
      product_plan_->launch(s, product);
    });
  }

  std::string choice(const Call& call) const override {
    std::string s;
    with_copy(call, nullptr, [&](const Call&, const Call& product) { s = product_plan_->choice(product); });
    return s + (operand_copy_.operand == 0 ? ", the left" : ", the right") + " operand copied " +
           (operand_copy_.along ? "along" : "across") + " k before";
  }

 private:
  std::size_t size_of_copy() const { return static_cast<std::size_t>(to_.numel()) * sizeof(float); }

  // Calls f with the calls of the copy and the GEMM.
  template <class F>
  void with_copy(const Call& call, std::byte* memory, F&& f) const {
    std::vector<Arg> in(call.in.begin(), call.in.end());
    Arg& operand = in[operand_copy_.operand];
    const std::array from{Arg{f32, from_, operand.data}}, to{Arg{f32, to_, memory}};
    operand = {f32, is_transposed_ ? transposed(to_) : to_, memory};
    Call copy = call, product = call;
    copy.in = from, copy.out = to, copy.attrs = &copies_;
    product.in = in;
    f(copy, product);
  }

  OperandCopy operand_copy_;
  bool is_transposed_;  // rows of the copy are columns of the operand
  std::size_t copy_at_ = 0, least_ = 0;
  Layout from_, to_;
  Attrs copies_;
  PlanPtr copy_plan_, product_plan_;
};

// Whether the GEMM with a copied operand is faster than the GEMM with its operands in place. Both read the
// real operands and write to scratch memory.
bool is_faster(const TransposedGemm& copying, const Call& call) {
  std::array<Arg, 1> out{call.out[0]};
  Call in_place = call, other = call;
  in_place.out = other.out = out;
  const PlanPtr plan = matmul().plan(in_place);
  const std::size_t result =
      (static_cast<std::size_t>(out[0].layout.extent()) * sizeof(float) + 255) / 256 * 256;
  const ScratchMemory scratch(result + std::max(plan->workspace(in_place), copying.workspace(call)));
  if (!scratch.data()) return false;
  out[0].data = scratch.data();
  const Stopwatch watch;
  const Stream s{watch.stream(), call.gpu, out[0].data + result, {nullptr, 0}};
  constexpr float any = std::numeric_limits<float>::infinity();
  copying.launch(s, other);  // loads the code
  const float before = watch.time([&] { plan->launch(s, in_place); }, any),
              now = watch.time([&] { copying.launch(s, other); }, before);
  cudaGetLastError();
  return now < any && now <= before;
}

ChoiceKey key_of(const Call& call) {
  Hasher h;
  h.add("a product with a copied operand");
  h.add(std::uint64_t{call.tf32});
  for (const auto& operands : {call.in, call.out})
    for (const Arg& a : operands) {
      h.add(a.layout.shape);
      h.add(a.layout.strides);
    }
  return h.digest();
}

}  // namespace

PlanPtr plan_transposed_gemm(const Call& call) {
  const std::optional<OperandCopy> operand_copy = copy_of(call);
  if (!operand_copy) return nullptr;
  const auto key = key_of(call);
  std::optional<SavedChoice> choice = known_choice(key, call.gpu);
  if (choice && (*choice)[0] == 0) return nullptr;
  auto copying = std::make_unique<TransposedGemm>(call, *operand_copy);
  if (!call.out[0].data) {  // planned without memory: reserve enough workspace for either choice
    copying->need_at_least(matmul().plan(call)->workspace(call));
    return copying;
  }
  if (!choice) choice = save_choice(key, call.gpu, SavedChoice{is_faster(*copying, call)});
  return (*choice)[0] != 0 ? std::move(copying) : nullptr;
}

extern const FusionRule transposed_gemm_rule{
    "a copy of an operand and a product",
    [](const Upcoming& next) {
      const bool matches =
          next.steps[0].op->product && !next.is_next(is_epilogue_of, 1) && !is_gemm_of_rows(next.call(0));
      return FusionMatch{matches ? std::size_t{1} : 0};
    },
    [](const Upcoming& next, const FusionMatch&) { return plan_transposed_gemm(next.call(0)); }};

}  // namespace tg::cuda

// gradcheck: compares the gradients of ops, layers and user-defined ops with finite differences in f64, their
// other dtypes with the f64 gradient, and checks the rules that every gradient must obey. docs/gradcheck.md
// explains how and why. tools/gradcheck is this library on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/core/graph/graph.h>

namespace tg::gradcheck {

// |got − expected| ≤ atol + rtol·|expected|. Named fields, so that two doubles cannot be swapped by accident.
struct Tol {
  double rtol, atol;
  double allowed(double expected) const { return atol + rtol * (expected < 0 ? -expected : expected); }
};

// How the floating and index inputs lie in memory when the op sees them.
enum class View {
  contiguous,
  transposed,    // axes in reverse order of memory
  sliced,        // every second element of wider rows, gaps filled with NaN
  offset,        // three elements into a longer buffer
  expanded,      // stride 0 along the outermost axis: the base is perturbed, its gradient is the sum
  expanded_last  // stride 0 along the innermost axis
};
inline constexpr View all_views[] = {View::contiguous, View::transposed, View::sliced,
                                     View::offset,     View::expanded,   View::expanded_last};
std::string name_of(View view);

// The function that is checked: of tensors and parameters. It is differentiated with respect to both.
struct Callable {
  std::vector<Parameter> parameters;
  std::function<std::vector<Tensor>(std::span<const Tensor>)> call;
};
struct Case {
  std::string owner;  // the op or layer: "softmax"
  std::string name;   // the sample: "rows"
  std::vector<SampleInput> inputs;
  std::function<Callable(DType, Device)> make;    // with parameters, if any, of this dtype
  const Op* op = nullptr;                         // null for layers
  int order = 1;                                  // 2: the function is the gradient of the one named
  std::optional<Sample::Expected> expected = {};  // at a special point, instead of difference quotients

  std::string text() const { return owner + "/" + name; }
};

// The samples of every op in all_ops().
std::vector<Case> op_cases();
// Layers and functions added by users and plugins.
void register_case(Case c);
std::vector<Case> registered_cases();
// The gradient of a case as a case: inputs (x…, r…) ↦ ∂⟨f(x), r⟩/∂x, so that checking it checks second
// derivatives.
Case derivative(const Case& c);

struct Options {
  std::vector<View> views{std::begin(all_views), std::end(all_views)};
  std::vector<DType> dtypes{f64, f32, bf16, f16};
  int order = 1;      // 2: second derivatives, by checking the gradient's gradient
  bool fast = false;  // random projections instead of every element
  std::uint64_t seed = 0;
  Device device = Device::cpu();  // where the checked programs run; references run on the CPU
  Tol tol{.rtol = 1e-7, .atol = 1e-9};
  double h = 1e-3;  // the step is h·max(1, |x|)

  void check_numbers() const;  // throws Error that names the one out of its range
};

enum class Status {
  ok,
  refused,      // it has no gradient (of this order) and reported that, as it must
  unsupported,  // the device has no kernel, or the op does not support the dtype
  mismatch,
  non_finite
};
std::string name_of(Status status);

// The element that came closest to its bound, or exceeded it most.
struct Worst {
  std::string where;  // "input 1 [2, 0] for a random cotangent"
  double analytic = 0, numeric = 0, h = 0;
  double ulp = 0;  // their distance in units of the last place of the dtype under test
};

struct Result {
  std::string owner, name;
  View view = View::contiguous;
  DType dtype = f64;
  int order = 1;
  Status status = Status::ok;
  // Numbers that were compared, elements on a kink, and points drawn again. docs/gradcheck.md states how many
  // of each kind of check a case has; skipped ones included, the counts do not depend on the seed.
  std::int64_t checked = 0, skipped = 0, resampled = 0;
  std::int64_t special = 0,
               undecided = 0;  // derivatives at special points, and those that no quotient decides
  std::int64_t rules = 0;      // rules that do not compare with a quotient or another dtype
  double max_abs = 0, max_rel = 0;
  double ratio = 0;  // worst error as a share of its bound; above 1 is a mismatch
  Worst worst;
  std::string note;  // what failed, or why nothing was checked

  std::string text() const { return owner + "/" + name; }
};

// One result per applicable view and dtype. Throws only errors that do not depend on the case (out of memory,
// a missing device).
std::vector<Result> check(const Case& c, const Options& options);

// A fault planted into a gradient, and whether it was found.
struct Mutant {
  enum Fate {
    caught,
    survived,
    equivalent,   // it leaves the gradient the same on the case's numbers, up to roundoff: `why`
    unplantable,  // recording it throws: `why`
    refused       // the check fails without a fault, so that it cannot tell: nothing was planted
  } fate;
  std::string owner, name;
  std::string fault;  // "sign of input 0"
  Result result;      // of the check that had to find it, with its view and dtype
  std::string why;
};
// In f64 and the contiguous view, all faults of one case: of the op's vjp, if it has one, and otherwise of
// the whole gradient. In every other view, and in the contiguous view in every other dtype, the gradient of
// each input is scaled, and there is one other fault of the gradient of one input, another for each seed.
std::vector<Mutant> mutate(const Case& c, const Options& options);

// Error of numeric against analytic gradients over steps h, for one case in its contiguous view.
struct VCurve {
  std::vector<double> h, two_point, four_point, four_point_f32;  // max |error| / max |gradient|
};
VCurve v_curve(const Case& c, const Options& options);

}  // namespace tg::gradcheck

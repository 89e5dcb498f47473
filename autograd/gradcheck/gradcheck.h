// gradcheck: compares the gradients of ops, layers and user-defined ops with finite differences in f64, and
// gradients in other dtypes with the f64 gradient. It also checks rules that every gradient must obey.
// docs/gradcheck.md explains the methods. tools/gradcheck is this library as a command.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/core/graph/graph.h>

namespace tg::gradcheck {

// A tolerance: |got − expected| ≤ atol + rtol·|expected|. The fields have names so that the two numbers
// cannot be swapped by accident.
struct Tol {
  double rtol = 1e-7, atol = 1e-9;  // relative and absolute part
  // The allowed error for an expected value.
  double allowed(double expected) const { return atol + rtol * (expected < 0 ? -expected : expected); }
};

// How the floating and index inputs are stored in memory.
enum class View {
  contiguous,    // row-major
  transposed,    // axes in reverse order in memory
  sliced,        // every second element of wider rows, with NaN in the gaps
  offset,        // starts three elements into a longer buffer
  expanded,      // stride 0 along the outermost axis; the gradient of the base is checked
  expanded_last  // stride 0 along the innermost axis
};
// All views.
inline constexpr View all_views[] = {View::contiguous, View::transposed, View::sliced,
                                     View::offset,     View::expanded,   View::expanded_last};
// The name of a view.
std::string name_of(View view);

// The function that is checked. It is differentiated with respect to its tensors and its parameters.
struct Callable {
  std::vector<Parameter> parameters;  // parameters that `call` reads
  // records the function and returns its results
  std::function<std::vector<Tensor>(std::span<const Tensor>)> call;
};
// One case of a check: a function and its inputs.
struct Case {
  std::string owner;                // the op or layer: "softmax"
  std::string name;                 // the sample: "rows"
  std::vector<SampleInput> inputs;  // inputs of the function
  // creates the function, with parameters of this dtype on this device
  std::function<Callable(DType, Device)> make;
  const Op* op = nullptr;  // null for layers
  int order = 1;           // 2: the function is the gradient of the named op
  // known results at a special point; they replace difference quotients
  std::optional<Sample::Expected> expected = {};
  bool cpu_only = false;  // as in Sample

  // "owner/name".
  std::string text() const { return owner + "/" + name; }
};

// Returns a case for each sample of every op in all_ops().
std::vector<Case> op_cases();
// Adds a case for a layer or a function, from users and plugins.
void register_case(Case c);
// Returns all added cases.
std::vector<Case> registered_cases();
// Returns the gradient of a case as a case: inputs (x…, r…) ↦ ∂⟨f(x), r⟩/∂x. Checking it checks second
// derivatives.
Case derivative(const Case& c);

// Options of check() and mutate().
struct Options {
  std::vector<View> views{std::begin(all_views), std::end(all_views)};  // views to check
  std::vector<DType> dtypes{f64, f32, bf16, f16};                       // dtypes to check
  int order = 1;                  // 2: check second derivatives, as the gradient of the gradient
  bool fast = false;              // use random projections instead of every element
  std::uint64_t seed = 0;         // seed of inputs and projections
  Device device = Device::cpu();  // device of the checked programs; references run on the CPU
  Tol tol = {};                   // tolerance in f64
  double h = 1e-3;                // step of difference quotients, relative to max(1, |x|)

  void check_numbers() const;  // throws Error with the first option that is out of range
};

// Outcome of a check.
enum class Status {
  ok,           // the gradient agrees
  refused,      // there is no gradient of this order, and the error that reports it is correct
  unsupported,  // the device has no kernel, or the op does not support the dtype
  mismatch,     // the gradient differs by more than the bound
  non_finite    // a result is NaN or infinite
};
// The name of a status.
std::string name_of(Status status);

// The element with the largest error relative to its bound.
struct Worst {
  std::string where;                        // "input 1 [2, 0] for a random cotangent"
  double analytic = 0, numeric = 0, h = 0;  // the two derivatives, and the step of the quotient
  double ulp = 0;  // their distance in units in the last place of the dtype under test
};

// Result of the check of one case in one view and dtype.
struct Result {
  std::string owner, name;       // of the case
  View view = View::contiguous;  // the view that was checked
  DType dtype = f64;             // the dtype that was checked
  int order = 1;                 // order of the derivative
  Status status = Status::ok;    // outcome
  // The numbers of comparisons, elements skipped at a kink, and points that were drawn again.
  // docs/gradcheck.md lists the number of checks per kind and case. The sum of checked and skipped elements
  // does not depend on the seed.
  std::int64_t checked = 0, skipped = 0, resampled = 0;
  // Number of derivatives at special points, and of derivatives for which all quotients are inconclusive.
  std::int64_t special = 0, undecided = 0;
  std::int64_t rules = 0;           // number of checked rules
  double max_abs = 0, max_rel = 0;  // largest absolute and relative error
  double ratio = 0;                 // largest error divided by its bound; above 1 is a mismatch
  Worst worst;                      // the element with that error
  std::string note;                 // description of the failure, or why nothing was checked

  // "owner/name".
  std::string text() const { return owner + "/" + name; }
};

// Checks a case and returns one result per applicable view and dtype. Throws only errors that are independent
// of the case, such as exhausted memory or a missing device.
std::vector<Result> check(const Case& c, const Options& options);

// A mutant: a gradient with an injected fault, and whether the check found it.
struct Mutant {
  // Outcome for a mutant.
  enum Fate {
    caught,          // killed: the check failed
    survived,        // the check passed although the gradient is wrong
    equivalent,      // the gradient is the same up to roundoff; `why` explains
    not_injectable,  // recording the mutant throws; `why` explains
    refused          // the check fails even without a fault, so none was injected
  };
  Fate fate;                // the outcome
  std::string owner, name;  // of the case
  std::string fault;        // "sign of input 0"
  Result result;            // result of the check that had to find the fault
  std::string why;          // explanation of the outcome
};
// Runs mutation testing on a case. In f64 and the contiguous view, it injects all faults. If the op has a
// vjp, the faults are in the vjp; otherwise they are in the whole gradient. In each other view, and in each
// other dtype with the contiguous view, it injects fewer faults. It scales the gradient of each input, and it
// injects one other fault into the gradient of one input. The seed chooses this other fault.
std::vector<Mutant> mutate(const Case& c, const Options& options);

// Differences between difference quotients and the analytic gradient for a range of steps h. They are for one
// case in the contiguous view.
struct VCurve {
  // steps, and max |error| / max |gradient| for each step and quotient
  std::vector<double> h, two_point, four_point, four_point_f32;
};
// Computes the errors for a case.
VCurve v_curve(const Case& c, const Options& options);

}  // namespace tg::gradcheck

#include <tilegrad/autograd/gradcheck/gradcheck.h>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/ops/ops.h>
#include "autograd/gradcheck/quotients.h"
#include "autograd/gradcheck/rules.h"

namespace tg::gradcheck {

std::string name_of(View view) {
  static const char* const names[] = {"contiguous", "transposed", "sliced",
                                      "offset",     "expanded",   "expanded_last"};
  return names[static_cast<int>(view)];
}

std::string name_of(Status status) {
  static const char* const names[] = {"ok", "refused", "unsupported", "mismatch", "non-finite"};
  return names[static_cast<int>(status)];
}

std::vector<Case> op_cases() {
  std::vector<Case> cases;
  for (const Op* op : all_ops()) {
    if (!op->samples) continue;
    for (const Sample& s : op->samples())
      cases.push_back({op->name, s.name, s.inputs,
                       [call = s.call](DType, Device) {
                         return Callable{{}, call};
                       },
                       op, 1, s.expected, s.cpu_only});
  }
  return cases;
}

namespace {
std::vector<Case>& user_cases() {
  static auto& cases = *new std::vector<Case>;
  return cases;
}
}  // namespace

void register_case(Case c) {
  user_cases().push_back(std::move(c));
}
std::vector<Case> registered_cases() {
  return user_cases();
}

namespace {

// Shapes of a case's floating outputs. Their cotangents have the same shapes.
std::vector<Shape> output_shapes(const Case& c) {
  return Harness(c, View::contiguous, f64, {.shapes_only = true}).output_shapes();
}

}  // namespace

Case derivative(const Case& c) {
  Case d = c;
  d.order = c.order + 1;
  const std::size_t inputs = c.inputs.size();
  for (const Shape& s : output_shapes(c)) d.inputs.push_back({s});
  // Custom gradients that the op's function records around its nodes belong to the op, not to its
  // decomposition.
  const bool by_decomposition = c.op && c.op->first_order_only && c.op->decompose && c.order == 1;
  const Case called = by_decomposition ? replayed(c, decomposed(*c.op), false) : c;
  d.make = [called, inputs](DType dtype, Device device) {
    Callable f = called.make(dtype, device);
    std::vector<bool> differentiate;
    for (const SampleInput& in : called.inputs) differentiate.push_back(differentiable(in));
    return Callable{f.parameters, [f, inputs, differentiate](std::span<const Tensor> x) {
                      std::vector<Tensor> wrt;
                      for (std::size_t i = 0; i < inputs; ++i)
                        if (differentiate[i]) wrt.push_back(x[i]);
                      for (const Parameter& p : f.parameters) wrt.push_back(x[0].graph().param(p));
                      Tensor loss;
                      std::size_t next = inputs;
                      for (const Tensor& t : f.call(x.first(inputs))) {
                        if (!is_float(t.dtype())) continue;
                        const Tensor term = sum(t * x[next++]);
                        loss = loss.defined() ? loss + term : term;
                      }
                      return loss.defined() && !wrt.empty() ? gradients(loss, wrt) : std::vector<Tensor>();
                    }};
  };
  if (by_decomposition) d.op = nullptr;
  return d;
}

namespace {

class Checker {
 public:
  Checker(const Case& c, const Options& options) : case_(c), options_(options) {}

  std::vector<Result> run() {
    if (case_.expected && options_.order > 1)  // checks only known values, no difference quotients
      return {guarded(View::contiguous, f64, [&](Result& r) {
        r.order = options_.order;
        check_special(case_, options_, r);
      })};
    for (int order = 1; order < options_.order; ++order) {
      const Result made = guarded(View::contiguous, f64, [&](Result&) { case_ = derivative(case_); });
      if (made.status != Status::ok) return {made};
    }
    for (View view : options_.views) {
      std::unique_ptr<Harness> wide;  // in f64 on the CPU: the reference of all comparisons
      Result f64_result = guarded(view, f64, [&](Result& r) { check_f64(view, wide, r); });
      const bool comparable = wide && wide->differentiable() && f64_result.status != Status::refused;
      if (wide && !wide->view_changes_something()) continue;
      if (f64_result.status == Status::refused && case_.order == 1 && case_.op && case_.op->decompose) {
        Result forward = forward_only();
        f64_result.rules = forward.rules;
        if (forward.status == Status::mismatch) f64_result = std::move(forward);
      }
      if (requested(f64) || !comparable) results_.push_back(std::move(f64_result));
      if (!comparable) break;  // holds for every view
      for (DType t : {f32, bf16, f16})
        if (requested(t)) results_.push_back(guarded(view, t, [&](Result& r) { narrow(view, t, *wide, r); }));
    }
    return std::move(results_);
  }

 private:
  bool requested(DType dtype) const {
    return std::find(options_.dtypes.begin(), options_.dtypes.end(), dtype) != options_.dtypes.end();
  }

  // If two inputs may be the same tensor, checks that case too.
  void narrow(View view, DType dtype, Harness& wide, Result& r) const {
    check_dtype(case_, view, dtype, wide, options_, r);
    if (view != View::contiguous || r.status != Status::ok) return;
    if (const auto twice = used_twice(case_)) {
      Harness shared(twice->c, view, f64, {});
      check_dtype(twice->c, view, dtype, shared, options_, r);
      if (r.status != Status::ok)
        Tally(r).fail("with one tensor as inputs " + std::to_string(twice->first) + " and " +
                      std::to_string(twice->second));
    }
  }

  Result empty_result(View view, DType dtype) const {
    return {.owner = case_.owner, .name = case_.name, .view = view, .dtype = dtype, .order = case_.order};
  }

  // Runs a check and converts an exception into its result.
  template <class F>
  Result guarded(View view, DType dtype, F&& f) const {
    Result r = empty_result(view, dtype);
    const auto stop = [&r](Status status, const std::string& why) {
      r.status = status;
      r.note = why;
    };
    try {
      f(r);
    } catch (const GradientError& e) {
      refused(r, e.what());
    } catch (const DeviceError& e) {
      stop(Status::unsupported, e.what());
    } catch (const DTypeError& e) {
      stop(Status::unsupported, e.what());
    } catch (const OutOfMemory&) {
      throw;
    } catch (const Error& e) {
      stop(Status::mismatch, e.what());
    }
    return r;
  }

  // A gradient may be missing only if the op declares that it has none.
  void refused(Result& r, const std::string& what) const {
    const Op* op = case_.op;
    const bool says_why = op && !op->vjp && !op->not_differentiable.empty() &&
                          what.find(op->not_differentiable) != std::string::npos;
    const bool first_only = op && op->first_order_only && case_.order > 1;
    r.status = says_why || first_only ? Status::refused : Status::mismatch;
    r.note = (first_only ? "first order only: " : "") + what;
  }

  // An op without a gradient may still have a decomposition.
  Result forward_only() const {
    return guarded(View::contiguous, f64, [&](Result& r) {
      Harness forward(case_, View::contiguous, f64, {.device = options_.device, .forward_only = true});
      check_decomposition(case_, forward, options_, r);
    });
  }

  void check_f64(View view, std::unique_ptr<Harness>& wide, Result& r) const {
    wide = std::make_unique<Harness>(case_, view, f64, HarnessOptions{});
    if (!wide->view_changes_something()) return;
    if (!wide->differentiable()) {
      r.status = Status::refused;
      r.note = case_.op && !case_.op->not_differentiable.empty() ? case_.op->not_differentiable
                                                                 : "no floating input, or no floating output";
      return;
    }
    if (!requested(f64)) return;
    if (!(options_.device == Device::cpu())) return check_dtype(case_, view, f64, *wide, options_, r);
    if (case_.expected) {
      check_expected(case_, *wide, options_, r);
    } else if (options_.fast) {
      check_projections(*wide, options_, r);
      if (r.status == Status::mismatch) by_elements(*wide, r);
    } else {
      check_elements(*wide, options_, r);
    }
    check_zero_and_repeat(*wide, options_, r);
    if (view == View::contiguous) check_structure(case_, *wide, options_, r);
    if (view == View::contiguous && case_.order == 1 && has_special_points(case_, options_))
      check_special(case_, options_, r);
  }

  // Reports a failed projection with the element that causes it.
  void by_elements(Harness& wide, Result& r) const {
    Result slow = empty_result(r.view, r.dtype);
    check_elements(wide, options_, slow);
    if (slow.status != Status::ok)
      r = slow;
    else
      r.note += (r.note.empty() ? "" : "; ") +
                std::string("along random directions only: element by element it passes");
  }

  Case case_;
  const Options& options_;
  std::vector<Result> results_;
};

}  // namespace

void Options::check_numbers() const {
  check_options("gradcheck", {{"order", order, Range::between(1, 2)},
                              {"rtol", tol.rtol, Range::at_least(0)},
                              {"atol", tol.atol, Range::at_least(0)},
                              {"h", h, Range::above_to(0, 1)}});
}

std::vector<Result> check(const Case& c, const Options& options) {
  options.check_numbers();
  return Checker(c, options).run();
}

}  // namespace tg::gradcheck

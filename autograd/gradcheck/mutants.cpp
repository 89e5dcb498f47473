// Injects faults into gradients to test the checker (mutation testing). The mutant of an op is a copy of the
// op with a wrong vjp. It is recorded instead of the op. In other cases, such as a layer, the gradient is
// changed after it is recorded. All other code, including kernels, is unchanged.
#include <limits>
#include <memory>

#include <tilegrad/ops/ops.h>
#include "autograd/gradcheck/quotients.h"
#include "autograd/gradcheck/rules.h"

namespace tg::gradcheck {

namespace {

using Tensors = std::vector<Tensor>;
using Vjp = std::function<Tensors(const Op& op, const Backprop& g)>;

// Changes the gradient of input k. `change` gets the gradient and the input.
template <class Change>
Vjp after(std::size_t k, Change change) {
  return [k, change](const Op& op, const Backprop& g) {
    Tensors z = op.vjp(g);
    if (k < z.size() && z[k].defined()) z[k] = change(z[k], g.in[k]);
    return z;
  };
}

Tensor transposed_gradient(const Tensor& z) {
  return z.rank() < 2 ? z : reshape(transpose(z, -1, -2), z.shape());
}

// Behaves as if the last element of output o were unused.
Vjp forgets_last_element(std::size_t o) {
  return [o](const Op& op, const Backprop& g) {
    Tensors z(g.z.begin(), g.z.end());
    if (o < z.size() && z[o].defined()) {
      Array mask(z[o].shape(), z[o].dtype());
      for (std::int64_t i = 0; i + 1 < mask.numel(); ++i) mask.set(i, 1);
      z[o] = z[o] * z[o].graph().constant(mask);
    }
    return op.vjp(Backprop{g.in, g.out, z, g.attrs, g.needed});
  };
}

// Computes the gradient for different inputs and outputs. A function of this type computes them from the real
// ones.
using Others = Tensors (*)(std::span<const Tensor>);
Vjp with_operands(Others inputs, Others outputs) {
  return [inputs, outputs](const Op& op, const Backprop& g) {
    const Tensors in = inputs(g.in), out = outputs(g.out);
    return op.vjp(Backprop{in, out, g.z, g.attrs, g.needed});
  };
}

Tensors unchanged(std::span<const Tensor> values) {
  return {values.begin(), values.end()};
}
// Returns changed values, as if an operand had been overwritten after the forward pass.
Tensors moved(std::span<const Tensor> values) {
  Tensors t = unchanged(values);
  for (Tensor& v : t)
    if (is_float(v.dtype())) v = v * 1.01 + 0.01;
  return t;
}
// Returns the values as constants. The gradient is then right, but the second derivative lacks the terms of
// these values.
Tensors held(std::span<const Tensor> values) {
  Tensors t = unchanged(values);
  for (Tensor& v : t) v = stop_gradient(v);
  return t;
}

// Sets elements of a gradient to 0 if the same element of the input is 0.
Tensor without_zeros(const Tensor& z, const Tensor& x) {
  return where(equal(x, 0), 0, z);
}
// Sets elements of a gradient to NaN if the same element of the input is huge.
Tensor overflowing(const Tensor& z, const Tensor& x) {
  constexpr double limit = 1e12;
  return where(greater(abs(x), limit), std::numeric_limits<double>::quiet_NaN(), z);
}

// A fault that drops one operand of a recorded sum: the number of the sum, and the operand that is kept.
struct LostTerm {
  int sum;
  std::size_t kept;

  std::string name() const {
    return "dropped term: " + std::string(kept ? "first" : "second") + " of sum " + std::to_string(sum);
  }
  // Returns the gradients z without the dropped term. Nodes first … last − 1 compute z.
  Tensors drop(Tensors z, Graph& graph, NodeId first, NodeId last) const {
    int seen = 0;
    Replay again(graph, graph, [&](const Node& node, std::span<const Tensor> in) -> std::optional<Tensors> {
      if (node.op->adds == 0 || seen++ != sum) return std::nullopt;
      return Tensors{in[kept]};
    });
    again.run(first, last);
    for (Tensor& t : z)
      if (t.defined()) t = again(t);
    return z;
  }
};

// Removes a term from one of the sums that the vjp records.
Vjp drops_term(const LostTerm& lost) {
  return [lost](const Op& op, const Backprop& g) {
    Graph& graph = g.in[0].graph();
    const auto first = static_cast<NodeId>(graph.nodes().size());
    Tensors z = op.vjp(g);
    return lost.drop(std::move(z), graph, first, static_cast<NodeId>(graph.nodes().size()));
  };
}

// Properties of a vjp, found by recording the unchanged vjp once.
struct Anatomy {
  std::vector<bool> inputs;  // inputs that get a gradient
  std::size_t outputs = 0;
  int sums = 0;
};

int count_sums(const Graph& graph, std::size_t first) {
  int sums = 0;
  for (std::size_t n = first; n < graph.nodes().size(); ++n) sums += graph.nodes()[n].op->adds != 0;
  return sums;
}

Vjp looks(const std::shared_ptr<Anatomy>& anatomy) {
  return [anatomy](const Op& op, const Backprop& g) {
    const Graph& graph = g.in[0].graph();
    const std::size_t first = graph.nodes().size();
    Tensors z = op.vjp(g);
    anatomy->inputs.resize(std::max(anatomy->inputs.size(), g.in.size()));
    for (std::size_t k = 0; k < z.size(); ++k)
      if (z[k].defined()) anatomy->inputs[k] = true;
    anatomy->outputs = std::max(anatomy->outputs, g.out.size());
    anatomy->sums = std::max(anatomy->sums, count_sums(graph, first));
    return z;
  };
}

// Owns a copy of the op with a wrong vjp, and a substitution that records the copy instead of the op.
class Injected {
 public:
  Injected(const Op& op, Vjp vjp) : original_(op), mutant_(op) {
    mutant_.vjp = [&op, vjp = std::move(vjp)](const Backprop& g) { return vjp(op, g); };
  }
  Injected(const Injected&) = delete;

  Replay::Substitute substitute() {
    return [this](const Node& node, std::span<const Tensor> in) -> std::optional<Tensors> {
      if (node.op != &original_) return std::nullopt;
      ++injected_;
      return in[0].graph().record(mutant_, in, node.attrs, node.where);
    };
  }
  int planted() const { return injected_; }

 private:
  const Op& original_;
  Op mutant_;
  int injected_ = 0;
};

struct Fault {
  std::string name;
  HarnessOptions how = {};                 // injects the fault
  std::shared_ptr<Injected> planted = {};  // keeps alive the object that `how` refers to
};

struct Change {
  const char* name;
  Tensor (*of)(const Tensor& z);
};
constexpr Change changes[] = {  // `scale` must be the second
    {"sign", [](const Tensor& z) { return -z; }},
    // Changes the scale by a thousandth in f64. In other dtypes the change must be several rounding errors,
    // because second derivatives of attention in f32 accumulate rounding errors over hundreds of steps.
    {"scale",
     [](const Tensor& z) {
       return z * (1 + (z.dtype() == f64 ? 0.001 : std::max(0.1, 64 * unit_roundoff(z.dtype()))));
     }},
    {"transposed", transposed_gradient},
    {"zero", [](const Tensor& z) { return zeros_like(z); }}};

// "transposed" applies to matrices only.
bool applies(const Change& change, int rank) {
  return rank >= 2 || change.of != changes[2].of;
}

class OpFaults {
 public:
  explicit OpFaults(const Op& op) : op_(op) {}

  std::vector<Fault> of(const Anatomy& a) {
    for (std::size_t k = 0; k < a.inputs.size(); ++k)
      for (const Change& change : changes)
        if (a.inputs[k])
          add(change.name + (" of input " + std::to_string(k)),
              after(k, [of = change.of](const Tensor& z, const Tensor&) { return of(z); }));
    for (std::size_t o = 0; o < a.outputs; ++o)
      add("dropped term: last element of output " + std::to_string(o), forgets_last_element(o));
    for (int n = 0; n < a.sums; ++n)
      for (const LostTerm lost : {LostTerm{n, 0}, LostTerm{n, 1}}) add(lost.name(), drops_term(lost));
    add("stale inputs", with_operands(moved, unchanged));
    add("stale outputs", with_operands(unchanged, moved));
    return std::move(faults_);
  }

 private:
  void add(std::string name, Vjp vjp) {
    const auto planted = std::make_shared<Injected>(op_, std::move(vjp));
    faults_.push_back({std::move(name), {.substitute = planted->substitute()}, planted});
  }
  const Op& op_;
  std::vector<Fault> faults_;
};

// Changes the gradient of the n-th floating input.
Fault changed(std::size_t n, const Change& change) {
  Fault fault{change.name + (" of floating input " + std::to_string(n))};
  fault.how.tamper = [n, of = change.of](Tensors z, NodeId, NodeId) {
    z[n] = of(z[n]);
    return z;
  };
  return fault;
}

// Removes a term from one of the sums among the nodes of the gradient.
Fault without_term(const LostTerm& lost) {
  Fault fault{lost.name()};
  fault.how.tamper = [lost](Tensors z, NodeId first, NodeId last) {
    Graph& graph = z[0].graph();
    return lost.drop(std::move(z), graph, first, last);
  };
  return fault;
}

Mutant mutant_of(const Case& c, Mutant::Fate fate, const std::string& fault, View view, DType dtype) {
  return {fate, c.owner, c.name, fault, {.owner = c.owner, .name = c.name, .view = view, .dtype = dtype}, {}};
}

// A view and a dtype for which faults are injected, with the results without a fault.
class Setting {
 public:
  Setting(const Case& c, View view, DType dtype, const Options& options)
      : case_(c),
        view_(view),
        dtype_(dtype),
        options_(options),
        plain_(c, view, wide_type(), {}),
        point_(drawn(c, view, dtype, options.seed)),
        right_(gradients(plain_)),
        noise_(measured_noise()) {}

  const Harness& plain() const { return plain_; }
  bool applies() const { return plain_.view_changes_something() && plain_.differentiable(); }

  Mutant mutant(Mutant::Fate fate, const std::string& fault) const {
    return mutant_of(case_, fate, fault, view_, dtype_);
  }

  // Whether the check passes, with or without a fault.
  bool passes(const HarnessOptions& how, Result& result) {
    if (dtype_ != f64) {
      Harness wide(case_, view_, f64, {});
      check_dtype(case_, view_, dtype_, wide, options_, result, how);
    } else {
      Harness harness(case_, view_, f64, how);
      if (options_.fast || view_ != View::contiguous)
        check_projections(harness, options_, result);
      else
        check_elements(harness, options_, result, Find::any);
    }
    return result.status == Status::ok;
  }

  Mutant judge(const Fault& fault) {
    Mutant m = mutant(Mutant::survived, fault.name);
    try {
      Harness wrong(case_, view_, wide_type(), fault.how);
      if (same(gradients(wrong))) {
        m.fate = Mutant::equivalent;
        m.why = dtype_ == f64 ? "the gradient stays the same"
                              : "it is within the rounding errors of " + std::string(tg::name_of(dtype_));
      }
    } catch (const Error& e) {
      m.fate = Mutant::not_injectable;
      m.why = e.what();
    }
    if (m.fate == Mutant::survived && !passes(fault.how, m.result)) m.fate = Mutant::caught;
    return m;
  }

 private:
  // The dtype of the reference programs. For 16-bit dtypes it is f32, because an f64 program may omit an op,
  // such as a cast to f64.
  DType wide_type() const { return dtype_ == f64 ? f64 : f32; }

  // The point at which the check runs, rounded to the dtype.
  struct At {
    Point x, r;
  };
  static At drawn(const Case& c, View view, DType dtype, std::uint64_t seed) {
    const Harness h(c, view, dtype, {.shapes_only = true});
    return {h.draw(seed), h.draw_cotangents(seed)};
  }
  Point gradients(Harness& h) const { return gradients_at(h, point_.x, point_.r); }

  // Measures the difference that rounding may cause between two correct programs. For this, it changes the
  // last bits of the inputs. In a dtype other than f64, it also rounds every result to that dtype.
  Values measured_noise() {
    Values most(right_.size(), 0.0);
    const double u = unit_roundoff(wide_type());
    const auto& [x, r] = point_;
    const std::vector<bool> floating = plain_.floating();
    const auto compare = [&](Harness& h, double step, std::uint64_t s, double factor) {
      const Point z = gradients_at(h, nudged(x, step, floating, s),
                                   nudged(r, step, std::vector<bool>(r.size(), true), s + 100));
      for (std::size_t i = 0; i < z.size(); ++i)
        if (const double d = factor * farthest(z[i], right_[i]); std::isfinite(d))
          most[i] = std::max(most[i], d);
    };
    for (std::uint64_t s = 0; s < 4; ++s) compare(plain_, 4 * u, s, 100);
    if (dtype_ != f64) {
      Harness rounding(case_, view_, f64, {.round_to = dtype_});
      for (std::uint64_t s = 0; s < 4; ++s) compare(rounding, unit_roundoff(dtype_), s, 20);
    }
    for (std::size_t i = 0; i < most.size(); ++i) most[i] += 8 * u * largest(right_[i]);
    return most;
  }

  // Whether gradients are equal up to roundoff. If they are, the change is not a fault. An example is the
  // transposition of a gradient that is then summed over a broadcast axis.
  bool same(const Point& z) const {
    for (std::size_t i = 0; i < z.size(); ++i)
      if (!(farthest(z[i], right_[i]) <= noise_[i])) return false;
    return true;
  }

  const Case& case_;
  const View view_;
  const DType dtype_;
  const Options& options_;
  Harness plain_;
  const At point_;
  const Point right_;
  const Values noise_;
};

class Mutation {
 public:
  Mutation(const Case& c, const Options& options) : case_(c), options_(options) {}

  std::vector<Mutant> run() {
    if (!everything()) return std::move(mutants_);
    std::size_t first_fault = options_.seed;
    for (View view : options_.views)
      if (view != View::contiguous && !another(view, f64, first_fault++)) return std::move(mutants_);
    for (DType dtype : {f32, bf16, f16})
      if (!another(View::contiguous, dtype, first_fault++)) return std::move(mutants_);
    return std::move(mutants_);
  }

 private:
  // Injects faults that can be detected only at special points, or in second derivatives there.
  void at_special_points() {
    const Op& op = *case_.op;
    std::vector<std::pair<std::string, Vjp>> faults{{"operands held fixed", with_operands(held, held)}};
    for (std::size_t k = 0; k < case_.inputs.size(); ++k) {
      if (!differentiable(case_.inputs[k])) continue;
      faults.emplace_back("zero where input " + std::to_string(k) + " is", after(k, without_zeros));
      faults.emplace_back("NaN where input " + std::to_string(k) + " is huge", after(k, overflowing));
    }
    const std::vector<SpecialDerivative> right = special_derivatives(case_, options_);
    for (const auto& [name, vjp] : faults) {
      Injected planted(op, vjp);
      const Case wrong = replayed(case_, planted.substitute());
      Mutant m = mutant_of(case_, Mutant::survived, name, View::contiguous, f64);
      try {
        check_special(wrong, options_, m.result);
        if (m.result.status != Status::ok) {
          m.fate = Mutant::caught;
        } else if (same_derivatives(right, special_derivatives(wrong, options_))) {
          m.fate = Mutant::equivalent;
          m.why = "the derivatives at smooth special points do not change";
        }
      } catch (const Error& e) {
        m.fate = Mutant::not_injectable;
        m.why = e.what();
      }
      mutants_.push_back(std::move(m));
    }
  }

  // Whether the derivatives are equal at all points where difference quotients determine the right one. The
  // quotients need not determine the wrong one, because they do not converge to a derivative that jumps.
  static bool same_derivatives(const std::vector<SpecialDerivative>& right,
                               const std::vector<SpecialDerivative>& other) {
    if (right.size() != other.size()) return false;
    for (std::size_t i = 0; i < right.size(); ++i)
      if (right[i].is_smooth && right[i].value != other[i].value) return false;
    return true;
  }

  // Injects all faults, in f64 and the contiguous view. Returns false if the case cannot be tested.
  bool everything() {
    const auto anatomy = std::make_shared<Anatomy>();
    DType dtype = f64;
    bool of_op = case_.op && case_.op->vjp;
    if (of_op && !records(f64, anatomy)) {
      dtype = f32;
      of_op = records(f32, anatomy);
    }
    Setting setting(case_, View::contiguous, dtype, options_);
    if (!setting.applies() || !is_right(setting)) return false;
    for (const Fault& fault : of_op ? OpFaults(*case_.op).of(*anatomy) : of_gradient(setting))
      mutants_.push_back(setting.judge(fault));
    if (of_op && dtype == f64 && has_special_points(case_, options_)) at_special_points();
    return true;
  }

  bool records(DType dtype, const std::shared_ptr<Anatomy>& anatomy) const {
    Injected look(*case_.op, looks(anatomy));
    Harness h(case_, View::contiguous, dtype, {.substitute = look.substitute()});
    return look.planted() > 0;
  }

  // Rejects a case if its check fails without a fault, because every fault would then count as detected.
  bool is_right(Setting& setting) {
    Mutant m = setting.mutant(Mutant::refused, "none");
    if (setting.passes({}, m.result)) return true;
    m.why = "its check fails without a fault, so no fault was injected";
    mutants_.push_back(m);
    return false;
  }

  static std::vector<Fault> by_input(const Setting& setting) {
    std::vector<Fault> faults;
    for (std::size_t n = 0; const std::size_t l : setting.plain().floating_leaves()) {
      for (const Change& change : changes)
        if (applies(change, setting.plain().leaves()[l].shape.size())) faults.push_back(changed(n, change));
      ++n;
    }
    return faults;
  }

  // Faults of a complete gradient: of a layer, or of an op that is differentiated by its decomposition.
  std::vector<Fault> of_gradient(const Setting& setting) const {
    std::vector<Fault> faults = by_input(setting);
    int sums = 0;
    HarnessOptions look;
    look.tamper = [&sums](Tensors z, NodeId first, NodeId) {
      sums = count_sums(z[0].graph(), first);
      return z;
    };
    const Harness looked(case_, View::contiguous, f64, look);
    const int stride = std::max(1, sums / most_sums);  // a model has many sums: the seed selects some
    for (int i = static_cast<int>(options_.seed % static_cast<std::uint64_t>(stride)); i < sums; i += stride)
      for (const LostTerm lost : {LostTerm{i, 0}, LostTerm{i, 1}}) faults.push_back(without_term(lost));
    return faults;
  }

  // Injects faults in another view or dtype. One fault per input scales the gradient of that input. One more
  // fault is the first that changes the gradient, in a search that starts at number 5 × `first_fault`.
  bool another(View view, DType dtype, std::size_t first_fault) {
    if (std::find(options_.dtypes.begin(), options_.dtypes.end(), dtype) == options_.dtypes.end())
      return true;
    Setting setting(case_, view, dtype, options_);
    if (!setting.applies()) return true;
    if (!is_right(setting)) return false;
    const std::vector<Fault> faults = by_input(setting);
    for (std::size_t i = 0; i < std::min<std::size_t>(faults.size(), 4); ++i) {
      const Mutant m = setting.judge(faults[(5 * first_fault + i) % faults.size()]);
      if (!m.fault.starts_with(changes[1].name)) mutants_.push_back(m);
      if (m.fate != Mutant::equivalent) break;
    }
    for (const Fault& fault : faults)
      if (fault.name.starts_with(changes[1].name)) mutants_.push_back(setting.judge(fault));
    return true;
  }

  static constexpr int most_sums = 8;
  const Case& case_;
  const Options& options_;
  std::vector<Mutant> mutants_;
};

}  // namespace

std::vector<Mutant> mutate(const Case& c, const Options& options) {
  options.check_numbers();
  if (c.expected) return {};  // such samples are at special points, where no quotient detects a fault
  if (c.op && !c.op->not_differentiable.empty()) return {};
  try {
    return Mutation(c, options).run();
  } catch (const Error& e) {
    return {{Mutant::refused, c.owner, c.name, "none", {}, e.what()}};
  }
}

}  // namespace tg::gradcheck

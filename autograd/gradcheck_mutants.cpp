// Faults planted into vjps, to check the checker. A mutant is a copy of the op with a wrong vjp, recorded
// instead of the op; everything else, kernels included, is unchanged.
#include <memory>

#include <tilegrad/ops/ops.h>
#include "autograd/gradcheck_numeric.h"
#include "autograd/gradcheck_rules.h"

namespace tg::gradcheck {

namespace {

using Tensors = std::vector<Tensor>;
using Vjp = std::function<Tensors(const Op& op, const Backprop& g)>;

struct Fault {
  std::string name;
  Vjp vjp;
};

// A change of the gradient of input k.
template <class Change>
Vjp after(std::size_t k, Change change) {
  return [k, change](const Op& op, const Backprop& g) {
    Tensors z = op.vjp(g);
    if (k < z.size() && z[k].defined()) z[k] = change(z[k]);
    return z;
  };
}

Tensor transposed_gradient(const Tensor& z) {
  return z.rank() < 2 ? z : reshape(transpose(z, -1, -2), z.shape());
}

// As if the last element of output o had no children.
Vjp forgets_last_element(std::size_t o) {
  return [o](const Op& op, const Backprop& g) {
    Tensors z(g.z.begin(), g.z.end());
    if (o < z.size() && z[o].defined() && z[o].numel() > 0) {
      Array mask(z[o].shape(), z[o].dtype());
      for (std::int64_t i = 0; i + 1 < mask.numel(); ++i) mask.set(i, 1);
      z[o] = z[o] * z[o].graph().constant(mask);
    }
    return op.vjp(Backprop{g.in, g.out, z, g.attrs, g.needed});
  };
}

// As if inputs or outputs had changed since the forward pass.
Tensors moved(std::span<const Tensor> values) {
  Tensors t(values.begin(), values.end());
  for (Tensor& v : t)
    if (is_float(v.dtype())) v = v * 1.01 + 0.01;
  return t;
}

Vjp stale(bool inputs) {
  return [inputs](const Op& op, const Backprop& g) {
    const Tensors in = inputs ? moved(g.in) : Tensors(g.in.begin(), g.in.end());
    const Tensors out = inputs ? Tensors(g.out.begin(), g.out.end()) : moved(g.out);
    return op.vjp(Backprop{in, out, g.z, g.attrs, g.needed});
  };
}

bool is_sum_of_terms(const Node& node) {
  return (node.op == &add_op || node.op == &sub_op);
}

// The n-th sum of two terms that the vjp records loses one of them.
Vjp drops_term(int n, std::size_t kept) {
  return [n, kept](const Op& op, const Backprop& g) {
    Graph& graph = g.in[0].graph();
    const auto first = static_cast<NodeId>(graph.nodes().size());
    Tensors z = op.vjp(g);
    const auto last = static_cast<NodeId>(graph.nodes().size());
    int seen = 0;
    Replay again(graph, graph, [&](const Node& node, std::span<const Tensor> in) -> std::optional<Tensors> {
      if (!is_sum_of_terms(node) || seen++ != n) return std::nullopt;
      return Tensors{in[kept]};
    });
    again.run(first, last);
    for (Tensor& t : z)
      if (t.defined()) t = again(t);
    return z;
  };
}

// Properties of a vjp, found by recording it once unchanged.
struct Anatomy {
  std::size_t inputs = 0, outputs = 0;
  int sums = 0;
};
Vjp looks(const std::shared_ptr<Anatomy>& anatomy) {
  return [anatomy](const Op& op, const Backprop& g) {
    const Graph& graph = g.in[0].graph();
    const std::size_t first = graph.nodes().size();
    Tensors z = op.vjp(g);
    anatomy->inputs = std::max(anatomy->inputs, g.in.size());
    anatomy->outputs = std::max(anatomy->outputs, g.out.size());
    int sums = 0;
    for (std::size_t n = first; n < graph.nodes().size(); ++n) sums += is_sum_of_terms(graph.nodes()[n]);
    anatomy->sums = std::max(anatomy->sums, sums);
    return z;
  };
}

std::vector<Fault> faults(const Anatomy& a) {
  std::vector<Fault> list;
  for (std::size_t k = 0; k < a.inputs; ++k) {
    const std::string of = " of input " + std::to_string(k);
    list.push_back({"sign" + of, after(k, [](const Tensor& z) { return -z; })});
    list.push_back({"scale" + of, after(k, [](const Tensor& z) { return z * 1.001; })});
    list.push_back({"transposed" + of, after(k, transposed_gradient)});
    list.push_back({"zero" + of, after(k, [](const Tensor& z) { return zeros_like(z); })});
  }
  for (std::size_t o = 0; o < a.outputs; ++o)
    list.push_back({"dropped term: last element of output " + std::to_string(o), forgets_last_element(o)});
  for (int n = 0; n < a.sums; ++n)
    for (std::size_t kept = 0; kept < 2; ++kept)
      list.push_back(
          {"dropped term: " + std::string(kept ? "first" : "second") + " of sum " + std::to_string(n),
           drops_term(n, kept)});
  list.push_back({"stale inputs", stale(true)});
  list.push_back({"stale outputs", stale(false)});
  return list;
}

// The op with another vjp, and the substitution that records it instead of the op.
class Planted {
 public:
  Planted(const Op& op, Vjp vjp) : original_(op), mutant_(op) {
    mutant_.vjp = [&op, vjp = std::move(vjp)](const Backprop& g) { return vjp(op, g); };
  }
  Planted(const Planted&) = delete;

  Replay::Substitute substitute() {
    return [this](const Node& node, std::span<const Tensor> in) -> std::optional<Tensors> {
      if (node.op != &original_) return std::nullopt;
      ++planted_;
      return in[0].graph().record(mutant_, in, node.attrs, node.where);
    };
  }
  int planted() const { return planted_; }

 private:
  const Op& original_;
  Op mutant_;
  int planted_ = 0;
};

// Equal up to the order of summation: to transpose a gradient before it is summed over a broadcast axis is no
// fault.
bool same_but_for_roundoff(const Point& a, const Point& b) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    double size = 0, apart = 0;
    for (std::size_t k = 0; k < b[i].size(); ++k) {
      if (a[i][k] == b[i][k]) continue;
      if (!std::isfinite(a[i][k]) || !std::isfinite(b[i][k])) return false;
      size = std::max(size, std::abs(b[i][k]));
      apart = std::max(apart, std::abs(a[i][k] - b[i][k]));
    }
    if (apart > 8 * unit_roundoff(f64) * size) return false;
  }
  return true;
}

class Mutation {
 public:
  Mutation(const Case& c, const Options& options) : case_(c), options_(options) {}

  std::vector<Mutant> run() {
    const auto anatomy = std::make_shared<Anatomy>();
    dtype_ = f64;
    if (!records(anatomy)) {
      dtype_ = f32;  // in f64 the op may vanish: a cast to f64
      if (!records(anatomy)) return {};
    }
    Harness truth(case_, View::contiguous, dtype_, {});
    if (!truth.differentiable()) return {};
    const Point expected = gradients(truth);
    std::vector<Mutant> mutants;
    for (const Fault& fault : faults(*anatomy)) mutants.push_back(judge(fault, expected));
    return mutants;
  }

 private:
  bool records(const std::shared_ptr<Anatomy>& anatomy) const {
    Planted look(*case_.op, looks(anatomy));
    Harness h(case_, View::contiguous, dtype_, {.substitute = look.substitute()});
    return look.planted() > 0;
  }

  Point gradients(Harness& h) const {
    h.set(h.draw(options_.seed));
    h.set_cotangents(h.draw_cotangents(options_.seed));
    return h.gradients();
  }

  Mutant judge(const Fault& fault, const Point& expected) const {
    Mutant m{Mutant::survived, case_.owner, case_.name, fault.name, {}};
    m.result.owner = case_.owner;
    m.result.name = case_.name;
    m.result.dtype = dtype_;
    Planted planted(*case_.op, fault.vjp);
    try {
      Harness wrong(case_, View::contiguous, dtype_, {.substitute = planted.substitute()});
      if (same_but_for_roundoff(gradients(wrong), expected))
        m.fate = Mutant::equivalent;
      else if (!passes(wrong, planted, m.result))
        m.fate = Mutant::caught;
    } catch (const ShapeError&) {
      m.fate = Mutant::equivalent;  // the fault does not fit the shapes: it cannot be planted
    }
    return m;
  }

  bool passes(Harness& wrong, Planted& planted, Result& result) const {
    if (dtype_ != f64) {
      Harness wide(case_, View::contiguous, f64, {});
      check_dtype(case_, View::contiguous, dtype_, wide, options_, result, planted.substitute());
    } else if (options_.fast) {
      check_projections(wrong, options_, result);
    } else {
      check_elements(wrong, options_, result);
    }
    return result.status == Status::ok;
  }

  const Case& case_;
  const Options& options_;
  DType dtype_ = f64;
};

}  // namespace

std::vector<Mutant> mutate(const Case& c, const Options& options) {
  return c.op && c.op->vjp ? Mutation(c, options).run() : std::vector<Mutant>();
}

}  // namespace tg::gradcheck

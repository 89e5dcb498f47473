// Calls functions and methods of core/ and autograd/.
#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/core/base/random.h>
#include <tilegrad/core/report/bad_node.h>
#include <tilegrad/core/report/profile.h>
#include "tests/hostile/world.h"

namespace tg::hostile {

namespace {

#define METHOD(C, name) call(#C "::" #name, &C::name)

std::vector<Call> values_and_layouts() {
  using L = const Layout&;
  return {
      METHOD(Layout, numel),
      METHOD(Layout, is_contiguous),
      METHOD(Layout, is_dense),
      METHOD(Layout, extent),
      call("numel", tg::numel),
      call("add_sizes", tg::add_sizes),
      call("holds", tg::holds),
      call("stored_number", tg::stored_number),
      call("row_major_strides", tg::row_major_strides),
      call("row_major", tg::row_major),
      call("dense_like", tg::dense_like),
      {"normalize_axis",
       [](World& w) { normalize_axis(Draw<std::int64_t>::of(w), static_cast<int>(w.below(9)), "hostile"); }},
      {"normalize_axes",
       [](World& w) { normalize_axes(Draw<Dims>::of(w), static_cast<int>(w.below(9)), "hostile"); }},
      {"broadcast_shapes",
       [](World& w) { broadcast_shapes(Draw<Dims>::of(w), Draw<Dims>::of(w), "hostile"); }},
      {"infer_shape", [](World& w) { infer_shape(Draw<Dims>::of(w), Draw<std::int64_t>::of(w), "hostile"); }},
      call("permute of a layout", static_cast<Layout (*)(L, const Axes&)>(tg::permute)),
      call("transpose of a layout", static_cast<Layout (*)(L, std::int64_t, std::int64_t)>(tg::transpose)),
      call("view of a layout", static_cast<Layout (*)(L, const Shape&)>(tg::view)),
      call("can_view", tg::can_view),
      call("expand of a layout", static_cast<Layout (*)(L, const Shape&)>(tg::expand)),
      call("slice of a layout",
           static_cast<Layout (*)(L, std::int64_t, std::int64_t, std::int64_t, std::int64_t)>(tg::slice)),
      call("squeeze of a layout", static_cast<Layout (*)(L, std::int64_t)>(tg::squeeze)),
      call("unsqueeze of a layout", static_cast<Layout (*)(L, std::int64_t)>(tg::unsqueeze)),
      {"Dims", [](World& w) { (void)Draw<Dims>::of(w).contains(Draw<std::int64_t>::of(w)); }},
      METHOD(Array, bytes),
      METHOD(Array, share),
      METHOD(Array, numel),
      METHOD(Array, at),
      METHOD(Array, copy),
      METHOD(Array, to),
      METHOD(Array, same_bits),
      METHOD(Array, text),
      METHOD(Array, set),
      call("Array::data", static_cast<const float* (Array::*)() const>(&Array::data<float>)),
      call("Array::values", &Array::values<float>),
      call("Array::item", &Array::item<double>),
      {"Array", [](World& w) { w.keep(Array(Draw<Dims>::of(w), Draw<DType>::of(w))); }},
      {"Array::of",
       [](World& w) {
         w.keep(Array::of<std::int64_t>(Draw<Dims>::of(w), Draw<std::vector<std::int64_t>>::of(w)));
       }},
      call("normal_array", normal_array),
      call("uniform_array", uniform_array),
      {"uniform_range",
       [](World& w) {
         const DType dtype = Draw<DType>::of(w);
         const double low = Draw<double>::of(w), high = Draw<double>::of(w);
         w.keep(Array::of<double>({uniform_range(dtype, low, high).at(0.5)}));
       }},
      METHOD(Device, text),
      call("Device::parse", Device::parse),
  };
}

std::vector<Call> graphs() {
  return {
      METHOD(Tensor, id),
      METHOD(Tensor, size),
      METHOD(Tensor, rank),
      METHOD(Tensor, numel),
      METHOD(Tensor, layout),
      METHOD(Tensor, dtype),
      METHOD(Tensor, text),
      METHOD(Tensor, transpose),
      METHOD(Tensor, permute),
      METHOD(Tensor, view),
      METHOD(Tensor, expand),
      METHOD(Tensor, slice),
      METHOD(Tensor, squeeze),
      METHOD(Tensor, unsqueeze),
      METHOD(Tensor, reshape),
      METHOD(Tensor, contiguous),
      METHOD(Tensor, to),
      METHOD(Tensor, sum),
      METHOD(Tensor, mean),
      METHOD(Tensor, max),
      METHOD(Tensor, min),
      {"Tensor::shape", [](World& w) { (void)Draw<Tensor>::of(w).shape().text(); }},
      {"Tensor::graph", [](World& w) { (void)Draw<Tensor>::of(w).graph().nodes().size(); }},
      call("full", tg::full),
      {"Graph::input",
       [](World& w) {
         w.keep(Draw<Graph&>::of(w).input(Draw<std::string>::of(w), Draw<Dims>::of(w), Draw<DType>::of(w)));
       }},
      {"Graph::param", [](World& w) { w.keep(Draw<Graph&>::of(w).param(Draw<Parameter>::of(w))); }},
      {"Graph::constant", [](World& w) { w.keep(Draw<Graph&>::of(w).constant(Draw<Array>::of(w))); }},
      {"Graph::rng", [](World& w) { w.keep(Draw<Graph&>::of(w).rng()); }},
      {"Graph::must_assign",
       [](World& w) { Draw<Graph&>::of(w).must_assign(Draw<Parameter>::of(w), Draw<Tensor>::of(w)); }},
      {"Graph::limit",
       [](World& w) {
         Graph& g = Draw<Graph&>::of(w);
         const Tensor t = Draw<Tensor>::of(w);
         g.limit(t, Range::between(Draw<double>::of(w), Draw<double>::of(w)));
         (void)g.limit_of(t.id());
       }},
      {"Graph::replace",
       [](World& w) {
         Graph& g = Draw<Graph&>::of(w);
         const Tensor old = Draw<Tensor>::of(w), other = w.hostile() ? Draw<Tensor>::of(w) : old * 2;
         w.keep(old + 1);
         g.replace(old, w.hostile() ? other : copy(other));
         w.keep(g.tensor(g.current(old.id())));
       }},
      {"Graph::common_condition",
       [](World& w) {
         const Tensor loss = Draw<Tensor>::of(w), own = Draw<Tensor>::of(w);
         w.keep(Draw<Graph&>::of(w).common_condition(loss, own, [&](const Tensor& a, const Tensor& b) {
           return w.hostile() ? b : logical_and(a, b);
         }));
       }},
      {"check_options",
       [](World& w) {
         const double a = Draw<double>::of(w), b = Draw<double>::of(w), x = Draw<double>::of(w);
         for (const Range& r :
              {Range::between(a, b), Range::from_below(a, b), Range::above_to(a, b), Range::inside(a, b),
               Range::at_least(a), Range::above(a), Range::finite(), Range::whole_from(a), Range::size(a)}) {
           const bool fits = range_mistake({{"x", x, r}}).empty();
           if (fits != r.contains(x) || r.text().size() > 100) throw std::logic_error("range " + r.text());
           (void)range_mistake({{"x", Draw<std::int64_t>::of(w), r}});
         }
         check_options<ShapeError>("x", {{"x", x, Range::between(a, b)}});
         (void)Range::softcap(x).contains(x);
         gradcheck::Options{.tol = {a, b}, .h = x}.check_numbers();
       }},
      {"Graph::before_runs",
       [](World& w) {
         Graph& g = Draw<Graph&>::of(w);
         g.before_runs(
             &w, w.chance(0.5) ? std::function<void()>() : [] {});
         g.call_before_run();
       }},
      {"Graph::value",
       [](World& w) {
         const Graph& g = Draw<Graph&>::of(w);
         const auto id = static_cast<ValueId>(w.hostile() ? w.random() : w.below(g.values().size()));
         w.trace += "Graph::value(" + std::to_string(id) + ")\n";
         w.on_call(w.trace);
         (void)g.custom_gradient_ending_at(id);
         w.keep(g.tensor(id));
         (void)g.value(id).layout.numel();
         (void)g.label_of(g.node_of(id)).size(), (void)g.name_of(g.node_of(id)).size();
       }},
      {"Graph::updates", [](World& w) { (void)Draw<Graph&>::of(w).updates().size(); }},
      {"Graph::share", [](World& w) { (void)Draw<Graph&>::of(w).share()->hash(); }},
      {"Graph::hash", [](World& w) { Draw<Graph&>::of(w).hash(); }},
      {"Graph::has", [](World& w) { Draw<Graph&>::of(w).has(Draw<Tensor>::of(w)); }},
      {"Scope",
       [](World& w) {
         const Scope scope(Draw<std::string>::of(w));
         w.keep(Draw<TensorArg>::of(w) + Draw<TensorArg>::of(w));
       }},
      {"Parameter",
       [](World& w) {
         w.keep(Parameter(Draw<std::string>::of(w), Draw<Array>::of(w), Draw<Device>::of(w)));
       }},
      METHOD(Parameter, dtype),
      METHOD(Parameter, device),
      METHOD(Parameter, bytes),
      METHOD(Parameter, read),
      METHOD(Parameter, write),
      METHOD(Parameter, memory),
      METHOD(Parameter, key),
      {"Parameter::add_setting",
       [](World& w) {
         Parameter p = Draw<Parameter>::of(w);
         p.add_setting(Draw<std::string>::of(w), Draw<std::string>::of(w));
         (void)p.settings().size();
       }},
      {"Parameter::freeze",
       [](World& w) {
         Parameter p = Draw<Parameter>::of(w);
         w.chance(0.3) ? p.freeze() : p.unfreeze();
         (void)p.is_frozen();
       }},
      {"Parameter::note_change",
       [](World& w) {
         Parameter p = Draw<Parameter>::of(w);
         p.note_change(w.chance(0.5) ? Parameter::new_change() : w.random());
         (void)p.last_change();
       }},
      {"Parameter::name", [](World& w) { (void)Draw<Parameter>::of(w).name().size(); }},
      {"Parameter::shape", [](World& w) { (void)Draw<Parameter>::of(w).shape().text(); }},
      {"gradients",
       [](World& w) {
         const Tensor loss = Draw<Tensor>::of(w);
         const std::vector<Tensor> wrt = Draw<std::vector<Tensor>>::of(w);
         const Tensor cotangent = w.chance(0.5) ? Tensor() : Draw<Tensor>::of(w);
         w.trace += "gradients(" + text_of(loss) + ", " + text_of(wrt) + ", " + text_of(cotangent) + ")\n";
         w.keep(gradients(loss, wrt, cotangent));
       }},
      call("depends_on", tg::depends_on),
      call("checkpoint", tg::checkpoint),
      {"custom_op",
       [](World& w) {
         const CustomOp op = custom_op(Draw<std::string>::of(w), Draw<GraphFunctions>::of(w));
         w.trace += "custom_op\n";
         w.keep(op.all(Draw<std::vector<Tensor>>::of(w), std::source_location::current()));
       }},
      {"register_host_op",
       [](World& w) {
         const CustomOp op = register_host_op(Draw<HostOp>::of(w));
         w.trace += "register_host_op\n";
         if (w.chance(0.5))
           w.keep(op(Draw<TensorArg>::of(w)));
         else
           w.keep(op.all(Draw<std::vector<Tensor>>::of(w), std::source_location::current()));
       }},
      {"scalar_operand",
       [](World& w) {
         w.keep(scalar_operand(add_op, Draw<Graph&>::of(w), Draw<double>::of(w), Draw<DType>::of(w)));
       }},
      {"register_op", [](World& w) { register_op({.name = w.hostile() ? "" : Draw<std::string>::of(w)}); }},
  };
}

// Returns whether all recorded tensors could be computed in a short time.
bool is_small(const Graph& g) {
  for (const Value& v : g.values())
    if (v.layout.numel() > 1 << 16) return false;
  return g.nodes().size() < 4000;
}

std::vector<Feed> feeds_of_all_inputs(World& w) {
  std::vector<Feed> feeds;
  for (std::size_t n = 0; n < w.graph.nodes().size(); ++n) {
    const Node& node = w.graph.nodes()[n];
    if (node.op != &input_op) continue;
    const Tensor t = w.graph.tensor(node.first_out);
    if (t.numel() > 1 << 16 || w.hostile()) continue;
    feeds.emplace_back(t, filled(w, t.shape(), t.dtype()));
  }
  return feeds;
}

std::vector<Call> programs() {
  return {
      {"compile",
       [](World& w) {
         const std::vector<Tensor> fetch = Draw<std::vector<Tensor>>::of(w);
         CompileOptions options = Draw<CompileOptions>::of(w);
         if (!is_small(w.graph)) options.plan_only = true;
         w.trace += "compile(" + text_of(fetch) + ")\n";
         w.keep(compile(w.graph, fetch, options));
       }},
      {"eval",
       [](World& w) {
         const Tensor t = Draw<Tensor>::of(w);
         const std::vector<Feed> feeds = Draw<std::vector<Feed>>::of(w);
         w.trace += "eval(" + text_of(t) + ")\n";
         if (is_small(w.graph)) w.keep(eval(t, feeds));
       }},
      {"Program::run",
       [](World& w) {
         Program p = Draw<Program>::of(w);
         w.trace += "run\n";
         p.run(Draw<std::vector<Feed>>::of(w));
       }},
      {"Program::feed",
       [](World& w) {
         Program p = Draw<Program>::of(w);
         w.trace += "feed\n";
         p.feed(Draw<Feed>::of(w));
       }},
      METHOD(Program, profile),
      METHOD(Program, fetch),
      {"Program::memory", [](World& w) { (void)Draw<Program>::of(w).memory().peak(); }},
      METHOD(Program, device),
      METHOD(Program, text),
      METHOD(Program, seed),
      METHOD(Program, set_step),
      METHOD(Program, reads),
      {"Program::steps", [](World& w) { (void)Draw<Program>::of(w).steps().size(); }},
      {"Program::buffers", [](World& w) { (void)Draw<Program>::of(w).buffers().size(); }},
      {"Program::graph", [](World& w) { (void)Draw<Program>::of(w).graph().nodes().size(); }},
      {"Program::outputs", [](World& w) { (void)Draw<Program>::of(w).outputs().size(); }},
      {"Program::options", [](World& w) { (void)Draw<Program>::of(w).options().threads; }},
      {"Program::fetch_later",
       [](World& w) {
         Program p = Draw<Program>::of(w);
         w.trace += "fetch_later\n";
         w.keep(p.fetch_later(Draw<std::vector<Tensor>>::of(w)));
       }},
      METHOD(Pending, wait),
      METHOD(Pending, ready),
      METHOD(Pending, depend_on),
      METHOD(Pending, fetch),
      METHOD(Pending, number),
      call("Pending::item", &Pending::item<float>),
      call("Pending::values", &Pending::values<float>),
      {"first_bad_node",
       [](World& w) {
         const std::vector<Feed> feeds = Draw<std::vector<Feed>>::of(w);
         if (is_small(w.graph))
           first_bad_node(w.graph, feeds, 0, Draw<std::int64_t>::of(w), Draw<int>::of(w));
       }},
      {"profile",
       [](World& w) {
         Program p = Draw<Program>::of(w);
         w.trace += "profile\n";
         const Profile measured =
             profile(p, {Draw<double>::of(w), {{f32, Draw<double>::of(w)}}}, Draw<int>::of(w) % 5);
         by_op(p, measured);
         profile_text(p, measured, w.below(3));
       }},
      {"graph_text",
       [](World& w) {
         const Tensor t = Draw<Tensor>::of(w);
         const ValueId out[] = {t.id()};
         graph_text(t.graph(), out);
         graphviz(t.graph(), out, Draw<std::string>::of(w));
         layer_of(Draw<std::string>::of(w));
       }},
  };
}

// Differentiates and compiles some tensors, feeds every input, and runs the program. {.verify} detects wrong
// numbers.
void finish(World& w) {
  std::vector<Tensor> fetch;
  for (std::uint64_t n = 1 + w.below(4); n > 0; --n) {
    const Tensor t = w.tensors[w.below(w.tensors.size())];
    if (w.graph.has(t)) fetch.push_back(t);
  }
  w.trace += "finish(" + text_of(fetch) + ")\n";
  w.on_call(w.trace);
  if (!fetch.empty() && is_float(fetch[0].dtype()) && w.chance(0.6)) {
    std::vector<Tensor> wrt;
    for (const Tensor& t : w.tensors)
      if (w.graph.has(t) && is_float(t.dtype()) && wrt.size() < 4) wrt.push_back(t);
    for (const Tensor& z : gradients(fetch[0], wrt, ones_like(fetch[0]))) fetch.push_back(z);
  }
  const bool small = is_small(w.graph);
  Program p = compile(w.graph, fetch,
                      {.threads = static_cast<int>(1 + w.below(3)),
                       .fuse = w.chance(0.8),
                       .verify = w.chance(0.7),
                       .plan_only = !small,
                       .allow_unassigned = true});
  if (!small) return;
  w.on_call(w.trace += p.text());
  for (const Feed& f : feeds_of_all_inputs(w)) {
    try {
      p.feed(f);
    } catch (const Error&) {  // an input that the program does not read
    }
  }
  for (int n = 0; n < 2; ++n) p.run();
  for (const Tensor& t : fetch) {
    const Array a = p.fetch(t);
    if (a.shape() != t.shape() || a.dtype() != t.dtype())
      throw std::logic_error("fetched a value of a different shape");
  }
}

}  // namespace

std::vector<Call> core_calls() {
  std::vector<Call> all;
  for (const auto& some : {values_and_layouts(), graphs(), programs()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

void run_program(World& w) {
  static const std::vector<std::vector<Call>> rooms{core_calls(),  op_calls(),   op_calls(),
                                                    model_calls(), file_calls(), parallel_calls()};
  const auto attempt = [&](const auto& f) {
    try {
      f();
    } catch (const Error& e) {
      const std::string what = e.what();
      w.trace += "  " + what + "\n";
      if (what.find("[verify]") != std::string::npos) throw std::logic_error(what);
      if (what.empty()) throw std::logic_error("an Error without a message");
    }
  };
  for (std::uint64_t n = 4 + w.below(16); n > 0; --n) {
    const std::vector<Call>& room = rooms[w.below(rooms.size())];
    const Call& c = room[w.below(room.size())];
    w.on_call(w.trace + c.name + "\n");
    attempt([&] { c.run(w); });
    w.on_call(w.trace);
  }
  attempt([&] { finish(w); });
}

}  // namespace tg::hostile

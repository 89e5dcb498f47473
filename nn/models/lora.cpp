#include <tilegrad/nn/models/lora.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

// PEFT's rule: `name` is the full name of the module, or the part of it after a dot.
bool is_named(const std::string& module, const std::string& name) {
  return module == name || module.ends_with("." + name);
}

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

[[noreturn]] void refuse_name(const std::vector<LoraModule>& all, const std::string& what,
                              const std::string& name) {
  std::set<std::string> known;
  for (const LoraModule& m : all) known.insert(last_part(m.name));
  std::string list;
  for (const std::string& k : known) list += (list.empty() ? "" : ", ") + k;
  throw Error("[lora] " + what + " \"" + name + "\" is not a Linear layer of the model, which has " +
              (list.empty() ? "none" : list));
}

void check(const LoraOptions& o) {
  constexpr Range rank = Range::size(1), alpha = Range::finite();
  check_options(
      "lora",
      {{"rank", o.rank, rank}, {"alpha", o.alpha, alpha}, {"dropout", o.dropout, Range::from_below(0, 1)}});
  for (const auto& [name, own] : o.ranks) check_options("lora", {{"rank of " + name, own, rank}});
  for (const auto& [name, own] : o.alphas) check_options("lora", {{"alpha of " + name, own, alpha}});
  if (!is_float(o.dtype))
    throw DTypeError("[lora] the adapters' dtype is " + std::string(name_of(o.dtype)) +
                     ", expected a floating type");
}

// Returns the value of the key that matches the module, or `usual` if there is none. Throws Error if two keys
// match.
template <class T>
T of_module(const std::map<std::string, T>& values, const std::string& module, T usual, const char* option) {
  const std::string* found = nullptr;
  for (const auto& [name, value] : values) {
    if (!is_named(module, name)) continue;
    if (found)
      throw Error("[lora] " + std::string(option) + " has two keys of " + module + ": \"" + *found +
                  "\" and \"" + name + "\"");
    found = &name;
    usual = value;
  }
  return usual;
}

// Returns all modules, selected or not. The Linear layers of a module are adjacent.
std::vector<LoraModule> all_modules(const std::vector<LinearSlot>& linears, const ModuleOf& module_of) {
  std::vector<LoraModule> all;
  for (const LinearSlot& linear : linears) {
    const ModuleRows rows = module_of ? module_of(linear) : ModuleRows{linear.path, 0, linear.out};
    if (all.empty() || all.back().name != rows.module)
      all.push_back({.name = rows.module, .in = linear.in, .out = rows.rows});
    LoraModule& m = all.back();
    if (m.in != linear.in || m.out != rows.rows || rows.first_row < 0 || m.out < linear.out ||
        rows.first_row > m.out - linear.out)
      throw ShapeError("[lora] " + linear.path + " [" + std::to_string(linear.out) + ", " +
                       std::to_string(linear.in) + "] is to be the rows from " +
                       std::to_string(rows.first_row) + " of " + m.name + " [" + std::to_string(rows.rows) +
                       ", " + std::to_string(m.in) + "]");
    m.parts.push_back({linear, rows.first_row});
  }
  return all;
}

}  // namespace

std::vector<Parameter> Lora::parameters() const {
  std::vector<Parameter> all;
  for (const LoraModule& m : modules) all.insert(all.end(), {m.a, m.b});
  return all;
}

std::vector<LoraModule> lora_modules(const std::vector<LinearSlot>& linears, const LoraOptions& o,
                                     const ModuleOf& module_of) {
  check(o);
  const std::vector<LoraModule> all = all_modules(linears, module_of);
  const auto check_name = [&](const std::string& name, const std::vector<LoraModule>& among,
                              const char* what) {
    if (std::none_of(among.begin(), among.end(), [&](const auto& m) { return is_named(m.name, name); }))
      refuse_name(among, what, name);
  };
  for (const std::string& target : o.targets) check_name(target, all, "target");
  std::vector<LoraModule> chosen;
  for (const LoraModule& m : all) {
    const bool is_target = o.targets.empty()
                               ? !m.parts[0].linear.is_head
                               : std::any_of(o.targets.begin(), o.targets.end(),
                                             [&](const auto& t) { return is_named(m.name, t); });
    if (!is_target) continue;
    LoraModule& c = chosen.emplace_back(m);
    c.rank = of_module(o.ranks, m.name, o.rank, "ranks");
    c.alpha = of_module(o.alphas, m.name, o.alpha, "alphas");
    const auto rank = static_cast<double>(c.rank);
    c.scale = c.alpha / (o.rank_stabilized ? std::sqrt(rank) : rank);
  }
  if (chosen.empty()) throw Error("[lora] the model has no Linear layers");
  for (const auto& [name, rank] : o.ranks) check_name(name, chosen, "a key of ranks,");
  for (const auto& [name, alpha] : o.alphas) check_name(name, chosen, "a key of alphas,");
  return chosen;
}

void add_lora(Model& model, const LoraOptions& options, const ModuleOf& module_of) {
  if (model.lora()) throw Error("[lora] the model has an adapter: merge or remove it first");
  if (model.parameters().empty()) throw Error("[lora] the model has no parameters");
  auto lora = std::make_shared<Lora>();
  lora->options = options;
  lora->modules = lora_modules(model.linears(), options, module_of);
  Params params(options.seed, options.dtype, model.parameters()[0].device());
  std::vector<LowRank> adapters;
  for (LoraModule& m : lora->modules) {
    const Path at = Path(params) / m.name;
    const Init uniform = Init::uniform(1 / std::sqrt(static_cast<double>(m.in)));
    LowRank& made = adapters.emplace_back();
    made.a = (at / "lora_A").create("weight", {m.rank, m.in}, uniform);
    made.b = (at / "lora_B").create("weight", {m.out, m.rank}, Init::zeros());
    made.scale = m.scale, made.dropout = options.dropout;
    at.setting(made.a, "lora_scale", m.scale);
    m.a = made.a.parameter(), m.b = made.b.parameter();
  }
  for (const Parameter& p : model.parameters())
    if (!p.is_frozen()) lora->frozen.push_back(p);
  // Only OutOfMemory can be thrown from here on.
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    for (const LoraModule::Part& part : lora->modules[i].parts) {
      adapters[i].first_row = part.first_row;
      *part.linear.adapter = adapters[i];
    }
  }
  for (Parameter p : lora->frozen) p.freeze();
  std::vector<Parameter>& all = model.state_->parameters;
  all.insert(all.end(), params.all().begin(), params.all().end());
  model.state_->lora = std::move(lora);
}

void remove_lora(Model& model) {
  if (!model.lora()) throw Error("[lora] the model has no adapter");
  const std::shared_ptr<const Lora> lora = std::move(model.state_->lora);
  for (const LoraModule& m : lora->modules)
    for (const LoraModule::Part& part : m.parts) part.linear.adapter->reset();
  model.state_->parameters.resize(model.state_->parameters.size() - 2 * lora->modules.size());
  for (Parameter p : lora->frozen) p.unfreeze();
}

void merge_lora(Model& model) {
  if (!model.lora()) throw Error("[lora] the model has no adapter");
  for (const LoraModule& m : model.lora()->modules) {
    const Array a = m.a.read(), b = m.b.read();
    for (const LoraModule::Part& part : m.parts) {
      Parameter weight = part.linear.weight.parameter();
      Array rows({part.linear.out, m.rank}, b.dtype());
      std::copy_n(b.raw() + static_cast<std::size_t>(part.first_row * m.rank) * size_of(b.dtype()),
                  rows.bytes(), rows.raw());
      weight.write(merged_weight(weight.read(), rows, a, m.scale, weight.dtype()));
    }
  }
  remove_lora(model);
}

Array merged_weight(const Array& weight, const Array& b, const Array& a, double scale, DType dtype) {
  check_options("merged_weight", {{"scale", scale, Range::finite()}});
  Graph graph;
  const Tensor w = graph.input("weight", weight.shape(), weight.dtype());
  const Tensor low = graph.input("b", b.shape(), b.dtype()), high = graph.input("a", a.shape(), a.dtype());
  const DType wide = compute_type(weight.dtype());
  const Tensor sum = cast(w, wide) + scale * matmul(cast(low, wide), cast(high, wide));
  const Tensor result = copy(cast(sum, dtype));
  Program program = compile(graph, {result});
  program.run({{w, weight}, {low, b}, {high, a}});
  return program.fetch(result);
}

}  // namespace tg::nn

#include <tilegrad/nn/layers/params.h>

#include <cmath>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/base/random.h>
#include <tilegrad/core/graph/graph.h>
#include <tilegrad/nn/layers/autocast.h>
#include "core/base/hash.h"

namespace tg::nn {

namespace {

std::uint64_t key_of(std::uint64_t seed, const std::string& path) {
  Hasher hash;
  hash.add(path);
  return node_key(seed, hash.digest()[0], 0);
}

std::string setting_text(const auto& x) {
  return tg::detail::attr_text(x);
}
std::string setting_text(const std::vector<double>& list) {
  std::string s;
  for (const double x : list) s += (s.empty() ? "" : " ") + setting_text(x);
  return s;
}

Array values_of(const Init& init, const Shape& shape, DType dtype, std::uint64_t key) {
  if (init.bound != 0)
    return uniform_array(shape, dtype, init.mean - init.bound, init.mean + init.bound, key);
  return normal_array(shape, dtype, init.mean, init.std, key);
}

}  // namespace

Init Init::of_weight(std::int64_t inputs) const {
  return by_fan_in ? uniform(1 / std::sqrt(static_cast<double>(inputs))) : *this;
}

Init Init::of_bias(std::int64_t inputs) const {
  return by_fan_in ? of_weight(inputs) : zeros();
}

Parameter Params::create(const std::string& path, const Shape& shape, Init init,
                         const std::source_location& where) {
  for (std::int64_t d : shape)
    if (d <= 0)
      throw ShapeError("[params] " + path + " would have shape " + shape.text() + " " + at_line(where));
  check_options("params", {{"mean of " + path, init.mean, Range::finite()},
                           {"std of " + path, init.std, Range::at_least(0)},
                           {"bound of " + path, init.bound, Range::at_least(0)}});
  if (!place_.emplace(path, all_.size()).second)
    throw Error("[params] there is already a parameter " + path + " " + at_line(where));
  if (each_) each_(path, shape);
  count_ += numel(shape);
  if (kind_ == Kind::counting) return {};
  if (kind_ == Kind::unset)
    all_.emplace_back(path, shape, dtype_, device_);
  else
    all_.emplace_back(path, values_of(init, shape, dtype_, key_of(seed_, path)), device_);
  return all_.back();
}

const Parameter* Params::find(const std::string& path) const {
  const auto it = place_.find(path);
  return it == place_.end() || kind_ == Kind::counting ? nullptr : &all_[it->second];
}

Path Path::operator/(const std::string& name) const {
  Path below = *this;
  below.text_ += (text_.empty() ? "" : ".") + name;
  const bool index = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
  below.name_ = index && !name_.empty() ? name_ + "." + name : name;
  return below;
}

Weight Path::create(const std::string& name, const Shape& shape, Init init) const {
  return Weight(params_->create((*this / name).text(), shape, init, where_));
}

std::shared_ptr<const std::optional<LowRank>> Path::add_linear(const Weight& weight, std::int64_t in,
                                                               std::int64_t out, bool is_head) const {
  auto place = std::make_shared<std::optional<LowRank>>();
  params_->linears_.push_back(
      {.path = text_, .weight = weight, .in = in, .out = out, .is_head = is_head, .adapter = place});
  return place;
}

std::string Path::refusal(const std::string& op, const std::string& what) const {
  return "[" + (text_.empty() ? "" : text_ + "/") + op + "] " + what + " " + at_line(where_);
}

void Path::setting(const Weight& weight, const std::string& name,
                   const std::variant<bool, std::int64_t, double, std::vector<double>>& value) const {
  if (weight.is_absent() || !weight.parameter().key()) return;  // the parameter is only counted
  Parameter carrier = weight.parameter();
  carrier.add_setting((*this / name).text(),
                      std::visit([](const auto& v) { return setting_text(v); }, value));
}

std::vector<Parameter> Path::parameters() const {
  if (text_.empty()) return params_->all();
  std::vector<Parameter> below;
  for (const Parameter& p : params_->all())
    if (p.name().starts_with(text_ + ".")) below.push_back(p);
  return below;
}

std::vector<LinearSlot> Path::linears() const {
  std::vector<LinearSlot> below;
  for (const LinearSlot& p : params_->linears())
    if (text_.empty() || p.path == text_ || p.path.starts_with(text_ + ".")) below.push_back(p);
  return below;
}

void Weight::check_value() const {
  if (!parameter_.key()) throw Error("[weight] a layer created on Params::counting() has no values");
}

Tensor Weight::tensor(Graph& graph, std::source_location where) const {
  if (is_absent_) return {};
  check_value();
  return Autocast::weight(parameter_, graph, where);
}

Tensor Weight::stored(const TensorArg& x) const {
  if (is_absent_) return {};
  check_value();
  return x.tensor().graph().param(parameter_, x.where());
}

}  // namespace tg::nn

#include <tilegrad/nn/models/rotary_stack.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <tilegrad/nn/models/model_parts.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

Layer scaled_embedding(const Embedding& tokens, double scale) {
  if (scale == 1) return tokens;
  return Layer(tokens.name(), [=](TensorArg ids, const CallArgs& call) {
    const Tensor x = tokens(ids, call);
    // The factor is first rounded to the weights' dtype, because these models were trained in this way.
    Array factor({1}, x.dtype());
    factor.set(0, scale);
    return x * factor.at(0);
  });
}

Layer capped_head(const Layer& head, double cap) {
  if (cap == 0) return head;
  return Layer("softcap",
               [=](TensorArg x, const CallArgs& call) { return tanh(head(x, call) * (1 / cap)) * cap; });
}

double mixed(double omega, double scaled, double share) {
  return (1 - share) * omega + share * scaled;
}

double llama3(double omega, const RopeScaling& s) {
  const double wave = 2 * std::numbers::pi / omega, scaled = omega / s.factor;
  if (wave < s.first_context / s.high_frequency) return omega;
  if (wave > s.first_context / s.low_frequency) return scaled;
  const double kept = (s.first_context / wave - s.low_frequency) / (s.high_frequency - s.low_frequency);
  return mixed(omega, scaled, 1 - kept);
}

// Returns the index (not rounded) of the pair that rotates this number of times within the original context.
double pair_of(double rotations, double d, double theta, const RopeScaling& s) {
  return d * std::log(s.first_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

void yarn(std::vector<double>& omega, double d, double theta, const RopeScaling& s) {
  double low = pair_of(s.beta_fast, d, theta, s), high = pair_of(s.beta_slow, d, theta, s);
  if (s.whole_pairs) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, d - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < omega.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    omega[i] = mixed(omega[i], omega[i] / s.factor, ramp);
  }
}

}  // namespace

void RopeScaling::check() const {
  const auto refuse = [](const std::string& what) { throw Error("[model] rope scaling: " + what); };
  if (type != "none" && type != "linear" && type != "llama3" && type != "yarn" && type != "longrope")
    refuse("got type '" + type + "', expected none, linear, llama3, yarn or longrope");
  constexpr Range positive = Range::above_to(0, 1e18);
  const bool has_context = type == "llama3" || type == "yarn" || type == "longrope";
  check_options("rope scaling", {{"factor", factor, positive},
                                 {"magnitude", magnitude, positive},
                                 {"first_context", first_context, has_context ? positive : Range()},
                                 {"low_frequency", low_frequency, positive},
                                 {"high_frequency", high_frequency, positive},
                                 {"beta_fast", beta_fast, positive},
                                 {"beta_slow", beta_slow, positive}});
  if (type == "llama3" && !(low_frequency < high_frequency))
    refuse("expected a low frequency below the high one, got " + std::to_string(low_frequency) + " and " +
           std::to_string(high_frequency));
  for (const double f : short_factors) check_options("rope scaling", {{"short_factor", f, positive}});
  for (const double f : long_factors) check_options("rope scaling", {{"long_factor", f, positive}});
}

void RopeScaling::check(std::int64_t d) const {
  check();
  if (type != "longrope") return;
  for (const std::vector<double>* factors : {&short_factors, &long_factors})
    if (std::ssize(*factors) * 2 != d)
      throw ShapeError("[model] rope scaling: got " + std::to_string(factors->size()) +
                       " factors, expected one for each of " + std::to_string(d / 2) + " pairs");
}

std::int64_t RopeScaling::short_length(std::int64_t context) const {
  if (type != "longrope" || !(first_context >= 1 && first_context < static_cast<double>(context))) return 0;
  return static_cast<std::int64_t>(first_context);
}

std::vector<double> RopeScaling::frequencies(std::int64_t d, double theta, std::int64_t context) const {
  check();
  std::vector<double> omega = rope_frequencies(d, theta);
  if (type == "linear")
    for (double& w : omega) w /= factor;
  if (type == "llama3")
    for (double& w : omega) w = llama3(w, *this);
  if (type == "yarn") yarn(omega, static_cast<double>(d), theta, *this);
  if (type == "longrope") {
    check(d);
    const bool is_long = static_cast<double>(context) > first_context;
    const std::vector<double>& factors = is_long ? long_factors : short_factors;
    for (std::size_t i = 0; i < omega.size(); ++i) omega[i] /= factors[i];
  }
  return omega;
}

std::int64_t swiglu_width(std::int64_t width) {
  if (width < 0 || width > max_elements) throw ShapeError("[swiglu] got a width of " + std::to_string(width));
  return (8 * width / 3 + 7) / 8 * 8;
}

ModelParts RotaryStack::make(
    const Path& at, const ModelConfig& c,
    const std::function<Layer(const Path& at, std::int64_t layer)>& attention) const {
  const std::int64_t inner = mlp_width == 0 ? swiglu_width(c.width) : mlp_width;
  const Path root = at / "model";
  const auto norm = [&](const Path& place) { return RmsNorm(place, c.width, eps, plus_one); };
  const Embedding tokens(root / "embed_tokens", c.vocabulary, c.width, c.embedding_init());
  ModelParts parts{.name = root.name(),
                   .context = c.context,
                   .tokens = scaled_embedding(tokens, embedding_scale),
                   .dropout = c.dropout};
  for (int i = 0; i < c.layers; ++i) {
    const Path block = root / "layers" / i;
    Branch first, second;
    if (norms != NormPosition::after) first.norm = norm(block / "input_layernorm");
    first.layer = attention(block / "self_attn", i);
    if (norms != NormPosition::before) first.after = norm(block / "post_attention_layernorm");
    if (norms == NormPosition::before) second.norm = norm(block / "post_attention_layernorm");
    if (norms == NormPosition::both) second.norm = norm(block / "pre_feedforward_layernorm");
    second.layer = GatedMlp(block / "mlp", c.width, inner,
                            {.activation = activation,
                             .bias = c.bias || mlp_bias,
                             .init = c.linear_init(),
                             .output_init = c.residual_init()});
    if (norms != NormPosition::before) second.after = norm(block / "post_feedforward_layernorm");
    parts.blocks.push_back(Block(block, {first, second}, c.dropout));
  }
  parts.norm = norm(root / "norm");
  parts.head = capped_head(c.head(at / "lm_head", tokens), softcap);
  return parts;
}

void RotaryStack::check(const ModelConfig& c) const {
  check_size(mlp_width == 0 ? swiglu_width(c.width) : mlp_width, "width of the MLP");
  check_options("model", {{"eps", eps, Range::at_least(0)},
                          {"embedding_scale", embedding_scale, Range::above(0)},
                          {"logit_softcap", softcap, Range::softcap(softcap)}});
}

void check_rotary(std::int64_t head_width, double theta) {
  check_size(head_width, "width of a head");
  if (head_width % 2 != 0)
    throw ShapeError("[model] heads of width " + std::to_string(head_width) + " have no rotary pairs");
  check_options("model", {{"theta", theta, Range::above(0)}});
}

Setting mlp_width_setting() {
  return {.help = "channels inside the MLP",
          .min = 0,
          .max = 65536,
          .shown = "0: 8/3 of --width",
          .after = "width"};
}

Setting theta_setting() {
  return {.help = "base of the rotary frequencies", .min = 1, .max = 1e12, .after = "width"};
}

}  // namespace tg::nn

#include "nn/gpt.h"

#include <cmath>

#include "ops/ops.h"

namespace tg {

namespace {

std::int64_t head_width(std::int64_t width, std::int64_t heads) {
  if (heads <= 0 || width % heads != 0)
    throw ShapeError("[attention] width " + std::to_string(width) + " does not divide by " +
                     std::to_string(heads) + " heads");
  return width / heads;
}

// Layers add into the residual stream, 2 each block; its variance stays that of one when each adds
// 1/(2·layers).
double output_std(const GptConfig& c) {
  return c.std / std::sqrt(2.0 * static_cast<double>(c.layers));
}

Tensor dropped(const Tensor& x, double p, Mode mode) {
  return mode == Mode::train && p > 0 ? dropout(x, p) : x;
}

}  // namespace

SelfAttention::SelfAttention(const Path& at, std::int64_t width, std::int64_t heads, Options options)
    : name_(at.name()),
      head_width_(head_width(width, heads)),
      heads_(heads),
      dropout_(options.dropout),
      c_attn_(at / "c_attn", width, 3 * width, {.bias = options.bias, .std = options.std}),
      c_proj_(at / "c_proj", width, width, {.bias = options.bias, .std = options.output_std}) {}

Tensor SelfAttention::operator()(In x, Mode mode, Tensor residual) const {
  const Scope scope(name_, x.where());
  const std::int64_t width = heads_ * head_width_;
  const auto qkv = split(c_attn_(x), {width, width, width}, -1);  // three views
  const std::int64_t batch = qkv[0].size(0), length = qkv[0].size(1);
  const auto by_head = [&](const Tensor& t) {  // [B, L, width] → [B, H, L, d]
    return transpose(t.view({batch, length, heads_, head_width_}), 1, 2);
  };
  AttentionOptions options{.causal = true};
  if (mode == Mode::train) options.dropout = dropout_;
  const Tensor o = flash_attn(by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2]), options).o;
  return c_proj_(transpose(o, 1, 2).view({batch, length, width}), residual);
}

Mlp::Mlp(const Path& at, std::int64_t width, Options options)
    : name_(at.name()),
      c_fc_(at / "c_fc", width, 4 * width, {.bias = options.bias, .std = options.std}),
      c_proj_(at / "c_proj", 4 * width, width, {.bias = options.bias, .std = options.output_std}) {}

Tensor Mlp::operator()(In x, Tensor residual) const {
  const Scope scope(name_, x.where());
  return c_proj_(gelu(c_fc_(x)), residual);
}

Block::Block(const Path& at, const GptConfig& c)
    : name_(at.name()),
      dropout_(c.dropout),
      ln_1_(at / "ln_1", c.width, c.bias),
      attn_(at / "attn", c.width, c.heads,
            {.bias = c.bias, .dropout = c.dropout, .std = c.std, .output_std = output_std(c)}),
      ln_2_(at / "ln_2", c.width, c.bias),
      mlp_(at / "mlp", c.width, {.bias = c.bias, .std = c.std, .output_std = output_std(c)}) {}

Tensor Block::operator()(In input, Mode mode) const {
  const Scope scope(name_, input.where());
  Tensor x = input.tensor();
  if (mode == Mode::evaluate || dropout_ == 0) {
    x = attn_(ln_1_(x), mode, x);
    return mlp_(ln_2_(x), x);
  }
  x = x + dropout(attn_(ln_1_(x), mode), dropout_);
  return x + dropout(mlp_(ln_2_(x)), dropout_);
}

void GptConfig::check() const {
  const auto positive = [](std::int64_t n, const char* what) {
    if (n <= 0)
      throw ShapeError("[gpt] wants a positive " + std::string(what) + ", got " + std::to_string(n));
  };
  positive(vocabulary, "vocabulary");
  positive(context, "context");
  positive(layers, "number of layers");
  positive(heads, "number of heads");
  positive(width, "width");
  head_width(width, heads);
  if (!(dropout >= 0 && dropout < 1))
    throw Error("[gpt] dropout must lie in [0, 1), got " + std::to_string(dropout));
}

std::int64_t GptConfig::parameters() const {
  const std::int64_t norm = bias ? 2 * width : width;
  const std::int64_t block = 12 * width * width + (bias ? 9 * width : 0) + 2 * norm;
  return (vocabulary * (tied_head ? 1 : 2) + context) * width + layers * block + norm;
}

namespace {

const GptConfig& checked(const GptConfig& c) {
  c.check();
  return c;
}

std::vector<Block> blocks(const Path& at, const GptConfig& config) {
  std::vector<Block> list;
  for (int i = 0; i < config.layers; ++i) list.emplace_back(at / i, config);
  return list;
}

}  // namespace

Gpt::Gpt(const Path& at, const GptConfig& config)
    : name_("transformer"),
      config_(checked(config)),
      wte_(at / name_ / "wte", config.vocabulary, config.width, config.std),
      wpe_(at / name_ / "wpe", config.context, config.width, config.std),
      blocks_(blocks(at / name_ / "h", config)),
      ln_f_(at / name_ / "ln_f", config.width, config.bias) {
  if (!config.tied_head)
    head_.emplace_back(at / "lm_head", config.width, config.vocabulary,
                       Linear::Options{.bias = false, .std = config.std});
}

Tensor Gpt::operator()(In tokens, Mode mode) const {
  const Scope scope(name_, tokens.where());
  const Shape& shape = tokens.tensor().shape();
  if (shape.size() != 2 || shape[1] > config_.context)
    throw ShapeError("[gpt] wants tokens [batch, length up to " + std::to_string(config_.context) +
                     "], got " + shape.text() + " " + at_line(tokens.where()));
  Tensor x = wte_(tokens) + wpe_.first(tokens.tensor().graph(), shape[1]);
  x = dropped(x, config_.dropout, mode);
  for (const Block& block : blocks_) x = block(x, mode);
  x = ln_f_(x);
  return head_.empty() ? wte_.attend(x) : head_[0](x);
}

}  // namespace tg

#include <tilegrad/nn/models/model.h>

#include <cmath>
#include <limits>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

// What an architecture calls its parts.
struct Names {
  const char *root, *tokens, *blocks, *norm_1, *attention, *norm_2, *mlp, *norm;
};

const Names& names_of(Architecture a) {
  static const Names gpt{"transformer", "wte", "h", "ln_1", "attn", "ln_2", "mlp", "ln_f"};
  static const Names llama{
      "model", "embed_tokens", "layers", "input_layernorm", "self_attn", "post_attention_layernorm",
      "mlp",   "norm"};
  return a == Architecture::gpt ? gpt : llama;
}

constexpr std::pair<Architecture, std::string_view> architectures[] = {
    {Architecture::gpt, "gpt"}, {Architecture::llama, "llama"}, {Architecture::deepseek, "deepseek"}};

Init linear_init(const ModelConfig& c) {
  return c.initializer == Initializer::pytorch ? Init::pytorch() : Init::normal(c.std);
}

// Layers add into the residual stream, 2 each block; its variance stays that of one when each adds
// 1/(2·layers).
Init output_init(const ModelConfig& c) {
  if (c.initializer == Initializer::pytorch) return Init::pytorch();
  return Init::normal(c.std / std::sqrt(2.0 * static_cast<double>(c.layers)));
}

Init embedding_init(const ModelConfig& c) {
  return Init::normal(c.initializer == Initializer::pytorch ? 1 : c.std);
}

std::variant<LayerNorm, RmsNorm> norm(const Path& at, const ModelConfig& c) {
  if (c.architecture == Architecture::gpt) return LayerNorm(at, c.width, c.bias);
  return RmsNorm(at, c.width);
}

std::variant<SelfAttention, GroupedAttention, LatentAttention> attention(const Path& at,
                                                                         const ModelConfig& c) {
  const Init init = linear_init(c), output = output_init(c);
  if (c.architecture == Architecture::gpt)
    return SelfAttention(at, c.width, c.heads,
                         {.bias = c.bias, .dropout = c.dropout, .init = init, .output_init = output});
  if (c.architecture == Architecture::llama)
    return GroupedAttention(at, c.width, c.heads,
                            {.key_heads = c.key_heads,
                             .bias = c.bias,
                             .dropout = c.dropout,
                             .rope = {.theta = c.theta},
                             .init = init,
                             .output_init = output});
  return LatentAttention(at, c.width, c.heads,
                         {.latent = c.latent,
                          .query_latent = c.query_latent,
                          .rope_width = c.rope_width,
                          .theta = c.theta,
                          .bias = c.bias,
                          .dropout = c.dropout,
                          .init = init,
                          .output_init = output});
}

std::variant<Mlp, GatedMlp> mlp(const Path& at, const ModelConfig& c) {
  const Init init = linear_init(c), output = output_init(c);
  if (c.architecture == Architecture::gpt)
    return Mlp(at, c.width, {.bias = c.bias, .init = init, .output_init = output});
  return GatedMlp(at, c.width, c.inner_width(), {.bias = c.bias, .init = init, .output_init = output});
}

template <class... Layers, class... Arguments>
Tensor call(const std::variant<Layers...>& layer, const Arguments&... arguments) {
  return std::visit([&](const auto& l) { return l(arguments...); }, layer);
}

const ModelConfig& checked(const ModelConfig& c) {
  c.check();
  return c;
}

std::vector<Block> blocks(const Path& at, const ModelConfig& config) {
  std::vector<Block> list;
  for (int i = 0; i < config.layers; ++i) list.emplace_back(at / i, config);
  return list;
}

std::vector<Embedding> positions(const Path& at, const ModelConfig& c) {
  if (c.architecture != Architecture::gpt) return {};
  return {Embedding(at / "wpe", c.context, c.width, embedding_init(c))};
}

std::vector<Linear> head_layer(const Path& at, const ModelConfig& c) {
  if (c.tied_head) return {};
  return {Linear(at / "lm_head", c.width, c.vocabulary, {.bias = false, .init = linear_init(c)})};
}

}  // namespace

Architecture architecture_named(std::string_view name) {
  for (const auto& [architecture, its_name] : architectures)
    if (its_name == name) return architecture;
  throw Error("[model] '" + std::string(name) + "' is none of gpt, llama, deepseek");
}

std::string_view name_of(Architecture architecture) {
  for (const auto& [known, name] : architectures)
    if (known == architecture) return name;
  return "?";
}

std::int64_t ModelConfig::inner_width() const {
  return mlp_width > 0 ? mlp_width : (8 * width / 3 + 7) / 8 * 8;
}

void ModelConfig::check() const {
  const auto positive = [](std::int64_t n, const char* what) {
    if (n <= 0)
      throw ShapeError("[model] wants a positive " + std::string(what) + ", got " + std::to_string(n));
    if (n > std::numeric_limits<std::int32_t>::max())  // so that numbers of parameters do not overflow
      throw ShapeError("[model] wants a " + std::string(what) + " below 2^31, got " + std::to_string(n));
  };
  positive(vocabulary, "vocabulary");
  positive(context, "context");
  positive(layers, "number of layers");
  positive(heads, "number of heads");
  positive(width, "width");
  positive(inner_width(), "width of the MLP");
  const std::int64_t head_width = detail::head_width(width, heads);
  if (architecture != Architecture::gpt && head_width % 2 != 0)
    throw ShapeError("[model] heads of width " + std::to_string(head_width) + " have no rotary pairs");
  if (architecture == Architecture::llama && (key_heads < 0 || (key_heads > 0 && heads % key_heads != 0)))
    throw ShapeError("[model] " + std::to_string(heads) + " heads do not divide by " +
                     std::to_string(key_heads) + " key heads");
  if (architecture == Architecture::deepseek) {
    positive(latent, "width of the latent");
    if (query_latent != 0) positive(query_latent, "width of the queries' latent");
    positive(rope_width, "rotary width");
    if (rope_width % 2 != 0)
      throw ShapeError("[model] the rotary width must be even and positive, got " +
                       std::to_string(rope_width));
  }
  if (!(theta > 0)) throw Error("[model] theta must be positive, got " + std::to_string(theta));
  if (!(dropout >= 0 && dropout < 1))
    throw Error("[model] dropout must lie in [0, 1), got " + std::to_string(dropout));
}

std::string ModelConfig::text() const {
  const auto number = [](std::int64_t n, const char* what) {
    return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
  };
  const char* const title = architecture == Architecture::gpt     ? "GPT: "
                            : architecture == Architecture::llama ? "Llama: "
                                                                  : "DeepSeek: ";
  std::string s = title + number(layers, "layer") + ", " + number(heads, "head");
  if (architecture == Architecture::llama && key_heads > 0 && key_heads != heads)
    s += ", " + number(key_heads, "key head");
  if (architecture == Architecture::deepseek) {
    s += ", latent " + std::to_string(latent) + " + " + std::to_string(rope_width);
    if (query_latent > 0) s += " and " + std::to_string(query_latent);
  }
  return s + ", width " + std::to_string(width) + ", context " + std::to_string(context);
}

std::int64_t ModelConfig::parameters() const {
  const auto linear = [&](std::int64_t in, std::int64_t out, bool has_bias) {
    return (in + (has_bias ? 1 : 0)) * out;
  };
  const bool is_gpt = architecture == Architecture::gpt;
  const std::int64_t norm = is_gpt && bias ? 2 * width : width, d = width / heads;
  std::int64_t block = 2 * norm + linear(width, width, bias);  // norms, projection back
  if (is_gpt)
    block += linear(width, 3 * width, bias) + linear(width, 4 * width, bias) + linear(4 * width, width, bias);
  else
    block += 2 * linear(width, inner_width(), bias) + linear(inner_width(), width, bias);
  if (architecture == Architecture::llama)
    block += linear(width, width, bias) + 2 * linear(width, (key_heads > 0 ? key_heads : heads) * d, bias);
  if (architecture == Architecture::deepseek) {
    const std::int64_t queries = heads * (d + rope_width);
    block += query_latent == 0
                 ? linear(width, queries, false)
                 : linear(width, query_latent, bias) + query_latent + linear(query_latent, queries, false);
    block += linear(width, latent + rope_width, bias) + latent + linear(latent, 2 * heads * d, false);
  }
  return (vocabulary * (tied_head ? 1 : 2) + (is_gpt ? context : 0)) * width + layers * block + norm;
}

Block::Block(const Path& at, const ModelConfig& c)
    : name_(at.name()),
      dropout_(c.dropout),
      norm_1_(norm(at / names_of(c.architecture).norm_1, c)),
      attention_(attention(at / names_of(c.architecture).attention, c)),
      norm_2_(norm(at / names_of(c.architecture).norm_2, c)),
      mlp_(mlp(at / names_of(c.architecture).mlp, c)) {}

Tensor Block::operator()(TensorArg input, Mode mode, CacheCall* cache) const {
  const Scope scope(name_, input.where());
  Tensor x = input.tensor();
  if (mode == Mode::evaluate || dropout_ == 0) {
    x = call(attention_, call(norm_1_, x), mode, x, cache);
    return call(mlp_, call(norm_2_, x), x);
  }
  x = x + dropout(call(attention_, call(norm_1_, x), mode, Tensor(), cache), dropout_);
  return x + dropout(call(mlp_, call(norm_2_, x), Tensor()), dropout_);
}

Model::Model(const Path& at, const ModelConfig& config)
    : name_(names_of(config.architecture).root),
      config_(checked(config)),
      tokens_(at / name_ / names_of(config.architecture).tokens, config.vocabulary, config.width,
              embedding_init(config)),
      positions_(positions(at / name_, config)),
      blocks_(blocks(at / name_ / names_of(config.architecture).blocks, config)),
      norm_(norm(at / name_ / names_of(config.architecture).norm, config)),
      head_(head_layer(at, config)) {}

Tensor Model::features(TensorArg tokens, Mode mode, CacheCall* cache, bool recompute) const {
  const Scope scope(name_, tokens.where());
  const Shape& shape = tokens.tensor().shape();
  if (shape.size() != 2 || shape[1] > config_.context)
    throw ShapeError(in_context("[model] wants tokens [batch, length up to " +
                                    std::to_string(config_.context) + "], got " + shape.text(),
                                tokens.where()));
  Tensor x = tokens_(tokens);
  if (!positions_.empty())
    x = x +
        (cache ? positions_[0](cache->positions()) : positions_[0].first(tokens.tensor().graph(), shape[1]));
  x = dropped(x, config_.dropout, mode);
  for (const Block& block : blocks_) {
    const auto run = [&](const std::vector<Tensor>& in) { return std::vector{block(in[0], mode, cache)}; };
    x = (recompute ? checkpoint(run, {x}) : run({x}))[0];
  }
  return call(norm_, x);
}

Tensor Model::head(TensorArg x) const {
  const Scope scope(name_, x.where());
  return head_.empty() ? tokens_.attend(x) : head_[0](x);
}

}  // namespace tg::nn

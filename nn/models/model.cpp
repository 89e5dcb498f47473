#include <tilegrad/nn/models/model.h>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/core/compile/compile.h>
#include <tilegrad/nn/layers/context_parallel.h>
#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/ops/linear_cross_entropy.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

Block::Block(const Path& at, std::vector<Branch> branches, double dropout)
    : Module(at), branches_(std::move(branches)), dropout_(dropout) {
  check_options("block", {{"dropout", dropout, Range::from_below(0, 1)}});
}

Tensor Block::record(TensorArg input, const CallArgs& call) const {
  Tensor x = input.tensor();
  const bool drops = call.mode == Mode::train && dropout_ > 0;
  for (const Branch& branch : branches_) {
    CallArgs inner = call;
    const Tensor normed = branch.norm.is_empty() ? x : branch.norm(x, call);
    const bool layer_adds = !drops && branch.after.is_empty();
    if (layer_adds) inner.residual = x;
    Tensor y = branch.layer(normed, inner);
    if (!branch.after.is_empty()) y = branch.after(y, call);
    if (drops) y = dropout(y, dropout_);
    x = layer_adds ? y : x + y;
  }
  return x;
}

namespace {

// Whether there are enough rows for two chunks of the loss.
bool has_units(const Product& p, const LossOptions& options) {
  const std::int64_t unit =
      options.unit_rows > 0 ? options.unit_rows : linear_cross_entropy_unit(p.w.size(-1));
  return p.x.numel() / p.x.size(-1) / 2 >= unit;
}

ModelParts made(const Path& at, const ModelConfig& config) {
  config.check();
  return config.architecture.make(at, config);
}

}  // namespace

Model::Model(const Path& at, ModelParts parts)
    : parts_(std::move(parts)), linears_(at.linears()), state_(std::make_shared<State>(at.parameters())) {
  if (parts_.tokens.is_empty() || parts_.head.is_empty())
    throw Error("[model] a model needs a part for its tokens and a head");
  for (const Layer& block : parts_.blocks)
    if (block.is_empty()) throw Error("[model] one of the blocks is empty");
  check_options<ShapeError>("model", {{"context", parts_.context, Range::whole_from(1)}});
  check_options("model", {{"dropout", parts_.dropout, Range::from_below(0, 1)}});
}

Model::Model(const Path& at, const ModelConfig& config) : Model(at, made(at, config)) {}

Tensor Model::features(TensorArg tokens, const CallArgs& call) const {
  const Scope scope(parts_.name, tokens.where());
  const CallArgs inside{.mode = call.mode, .cache = call.cache, .recompute = call.recompute};
  const Shape& shape = tokens.tensor().shape();
  const int ranks = ContextParallel::ranks(tokens.tensor().graph());
  if (shape.size() != 2 || shape[1] > parts_.context / ranks)
    throw ShapeError(in_context("[model] expected tokens [batch, length up to " +
                                    std::to_string(parts_.context / ranks) + "], got " + shape.text(),
                                tokens.where()));
  if (call.cache) call.cache->check(tokens);
  Tensor x = parts_.tokens(tokens, inside);
  if (!parts_.positions.is_empty()) x = x + parts_.positions(tokens, inside);
  x = dropped(x, parts_.dropout, call.mode);
  for (const Layer& block : parts_.blocks) {
    const auto run = [&](const std::vector<Tensor>& in) { return std::vector{block(in[0], inside)}; };
    x = (call.recompute ? checkpoint(run, {x}) : run({x}))[0];
  }
  return parts_.norm.is_empty() ? x : parts_.norm(x, inside);
}

Tensor Model::head(TensorArg x) const {
  const Scope scope(parts_.name, x.where());
  return parts_.head(x);
}

Tensor Model::loss(TensorArg x, TensorArg targets, const LossOptions& options) const {
  {
    const Scope scope(parts_.name, x.where());
    const std::optional<Product> product = parts_.head.as_matmul(x);
    if (product && (size_of(product->x.dtype()) == 2 || has_units(*product, options)))
      return linear_cross_entropy(product->x, product->w, targets,
                                  {.chunk_rows = options.chunk_rows, .unit_rows = options.unit_rows});
  }
  return cross_entropy({head(x), x.where()}, targets);
}

Model::operator LanguageModel() const {
  return {
      .features = [m = *this](TensorArg tokens, const CallArgs& call) { return m.features(tokens, call); },
      .head = [m = *this](TensorArg x) { return m.head(x); },
      .context = parts_.context,
      .parameters = parameters(),
      .loss = [m = *this](TensorArg x, TensorArg targets,
                          const LossOptions& options) { return m.loss(x, targets, options); }};
}

std::vector<AttentionMap> attention_maps(const LanguageModel& model, const std::vector<std::int32_t>& tokens,
                                         int threads) {
  Graph graph;
  const Tensor x = graph.input("tokens", {1, std::ssize(tokens)}, i32);
  model.features(x, {});
  std::vector<AttentionMap> maps;
  std::vector<Tensor> attention, weights;  // recording reallocates the nodes
  for (const Node& node : graph.nodes()) {
    if (!attention_of(*node.op, node.attrs)) continue;
    maps.push_back({graph.name_of(node), Array(Shape{}, f32)});
    attention.push_back(graph.tensor(node.first_out));
  }
  for (const Tensor& o : attention) weights.push_back(cast(squeeze(attention_weights(o), 0), f32));
  Program program = compile(graph, weights, {.threads = threads});
  program.run({{x, tokens}});
  for (std::size_t i = 0; i < maps.size(); ++i) maps[i].weights = program.fetch(weights[i]);
  return maps;
}

}  // namespace tg::nn

#include "nn/layer_cases.h"

#include "nn/gpt.h"

namespace tg {

namespace {

using gradcheck::Callable;
using gradcheck::Case;
using Call = std::function<Tensor(std::span<const Tensor>)>;

// A layer built on fresh parameters of the dtype under test; what `build` returns calls it.
Case layer(std::string owner, std::string name, std::vector<SampleInput> inputs,
           std::function<Call(const Path&)> build) {
  return {std::move(owner), std::move(name), std::move(inputs), [build](DType dtype, Device device) {
            const auto params = std::make_shared<Params>(1, dtype, device);
            const Call call = build(Path(*params) / "layer");
            return Callable{params->all(), [params, call](std::span<const Tensor> x) {
                              return std::vector<Tensor>{call(x)};
                            }};
          }};
}

// What most layers are: a function of one tensor.
template <class Layer>
Call of_one(Layer layer) {
  return [layer](std::span<const Tensor> x) { return layer(x[0]); };
}

GptConfig small(bool bias, bool tied, double dropout) {
  return {.vocabulary = 5,
          .context = 4,
          .layers = 1,
          .heads = 2,
          .width = 4,
          .dropout = dropout,
          .bias = bias,
          .tied_head = tied};
}

Call gpt(const Path& at, const GptConfig& config, Mode mode) {
  return [model = Gpt(at, config), mode](std::span<const Tensor> x) { return model(x[0], mode); };
}

}  // namespace

std::vector<Case> layer_cases() {
  const SampleInput rows{{2, 3, 4}}, tokens{{2, 3}, {Fill::index, 0, 5}};
  return {
      layer("Linear", "with bias", {rows}, [](const Path& at) { return of_one(Linear(at, 4, 3)); }),
      layer("Linear", "without bias", {rows},
            [](const Path& at) { return of_one(Linear(at, 4, 3, {.bias = false})); }),
      layer("Linear", "residual", {rows, {{2, 3, 5}}},
            [](const Path& at) -> Call {
              return [linear = Linear(at, 4, 5)](std::span<const Tensor> x) { return linear(x[0], x[1]); };
            }),
      layer("Embedding", "rows", {tokens}, [](const Path& at) { return of_one(Embedding(at, 5, 4)); }),
      layer("Embedding", "as a head", {rows},
            [](const Path& at) -> Call {
              return [table = Embedding(at, 5, 4)](std::span<const Tensor> x) { return table.attend(x[0]); };
            }),
      layer("LayerNorm", "with bias", {rows}, [](const Path& at) { return of_one(LayerNorm(at, 4)); }),
      layer("LayerNorm", "without bias", {rows},
            [](const Path& at) { return of_one(LayerNorm(at, 4, false)); }),
      layer("RmsNorm", "rows", {rows}, [](const Path& at) { return of_one(RmsNorm(at, 4)); }),
      layer("SelfAttention", "two heads", {rows},
            [](const Path& at) { return of_one(SelfAttention(at, 4, 2)); }),
      layer("SelfAttention", "dropout and residual", {rows, rows},
            [](const Path& at) -> Call {
              return [attention = SelfAttention(at, 4, 2, {.dropout = 0.3})](std::span<const Tensor> x) {
                return attention(x[0], Mode::train, x[1]);
              };
            }),
      layer("Mlp", "rows", {rows}, [](const Path& at) { return of_one(Mlp(at, 4)); }),
      layer("Block", "with bias", {rows},
            [](const Path& at) { return of_one(Block(at, small(true, true, 0))); }),
      layer("Gpt", "tied head", {tokens},
            [](const Path& at) { return gpt(at, small(false, true, 0), Mode::evaluate); }),
      layer("Gpt", "head, bias and dropout", {tokens},
            [](const Path& at) { return gpt(at, small(true, false, 0.2), Mode::train); }),
  };
}

}  // namespace tg

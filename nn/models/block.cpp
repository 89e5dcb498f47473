#include <tilegrad/nn/models/block.h>

#include <tilegrad/core/base/range.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

Block::Block(const Path& at, std::vector<Branch> branches, double dropout)
    : Module(at), branches_(std::move(branches)), dropout_(dropout) {
  check_options("block", {{"dropout", dropout, Range::from_below(0, 1)}});
}

Tensor Block::record(TensorArg input, const Call& call) const {
  Tensor x = input.tensor();
  const bool drops = call.mode == Mode::train && dropout_ > 0;
  for (const Branch& branch : branches_) {
    Call inner = call;
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

}  // namespace tg::nn

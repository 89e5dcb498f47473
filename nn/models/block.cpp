#include <tilegrad/nn/models/block.h>

#include <tilegrad/ops/ops.h>

namespace tg::nn {

Block::Block(const Path& at, std::vector<Branch> branches, double dropout)
    : Module(at), branches_(std::move(branches)), dropout_(dropout) {}

Tensor Block::record(TensorArg input, const Call& call) const {
  Tensor x = input.tensor();
  const bool drops = call.mode == Mode::train && dropout_ > 0;
  for (const Branch& branch : branches_) {
    Call inner = call;
    const Tensor normed = branch.norm(x, call);
    if (!drops) inner.residual = x;
    const Tensor y = branch.layer(normed, inner);
    x = drops ? x + dropout(y, dropout_) : y;
  }
  return x;
}

}  // namespace tg::nn

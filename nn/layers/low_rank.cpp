#include <tilegrad/nn/layers/low_rank.h>

#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

Tensor LowRank::rows_of_b(TensorArg x, std::int64_t out) const {
  const Tensor all = b.tensor(x);
  return all.size(0) == out ? all : slice(all, 0, first_row, first_row + out);
}

Tensor LowRank::added_to(const Tensor& y, TensorArg x, Mode mode) const {
  const Scope scope("lora", x.where());
  check_options("lora", {{"scale", scale, Range::finite()}});
  const Tensor w_a = transpose(a.tensor(x), 0, 1), w_b = transpose(rows_of_b(x, y.size(-1)), 0, 1);
  const Tensor in = dropped(Autocast::input(x), dropout, mode);
  // Scaled where it is small. An adapter that is wider than x computes in its own dtype.
  const Tensor low = matmul(reshape(in, {-1, in.size(-1)}), w_a) * scale;
  const Tensor base = reshape(y, {-1, y.size(-1)});
  if (low.dtype() != base.dtype()) return y + cast(reshape(matmul(low, w_b), y.shape()), y.dtype());
  return reshape(linear(low, w_b, base), y.shape());
}

}  // namespace tg::nn

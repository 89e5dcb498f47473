// Calls every function of ops/ops.h, ops/flash_attn.h, ops/linear_cross_entropy.h, ops/paged_attn.h,
// ops/ranks.h and ops/ring_attention.h.
#include "tests/hostile/world.h"

namespace tg::hostile {

namespace {

// Selects one of several overloads by its parameters.
template <class... A>
Call one(const std::string& name, std::type_identity_t<Tensor (*)(A...)> f) {
  return call(name, f);
}

}  // namespace

#define OP(name) call(#name, tg::name)

std::vector<Call> op_calls() {
  using T = TensorArg;
  using I = std::int64_t;
  using Where = std::source_location;
  return {
      OP(add),
      OP(sub),
      OP(mul),
      OP(div),
      OP(pow),
      OP(remainder),
      OP(maximum),
      OP(minimum),
      OP(neg),
      OP(abs),
      OP(sign),
      OP(floor),
      OP(sqrt),
      OP(rsqrt),
      OP(exp),
      OP(log),
      OP(sin),
      OP(cos),
      OP(tanh),
      OP(erf),
      OP(sigmoid),
      OP(relu),
      OP(silu),
      OP(gelu),
      OP(gelu_tanh),
      OP(silu_slope),
      OP(gelu_slope),
      OP(gelu_tanh_slope),
      OP(clamp),
      OP(where),
      OP(equal),
      OP(not_equal),
      OP(less),
      OP(less_equal),
      OP(greater),
      OP(greater_equal),
      OP(logical_and),
      OP(logical_or),
      OP(logical_not),
      OP(cast),
      OP(copy),
      OP(contiguous),
      OP(stop_gradient),
      one<T, const Axes&>("permute", tg::permute),
      one<T, I, I>("transpose", tg::transpose),
      one<T, const Shape&>("view", tg::view),
      OP(reshape),
      one<T, const Shape&>("expand", tg::expand),
      one<T, I, I, I, I>("slice", tg::slice),
      one<T, I>("squeeze", tg::squeeze),
      one<T, I>("unsqueeze", tg::unsqueeze),
      one<T, T, I, I, I>("slice_assign", tg::slice_assign),
      one<T, T, I, T>("slice_assign at", tg::slice_assign),
      OP(slice_at),
      OP(split),
      OP(chunk),
      OP(unbind),
      OP(concat),
      OP(stack),
      OP(pad),
      OP(embedding),
      OP(index_select),
      OP(index_add),
      OP(index_assign),
      OP(index_assign_each),
      OP(gather),
      OP(scatter_add),
      OP(one_hot),
      OP(top_k),
      OP(cumsum),
      OP(arange),
      OP(tril),
      OP(triu),
      OP(flip),
      OP(zeros_like),
      OP(ones_like),
      OP(full_like),
      OP(sum),
      OP(prod),
      OP(mean),
      OP(sum_squares),
      OP(max),
      OP(min),
      OP(var),
      OP(argmax),
      OP(argmin),
      OP(any),
      OP(all),
      OP(sum_to),
      OP(softmax),
      OP(log_softmax),
      OP(logsumexp),
      OP(layer_norm),
      OP(rms_norm),
      OP(cross_entropy),
      OP(linear_cross_entropy),
      OP(linear_cross_entropy_unit),
      OP(rope),
      OP(rope_frequencies),
      one<T, T>("swiglu", tg::swiglu),
      one<T>("swiglu packed", tg::swiglu),
      OP(dropout),
      one<Graph&, const Shape&, double, double, DType, Where>("uniform", tg::uniform),
      OP(normal),
      OP(bernoulli),
      OP(randint),
      OP(sample),
      call("adamw",
           static_cast<std::array<Tensor, 3> (*)(T, T, T, T, T, T, T, const AdamWOptions&)>(tg::adamw)),
      call("adamw of a list",
           static_cast<std::vector<AdamWResults> (*)(const std::vector<AdamWTensors>&, T, T, T,
                                                     const AdamWOptions&)>(tg::adamw)),
      OP(squared_norm),
      OP(global_norm),
      OP(block_norms),
      OP(all_reduce),
      OP(all_reduce_gradient),
      OP(all_gather),
      OP(reduce_scatter),
      OP(all_to_all),
      OP(ppermute),
      OP(local_shard),
      OP(ring_attention),
      one<Graph&, int, I, Where>("ring_positions", tg::ring_positions),
      OP(matmul),
      OP(matmul_wide),
      OP(linear),
      OP(flash_attn),
      OP(standard_attn),
      OP(attention_weights),
      OP(attention_keep_mask),
      OP(paged_attn),
      // Makes operands with matching shapes, which random operands rarely have.
      {"attention",
       [](World& w) {
         const I B = 1 + static_cast<I>(w.below(2)), Hk = 1 + static_cast<I>(w.below(2)),
                 H = Hk * (1 + static_cast<I>(w.below(2))), L = static_cast<I>(w.below(6)),
                 K = static_cast<I>(w.below(6)), d = static_cast<I>(w.below(9)),
                 dv = static_cast<I>(w.below(9));
         const DType dtype = w.one_of({f64, f32, bf16, f16});
         const auto operand = [&](I heads, I rows, I width) {
           return w.chance(0.5) ? w.graph.input("q", {B, heads, rows, width}, dtype)
                                : w.graph.input("q", {B, rows, heads, width}, dtype).transpose(1, 2);
         };
         const Tensor q = operand(H, L, d), k = operand(Hk, K, d), v = operand(Hk, K, dv);
         for (const Tensor& t : {q, k, v}) w.keep(t);
         const AttentionOptions options = Draw<AttentionOptions>::of(w);
         w.trace += "flash_attn(" + q.text() + ", " + k.text() + ", " + v.text() + ", …)\n";
         w.keep(w.chance(0.7) ? flash_attn(q, k, v, options) : standard_attn(q, k, v, options));
       }},
      {"paged attention",
       [](World& w) {
         const I B = static_cast<I>(w.below(3)), Hk = 1 + static_cast<I>(w.below(2)),
                 H = Hk * (1 + static_cast<I>(w.below(2))), L = static_cast<I>(w.below(12)),
                 page = 1 + static_cast<I>(w.below(4)), pages = static_cast<I>(w.below(4)),
                 d = static_cast<I>(w.below(9)), dv = static_cast<I>(w.below(9));
         const DType dtype = w.one_of({f64, f32, bf16, f16});
         const Tensor q = w.graph.input("q", {B, H, L, d}, dtype),
                      k = w.graph.input("k", {pages, page, Hk, d}, dtype),
                      v = dv <= d && w.chance(0.5) ? slice(k, 3, 0, dv)
                                                   : w.graph.input("v", {pages, page, Hk, dv}, dtype),
                      table = w.graph.input("table", {B, static_cast<I>(w.below(4))}, i32),
                      lengths = w.graph.input("lengths", {B}, i32);
         for (const Tensor& t : {q, k, v, table, lengths}) w.keep(t);
         w.trace += "paged_attn(" + q.text() + ", " + k.text() + ", " + v.text() + ", …)\n";
         w.keep(paged_attn(q, k, v, table, lengths, Draw<PagedAttentionOptions>::of(w)));
       }},
      {"classes",
       [](World& w) {
         const Tensor logits = w.graph.input("logits", {3, 5}, w.one_of({f64, f32, bf16, f16})),
                      targets = w.graph.input("targets", {3}, w.one_of({i64, i32}));
         w.trace += "cross_entropy(logits, targets, …)\n";
         for (const Tensor& t :
              {logits, targets, cross_entropy(logits, targets, Draw<CrossEntropyOptions>::of(w))})
           w.keep(t);
       }},
      {"classes of a head",
       [](World& w) {
         const DType dtype = w.one_of({f64, f32, bf16, f16});
         const Tensor x = w.graph.input("x", {3, 4}, dtype), weight = w.graph.input("w", {4, 5}, dtype),
                      targets = w.graph.input("targets", {3}, w.one_of({i64, i32}));
         w.trace += "linear_cross_entropy(x, w, targets, …)\n";
         for (const Tensor& t :
              {x, weight, targets,
               linear_cross_entropy(x, weight, targets, Draw<LinearCrossEntropyOptions>::of(w))})
           w.keep(t);
       }},
  };
}

}  // namespace tg::hostile

// Small graphs. Together, they need every compiler pass. A function records each graph.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include <tilegrad/ops/linear_cross_entropy.h>
#include <tilegrad/ops/ranks.h>
#include <tilegrad/tilegrad.h>

namespace tg::testing {

struct Recorded {
  Graph g;
  std::vector<Tensor> fetch = {};
  std::vector<Assign> assign = {};
};

struct CompiledCase {
  std::string name;
  std::function<void(Recorded&)> record;
  bool on_gpu = false, fuse = true, batch_invariant = false, reuse = true;
  int ranks = 1;
  std::size_t less = 0;          // bytes by which the arena must shrink
  std::size_t percent_less = 0;  // percentage of the arena; added to the bytes above
  bool has_budget = false;       // whether to set a budget even if no bytes must be saved
};

inline Parameter parameter_of(const std::string& name, const Shape& shape, DType dtype = f32) {
  return Parameter(name, Array(shape, dtype));
}

// Pointwise ops. Constants of every dtype are folded, and results with narrow integer dtypes are stored.
inline void record_fused(Recorded& r) {
  Graph& g = r.g;
  const Tensor x = g.input("x", {4, 6}), y = g.input("y", {6}), h = g.input("h", {4, 6}, bf16),
               i = g.input("i", {4, 6}, i32), d = g.input("d", {4, 6}, f64);
  const Tensor once = x * 2 + y, square = full(g, {6, 6}, 0.5);
  r.fetch = {exp(once) * once,
             cast(h * 0.3 + 1.00390625001, f32),  // the second constant is close to a tie in bf16
             where(greater(x, transpose(transpose(x, 0, 1), 0, 1)), x, y),
             cast(cast(i + 1, i64) * 3, f32),
             cast(i, bf16),
             cast(i, f16),
             d * 0.1 + cast(x, f64),
             full(g, {3}, 7) * 2,
             full(g, {2}, 5),
             square - 1,
             matmul(x, square)};  // here a matrix; if fused, a constant
}

// A fused step has at most 24 instructions and 12 inputs.
inline void record_long_fused(Recorded& r) {
  Tensor x = r.g.input("x", {70});
  std::vector<Tensor> inputs;
  for (int n = 0; n < 25; ++n) x = tanh(x);
  Tensor all = r.g.input("a", {70});
  for (int n = 0; n < 13; ++n) all = all * r.g.input(std::string(1, static_cast<char>('b' + n)), {70});
  r.fetch = {x, all};
}

inline void record_merged(Recorded& r) {
  Graph& g = r.g;
  const Tensor a = g.input("a", {6, 50}), b = g.input("b", {6, 50}), z = g.input("z", {6, 50}),
               row = g.input("row", {50}), h = g.input("h", {6, 50}, bf16);
  const std::vector<Tensor> of_div = gradients(a / b, {a, b}, z);
  const Tensor s = sigmoid(a), half = exp(h), number = g.input("n", {}), other = g.input("m", {});
  const Tensor transposed = transpose(b, 0, 1) * 2;  // this step also reads b, but has a different order in
                                                     // memory
  r.fetch = {of_div[0], of_div[1], s,          s * (1 - s),    half,      half * 3,
             a * row,   z * row,   number * 2, number * other, transposed};
  const Tensor before = b * 5, between = cumsum(a, 1), after = b - 1;
  r.fetch.insert(r.fetch.end(), {before, between, after});
}

// A GEMM and the gelu_tanh after it may become one kernel, which rounds once. In this case, the operands of
// the GEMM stay alive until the gelu_tanh. In f32, or if the GEMM adds a complete matrix, this does not
// happen.
inline void record_epilogues(Recorded& r) {
  Graph& g = r.g;
  const auto add = [&](DType t, const auto& product) {
    const Tensor w = g.input("w", {32, 64}, t), h = exp(g.input("h", {16, 32}, t));
    r.fetch.push_back(softmax(gelu_tanh(product(h, w)), -1));
  };
  const Tensor row = g.input("row", {64}, bf16), whole = g.input("whole", {16, 64}, f16);
  add(bf16, [&](const Tensor& h, const Tensor& w) { return matmul(h, w); });
  add(f32, [&](const Tensor& h, const Tensor& w) { return matmul(h, w); });
  add(bf16, [&](const Tensor& h, const Tensor& w) { return linear(h, w, row); });
  add(f16, [&](const Tensor& h, const Tensor& w) { return linear(h, w, whole); });
  add(f16, [&](const Tensor& h, const Tensor& w) { return matmul(h, w) + whole; });
  const Tensor w = g.input("w", {32, 64}, bf16), h = exp(g.input("h", {16, 32}, bf16)), early = softmax(w, 0),
               product = matmul(h, w), of_another = gelu_tanh(early);
  r.fetch.insert(r.fetch.end(), {softmax(of_another, 0), softmax(product, 0)});
}

// Fused steps have at most ten operands, including at most four results.
inline void record_many_results(Recorded& r) {
  const Tensor x = r.g.input("x", {40});
  for (int n = 1; n <= 6; ++n) r.fetch.push_back(x * n);
  std::vector<Tensor> ys;
  for (int n = 0; n < 8; ++n) ys.push_back(r.g.input("y" + std::to_string(n), {40}));
  Tensor first = ys[0], second = ys[0];
  for (int n = 1; n < 5; ++n) first = first + ys[n];
  for (int n = 4; n < 8; ++n) second = second * ys[n];
  r.fetch.push_back(first), r.fetch.push_back(second);
}

inline void record_reduced(Recorded& r) {
  Graph& g = r.g;
  const Tensor x = g.input("x", {6, 50}), y = g.input("y", {6, 50}), h = g.input("h", {6, 50}, bf16),
               i = g.input("i", {6, 50}, i32), across = transpose(g.input("t", {50, 6}), 0, 1);
  const Tensor both = x * y, kept = x - y, cube = exp(g.input("c", {2, 3, 4}));
  r.fetch = {mean(both, {1}),
             sum(kept, {-1}, true),
             kept,
             sum(exp(x), {0}),                   // not a row reduction
             max(transpose(sin(x), 0, 1), {0}),  // contiguous rows
             sum_squares(h * 3, {1}),
             sum(i + 1, {1}),       // narrow integers are always stored
             sum(across * x, {1}),  // also not a row reduction
             sum(x * across, {1}),  // this operand is read by tiles
             sum(x * unsqueeze(g.input("column", {6}), 1), {1}),
             prod(slice(cos(x), 1, 0, 25), {1}),  // only some columns
             sum(slice(tanh(x), 0, 0, 3), {1}),
             sum(slice(abs(x), 0, 3, 6), {1}),
             sum(tg::pow(g.input("one", {1, 50}), 2), {0}),  // groups of one element
             min(cube, {1, 2}),
             sum(cube, {0, 1}),
             sum(sqrt(x))};
}

inline void record_reduced_on_gpu(Recorded& r) {
  Graph& g = r.g;
  const auto total = [&](const std::string& name, const Shape& shape) {
    r.fetch.push_back(sum(exp(g.input(name, shape)), {-1}));
  };
  total("few", {4096});
  total("more", {4097});
  total("packs", {4104});
  total("short", {3, 4095});
  total("long", {3, 4097});
  total("even", {3, 4104});
  total("many", {2048, 4097});
  const Tensor x = g.input("x", {8, 16}, bf16), w = g.input("w", {16, 24}, bf16);
  r.fetch.push_back(sum(gelu_tanh(matmul(x, w)), {1}));
  const Tensor n = g.input("n", {8, 16}), weight = g.input("weight", {16}), z = g.input("z", {8, 16});
  r.fetch.push_back(sum(gradients(layer_norm(n, weight), {n}, z)[0] + n, {1}));
  // This sums other values, so it is not fused with the norm's gradient before it.
  const Tensor m = g.input("m", {8, 16}), of_norm = gradients(layer_norm(m, weight), {m}, z)[0],
               of_others = sum(n + z, {1});
  r.fetch.insert(r.fetch.end(), {of_norm, of_others});
}

inline void record_joined(Recorded& r) {
  Graph& g = r.g;
  const Tensor a = g.input("a", {2, 4, 6}), b = g.input("b", {2, 6, 6});
  const Tensor c = matmul(a, b), d = matmul(a, slice(b, 2, 0, 2)), e = exp(a);
  const Tensor sides = concat({c, d, rope(a)}, 2);
  const Tensor heads = matmul(a, b * 2), merged = reshape(transpose(heads, 0, 1), {4, 12});
  const Tensor read = matmul(a, b * 3), twice = concat({read, read}, 1);
  const Tensor fetched = matmul(a, b * 4), stays = concat({fetched, e}, 0);
  const Tensor part = matmul(a, b * 5), cut = contiguous(slice(part, 1, 1, 3));
  const Tensor split = matmul(a, b * 6), odd = contiguous(transpose(split.view({2, 4, 2, 3}), 1, 2));
  const Tensor across = contiguous(transpose(matmul(a, b * 7), 1, 2));
  const Tensor spans = contiguous(permute(matmul(a, b * 8).view({2, 4, 2, 3}), {1, 0, 2, 3}));
  const Tensor parts = concat({matmul(a, b * 9).view({8, 6}), matmul(a, slice(b, 2, 1, 4)).view({8, 3})}, 1);
  const Tensor halves = contiguous(permute(matmul(a, b * 10).view({2, 2, 2, 6}), {1, 0, 2, 3}));
  const Tensor also = matmul(a, b * 11), both = concat({also, matmul(a, b * 14)}, 0),
               more = exp(also);  // this value is fetched, and read twice
  const Tensor nested = concat({concat({matmul(a, b * 12), matmul(a, b * 13)}, 1), e}, 1);
  r.fetch = {exp(sides), merged, twice,  fetched, stays, cut,  odd,   across,
             spans,      parts,  halves, also,    both,  more, nested};
}

inline void record_addends(Recorded& r) {
  Graph& g = r.g;
  const Tensor x = g.input("x", {6, 8}), a = g.input("a", {6, 4}), b = g.input("b", {4, 8}),
               c = g.input("c", {4, 8}), bias = g.input("bias", {8});
  const auto product = [&] { return matmul(a, b); };
  Parameter w = parameter_of("w", {6, 8}), v = parameter_of("v", {2, 3, 8});
  const Tensor p = product(), q = matmul(a, c), biased = linear(a, b, bias);
  const Tensor one = matmul(a, c * 2), read = one + x;
  const Tensor same = matmul(a, b * 9), half = matmul(cast(a, bf16), cast(b, bf16));
  r.fetch = {p + q + x,
             biased + product(),
             read * 2,
             one,
             matmul(a, b * 2) + matmul(a, b * 3) * 2,
             same + same,
             matmul(a, b * 10) + x + 1,
             half + cast(x, bf16),
             transpose(matmul(a, b * 4) + matmul(a, b * 5), 0, 1) * 2,
             matmul(x, transpose(x, 0, 1)) + transpose(matmul(a, transpose(a, 0, 1)), 0, 1),
             matmul(a, b * 14) + slice(matmul(a, g.input("wide", {4, 9})), 1, 0, 8)};
  const Tensor rows = matmul(a, b * 6).view({2, 3, 8}) + g.input("y", {2, 3, 8});
  r.assign = {{w, matmul(a, b * 7) + matmul(a, b * 8)}, {v, rows}};
}

inline void record_assigned(Recorded& r) {
  Graph& g = r.g;
  Parameter p = parameter_of("p", {30, 30}), q = parameter_of("q", {30, 30}), s = parameter_of("s", {30, 30}),
            t = parameter_of("t", {30, 30}), u = parameter_of("u", {900}), v = parameter_of("v", {30, 30}),
            w = parameter_of("w", {30, 30}), o = parameter_of("o", {30, 30}),
            first = parameter_of("first", {30, 30}), last = parameter_of("last", {30, 30});
  const Tensor x = g.input("x", {30, 30}), of_p = g.param(p), of_q = g.param(q), of_s = g.param(s);
  const Tensor early = of_q * 3;        // reads q after the new value of q is computed
  const Tensor next = matmul(of_q, x);  // GEMMs do not work in place
  r.fetch = {of_p, sum(of_q * early), slice(of_p, 0, 0, 2)};
  r.assign = {{p, of_p + x},                 // the old value is read later
              {q, next},                     // is copied
              {s, of_p},                     // fetches the old value of p
              {t, transpose(exp(x), 0, 1)},  // a transposed value
              {u, exp(of_s).view({900})},    // a view
              {v, sin(x)},                   // is written directly
              {w, transpose(of_s, 0, 1) + of_s},
              {o, g.param(o) * 2 + sum(g.param(o), {0}, true)},  // works in place
              // Does not work in place, because a different part of the step also reads the value.
              {first, transpose(g.param(first), 0, 1) * 2 + g.param(first)},
              {last, g.param(last) + transpose(g.param(last), 0, 1) * 2}};
}

// Results that reuse buffers of their inputs.
inline void record_in_place(Recorded& r) {
  Graph& g = r.g;
  const Tensor x = g.input("x", {20, 30}), m = g.input("m", {30, 30}), at = g.input("at", {2}, i32),
               src = g.input("src", {2, 30});
  const Tensor a = matmul(x, m), b = softmax(a, -1), c = cumsum(b, 1), d = matmul(c, m);
  const Tensor e = matmul(x, m * 2), f = greater(e, 0), rows = cumsum(src * 2, 1);
  const Tensor cache = index_assign(cumsum(x * 3, 1), 0, at, rows), read = softmax(cache.view({600}), 0);
  const Tensor pair = softmax(d, 0), sums = pair + transpose(cumsum(d.view({30, 20}), 0), 0, 1);
  r.fetch = {d + c,
             cast(f, f32),
             softmax(e, -1),
             read,
             sums,
             uniform(g, {5}),
             full(g, {300}, 3) * x.view({2, 300}),
             x * g.constant(Array::of<float>({2, 1}, {1, 2})).expand({2, 10}).reshape({20, 1})};
}

inline void record_mlp(Recorded& r, DType dtype) {
  Graph& g = r.g;
  const Tensor x = g.input("x", {8, 16}), y = g.input("y", {8}, i32), rate = g.input("rate", {});
  std::vector<Tensor> values;
  std::vector<AdamWTensors> states;
  std::vector<Parameter> held;
  const auto weight = [&](const std::string& name, const Shape& shape) {
    for (const char* kind : {"", ".m", ".v"}) held.push_back(parameter_of(name + kind, shape));
    values.push_back(g.param(held[held.size() - 3]));
    return cast(values.back(), dtype);
  };
  const Tensor up = weight("up", {16, 32}), scale = weight("scale", {32}), down = weight("down", {32, 10});
  const Tensor h = gelu_tanh(matmul(cast(x, dtype), up)), n = layer_norm(dropout(h, 0.1), scale);
  const Tensor loss = cross_entropy(cast(matmul(n, down), f32), y);
  const std::vector<Tensor> zs = gradients(loss, values);
  for (std::size_t i = 0; i < values.size(); ++i)
    states.push_back({values[i], zs[i], g.param(held[3 * i + 1]), g.param(held[3 * i + 2])});
  const std::vector<AdamWResults> next = adamw(states, rate, 1, 1 / maximum(global_norm(zs), 1));
  for (std::size_t i = 0; i < values.size(); ++i) {
    r.assign.push_back({held[3 * i], next[i].p});
    r.assign.push_back({held[3 * i + 1], next[i].m});
    r.assign.push_back({held[3 * i + 2], next[i].v});
  }
  r.fetch = {loss};
}

inline void record_attention(Recorded& r) {
  Graph& g = r.g;
  const Tensor x = g.input("x", {2, 8, 16}), w = g.input("w", {16, 16}), places = g.input("places", {8}, i32);
  const auto heads = [&] { return transpose(matmul(x, w).view({2, 8, 2, 8}), 1, 2); };
  const Tensor q = heads(), rq = rope(q), k = heads(), rk = rope(k, places), v = heads();
  const Tensor o = flash_attn(rq, rk, v, {.causal = true}).o;
  r.fetch = gradients((o * o).sum(), {x, w});
}

inline void record_cache(Recorded& r) {
  Graph& g = r.g;
  Parameter keys = parameter_of("keys", {2, 2, 8, 8}), values = parameter_of("values", {2, 2, 8, 8});
  const Tensor x = g.input("x", {2, 1, 16}), w = g.input("w", {16, 16}), at = g.input("at", {1}, i32),
               lengths = g.input("lengths", {2}, i32);
  const auto heads = [&] { return transpose(matmul(x, w).view({2, 1, 2, 8}), 1, 2); };
  const Tensor q = rope(heads(), at), k = rope(heads(), at), v = heads();
  const std::vector<Tensor> held = index_assign_each({g.param(keys), g.param(values)}, 2, at, {k, v});
  const Tensor early = softmax(q, -1);
  r.fetch = {flash_attn(q, held[0], held[1], {.kv_lengths = lengths}).o.reshape({2, 16}), early};
  r.assign = {{keys, held[0]}, {values, held[1]}};
}

// Each GEMM result is read once, and a parameter is read before it changes.
inline void record_order(Recorded& r) {
  Graph& g = r.g;
  Parameter w = parameter_of("w", {64, 64});
  const Tensor x = g.input("x", {64, 64}), old = g.param(w);
  std::vector<Tensor> products;
  for (int i = 0; i < 4; ++i) products.push_back(matmul(x, x * (i + 1)));
  r.fetch = {sum(old)};
  for (const Tensor& p : products) r.fetch.push_back(sum(gelu(p)));
  r.assign = {{w, old * 0.5 + matmul(x, x)}};
}

// If all readers of a GEMM result can be executed together, the result can be freed early. This is possible
// for up to 32 readers.
inline void record_many_readers(Recorded& r, int readers) {
  const Tensor x = r.g.input("x", {64, 64});
  std::vector<Tensor> products;
  for (int i = 0; i < 3; ++i) products.push_back(matmul(x, x * (i + 1)));
  for (const Tensor& p : products)
    for (int k = 0; k < readers; ++k) r.fetch.push_back(sum(p * (k + 2)));
}

// As in training, values of the forward pass are read again in the reverse order.
inline void record_forth_and_back(Recorded& r, DType dtype, int layers,
                                  const std::function<Tensor(const Tensor&)>& f) {
  const Tensor x = r.g.input("x", {64, 64}, dtype);
  std::vector<Tensor> hs, fs;
  Tensor h = exp(x);
  for (int i = 0; i < layers; ++i) {
    const Scope layer("h." + std::to_string(i));
    hs.push_back(matmul(h, x));
    fs.push_back(f(hs.back()));
    h = matmul(fs.back(), x);
  }
  Tensor z = h;
  for (std::size_t i = fs.size(); i-- > 0;) z = matmul(matmul(z, fs[i]), hs[i]);
  r.fetch = {sum(z)};
}

// A GEMM and the gradient of its weight read the same norm.
inline void record_norm_of_two(Recorded& r) {
  const Tensor x = r.g.input("x", {64, 64});
  std::vector<Tensor> h{matmul(x, x)}, norm, product;
  for (int i = 0; i < 3; ++i) {
    norm.push_back(layer_norm(h.back()));
    product.push_back(matmul(norm.back().view({2, 32, 64}), x).view({64, 64}));
    h.push_back(matmul(gelu(product.back()), x));
  }
  Tensor z = h.back();
  for (std::size_t i = norm.size(); i-- > 0;)
    z = matmul(matmul(matmul(matmul(z, gelu_slope(product[i])), x), norm[i]), h[i]);
  r.fetch = {z};
}

// Values have several sizes and recomputation costs. The expensive choices are unnecessary in the end.
inline void record_prices(Recorded& r) {
  Graph& g = r.g;
  const Tensor x = g.input("x", {64, 64}), column = g.input("column", {64, 1}), row = g.input("row", {1, 64});
  const Tensor outer = matmul(column, row), wide = tanh(matmul(x, g.input("w", {64, 128}))), f = gelu(outer);
  Tensor z = matmul(matmul(f, x), slice(wide, 1, 0, 64));
  std::vector<Tensor> kept;
  for (int i = 0; i < 4; ++i) kept.push_back(z = matmul(z, exp(x)));
  for (std::size_t i = kept.size(); i-- > 0;) z = matmul(z, kept[i]);
  z = matmul(matmul(z, f), outer);
  r.fetch = {matmul(z, slice(wide, 1, 32, 96))};
}

// GEMMs read the results of a sequence of random ops. Some early choices are unnecessary in the end. Their
// costs determine which choices are undone.
inline void record_random_fused(Recorded& r, unsigned seed) {
  std::mt19937 random(seed);
  const Tensor x = r.g.input("x", {64, 64}), column = r.g.input("column", {64, 1}),
               row = r.g.input("row", {1, 64});
  std::vector<Tensor> made{x};
  const auto any = [&] { return made[random() % made.size()]; };
  Tensor h = exp(x);
  for (int i = 0; i < 10; ++i) {
    switch (random() % 5) {
      case 0:
        h = matmul(h, x);
        break;
      case 1:
        h = gelu(h);
        break;
      case 2:
        h = layer_norm(h);
        break;
      case 3:
        h = matmul(h, matmul(column, row));
        break;
      default:
        h = softmax(matmul(h, any()), -1);
    }
    made.push_back(h);
  }
  for (int i = 0; i < 8; ++i) h = matmul(h, any());
  r.fetch = {sum(h)};
}

// If a gelu_tanh is fetched, neither it nor its GEMM is recomputed.
inline void record_kept_epilogue(Recorded& r) {
  record_forth_and_back(r, bf16, 4, [](const Tensor& x) { return gelu_tanh(x); });
  for (const Node& n : r.g.nodes())
    if (r.g.label_of(n) == "h.0/gelu_tanh") r.fetch.push_back(r.g.tensor(n.first_out));
}

// If all uses of a value are late, the value's step is moved towards them. If a value is computed from a
// parameter, it can be recomputed until the parameter changes.
inline void record_late(Recorded& r) {
  Graph& g = r.g;
  Parameter w = parameter_of("w", {64, 64});
  const Tensor x = g.input("x", {64, 64}), tall = g.input("tall", {256, 64}), late = gelu(x),
               of_w = gelu(g.param(w));
  const Tensor first = matmul(of_w, x);
  const Tensor wide = matmul(x, matmul(tall, first).view({64, 256}));
  const Tensor y = matmul(matmul(matmul(wide, tall), late), transpose(of_w, 0, 1));
  r.fetch = {y};
  r.assign = {{w, y + first}};
}

// One parameter changes before the last use of its value. The other parameter changes after it.
inline void record_changed(Recorded& r) {
  Graph& g = r.g;
  Parameter w = parameter_of("w", {64, 64}), v = parameter_of("v", {64, 64});
  const Tensor x = g.input("x", {64, 64}), of_w = gelu(g.param(w)), of_v = gelu(g.param(v)),
               early = matmul(of_w, matmul(of_v, x)), after_early = g.param(w) + early;
  std::vector<Tensor> kept{early};
  for (int i = 0; i < 4; ++i) kept.push_back(matmul(kept.back(), x));
  Tensor late = x;
  for (std::size_t i = kept.size(); i-- > 0;) late = matmul(late, kept[i]);
  const Tensor last = matmul(matmul(late, of_w), of_v);
  r.fetch = {sum(last)};
  r.assign = {{w, after_early}, {v, g.param(v) * 2 + last}};
}

inline void record_grouped_gemm(Recorded& r) {
  Graph& g = r.g;
  Parameter p = parameter_of("p", {16, 16}, bf16);
  const Tensor x = g.input("x", {16, 16}, bf16), y = g.input("y", {16, 16}, bf16), of_p = g.param(p);
  const Tensor first = matmul(x, y), of_weight = matmul(of_p, y),
               next = softmax(matmul(x, transpose(y, 0, 1)), -1), second = matmul(next, x),
               third = matmul(transpose(x, 0, 1), next), last = softmax(next, 0);
  const Tensor wide = g.input("wide", {1024, 1025}, bf16),
               large = matmul(transpose(wide, 0, 1), slice(wide, 1, 0, 16));
  r.fetch = {squared_norm({first, second, third, of_weight, large}), last};
}

inline void record_one_step(Recorded& r) {
  Parameter p = parameter_of("p", {3, 3}), q = parameter_of("q", {3, 3});
  const Tensor x = r.g.input("x", {3, 3}), of_p = r.g.param(p);
  r.assign = {{p, transpose(of_p, 0, 1) + of_p}, {q, x + of_p}};
}

inline void record_casts(Recorded& r) {
  Graph& g = r.g;
  const Tensor of_c = g.param(parameter_of("c", {16, 16})), of_d = g.param(parameter_of("d", {16, 16}));
  const Parameter a = parameter_of("a", {16, 16}), b = parameter_of("b", {16, 16});
  const Tensor x = g.input("x", {16, 16}), p = g.param(a), q = g.param(b);
  const Tensor product = matmul(cast(x, bf16), cast(p, bf16)), part = cast(slice(q, 0, 0, 2), bf16),
               chain = cast(q, f16) * 2;
  r.fetch = {matmul(product, cast(q, bf16)),
             part,
             chain,
             softmax(cast(of_c, f16) * 2, 0),
             softmax(exp(of_d), 0),
             softmax(cast(g.param(parameter_of("e", {16, 16})), bf16), 0)};
}

// Steps after the casts need more memory than the casts.
inline void record_casts_before_a_peak(Recorded& r) {
  record_casts(r);
  const Tensor x = r.g.input("large", {64, 64});
  r.fetch.push_back(matmul(exp(x), x));
}

// Small GEMMs have operands of 2 MiB each. The operands stay alive until the GEMMs run.
inline void record_long_products(Recorded& r, int count) {
  std::vector<Tensor> products;
  for (int i = 0; i < count; ++i) {
    const Tensor x = cumsum(r.g.input("x" + std::to_string(i), {16, 65536}, bf16), 1);
    products.push_back(matmul(x, transpose(x, 0, 1)));
  }
  r.fetch = {squared_norm(products)};
}

inline void record_scattered(Recorded& r) {
  Graph& g = r.g;
  const Tensor x = g.input("x", {2, 8, 16}), w = g.input("w", {16, 16}), u = g.input("u", {16, 16});
  const auto heads = [&](const Tensor& t) { return transpose(t.view({2, 8, 2, 8}), 1, 2); };
  const Tensor h = matmul(x, u), t = heads(matmul(h, w)), o = flash_attn(t, t, t).o.reshape({2, 8, 16});
  const Tensor s = heads(matmul(gelu(o), w)), last = flash_attn(s, s, s).o;
  const std::vector<Tensor> zs = gradients((last * last).sum(), {w, u});
  const Tensor other = matmul(u, w), sums = reduce_scatter({other}, 2)[0], late = matmul(w, u);
  const Tensor first = reduce_scatter({zs[0]}, 2)[0], last_one = exp(late), of_x = reduce_scatter({x}, 2)[0];
  r.fetch = {reduce_scatter({zs[1], other}, 2)[0], first, sums, of_x, last_one};
}

inline std::vector<CompiledCase> compiled_cases() {
  const auto mlp = [](DType dtype) { return [dtype](Recorded& r) { record_mlp(r, dtype); }; };
  const auto back = [](DType dtype, int layers, Tensor (*f)(TensorArg)) {
    return
        [=](Recorded& r) { record_forth_and_back(r, dtype, layers, [f](const Tensor& x) { return f(x); }); };
  };
  const auto norms = [](Recorded& r) {
    record_forth_and_back(r, f32, 3, [](const Tensor& x) { return layer_norm(x) + x; });
  };
  const auto attention = [](Recorded& r) {
    record_forth_and_back(r, f32, 3, [](const Tensor& x) {
      const Tensor q = x.view({1, 1, 64, 64});
      return flash_attn(q, q, q).o.view({64, 64});
    });
  };
  constexpr std::size_t matrix = 64 * 64 * 4;
  return {
      {.name = "chains", .record = record_fused},
      {.name = "chains that are not fused", .record = record_fused, .fuse = false},
      {.name = "long chains", .record = record_long_fused},
      {.name = "merged steps", .record = record_merged},
      {.name = "many results", .record = record_many_results},
      {.name = "reductions", .record = record_reduced},
      {.name = "reductions of batch-invariant rows", .record = record_reduced, .batch_invariant = true},
      {.name = "reductions on a GPU", .record = record_reduced_on_gpu, .on_gpu = true},
      {.name = "joined results", .record = record_joined},
      {.name = "sums in products", .record = record_addends},
      {.name = "sums of batch-invariant rows", .record = record_addends, .batch_invariant = true},
      {.name = "sums that are not fused", .record = record_addends, .fuse = false},
      {.name = "assigned parameters", .record = record_assigned},
      {.name = "results in place", .record = record_in_place},
      {.name = "training step", .record = mlp(f32)},
      {.name = "training step on a GPU", .record = mlp(bf16), .on_gpu = true},
      {.name = "epilogues with addends on a GPU", .record = record_epilogues, .on_gpu = true},
      {.name = "attention on a GPU", .record = record_attention, .on_gpu = true},
      {.name = "attention on a GPU that is not fused",
       .record = record_attention,
       .on_gpu = true,
       .fuse = false},
      {.name = "decoding on a GPU", .record = record_cache, .on_gpu = true},
      {.name = "order within a budget", .record = record_order, .less = 3 * matrix},
      {.name = "products with 32 readers",
       .record = [](Recorded& r) { record_many_readers(r, 32); },
       .less = matrix},
      {.name = "chains made again", .record = back(f32, 4, gelu), .less = 2 * matrix},
      {.name = "products made again", .record = back(f32, 4, gelu), .less = 5 * matrix},
      {.name = "norms made again", .record = norms, .less = 2 * matrix},
      {.name = "attention made again", .record = attention, .less = 3 * matrix},
      {.name = "epilogues made again", .record = back(bf16, 3, gelu_tanh), .on_gpu = true, .less = matrix},
      {.name = "norms made again for two readers", .record = record_norm_of_two, .less = 5 * matrix},
      {.name = "values of several prices", .record = record_prices, .less = 3 * matrix},
      {.name = "values of several prices, nearly all", .record = record_prices, .less = 5 * matrix},
      {.name = "an epilogue that is kept",
       .record = record_kept_epilogue,
       .on_gpu = true,
       .less = 2 * matrix},
      {.name = "a random chain",
       .record = [](Recorded& r) { record_random_fused(r, 20); },
       .less = 2 * matrix},
      {.name = "another random chain",
       .record = [](Recorded& r) { record_random_fused(r, 163); },
       .less = 4 * matrix},
      {.name = "one step", .record = record_one_step},
      {.name = "late values", .record = record_late, .less = matrix},
      {.name = "values of parameters that change", .record = record_changed, .less = matrix},
      {.name = "small products on a GPU", .record = record_grouped_gemm, .on_gpu = true},
      {.name = "small products on a GPU within a budget",
       .record = record_grouped_gemm,
       .on_gpu = true,
       .has_budget = true},
      {.name = "small products of batch-invariant rows",
       .record = record_grouped_gemm,
       .on_gpu = true,
       .batch_invariant = true},
      {.name = "small products on a GPU that are not fused",
       .record = record_grouped_gemm,
       .on_gpu = true,
       .fuse = false},
      {.name = "small products that keep 6 MiB more",
       .record = [](Recorded& r) { record_long_products(r, 4); },
       .on_gpu = true},
      {.name = "small products that would keep 10 MiB more",
       .record = [](Recorded& r) { record_long_products(r, 6); },
       .on_gpu = true},
      {.name = "casts on a GPU", .record = record_casts, .on_gpu = true},
      {.name = "casts on a GPU that are not fused", .record = record_casts, .on_gpu = true, .fuse = false},
      {.name = "casts on a GPU in separate memory", .record = record_casts, .on_gpu = true, .reuse = false},
      {.name = "casts on a GPU before a peak", .record = record_casts_before_a_peak, .on_gpu = true},
      {.name = "sums over ranks", .record = record_scattered, .ranks = 2}};
}

}  // namespace tg::testing

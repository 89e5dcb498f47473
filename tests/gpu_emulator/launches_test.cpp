// Records the launches of many programs: kernels, blocks, threads, bytes of shared memory, and library calls.
// Different kernels, blocks or tiles give the same results. So only these tests fail if a choice changes. No
// program runs. The launches are compared with a golden file (golden_records.h).
#include <algorithm>
#include <functional>

#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/ops/linear_cross_entropy.h>
#include <tilegrad/ops/paged_attn.h>
#include <tilegrad/train/training.h>
#include "autograd/gradcheck/harness.h"
#include "ops/matmul_in_units.h"
#include "tests/gpu_emulator/draw.h"
#include "tests/gpu_emulator/golden_records.h"
#include "tests/support/golden_calls.h"
#include "tests/support/small_models.h"

namespace tg::testing {
namespace {

// Removes the number of cuBLASLt's algorithm, because it is arbitrary.
std::string without_algorithm(std::string choice) {
  const std::size_t at = choice.find("algorithm ");
  return at == std::string::npos ? choice : choice.erase(at, 11);
}

// Returns the launches of a program, the description of its steps, and its workspace. If the program is
// refused, returns the reason.
std::string launches_of(Graph& g, const std::vector<Tensor>& ts, CompileOptions how) {
  how.device = Device::cuda();
  try {
    const Program p = compile(g, ts, how);
    std::string text = recorded();
    for (std::size_t i = 0; i < p.steps().size(); ++i)
      text += p.steps()[i].op->name + ": " + without_algorithm(p.choice(i)) + "\n";
    return text + "workspace " + std::to_string(p.memory().workspace) + "\n";
  } catch (const OutOfMemory&) {
    return recorded() + "out of memory\n";
  } catch (const Error& e) {
    return recorded() + without_line(e.what()) + "\n";
  }
}

class Launches : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    emulator::only_record();
    recorded();
  }

  GoldenRecords records{"launches"};
};

// ---- the samples of ops and their gradients, in every view ----

class Samples : public Launches {};

std::vector<std::string> ops_with_samples() {
  std::vector<std::string> names;
  for (const gradcheck::Case& c : gradcheck::op_cases())
    if (names.empty() || names.back() != c.owner) names.push_back(c.owner);
  return names;
}

TEST_P(Samples, LaunchesMatchTheGoldenFile) {
  for (const gradcheck::Case& c : gradcheck::op_cases()) {
    if (c.owner != GetParam() || (c.op && c.op->host)) continue;
    std::string text;
    for (const gradcheck::View view : gradcheck::all_views)
      for (const DType dtype : {f32, bf16, f64}) {
        text += gradcheck::name_of(view) + " " + std::string(name_of(dtype)) + "\n";
        try {
          if (view != gradcheck::View::contiguous &&
              !gradcheck::Harness(c, view, dtype, {.shapes_only = true}).view_changes_something())
            continue;
          const gradcheck::Harness harness(c, view, dtype, {.device = Device::cuda()});
          text += recorded();
        } catch (const Error& e) {
          text += recorded() + without_line(e.what()) + "\n";
        }
      }
    records.add(c.text(), text);
  }
  records.expect_recorded();
}

INSTANTIATE_TEST_SUITE_P(Ops, Samples, ::testing::ValuesIn(ops_with_samples()),
                         [](const auto& op) { return op.param; });

// ---- random calls, of sizes at which the choice of a kernel changes ----

using Tensors = std::vector<Tensor>;

// Makes an input with a random memory layout.
Tensor seen(Graph& g, Draw& d, const Shape& shape, DType t) {
  const std::int64_t way = shape.empty() ? 0 : d.below(9);
  Shape base = shape;
  const int last = shape.size() - 1;
  switch (way) {
    case 0: {  // axes in reverse order
      Axes order;
      for (int i = last; i >= 0; --i) order.push_back(i);
      std::reverse(base.begin(), base.end());
      return permute(g.input("x", base, t), order);
    }
    case 1:  // every second element
      base[last] = 2 * base[last];
      return slice(g.input("x", base, t), last, 0, base[last], 2);
    case 2:  // rows with gaps, after an offset in memory
      base[last] = base[last] + 8;
      return slice(g.input("x", base, t), last, 3, 3 + shape[last]);
    case 3:
      base[0] = 1;
      return expand(g.input("x", base, t), shape);
    default:
      return g.input("x", base, t);
  }
}

// Appends y and the gradients of Σ y ⊛ r.
void add_with_gradients(Graph& g, Tensors& all, const Tensor& y, const Tensors& wrt) {
  all.push_back(y);
  if (!is_float(y.dtype())) return;
  for (const Tensor& z : gradients(sum(y * g.input("r", y.shape(), y.dtype())), wrt)) all.push_back(z);
}

Tensors products(Graph& g, Draw& d, DType t, CompileOptions& how) {
  how.batch_invariant = d.one_in(2), how.tf32 = d.one_in(4);
  const std::int64_t m = d.of<std::int64_t>({1, 1, 4, 5, 8, 9, 16, 17, 32, 33, d.size(2048), d.size(300)}),
                     n = d.size(8192, 8), k = d.size(8192, 8);
  Shape batch;
  if (d.one_in(4)) batch.push_back(d.of<std::int64_t>({1, 2, 7}));
  if (d.one_in(6)) batch.push_back(d.of<std::int64_t>({1, 3, 70}));
  const auto with = [&](std::int64_t rows, std::int64_t columns) {
    Shape s = batch;
    s.push_back(rows), s.push_back(columns);
    return s;
  };
  Tensor a = d.one_in(3) ? seen(g, d, with(m, k), t) : g.input("a", with(m, k), t);
  if (d.one_in(5) && batch.empty() && m == 1) {
    const Tensor w = g.input("w", {k}, t);
    a = d.one_in(2) ? rms_norm(a, w) : layer_norm(a, w, g.input("c", {k}, t));
  }
  const bool shared = d.one_in(2);
  const Shape of_b = shared ? Shape{n, k} : with(n, k);
  Tensor b = d.one_in(3)   ? g.input("b", shared ? Shape{k, n} : with(k, n), t)
             : d.one_in(8) ? transpose(seen(g, d, of_b, t), -1, -2)
                           : transpose(g.input("b", of_b, t), -1, -2);
  if (d.one_in(10) && t != f32 && t != f64) return {matmul_wide(a, b)};
  const Tensor product = matmul(a, b);
  Tensor y = product;
  switch (d.below(7)) {
    case 0:
      y = y + g.input("bias", {n}, t);
      break;
    case 1:
      y = y + seen(g, d, with(m, n), t);
      break;
    case 2:
      y = y + (g.input("u", with(m, n), t) + g.input("v", d.one_in(2) ? with(m, n) : Shape{n}, t));
      break;
    default:
      break;
  }
  if (d.one_in(3)) {
    const Tensor f = d.one_in(3) ? gelu(y) : gelu_tanh(y);
    return d.one_in(2) ? Tensors{y, f} : Tensors{f};
  }
  return {y};
}

// Tests GEMMs with few rows. The number of tiles is close to a multiple of the number of multiprocessors.
Tensors products_by_tiles(Graph& g, Draw& d, DType t, CompileOptions& how) {
  how.batch_invariant = !d.one_in(3);
  const std::int64_t rows = d.of({1, 3, 4, 5, 8, 9, 16, 17, 24, 32, 33, 64, 65, 128, 130, 257}),
                     n = 16 * (1 + d.below(d.of({150, 300, 300, 600}))) - d.of({0, 0, 8, 14}),
                     k = 8 * (1 + d.below(d.of({16, 64, 128, 512})));
  const Shape batch = d.one_in(5) ? Shape{d.of<std::int64_t>({2, 3})} : Shape{};
  const auto with = [&](std::int64_t a, std::int64_t b) {
    Shape s = batch;
    s.push_back(a), s.push_back(b);
    return s;
  };
  const Tensor x = g.input("x", with(rows, k), t),
               w = d.one_in(3) ? g.input("w", {k, n}, t) : transpose(g.input("w", {n, k}, t), 0, 1);
  Tensor y = matmul(x, w);
  if (d.one_in(3)) y = y + (d.one_in(2) ? g.input("bias", {n}, t) : g.input("d", y.shape(), t));
  if (d.one_in(5)) y = gelu(y);
  return {y};
}

Tensors grouped_gemms(Graph& g, Draw& d, DType t, CompileOptions&) {
  Tensors all;
  const std::int64_t count = 1 + d.below(4);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t m = d.size(200), n = d.size(200), k = d.size(512);
    const Tensor a = seen(g, d, {m, k}, t), b = seen(g, d, {k, n}, t);
    all.push_back(matmul(a, b));
    if (d.one_in(3)) all.back() = all.back() + seen(g, d, d.one_in(2) ? Shape{n} : Shape{m, n}, t);
    if (d.one_in(5)) all.push_back(gelu_tanh(all.back()));
  }
  if (d.one_in(4)) {
    const Tensor x = g.input("x", {d.size(300), d.size(300)}, t), w = g.input("w", {x.shape()[1], 24}, t);
    add_with_gradients(g, all, matmul(x, w), {x, w});
  }
  return all;
}

Tensors products_in_units(Graph& g, Draw& d, DType t, CompileOptions& how) {
  how.tf32 = d.one_in(4);
  const std::int64_t m = d.size(2000, 8), n = d.size(600, 8), k = d.size(2000, 8),
                     unit = d.of({64, 128, 512});
  const Tensor a = d.one_in(2) ? g.input("a", {m, k}, t) : transpose(g.input("a", {k, m}, t), 0, 1),
               b = d.one_in(2) ? g.input("b", {k, n}, t) : transpose(g.input("b", {n, k}, t), 0, 1);
  if (d.one_in(2)) return {product_in_units_of_rows(a, b, unit)};
  return {
      product_in_units_of_k(a, b, d.one_in(2) ? Tensor() : g.input("s", {m, n}, t == f64 ? f64 : f32), unit)};
}

Tensors attention(Graph& g, Draw& d, DType t, CompileOptions& how) {
  how.tf32 = d.one_in(3), how.batch_invariant = d.one_in(4);
  const std::int64_t Hk = d.of({1, 1, 2, 8}), H = Hk * d.of({1, 1, 2, 4, 16, 70}),
                     d_k =
                         d.one_in(12)
                             ? 65
                             : d.of({8, 32, 40, 64, 64, 72, 96, 128, 128, 136, 192, 256, 264, 320, 512, 576}),
                     d_v = d.one_in(3) ? d.of({8, 64, 72, 104, 128, 256, 512})
                                       : std::min<std::int64_t>(d_k, 512);
  std::int64_t B = d.of({1, 1, 2, 3, 70}), L = d.size(8192), T = d.one_in(2) ? L : d.size(16384);
  while (B * H * (L + T) * (d_k + d_v) > std::int64_t{1} << 28)
    B = std::max<std::int64_t>(1, B / 2), L = (L + 1) / 2, T = (T + 1) / 2;
  const bool projected = d.one_in(3), values_are_keys = d_v <= d_k && d.one_in(5);
  const auto operand = [&](const char* name, std::int64_t heads, std::int64_t rows, std::int64_t size) {
    if (projected) return transpose(g.input(name, {B, rows, heads, size}, t), 1, 2);
    return d.one_in(12) ? seen(g, d, {B, heads, rows, size}, t) : g.input(name, {B, heads, rows, size}, t);
  };
  Tensor q = operand("q", H, L, d_k), k = operand("k", Hk, T, d_k);
  const Tensor v = values_are_keys ? slice(k, 3, 0, d_v) : operand("v", Hk, T, d_v);
  const Tensors wrt{q, k, v};
  if (d.one_in(4)) {
    const RopeOptions r{.dims = d.one_in(2) ? 0 : std::min<std::int64_t>(d_k / 2 * 2, 32),
                        .interleaved = d.one_in(3),
                        .start = d.of({0, 3})};
    if (d_k % 2 == 0 && !d.one_in(3)) q = rope(q, {}, r);
    if (d_k % 2 == 0 && !d.one_in(3)) k = rope(k, {}, r);
  }
  AttentionOptions o;
  o.causal = d.one_in(2);
  if (o.causal && d.one_in(4)) o.alignment = AttentionOptions::top_left;
  if (d.one_in(5)) o.window_left = d.size(300);
  if (d.one_in(6)) o.softcap = 2;
  if (d.one_in(8)) o.dropout = 0.1;
  if (d.one_in(8)) o.bias = g.input("bias", d.of<Shape>({{H, 1, T}, {B, 1, L, T}, {T}}), t);
  if (d.one_in(5)) o.sink = g.input("sink", {H}, t);
  if (d.one_in(5)) o.kv_lengths = g.input("lengths", {B}, d.one_in(2) ? i32 : i64);
  if (B == 1 && d.one_in(5))
    o.cu_seqlens_q = g.input("cu_q", {4}, i32), o.cu_seqlens_k = g.input("cu_k", {4}, i32);
  o.nondeterministic = d.one_in(3);
  using enum AttentionKernels;
  o.kernels = d.one_in(4) ? d.of({plain, tensor_cores, wgmma}) : best;
  const AttentionResult r = flash_attn(q, k, v, o);
  Tensors all{r.o, r.lse};
  if (d.one_in(2))
    for (const Tensor& z : gradients(sum(r.o * g.input("z", r.o.shape(), t)), wrt)) all.push_back(z);
  return all;
}

Tensors paged_attention(Graph& g, Draw& d, DType t, CompileOptions&) {
  const bool latent = d.one_in(3);
  const std::int64_t Hk = latent ? 1 : d.of({1, 2, 8}), H = Hk * d.of({1, 2, 4, 8, 16, 64, 128}),
                     d_k = latent ? d.of({320, 512, 576}) : d.of({8, 40, 64, 80, 128, 192, 256, 264}),
                     d_v = latent ? d.of({64, 256, 512}) : d_k, B = d.of({1, 2, 9, 64, 300}),
                     L = d.of<std::int64_t>({1, 1, 1, 2, 5, 17, d.size(300)}),
                     page = d.of({4, 16, 24, 64, 256}),
                     n = std::max<std::int64_t>(1, d.size(std::max<std::int64_t>(2, 20000 / page)));
  const std::int64_t pool = std::min<std::int64_t>(B * n, 4000) + 1;
  const Tensor q = g.input("q", {B, H, L, d_k}, t), k = g.input("k", {pool, page, Hk, d_k}, t),
               v = latent ? slice(k, 3, 0, d_v) : g.input("v", {pool, page, Hk, d_v}, t),
               table = g.input("table", {B, n}, i32), lengths = g.input("lengths", {B}, i32);
  PagedAttentionOptions o;
  if (d.one_in(4)) o.window_left = d.size(2000);
  if (d.one_in(5)) o.softcap = 3;
  if (d.one_in(4)) o.sink = g.input("sink", {H}, t);
  const AttentionResult r = paged_attn(q, k, v, table, lengths, o);
  return {r.o, r.lse};
}

Tensors reductions(Graph& g, Draw& d, DType t, CompileOptions& how) {
  how.batch_invariant = d.one_in(4);
  Tensors all;
  Shape shape;
  const std::int64_t rank = 1 + d.below(4);
  for (std::int64_t i = 0, room = std::int64_t{1} << 23; i < rank; ++i) {
    shape.push_back(d.size(std::max<std::int64_t>(1, rank == 1 ? room : room >> (3 * (rank - i)))));
    room /= shape.back();
  }
  Tensor x = seen(g, d, shape, t);
  if (is_float(t) && d.one_in(4)) x = exp(x) * 2;
  Axes axes;
  for (int a = 0; a < rank; ++a)
    if (d.one_in(2)) axes.push_back(a);
  using Reduce = Tensor (*)(TensorArg, const Axes&, bool);
  for (const Reduce f : std::initializer_list<Reduce>{&tg::sum, &tg::max, &tg::argmin})
    all.push_back(f(x, axes, d.one_in(2)));
  if (is_float(t)) all.insert(all.end(), {mean(x, axes), sum_squares(x, axes), logsumexp(x, axes)});
  if (!is_float(t)) all.insert(all.end(), {any(x, axes), tg::all(x, axes)});
  return all;
}

Tensors rows(Graph& g, Draw& d, DType t, CompileOptions& how) {
  how.batch_invariant = d.one_in(4);
  const std::int64_t n = d.size(70000), count = d.size(std::max<std::int64_t>(1, (1 << 22) / n));
  const Tensor x = seen(g, d, d.one_in(3) ? Shape{3, count, n} : Shape{count, n}, t);
  Tensors all;
  const int axis = d.one_in(5) ? 0 : -1;
  switch (d.below(6)) {
    case 0:
      add_with_gradients(g, all, softmax(x, axis), {x});
      break;
    case 1:
      add_with_gradients(g, all, log_softmax(x, axis), {x});
      break;
    case 2: {
      Shape rows = x.shape();
      rows.erase(rows.size() - 1);
      const Tensor targets = g.input("t", rows, d.one_in(2) ? i32 : i64);
      add_with_gradients(g, all,
                         cross_entropy(x, targets,
                                       {.reduction = d.of({Reduction::mean, Reduction::none}),
                                        .label_smoothing = d.of({0., 0.1})}),
                         {x});
      break;
    }
    case 3: {
      const Tensor w = g.input("w", {n}, t), b = g.input("b", {n}, t);
      add_with_gradients(g, all, layer_norm(x, w, b), {x, w, b});
      break;
    }
    case 4: {
      const Tensor w = g.input("w", {n}, t), h = g.input("h", x.shape(), t), y = x + h;
      add_with_gradients(g, all, y + rms_norm(y, w), {x, w});
      break;
    }
    default:
      all.push_back(d.one_in(2) ? rms_norm(x) : layer_norm(x));
      all.push_back(logsumexp(x, {x.rank() - 1}));
  }
  return all;
}

Tensors indices(Graph& g, Draw& d, DType t, CompileOptions&) {
  const std::int64_t n = d.size(3000), count = d.size(6000);
  Shape shape{d.size(40), d.size(40)}, of_src;
  const int axis = static_cast<int>(d.below(3));
  shape.insert(axis, n);
  of_src = shape;
  of_src[axis] = count;
  const Tensor x = seen(g, d, shape, t), src = seen(g, d, of_src, t),
               i = g.input("i", {count}, d.one_in(2) ? i32 : i64);
  switch (d.below(9)) {
    case 0:
      return {index_select(x, axis, i)};
    case 1:
      return {index_add(x, axis, i, src)};
    case 2:
      return {index_assign(x, axis, i, src)};
    case 3:
      return {gather(x, axis, g.input("e", of_src, i32))};
    case 4:
      return {scatter_add(x, axis, g.input("e", of_src, i64), src)};
    case 5:
      return {concat({x, src, x}, axis),
              slice_at(src, axis, g.input("s", {}, i64), std::max<std::int64_t>(1, count / 2))};
    case 6:
      return {cumsum(x, axis, d.one_in(2))};
    case 7:
      return top_k(x, std::max<std::int64_t>(1, d.size(n)), axis);
    default: {
      Tensors all;
      const Tensor w = g.input("w", {n, shape[0]}, t);
      if (!is_float(t)) return {embedding(w, i)};
      add_with_gradients(g, all, embedding(w, i), {w});
      return all;
    }
  }
}

Tensors lists(Graph& g, Draw& d, DType t, CompileOptions&) {
  Tensors xs, all;
  const std::int64_t count = d.of<std::int64_t>({1, 2, 5, 40, 300});
  for (std::int64_t i = 0; i < count; ++i)
    xs.push_back(d.one_in(4) ? seen(g, d, {d.size(300), d.size(300)}, t) : g.input("x", {d.size(70000)}, t));
  switch (d.below(4)) {
    case 0:
      return {squared_norm(xs), global_norm(xs)};
    case 1:
      return block_norms(xs);
    case 2: {
      std::vector<AdamWTensors> tensors;
      for (const Tensor& x : xs) {
        AdamWTensors one{x, g.input("g", x.shape(), d.of({t, f32})), g.input("m", x.shape(), t),
                         g.input("v", x.shape(), t), 0.1};
        if (t == f32 && d.one_in(2)) one.copy = bf16;
        tensors.push_back(one);
      }
      for (const AdamWResults& r : adamw(tensors, g.input("lr", {}, f32), g.input("step", {}, f32))) {
        all.insert(all.end(), {r.p, r.m, r.v});
        if (r.copy.defined()) all.push_back(r.copy);
      }
      return all;
    }
    default:
      for (const Tensor& x : xs) all.push_back(cast(x, t == f32 ? bf16 : f32));
      return all;
  }
}

Tensors chains(Graph& g, Draw& d, DType t, CompileOptions& how) {
  how.batch_invariant = d.one_in(4), how.fuse = !d.one_in(6);
  const Shape shape = d.one_in(2)   ? Shape{d.size(3000), d.size(1000)}
                      : d.one_in(2) ? Shape{d.size(60), d.size(60), d.size(200)}
                                    : Shape{d.size(4000)};
  Tensor x = seen(g, d, shape, t), y = seen(g, d, shape, t);
  const Tensor row = g.input("row", {shape.back()}, t);
  if (d.one_in(3)) y = y * row;
  Tensor z = d.one_in(2) ? x * y + 1 : maximum(x, y) - row;
  if (is_float(t) && d.one_in(2)) z = d.one_in(2) ? gelu(z) : tanh(z);
  if (d.one_in(4)) z = where(less(x, y), z, x);
  if (d.one_in(5)) z = cast(z, d.of({f32, bf16, f64, i32}));
  Tensors all{z};
  if (d.one_in(3)) all = {sum(z, {d.one_in(2) ? 0 : shape.size() - 1})};
  if (d.one_in(3)) all.push_back(x + y);
  if (d.one_in(4)) all.push_back(sum(y));
  if (d.one_in(4))
    all.push_back(contiguous(permute(z, shape.size() == 2   ? Axes{1, 0}
                                        : shape.size() == 3 ? Axes{2, 0, 1}
                                                            : Axes{0})));
  return all;
}

Tensors ropes_and_random(Graph& g, Draw& d, DType t, CompileOptions&) {
  const std::int64_t L = d.size(3000), D = 2 * d.size(64);
  const Tensor x = seen(g, d, {2, 3, L, D}, t), y = seen(g, d, {2, 1, L, D}, t);
  const RopeOptions r{.dims = d.one_in(2) ? 0 : std::min<std::int64_t>(D, 16), .interleaved = d.one_in(2)};
  const Tensor at = d.one_in(2) ? g.input("p", {L}, i32) : Tensor();
  const std::int64_t n = d.size(1 << 20);
  Tensors all{rope(x, at, r)};
  if (d.one_in(2)) all.push_back(rope(y, at, r));
  if (d.one_in(2)) all.push_back(dropout(d.one_in(2) ? x : g.input("z", {n}, t), 0.2));
  if (d.one_in(3))
    all.insert(all.end(), {uniform(g, {n}, 0, 1, t), normal(g, {n}, 0, 1, t), bernoulli(g, {n}, 0.4)});
  if (d.one_in(3))
    all.insert(all.end(), {randint(g, {n}, 0, 9), arange(g, 0, static_cast<double>(n), 1, f32)});
  if (d.one_in(3)) {
    const std::int64_t B = d.size(64), V = d.size(130000);
    const Tensor k = d.one_in(2) ? g.input("k", {B}, i64) : Tensor(),
                 p = d.one_in(2) ? g.input("p", {B}, f32) : Tensor();
    all.push_back(
        sample(g.input("logits", {B, V}, t), g.input("heat", {B}, f32), g.input("keys", {B, 2}, i64), k, p));
  }
  return all;
}

Tensors heads(Graph& g, Draw& d, DType t, CompileOptions&) {
  const std::int64_t n = d.size(5000), c = d.size(512, 8), V = d.size(20000, 8);
  const Tensor x = g.input("x", {n, c}, t), w = g.input("w", {V, c}, t), targets = g.input("t", {n}, i32);
  const LinearCrossEntropyOptions o{.reduction = d.of({Reduction::mean, Reduction::none}),
                                    .label_smoothing = d.of({0., 0., 0.1}),
                                    .z_loss = d.of({0., 0., 1e-3}),
                                    .chunk_rows = d.of<std::int64_t>({0, 0, 1024}),
                                    .unit_rows = d.of<std::int64_t>({0, 64, 1024})};
  Tensors all;
  add_with_gradients(g, all, linear_cross_entropy(x, transpose(w, 0, 1), targets, o), {x, w});
  return all;
}

struct Family {
  const char* name;
  Tensors (*make)(Graph&, Draw&, DType, CompileOptions&);
  int calls;  // for each dtype
  std::vector<DType> dtypes;
};
const std::vector<Family>& families() {
  static const std::vector<DType> floats{f32, bf16, f16, f64}, most{f32, bf16, f64, i64, u8};
  static const std::vector<Family> all = {
      {"products", products, 4000, floats},
      {"products_by_tiles", products_by_tiles, 3200, {f32, bf16, f16}},
      {"grouped_gemm", grouped_gemms, 1200, floats},
      {"products_in_units", products_in_units, 600, floats},
      {"attention", attention, 3200, floats},
      {"paged_attention", paged_attention, 2400, floats},
      {"reductions", reductions, 1000, most},
      {"rows", rows, 1200, floats},
      {"indices", indices, 1600, most},
      {"lists", lists, 600, floats},
      {"chains", chains, 1200, most},
      {"ropes_and_random", ropes_and_random, 800, floats},
      {"heads", heads, 400, {f32, bf16, f16}},
  };
  return all;
}
std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& f : families()) names.push_back(f.name);
  return names;
}

class RandomCalls : public Launches {};

TEST_P(RandomCalls, LaunchesMatchTheGoldenFile) {
  for (const Family& f : families()) {
    if (f.name != GetParam()) continue;
    for (const DType t : f.dtypes) {
      std::string text;
      Draw draw(Checksum().value() + static_cast<std::uint64_t>(t));
      for (int n = 0; n < f.calls; ++n) {
        Graph g;
        CompileOptions how;
        std::string of_call;
        try {
          const Tensors ts = f.make(g, draw, t, how);
          of_call = launches_of(g, ts, how);
        } catch (const Error& e) {
          of_call = without_line(e.what()) + "\n";
        }
        text += "call " + std::to_string(n) + "\n" + of_call;
        if ((n + 1) % 200 == 0)
          records.add(
              std::string(f.name) + " of " + std::string(name_of(t)) + ", to " + std::to_string(n + 1),
              std::exchange(text, {}));
      }
    }
  }
  records.expect_recorded();
}

INSTANTIATE_TEST_SUITE_P(Families, RandomCalls, ::testing::ValuesIn(family_names()),
                         [](const auto& f) { return f.param; });

// ---- whole models ----

class Models : public Launches {};

TEST_F(Models, LaunchesMatchTheGoldenFile) {
  for (const SmallModel& m : small_models(64))
    for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16, nn::Precision::f16}) {
      const std::string what = std::string(m.name) + " in " + std::to_string(static_cast<int>(precision));
      nn::Params params(1, f32, Device::cuda());
      nn::ModelConfig config = m.config;
      config.dropout = precision == nn::Precision::f16 ? 0.1 : 0;
      const nn::Model model(params, config);
      const optim::AdamW optimizer(params.all());
      for (const std::int64_t batch : {1, 5}) {
        recorded();
        const train::TrainingProgram training(model, optimizer, {.batch = batch, .precision = precision});
        records.add(what + ", a step of " + std::to_string(batch), recorded());
      }
      nn::Generator generator(model, {.precision = precision});
      generator.next(std::vector<std::int32_t>{3, 1, 4, 1, 5});
      generator.next(std::vector<std::int32_t>{3, 1, 4, 1, 5, 9});
      records.add(what + ", text", recorded());
    }
  records.expect_recorded();
}

// After all programs are destroyed, no streams, events, graphs or memory may be left.
TEST_F(Models, ProgramsThatHaveEndedLeaveNoObjects) {
  const auto once = [] {
    Graph g;
    const Tensor x = g.input("x", {1, 2, 70, 64}, bf16), w = g.input("w", {64, 96}, bf16),
                 f = g.input("f", {300, 700}, f32);
    const Tensor o = flash_attn(x, x, x, {.causal = true}).o, y = gelu_tanh(matmul(reshape(o, {140, 64}), w));
    const std::vector<Tensor> ts{y, sum(exp(f)), matmul(transpose(f, 0, 1), f),
                                 gradients(sum(y.to(f32)), {x})[0]};
    Program p = compile(g, ts, {.device = Device::cuda()});
    p.feed({x, Array({1, 2, 70, 64}, bf16)}), p.feed({w, Array({64, 96}, bf16)}),
        p.feed({f, Array({300, 700}, f32)});
    for (int n = 0; n < 3; ++n) p.run();
    for (const Tensor& t : ts) p.fetch(t);
    p.fetch_later({ts[0], ts[1]});
    p.profile(), p.profile();
  };
  once();
  const std::vector<int> before = emulator::live_objects();
  once();
  EXPECT_EQ(emulator::live_objects(), before)
      << "streams, events, graphs, executable graphs, device memory, pinned memory, cuBLASLt's objects";
}

}  // namespace
}  // namespace tg::testing

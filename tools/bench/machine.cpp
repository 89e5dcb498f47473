#include "tools/bench/machine.h"

#include <algorithm>
#include <cstring>

#include <tilegrad/ops/ceilings.h>
#include <tilegrad/ops/ops.h>
#include "backends/cpu/kernel.h"
#include "tools/bench/measure.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tg::bench {

namespace {

// A loop of `rounds` rounds with 12 independent multiply-adds s = s·x + y on vectors. 12 multiply-adds hide
// the latency (4 cycles, two starts per cycle), and their sums fit in registers together with x and y.
// Returns a value that depends on all of them.
using PeakLoop = double (*)(long rounds, float x, float y);
constexpr int sums = 12;

#define TG_PEAK_LOOP(name, target, T, bytes)                                                          \
  target double name(long rounds, float fx, float fy) {                                               \
    typedef T V __attribute__((vector_size(bytes)));                                                  \
    const V x = V{} + static_cast<T>(fx), y = V{} + static_cast<T>(fy);                               \
    V a = y, b = a + x, c = b + x, d = c + x, e = d + x, f = e + x, g = f + x, h = g + x;             \
    V i = h + x, j = i + x, k = j + x, l = k + x;                                                     \
    for (long r = 0; r < rounds; ++r) {                                                               \
      a = a * x + y, b = b * x + y, c = c * x + y, d = d * x + y;                                     \
      e = e * x + y, f = f * x + y, g = g * x + y, h = h * x + y;                                     \
      i = i * x + y, j = j * x + y, k = k * x + y, l = l * x + y;                                     \
    }                                                                                                 \
    return static_cast<double>((((a + b) + (c + d)) + ((e + f) + (g + h)) + ((i + j) + (k + l)))[0]); \
  }

TG_PEAK_LOOP(fma_f32_16, , float, 16)
TG_PEAK_LOOP(fma_f64_16, , double, 16)

#if defined(__x86_64__)
#define TG_TARGET(isa) __attribute__((target(isa)))
TG_PEAK_LOOP(fma_f32_32, TG_TARGET("avx2,fma"), float, 32)
TG_PEAK_LOOP(fma_f64_32, TG_TARGET("avx2,fma"), double, 32)
TG_PEAK_LOOP(fma_f32_64, TG_TARGET("avx512f"), float, 64)
TG_PEAK_LOOP(fma_f64_64, TG_TARGET("avx512f"), double, 64)

// The same loop on pairs of bf16, summed in f32: 64 FLOPs per instruction.
TG_TARGET("avx512f,avx512bf16") double dot_bf16_64(long rounds, float, float) {
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  const __m512 o = _mm512_set1_ps(1);
  __m512 a = o, b = a + o, c = b + o, d = c + o, e = d + o, f = e + o, g = f + o, h = g + o;
  __m512 i = h + o, j = i + o, k = j + o, l = k + o;
  for (long r = 0; r < rounds; ++r) {
    a = _mm512_dpbf16_ps(a, x, x), b = _mm512_dpbf16_ps(b, x, x), c = _mm512_dpbf16_ps(c, x, x);
    d = _mm512_dpbf16_ps(d, x, x), e = _mm512_dpbf16_ps(e, x, x), f = _mm512_dpbf16_ps(f, x, x);
    g = _mm512_dpbf16_ps(g, x, x), h = _mm512_dpbf16_ps(h, x, x), i = _mm512_dpbf16_ps(i, x, x);
    j = _mm512_dpbf16_ps(j, x, x), k = _mm512_dpbf16_ps(k, x, x), l = _mm512_dpbf16_ps(l, x, x);
  }
  return static_cast<double>((((a + b) + (c + d)) + ((e + f) + (g + h)) + ((i + j) + (k + l)))[0]);
}

// Computes six products of 16×16×32 tiles per round, summed in f32.
constexpr int tile_flops = 6 * 2 * 16 * 16 * 32;
TG_TARGET("amx-tile,amx-bf16") double tiles_bf16(long rounds, float, float) {
  struct alignas(64) Config {
    unsigned char palette = 1, start_row = 0, reserved[14] = {};
    unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static const Config config;  // static, because otherwise the compiler assumes that the intrinsic reads too
                               // few bytes
  _tile_loadconfig(&config);   // clears all tiles
  for (long r = 0; r < rounds; ++r) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_release();
  return 0;
}
#endif

struct Loops {
  PeakLoop f32, f64, bf16;
  int bytes;  // of a vector
};

Loops loops_for_this_machine() {
#if defined(__x86_64__)
  const bool bf16 = __builtin_cpu_supports("avx512bf16");
  if (__builtin_cpu_supports("avx512f")) return {fma_f32_64, fma_f64_64, bf16 ? dot_bf16_64 : nullptr, 64};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {fma_f32_32, fma_f64_32, nullptr, 32};
#endif
  return {fma_f32_16, fma_f64_16, nullptr, 16};
}

// The rate in GFLOP/s of `rounds` rounds on every thread.
double gflops_of(PeakLoop loop, int threads, long rounds, int flops_per_round) {
  std::vector<double> sinks(static_cast<std::size_t>(threads) * 8);  // each on a separate cache line
  const double seconds = seconds_of([&] {
    on_all(threads, [&](int t) { sinks[static_cast<std::size_t>(t) * 8] = loop(rounds, 0.999f, 1e-3f); });
  });
  return flops_per_round * 1e-9 * static_cast<double>(rounds) * threads / seconds;
}

// Copies memory and bypasses the caches: lines are written without being read first.
void stream(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += 64) {
    for (std::size_t k = 0; k < 64; k += 16)
      _mm_stream_ps(reinterpret_cast<float*>(to + i + k),
                    _mm_load_ps(reinterpret_cast<const float*>(from + i + k)));
  }
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

// Returns the rate of a streaming copy or of the C library's memcpy, whichever is faster.
double copy_gbytes(const Settings& settings) {
  const auto threads = static_cast<std::size_t>(settings.threads);
  const std::size_t part = settings.copy_bytes / threads / 64 * 64;
  Backend& cpu = backend(Device::cpu());
  const auto from = cpu.allocate(part * threads, "the copy"), to = cpu.allocate(part * threads, "the copy");
  std::memset(from.get(), 1, part * threads);
  std::memset(to.get(), 1, part * threads);
  const auto seconds = [&](auto copy) {
    return best_seconds(settings.seconds / 2, [&] {
      on_all(settings.threads, [&](int t) {
        const std::size_t at = part * static_cast<std::size_t>(t);
        copy(to.get() + at, from.get() + at, part);
      });
    });
  };
  const double s =
      std::min(seconds(stream),
               seconds([](std::byte* a, const std::byte* b, std::size_t n) { std::memcpy(a, b, n); }));
  return 2.0 * static_cast<double>(part * threads) / s * 1e-9;
}

// Reads all bytes (a multiple of 64) and returns a value that depends on every byte.
std::int64_t read_all(const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  __m128i a{}, b{}, c{}, d{};
  for (const std::byte* end = from + bytes; from < end; from += 64) {
    const auto* line = reinterpret_cast<const __m128i*>(from);
    a = _mm_xor_si128(a, line[0]), b = _mm_xor_si128(b, line[1]);
    c = _mm_xor_si128(c, line[2]), d = _mm_xor_si128(d, line[3]);
  }
  return _mm_cvtsi128_si64(_mm_xor_si128(_mm_xor_si128(a, b), _mm_xor_si128(c, d)));
#else
  std::int64_t all = 0;
  for (std::size_t i = 0; i < bytes; i += sizeof all) {
    std::int64_t x;
    std::memcpy(&x, from + i, sizeof x);
    all ^= x;
  }
  return all;
#endif
}

}  // namespace

double peak_now(DType dtype, int threads) {
  static const Loops loops = loops_for_this_machine();
  constexpr long rounds = 100000;  // a few tenths of a millisecond
  const int flops = 2 * sums * loops.bytes / (dtype == f64 ? 8 : 4);
  const double fma = gflops_of(dtype == f64 ? loops.f64 : loops.f32, threads, rounds, flops);
  if (dtype != bf16) return fma;
#if defined(__x86_64__)
  if (cpu::bf16_unit() == cpu::Bf16Unit::tiles)
    return gflops_of(tiles_bf16, threads, rounds / 10, tile_flops);
#endif
  return loops.bf16 ? std::max(fma, gflops_of(loops.bf16, threads, rounds, 2 * flops)) : fma;
}

Machine measure_machine(const Settings& settings) {
  if (!settings.on_cpu()) {
    Graph g;
    const Program any = compile(g, {copy(g.input("x", {1}))}, settings.compile_options(0));
    const Ceilings c = measure_ceilings(any, {f32, f64, bf16});
    const auto gflops = [&](std::size_t i) { return c.product[i].second * 1e-9; };
    return {.model = backend(settings.device).name(),
            .peak_f32 = gflops(0),
            .peak_f64 = gflops(1),
            .peak_bf16 = gflops(2),
            .peak_name = "product",
            .copy = c.copy * 1e-9};
  }
  const auto best = [&](DType t) {
    double rate = 0;
    repeat(settings.seconds, [&] { rate = std::max(rate, peak_now(t, settings.threads)); });
    return rate;
  };
  return {.model = backend(Device::cpu()).name(),
          .cores = cpu::default_threads(),
          .isa = std::string(cpu::kernel_set().isa),
          .peak_f32 = best(f32),
          .peak_f64 = best(f64),
          .peak_bf16 = best(bf16),
          .peak_name = "multiply-add",
          .copy = copy_gbytes(settings)};
}

Reading::Reading(const Settings& settings)
    : threads_(static_cast<std::size_t>(settings.threads)),
      part_(settings.copy_bytes / threads_ / 64 * 64),
      memory_(backend(Device::cpu()).allocate(part_ * threads_, "the memory that is read")),
      sinks_(threads_ * 8) {  // each on a separate cache line
  std::memset(memory_.get(), 1, part_ * threads_);
}

double Reading::gbytes() {
  const double seconds = seconds_of([&] {
    on_all(static_cast<int>(threads_), [&](int t) {
      const auto thread = static_cast<std::size_t>(t);
      sinks_[thread * 8] = read_all(memory_.get() + thread * part_, part_);
    });
  });
  return static_cast<double>(part_ * threads_) / seconds * 1e-9;
}

}  // namespace tg::bench

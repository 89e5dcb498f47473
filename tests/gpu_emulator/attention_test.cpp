// Tests separate stages of attention without a GPU. Covers the kernel and workspace of a call. Also covers
// softmax over ranges of keys with a merge of the results.
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "backends/cuda/attention/decoding/decoding.h"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/stages/softmax.cuh"
#include "backends/cuda/attention/stages/visible_keys.cuh"

namespace tg::cuda::attention {
namespace {

// `hopper` is a GPU whose library has no sm_90a kernels. `sm_90a` is a GPU whose library has them.
constexpr Gpu hopper{0, 132, 90, 227 << 10}, small{0, 46, 86, 99 << 10}, sm_90a{0, 132, 90, 227 << 10, true};

// Describes a contiguous call with one batch entry.
AttentionCall call(DType type, int heads, int key_heads, int length, int d, int dv) {
  AttentionCall x;
  x.type = type;
  x.B = 1, x.H = heads, x.Hk = key_heads, x.L = x.T = length, x.d = d, x.dv = dv;
  x.scale = 0.125;
  void* const somewhere = reinterpret_cast<void*>(std::uintptr_t{4096});
  const auto rows = [&](int n, int size) {
    const std::int64_t head = std::int64_t{length} * size;
    return AttentionCall::TensorView{somewhere, n * head, head, size};
  };
  x.q = x.z_q = rows(heads, d), x.k = x.z_k = rows(key_heads, d), x.v = x.z_v = rows(key_heads, dv);
  x.o = x.z_o = rows(heads, dv);
  return x;
}

Choice forward(const AttentionCall& x, const Gpu& gpu) {
  return {x, false, gpu};
}
Choice backward(const AttentionCall& x, const Gpu& gpu) {
  return {x, true, gpu};
}

TEST(AttentionChoice, TensorCoresNeedRowsAlignedTo16Bytes) {
  EXPECT_EQ(forward(call(DType::bf16, 8, 8, 512, 64, 64), hopper).family(), KernelFamily::narrow);
  EXPECT_EQ(forward(call(DType::f16, 8, 2, 512, 128, 40), hopper).family(), KernelFamily::narrow);
  EXPECT_EQ(forward(call(DType::f32, 8, 8, 512, 64, 64), hopper).family(), KernelFamily::f32);
  EXPECT_EQ(forward(call(DType::f64, 8, 8, 512, 64, 64), hopper).family(), KernelFamily::plain);
  EXPECT_EQ(forward(call(DType::bf16, 8, 8, 512, 65, 64), hopper).family(), KernelFamily::plain);
  AttentionCall x = call(DType::bf16, 8, 8, 512, 64, 64);
  x.k.data = static_cast<std::byte*>(x.k.data) + 2;
  EXPECT_EQ(forward(x, hopper).family(), KernelFamily::plain);
  EXPECT_EQ(backward(x, hopper).family(), KernelFamily::plain);
}

TEST(AttentionChoice, WideHeadsNeedSharedMemory) {
  const AttentionCall x = call(DType::bf16, 8, 1, 512, 576, 512);
  EXPECT_EQ(forward(x, hopper).family(), KernelFamily::wide);
  EXPECT_EQ(backward(x, hopper).family(), KernelFamily::wide);
  EXPECT_EQ(forward(x, small).family(), KernelFamily::plain);
  EXPECT_EQ(backward(x, small).family(), KernelFamily::plain);
  EXPECT_EQ(forward(call(DType::f32, 8, 1, 512, 256, 256), hopper).family(), KernelFamily::plain);
  EXPECT_EQ(forward(call(DType::bf16, 8, 1, 512, 584, 512), hopper).family(), KernelFamily::plain);
}

TEST(AttentionChoice, OnePassIsForLongSequencesOrNondeterministic) {
  EXPECT_EQ(backward(call(DType::bf16, 16, 16, 512, 64, 64), hopper).family(), KernelFamily::narrow);
  // There are 66 heads with 32 blocks of keys each. With four workers per head, there are 264 blocks. The GPU
  // runs the same number of blocks at a time.
  AttentionCall x = call(DType::bf16, 66, 66, 4096, 64, 64);
  EXPECT_EQ(backward(x, hopper).family(), KernelFamily::one_pass);
  EXPECT_EQ(backward(x, hopper).work.workers, 4);
  x = call(DType::bf16, 16, 16, 4096, 64, 64);  // too few heads to use the whole GPU
  EXPECT_EQ(backward(x, hopper).family(), KernelFamily::narrow);
  x = call(DType::bf16, 16, 16, 512, 64, 64);
  x.nondeterministic = true;
  EXPECT_EQ(backward(x, hopper).family(), KernelFamily::one_pass);
  EXPECT_EQ(backward(x, hopper).work.workers, 1);
  x = call(DType::f32, 16, 16, 4096, 64, 64);
  EXPECT_EQ(backward(x, hopper).family(), KernelFamily::f32);
}

TEST(AttentionChoice, WorkspaceGrowsWithRowsAndNotWithScores) {
  const auto bytes = [](DType type, int length) {
    return backward(call(type, 4, 4, length, 64, 64), small).bytes();
  };
  EXPECT_EQ(forward(call(DType::bf16, 4, 4, 512, 64, 64), small).bytes(), 0u);
  // The workspace contains u in the compute type, and two numbers for the exponents of each row. Each group
  // of 16 rows has a flag. The memory for flags is rounded up to 256 bytes. Each group of 64 queries has two
  // ranges. Tensor cores also need ξ and u.
  const std::size_t flags = 256, ranges = 2 * 256;
  EXPECT_EQ(bytes(DType::bf16, 512), 4u * 512 * (4 + 8) + flags + ranges + 4 * 512 * 8);
  EXPECT_EQ(bytes(DType::f64, 512), 4u * 512 * (8 + 16) + flags + ranges);
  // The workspace contains q, k and v as two f16 tensors each. It also contains a pair of exponents for each
  // 128 rows of a head, and the powers.
  AttentionCall x = call(DType::f32, 4, 4, 512, 64, 64);
  const std::size_t two = forward(x, small).bytes();
  x.tf32 = true;
  const std::size_t one = forward(x, small).bytes();
  EXPECT_EQ(one, 3u * (4 * 512 * 64 * 2 + 256) + 256);
  EXPECT_EQ(two - one, 3u * 4 * 512 * 64 * 2);
}

TEST(AttentionChoice, DescriptionNamesTheKernels) {
  AttentionCall x = call(DType::bf16, 66, 66, 4096, 64, 64);
  EXPECT_EQ(forward(x, hopper).describe(), "tensor cores");
  EXPECT_EQ(backward(x, hopper).describe(), "tensor cores, one pass, deterministic");
  x.nondeterministic = true;
  EXPECT_EQ(backward(x, hopper).describe(), "tensor cores, one pass, nondeterministic");
  EXPECT_EQ(forward(call(DType::f64, 8, 8, 512, 64, 64), hopper).describe(), "plain multiply-adds");
  EXPECT_EQ(forward(call(DType::bf16, 8, 1, 512, 576, 512), hopper).describe(), "tensor cores, wide heads");
  x = call(DType::f32, 8, 8, 512, 64, 64);
  EXPECT_EQ(forward(x, hopper).describe(), "tensor cores, f32 split into two f16");
  x.tf32 = true;
  EXPECT_EQ(forward(x, hopper).describe(), "tensor cores, f32 rounded to f16");
}

TEST(AttentionChoice, HoppersKernelsAreUsedUnlessAReasonPreventsThem) {
  const AttentionCall good = call(DType::bf16, 8, 2, 512, 128, 64);
  EXPECT_EQ(forward(good, sm_90a).family(), KernelFamily::hopper);
  EXPECT_EQ(forward(good, sm_90a).describe(), "tensor cores, wgmma");
  EXPECT_EQ(forward(good, hopper).describe(), "tensor cores");
  EXPECT_EQ(forward(call(DType::f16, 64, 64, 512, 256, 256), sm_90a).describe(), "tensor cores, wgmma");
  EXPECT_EQ(forward(good, sm_90a).bytes(), 0u);

  const auto words = [&](auto change) {
    AttentionCall x = good;
    change(x);
    return forward(x, sm_90a).describe();
  };
  EXPECT_EQ(backward(call(DType::f16, 8, 8, 512, 256, 256), sm_90a).describe(), "tensor cores, wgmma");
  EXPECT_EQ(words([](AttentionCall& x) { x.bias.data = x.q.data; }), "tensor cores, no wgmma: bias");
  EXPECT_EQ(words([](AttentionCall& x) { x.dropout = 0.1; }), "tensor cores, no wgmma: dropout");
  EXPECT_EQ(words([](AttentionCall& x) { x.T = 0; }), "tensor cores, no wgmma: nothing to multiply");
  const std::string expanded = "tensor cores, no wgmma: an expanded operand";
  EXPECT_EQ(words([](AttentionCall& x) { x.q.head = 0; }), expanded);
  EXPECT_EQ(words([](AttentionCall& x) { x.k.row = 0; }), expanded);
  EXPECT_EQ(words([](AttentionCall& x) { x.B = 2, x.v.batch = 0; }), expanded);
  EXPECT_EQ(words([](AttentionCall& x) { x.v.batch = 0; }), "tensor cores, wgmma");  // one batch entry
  EXPECT_EQ(forward(call(DType::bf16, 8, 1, 512, 576, 512), sm_90a).describe(), "tensor cores, wgmma");
  EXPECT_EQ(backward(call(DType::bf16, 8, 8, 512, 264, 64), sm_90a).describe(),
            "tensor cores, wide heads, no wgmma: wider heads than 256");
  EXPECT_EQ(backward(call(DType::f32, 8, 8, 512, 264, 64), sm_90a).describe(), "plain multiply-adds");
  // If tensor cores cannot be used, the description does not contain Hopper's kernels.
  EXPECT_EQ(forward(call(DType::bf16, 8, 8, 512, 65, 64), sm_90a).describe(), "plain multiply-adds");
}

// For a call with requested kernels, returns the description of the kernels. If the call is refused, returns
// the reason.
std::string asked(AttentionCall x, AttentionKernels kernels, const Gpu& gpu, bool is_backward = false) {
  x.kernels = kernels;
  try {
    return Choice(x, is_backward, gpu).describe();
  } catch (const DeviceError& e) {
    return e.what();
  }
}

TEST(AttentionChoice, FewHeadsOfShortSequencesHaveSeparateKernelsOnHopper) {
  const AttentionCall good = call(DType::f16, 264, 264, 64, 64, 64);  // two heads for each multiprocessor
  const std::string words = "tensor cores, short sequences";
  for (const bool is_backward : {false, true}) {
    const auto words_with = [&](auto change) {
      AttentionCall x = good;
      change(x);
      return Choice(x, is_backward, sm_90a).describe();
    };
    EXPECT_EQ(Choice(good, is_backward, sm_90a).describe(), words);
    EXPECT_EQ(Choice(good, is_backward, sm_90a).bytes(), 0u);
    EXPECT_EQ(Choice(good, is_backward, sm_90a, nullptr, true).describe(), "tensor cores, wgmma");
    EXPECT_EQ(Choice(good, is_backward, hopper).describe(), "tensor cores");
    EXPECT_EQ(asked(good, AttentionKernels::wgmma, sm_90a, is_backward), "tensor cores, wgmma");
    EXPECT_EQ(words_with([](AttentionCall& x) { x.B = 2; }), "tensor cores, wgmma");
    EXPECT_EQ(words_with([](AttentionCall& x) { x.L = 65; }), "tensor cores, wgmma");
    EXPECT_EQ(words_with([](AttentionCall& x) { x.T = 65; }), "tensor cores, wgmma");
    EXPECT_EQ(words_with([](AttentionCall& x) { x.d = 72; }), "tensor cores, wgmma");
    EXPECT_EQ(words_with([](AttentionCall& x) { x.dv = 72; }), "tensor cores, wgmma");
    EXPECT_EQ(words_with([](AttentionCall& x) { x.softcap = 2; }), "tensor cores, wgmma");
    EXPECT_EQ(words_with([](AttentionCall& x) { x.sink = x.q.data; }), "tensor cores, wgmma");
    EXPECT_EQ(words_with([](AttentionCall& x) { x.bias.data = x.q.data; }), "tensor cores, no wgmma: bias");
    EXPECT_EQ(words_with([](AttentionCall& x) { x.dropout = 0.1; }), "tensor cores, no wgmma: dropout");
  }
}

TEST(AttentionChoice, HoppersKernelsSplitF32) {
  for (const bool is_backward : {false, true}) {
    AttentionCall x = call(DType::f32, 8, 2, 512, 128, 40);
    const auto choice = [&] { return Choice(x, is_backward, sm_90a); };
    EXPECT_EQ(choice().family(), KernelFamily::hopper);
    EXPECT_EQ(choice().describe(), "tensor cores, wgmma, f32 split into two f16");
    x.k.head = 0;  // the operands are copied
    EXPECT_EQ(choice().family(), KernelFamily::hopper);
    x.tf32 = true;
    EXPECT_EQ(choice().describe(), "tensor cores, wgmma, f32 rounded to f16");
    x.dropout = 0.1;
    EXPECT_EQ(choice().family(), KernelFamily::f32);
    EXPECT_EQ(choice().describe(), "tensor cores, f32 rounded to f16, no wgmma: dropout");
  }
  // Boxes of a bulk copy have 64 columns. An f32 row may be split into two f16 rows. Each f16 row then starts
  // a new box.
  AttentionCall x = call(DType::f32, 8, 8, 512, 32, 32);
  EXPECT_EQ(forward(x, sm_90a).split->width, 64);
  EXPECT_EQ(forward(x, small).split->width, 32);
  x.tf32 = true;
  EXPECT_EQ(forward(x, sm_90a).split->width, 32);
}

TEST(AttentionChoice, RequestedKernelsAreUsed) {
  using enum AttentionKernels;
  const AttentionCall x = call(DType::bf16, 8, 2, 512, 128, 64), f32 = call(DType::f32, 8, 2, 512, 64, 64);
  for (const bool is_backward : {false, true}) {
    EXPECT_EQ(asked(x, best, sm_90a, is_backward), "tensor cores, wgmma");
    EXPECT_EQ(asked(x, wgmma, sm_90a, is_backward), "tensor cores, wgmma");
    EXPECT_EQ(asked(x, tensor_cores, sm_90a, is_backward), "tensor cores");
    EXPECT_EQ(asked(x, tensor_cores, small, is_backward), "tensor cores");
    EXPECT_EQ(asked(x, plain, sm_90a, is_backward), "plain multiply-adds");
    EXPECT_EQ(asked(x, plain, small, is_backward), "plain multiply-adds");
    EXPECT_EQ(asked(f32, wgmma, sm_90a, is_backward), "tensor cores, wgmma, f32 split into two f16");
    EXPECT_EQ(asked(f32, tensor_cores, sm_90a, is_backward), "tensor cores, f32 split into two f16");
    EXPECT_EQ(asked(f32, plain, sm_90a, is_backward), "plain multiply-adds");
  }
  AttentionCall split = f32;
  split.kernels = plain;
  EXPECT_FALSE(forward(split, sm_90a).split);
}

TEST(AttentionChoice, UnsupportedRequestedKernelsAreRefusedWithTheReason) {
  using enum AttentionKernels;
  const AttentionCall good = call(DType::bf16, 8, 2, 512, 128, 64);
  const auto with = [&](auto change) {
    AttentionCall x = good;
    change(x);
    return x;
  };
  EXPECT_EQ(asked(good, wgmma, small), "kernels = wgmma: the GPU is not a Hopper");
  EXPECT_EQ(asked(good, wgmma, hopper), "kernels = wgmma: the library was compiled without sm_90a");
  EXPECT_EQ(asked(with([](AttentionCall& x) { x.bias.data = x.q.data; }), wgmma, sm_90a),
            "kernels = wgmma: bias");
  EXPECT_EQ(asked(call(DType::f32, 8, 2, 512, 64, 256), wgmma, sm_90a),
            "kernels = wgmma: f32 heads wider than 128");
  EXPECT_EQ(asked(call(DType::f64, 8, 2, 512, 64, 64), wgmma, sm_90a), "kernels = wgmma: f64");
  EXPECT_EQ(asked(call(DType::f64, 8, 2, 512, 64, 64), tensor_cores, sm_90a), "kernels = tensor_cores: f64");
  EXPECT_EQ(asked(call(DType::bf16, 8, 2, 512, 65, 64), tensor_cores, small),
            "kernels = tensor_cores: head sizes that are not a multiple of 16 bytes");
  EXPECT_EQ(asked(call(DType::bf16, 8, 2, 512, 584, 64), tensor_cores, hopper),
            "kernels = tensor_cores: heads wider than 576, or 512 of v");
  EXPECT_EQ(asked(call(DType::f32, 8, 2, 512, 256, 64), tensor_cores, hopper),
            "kernels = tensor_cores: f32 heads wider than 128");
  EXPECT_EQ(asked(with([](AttentionCall& x) { x.k.row += 4; }), tensor_cores, small),
            "kernels = tensor_cores: rows that do not begin at multiples of 16 bytes");
  EXPECT_EQ(asked(call(DType::bf16, 8, 1, 512, 576, 512), tensor_cores, small),
            "kernels = tensor_cores: more shared memory than a block of this GPU has");
  const AttentionCall wide = call(DType::bf16, 8, 1, 512, 576, 512),
                      dropping = with([](AttentionCall&x) { x.dropout = 0.1; });
  EXPECT_EQ(asked(wide, wgmma, sm_90a, true), "kernels = wgmma: wider heads than 256");
  EXPECT_EQ(asked(dropping, wgmma, sm_90a, true), "kernels = wgmma: dropout");
  EXPECT_EQ(asked(dropping, tensor_cores, sm_90a, true), "tensor cores");
}

// Describes a contiguous call with one batch entry.
AttentionCall few_queries(int heads, int key_heads, int L, int T, int d) {
  AttentionCall x = call(DType::bf16, heads, key_heads, L, d, d);
  x.T = T;
  for (AttentionCall::TensorView* a : {&x.k, &x.v})
    a->head = std::int64_t{T} * d, a->batch = a->head * key_heads;
  return x;
}

TEST(AttentionDivision, KeysAreSplitIfItemsAreFewerThanProcessors) {
  const auto parts = [](const AttentionCall& x) { return forward(x, sm_90a).work.parts; };
  EXPECT_EQ(parts(few_queries(16, 16, 4096, 4096, 128)), 1);  // 512 items
  EXPECT_EQ(parts(few_queries(16, 16, 1024, 8192, 128)), 1);  // 128
  EXPECT_EQ(parts(few_queries(16, 16, 512, 8192, 128)), 2);   // 64
  EXPECT_EQ(parts(few_queries(16, 16, 128, 8192, 128)), 8);   // 16
  EXPECT_EQ(parts(few_queries(16, 16, 1, 64, 128)), 1);       // one tile
  EXPECT_EQ(parts(few_queries(16, 16, 128, 256, 128)), 1);    // two tiles are faster than a merge
  EXPECT_EQ(forward(few_queries(16, 16, 128, 8192, 128), sm_90a).describe(),
            "tensor cores, wgmma, keys split into 8 parts");
  AttentionCall x = few_queries(16, 16, 1024, 8192, 128);
  x.B = 2;
  EXPECT_EQ(parts(x), 1);  // 256 items need two waves; a merge costs more than it saves
}

// If heads that share keys have few queries in total, decoding kernels read each key only once.
TEST(AttentionChoice, FewQueriesAreDecoded) {
  const auto words = [](const AttentionCall& x, const Gpu& gpu = sm_90a) {
    return forward(x, gpu).describe();
  };
  const auto alone = [](const AttentionCall& x) {
    return Choice(x, false, sm_90a, nullptr, true).describe();
  };
  const AttentionCall x = few_queries(32, 8, 1, 8192, 128);
  EXPECT_EQ(words(x), "tensor cores, decoding, ranges of 1024 keys");
  EXPECT_EQ(words(x, hopper), words(x));
  EXPECT_EQ(words(x, small), words(x));
  EXPECT_EQ(words(few_queries(32, 8, 4, 8192, 128)), words(x));                             // 16 rows
  EXPECT_EQ(words(few_queries(32, 8, 4, 8192, 128), small), "tensor cores");                // no memory
  EXPECT_EQ(words(few_queries(32, 8, 5, 8192, 128)).substr(0, 19), "tensor cores, wgmma");  // 20 rows
  EXPECT_EQ(words(few_queries(8, 8, 8, 64, 128)).substr(0, 19), "tensor cores, wgmma");     // few keys
  EXPECT_EQ(alone(few_queries(64, 8, 1, 8192, 256)), "tensor cores, decoding, ranges of 512 keys");
  EXPECT_EQ(words(few_queries(64, 8, 1, 8192, 256)).substr(0, 19), "tensor cores, wgmma");  // faster
  EXPECT_EQ(words(few_queries(64, 8, 1, 8192, 256), small), "tensor cores, decoding, ranges of 512 keys");
  EXPECT_EQ(words(few_queries(72, 8, 1, 8192, 256)).substr(0, 19), "tensor cores, wgmma");  // 9 rows
  AttentionCall of_f32 = few_queries(32, 8, 2, 8192, 128);
  of_f32.type = DType::f32;
  EXPECT_EQ(words(of_f32), "multiply-adds, decoding, ranges of 1024 keys");  // 8 rows, without copies
  EXPECT_EQ(words(of_f32, small), words(of_f32));
  EXPECT_EQ(forward(of_f32, sm_90a).bytes(), 8u * 8 * 8 * 130 * 4);
  of_f32.L = 3;
  EXPECT_EQ(words(of_f32).substr(0, 19), "tensor cores, wgmma");
  AttentionCall latents = few_queries(16, 1, 1, 8192, 576);
  latents.dv = latents.v.row = latents.o.head = latents.o.row = 512;
  EXPECT_EQ(words(latents).substr(0, 19), "tensor cores, wgmma");  // values are not in columns of keys
  latents.v = latents.k;
  EXPECT_EQ(alone(latents), "tensor cores, wgmma, decoding, ranges of 1024 keys");
  EXPECT_EQ(words(latents).substr(0, 19), "tensor cores, wgmma");
  EXPECT_EQ(words(latents, small), "plain multiply-adds");  // not enough shared memory
  latents.L = 2;
  EXPECT_EQ(words(latents).substr(0, 19), "tensor cores, wgmma");  // 32 rows
  // Tests many sequences with 16 heads. The rows are contiguous in tiles of 8.
  for (const int T : {8184, 8185, 8191, 8192, 8193, 8200}) {
    AttentionCall many = few_queries(16, 1, 1, T, 576);
    many.dv = many.o.head = many.o.row = 512, many.v = many.k, many.B = 132;
    EXPECT_EQ(words(many).find("decoding") != std::string::npos, T % 8 == 0) << T << " keys: " << words(many);
    many.k.batch += 8 * 576, many.v = many.k;
    EXPECT_EQ(words(many).find("decoding"), std::string::npos) << T << " keys: " << words(many);
  }
  AttentionCall more = x;
  more.B = 64;  // the batch size changes only the memory
  EXPECT_EQ(words(more), words(x));
  EXPECT_EQ(forward(x, sm_90a).bytes(), 8u * 32 * 130 * 4);
  EXPECT_EQ(forward(more, sm_90a).bytes(), 64u * 8 * 32 * 130 * 4);
  more.dropout = 0.1;
  EXPECT_EQ(words(more), "tensor cores, no wgmma: dropout");
  EXPECT_EQ(asked(x, AttentionKernels::wgmma, sm_90a).substr(0, 19), "tensor cores, wgmma");
}

// Describes a call with this room for keys in each sequence.
AttentionCall paged(int B, int heads, int key_heads, int L, int pages, int page, int d) {
  AttentionCall x = few_queries(heads, key_heads, L, pages * page, d);
  static const std::int32_t somewhere = 0;
  x.B = B, x.table = &somewhere, x.page = page, x.pages = pages, x.pool = B * pages, x.causal = true;
  x.v.data = static_cast<std::byte*>(x.k.data) + 16;  // v is separate from k
  for (AttentionCall::TensorView* a : {&x.k, &x.v}) {
    a->head = d, a->row = std::int64_t{key_heads} * d;
    a->batch = a->row * page;
  }
  return x;
}

// Some decisions change results bitwise. These depend only on head sizes.
TEST(AttentionChoice, PagesAreAlwaysDecoded) {
  const auto words = [](const AttentionCall& x, const Gpu& gpu = sm_90a) {
    return forward(x, gpu).describe();
  };
  const std::string decoded = "tensor cores, decoding, paged cache";
  for (const int L : {1, 5, 300})
    for (const int B : {1, 64, 1500})
      for (const int pages : {1, 500}) EXPECT_EQ(words(paged(B, 32, 8, L, pages, 16, 128)), decoded);
  EXPECT_EQ(words(paged(1, 32, 8, 1, 10, 16, 64), small), decoded);
  // A tile of 16 rows would exceed the memory. So a single row is not decoded either.
  EXPECT_EQ(words(paged(1, 32, 8, 1, 10, 16, 128), small), "plain multiply-adds");
  EXPECT_EQ(words(paged(1, 32, 8, 1, 10, 16, 256)), decoded);
  EXPECT_EQ(words(paged(1, 32, 8, 1, 10, 16, 256), small), decoded);
  EXPECT_EQ(words(paged(1, 32, 8, 1, 10, 16, 264)), "plain multiply-adds");
  AttentionCall x = paged(1, 16, 1, 1, 10, 16, 576);
  EXPECT_EQ(words(x), "plain multiply-adds");
  x.dv = 512, x.v = x.k, x.o.head = x.o.row = 512;
  EXPECT_EQ(words(x),
            "tensor cores, wgmma, decoding, paged cache");  // the first columns of keys are the values
  EXPECT_EQ(words(x, small), "plain multiply-adds");
  x = paged(1, 32, 8, 1, 10, 16, 128);
  x.pool = 1 << 30;  // the offset of a row does not fit in 32 bits
  EXPECT_EQ(words(x), "plain multiply-adds");
}

TEST(AttentionDivision, ManyTilesOfAPromptAreSeveralLaunches) {
  const auto launches = [](const AttentionCall& x) {
    const int all = static_cast<int>(x.B) * ((decoding::rows_of(x) + 15) / 16);
    int n = 0, tiles = 0;
    for (decoding::Tiles t = decoding::tiles_of_launch(x, 0); t.count > 0;
         t = decoding::tiles_of_launch(x, ++n)) {
      EXPECT_EQ(t.first, tiles);
      EXPECT_LE(t.count, decoding::most_entries);
      tiles += t.count;
    }
    EXPECT_EQ(tiles, all);
    EXPECT_LE(forward(x, sm_90a).bytes(), std::size_t{129} << 20);
    return n;
  };
  EXPECT_EQ(launches(paged(64, 32, 8, 1, 512, 16, 128)), 1);
  EXPECT_EQ(launches(paged(1025, 32, 8, 1, 1, 16, 128)), 2);
  EXPECT_EQ(launches(paged(1, 32, 8, 256, 16, 16, 128)), 1);
  EXPECT_EQ(launches(paged(2, 32, 8, 1024, 64, 16, 128)), 1);
  EXPECT_GT(launches(paged(1, 32, 8, 2048, 512, 16, 128)), 1);
  EXPECT_EQ(launches(paged(3, 32, 8, 0, 512, 16, 128)), 0);
}

TEST(AttentionDivision, RangesGrowAndCoverAllKeys) {
  for (const int bits : {8, 9, 10}) {
    const decoding::GrowingRanges ranges{bits};
    const int first = 1 << bits;
    int n = 0;
    for (unsigned from = 0; from < 1u << 31; from = ranges.begin(++n)) {
      const unsigned to = ranges.begin(n + 1), keys = to - from;
      EXPECT_EQ(ranges.of(static_cast<int>(from)), n);
      EXPECT_EQ(ranges.of(static_cast<int>(to - 1)), n);
      EXPECT_EQ(keys, from < 1024 ? first : std::max(1024u, std::bit_floor(from) / 16)) << from;
    }
    EXPECT_EQ(n, 1024 / first - 1 + 32 + 16 * 16);
  }
}

TEST(AttentionDivision, SplitsHaveTilesAndTheirMemoryIsBounded) {
  for (const int heads : {1, 5, 16, 100, 300})
    for (const int L : {1, 7, 64, 65, 300, 1000})
      for (const int T : {1, 100, 1000, 10000, 100000})
        for (const int d : {64, 96, 128, 256, 512}) {
          const AttentionCall x = few_queries(heads, 1, L, T, d);
          const Choice c = forward(x, sm_90a);
          const ForwardTile tile = forward_tile(with_heads_as_rows(x));
          const int tiles = (T + tile.keys - 1) / tile.keys;
          EXPECT_GE(c.work.parts, 1);
          EXPECT_LE(c.work.parts, tiles);
          // There are at most two items for each block on the GPU. Each item has sums in f32.
          const std::size_t most =
              std::size_t(2) * sm_90a.processors * tile.blocks * tile.queries * (d + 1) * 4;
          EXPECT_LE(c.bytes(), most + 1024) << heads << " " << L << " " << T << " " << d;
        }
}

TEST(AttentionDivision, QueriesOfHeadsThatShareKeysBecomeRowsOfOneHead) {
  const AttentionCall x = few_queries(32, 8, 5, 1000, 128), rows = with_heads_as_rows(x);
  EXPECT_EQ(rows.H, 8);
  EXPECT_EQ(rows.L, 20);
  EXPECT_EQ(rows.q.head, 20 * 128);
  EXPECT_EQ(rows.q.row, 128);
  // Heads stay separate in two cases. A merge may not reduce the number of items. Or the rows of the next
  // head may not be next in memory, as in [B, L, H, d].
  EXPECT_EQ(with_heads_as_rows(few_queries(32, 8, 256, 1000, 128)).H, 32);
  AttentionCall projected = x;
  projected.q.row = 32 * 128, projected.q.head = 128;
  EXPECT_EQ(with_heads_as_rows(projected).H, 32);
  // If each head has a single query, queries are rows in any memory layout.
  projected.L = 1, projected.q.row = 7;
  const AttentionCall one = with_heads_as_rows(projected);
  EXPECT_EQ(one.H, 8);
  EXPECT_EQ(one.L, 4);
  EXPECT_EQ(one.q.row, 128);
  EXPECT_EQ(one.q.head, 4 * 128);
  EXPECT_EQ(one.o.row, x.o.head);
}

// ---- stages in registers, by one warp ----

constexpr int rows = 16, columns = 64, half = 32;

// Computes P = exp(A − ξ) and ξ from A [16, 64]. A is in units of log 2. The two halves are computed one
// after another, or they are computed separately and then merged.
__global__ void soften(const float* a, float* p, float* lse, bool merged) {
  using tile::lane_column, tile::lane_row;
  Accumulator<rows, half> s[2];
  for (int n = 0; n < 2; ++n)
    for_each(s[n], [&](int r, int c, float& e) {
      e = a[(s[n].row(r) + lane_row()) * columns + n * half + s[n].column(c) + lane_column()];
    });
  const float2 unit = two_floats(ln_2);
  OnlineSoftmax<rows> own[2] = {{-INFINITY, 1, unit.x}, {-INFINITY, 1, unit.x}};
  __shared__ float2 parts[2][rows];  // c, π
  if (merged) {
    for (int n = 0; n < 2; ++n)
      own[n].step(s[n]), own[n].finish(s[n], {nullptr, nullptr, parts[n]}, 0, rows, unit);
  } else {
    own[0].step(s[0]);
    if (own[0].step(s[1])) own[0].rescale(s[0]);
    own[1] = own[0];
    for (int n = 0; n < 2; ++n) own[n].finish(s[n], {lse, nullptr, nullptr}, 0, rows, unit);
  }
  __syncwarp();
  for (int n = 0; n < 2; ++n)
    for_each(s[n], [&](int r, int c, float& e) {
      const int i = s[n].row(r) + lane_row();
      float weight = 1;
      if (merged) {
        const float top = fmaxf(parts[0][i].x, parts[1][i].x), shown = top == -INFINITY ? 0.f : top,
                    a = tile::exp2_fast(parts[0][i].x - shown) * parts[0][i].y,
                    b = tile::exp2_fast(parts[1][i].x - shown) * parts[1][i].y;
        weight = a + b == 0 ? 0.f : (n == 0 ? a : b) / (a + b);
        lse[i] = a + b == 0 ? -INFINITY : split_lse({top, 0}, logf(a + b), unit).x;
      }
      p[i * columns + n * half + s[n].column(c) + lane_column()] = e * weight;
    });
}

TEST(AttentionStages, ResultsOverRangesOfKeysMergeIntoOne) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 20);  // makes c change
  std::vector<float> a(rows * columns);
  for (float& e : a) e = normal(rng);
  for (int j = 0; j < columns; ++j) {
    if (j < half) a[3 * columns + j] = -INFINITY;   // this row sees no key in the first half
    if (j >= half) a[5 * columns + j] = -INFINITY;  // this row sees no key in the second half
    a[7 * columns + j] = -INFINITY;                 // this row sees no key
  }
  std::vector<float> p(a.size()), q(a.size()), lse(rows), xi(rows);
  emulator::run_grid({1, 1, 1}, {32, 1, 1}, 1024, [&] { soften(a.data(), p.data(), lse.data(), false); });
  emulator::run_grid({1, 1, 1}, {32, 1, 1}, 1024, [&] { soften(a.data(), q.data(), xi.data(), true); });
  for (int i = 0; i < rows; ++i) {
    double sum = 0;
    for (int j = 0; j < columns; ++j) {
      // For |ξ| < 64, rounding ξ to f32 changes P by at most a relative 4e-6.
      const double score = a[i * columns + j] * 0.6931471805599453;
      EXPECT_NEAR(p[i * columns + j], i == 7 ? 0 : std::exp(score - lse[i]), 1e-5) << i << ", " << j;
      EXPECT_NEAR(q[i * columns + j], p[i * columns + j], 5e-6) << i << ", " << j;
      sum += p[i * columns + j];
    }
    EXPECT_NEAR(sum, i == 7 ? 0 : 1, 1e-5);
    if (i == 7)
      EXPECT_EQ(xi[i], -INFINITY);
    else
      EXPECT_NEAR(xi[i], lse[i], 1e-5);
  }
}

// 64 queries and 64 keys have a causal mask. The tile has queries 0 … 63 and keys 16 … 47, as [queries, keys]
// and as [keys, queries].
__global__ void hide(const AttentionCall x, float* by_query, float* by_key, int* range) {
  __shared__ VisibleKeys<64> seen;
  seen.set(x, 0, 0);
  __syncwarp();
  const auto [some, every] = seen.unite(0, 64);
  range[0] = some.from, range[1] = some.to, range[2] = every.from, range[3] = every.to;
  Accumulator<64, 32> s;
  s.fill(1);
  mask(s, seen, 0, 0, 16);
  for_each(s, [&](int r, int c, float& e) {
    by_query[(s.row(r) + tile::lane_row()) * 32 + s.column(c) + tile::lane_column()] = e;
  });
  Accumulator<16, 32> p;  // for four pieces
  for (int row0 = 0; row0 < 32; row0 += 16)
    for (int column0 = 0; column0 < 64; column0 += 32) {
      p.fill(1);
      mask<false>(p, seen, row0, column0, 16, 0);
      for_each(p, [&](int r, int c, float& e) {
        by_key[(row0 + p.row(r) + tile::lane_row()) * 64 + column0 + p.column(c) + tile::lane_column()] = e;
      });
    }
}

TEST(AttentionStages, TheMaskAgreesWithKeysOfQuery) {
  AttentionCall x = call(DType::bf16, 1, 1, 64, 64, 64);
  x.causal = true, x.window_left = 20;
  std::vector<float> s(64 * 32), p(32 * 64);
  int range[4];
  emulator::run_grid({1, 1, 1}, {32, 1, 1}, 1024, [&] { hide(x, s.data(), p.data(), range); });
  EXPECT_EQ(std::vector<int>(range, range + 4), (std::vector<int>{0, 64, 43, 1}));
  for (int i = 0; i < 64; ++i)
    for (int j = 16; j < 48; ++j) {
      const KeyRange keys = keys_visible_to(x, 0, i);
      const bool sees = j >= keys.from && j < keys.to;
      EXPECT_EQ(s[i * 32 + j - 16], sees ? 1 : -INFINITY) << i << ", " << j;
      EXPECT_EQ(p[(j - 16) * 64 + i], sees ? 1 : 0) << i << ", " << j;
    }
}

}  // namespace
}  // namespace tg::cuda::attention

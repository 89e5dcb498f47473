// Tests the numbers in the pictures of tools/inspect: layer sizes, the plan, attention's memory and reads,
// and runs.
#include <gtest/gtest.h>

#include <numeric>

#include <tilegrad/nn/models/architecture.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "tests/support/files.h"
#include "tests/support/small_gpt.h"
#include "tools/inspect/views.h"
#include "tools/train_report.h"

namespace tg {
namespace {

using testing::error_of;
using testing::small_gpt;
using testing::SmallGpt;
using testing::TemporaryDirectory;

TEST(SizesByLayer, AddUpToTheModel) {
  for (const nn::Architecture& a : nn::architectures()) {
    nn::ModelConfig config = small_gpt();
    config.architecture = a;
    nn::Params params;
    const nn::Model model(params, config);
    const auto sizes = sizes_by_layer(params.all());
    std::int64_t count = 0;
    std::size_t bytes = 0;
    std::vector<std::string> layers;
    for (const LayerSize& s : sizes) count += s.count, bytes += s.bytes, layers.push_back(s.layer);
    EXPECT_EQ(count, config.parameters());
    EXPECT_EQ(bytes, params.bytes());
    const std::string block = a.name() == "gpt" ? "transformer.h." : "model.layers.";
    EXPECT_EQ(std::count(layers.begin(), layers.end(), block + "0"), 1);
    EXPECT_EQ(std::count(layers.begin(), layers.end(), block + "1"), 1);
    std::sort(layers.begin(), layers.end());
    EXPECT_EQ(std::unique(layers.begin(), layers.end()), layers.end()) << "a layer has two rows";
  }
}

TEST(SizesByLayer, AreATableWithSharesAndASum) {
  EXPECT_EQ(sizes_text({{"a.0", 750, 3000}, {"a.1", 250, 1000}}),
            "layer          numbers            bytes    share\n"
            "a.0                750            3,000  75.00 %\n"
            "a.1                250            1,000  25.00 %\n"
            "all              1,000            4,000  100.00 %\n");
}

// A token has 2·H·d elements per layer, 2·Hk·d with grouped heads, and m + p with MLA [Stratos,
// FlashAttention §1.3, §3].
TEST(CacheOfToken, HasTheNumbersOfTheFormulas) {
  for (const auto& [architecture, numbers] : {std::pair<nn::Architecture, std::int64_t>{nn::Gpt{}, 2 * 4 * 8},
                                              {nn::Llama{.key_heads = 2}, 2 * 2 * 8},
                                              {nn::DeepSeek{.latent = 12, .rope_width = 4}, 12 + 4}}) {
    nn::Params params;
    const nn::Model model(params, {.architecture = architecture,
                                   .vocabulary = 11,
                                   .context = 16,
                                   .layers = 12,
                                   .heads = 4,
                                   .width = 32});
    const auto rows = cache_of_token(model, nn::Precision::full);
    EXPECT_EQ(bytes_of(rows), 12 * 4 * numbers);
    EXPECT_EQ(bytes_of(cache_of_token(model, nn::Precision::bf16)), 12 * 2 * numbers);
    EXPECT_NE(rows.front().tensor.find(".0."), std::string::npos);
    EXPECT_NE(rows.back().tensor.find(".11."), std::string::npos);
  }
}

TEST(CacheOfToken, IsATableByLayerAndKind) {
  EXPECT_EQ(cache_text({{"a.0.k", 6, 24}, {"a.0.v", 4, 16}, {"a.1.k", 6, 24}, {"a.1.v", 4, 16}}),
            "layer         k         v         bytes\n"
            "a.0           6         4            40\n"
            "a.1           6         4            40\n"
            "all          12         8            80\n");
}

TEST(CacheFits, CountsSequencesByLength) {
  // The memory for 1,000 tokens holds 10 contexts of 100 tokens, or 61 pages of 16 tokens and the reserved
  // page.
  const auto fits = cache_fits(8000, 8, 100, {16}, {100, 33, 1});
  ASSERT_EQ(fits.size(), 2u);
  EXPECT_EQ(fits[0].tokens, 1000);
  EXPECT_EQ(fits[0].texts, (std::vector<std::int64_t>{10, 10, 10}));
  EXPECT_EQ(fits[1].tokens, 61 * 16);
  EXPECT_EQ(fits[1].texts, (std::vector<std::int64_t>{61 / 7, 61 / 3, 61}));
  EXPECT_EQ(cache_fits(7, 8, 100, {16}, {1})[1].texts, (std::vector<std::int64_t>{0}));
}

TEST(CacheMemory, ParsesBytesAndTokens) {
  const auto bytes = [](const char* text) {
    CacheMemory m;
    return parse_cache_memory(text, m).empty() ? m.bytes(100) : -1;
  };
  EXPECT_EQ(bytes("4096"), 4096);
  EXPECT_EQ(bytes("1.5KiB"), 1536);
  EXPECT_EQ(bytes("64MiB"), 64 << 20);
  EXPECT_EQ(bytes("2GiB"), 2. * (1 << 30));
  EXPECT_EQ(bytes("16384tokens"), 1638400);
  for (const char* text : {"", "0", "-1", "MiB", "1 MiB", "1MB", "1e300", "nan", "inf", "1KiBx"})
    EXPECT_EQ(bytes(text), -1) << text;
}

TEST(PartOf, ClassifiesEveryParameterOfAModel) {
  for (const nn::Architecture& a : nn::architectures()) {
    nn::ModelConfig config = small_gpt();
    config.architecture = a, config.tied_head = false;
    nn::Params params;
    const nn::Model model(params, config);
    for (const Parameter& p : params.all()) EXPECT_NE(part_of(p.name()), "") << p.name();
  }
  EXPECT_EQ(part_of("optimizer.grad.transformer.h.3.attn/flash_attn_backward"), "attention");
  EXPECT_EQ(part_of("transformer.ln_f/layer_norm"), "norms");
  EXPECT_EQ(part_of("optimizer/adamw"), "");
}

// Rectangles of the picture must not overlap, and the highest must end at the arena's size. The largest
// number of bytes in a step must equal the planner's maximum of live bytes.
TEST(PlanPlot, DrawsBuffersWithoutOverlap) {
  SmallGpt gpt;
  const Program& program = gpt.training.program();
  const plot::Plot plot = plan_plot(program, "small");
  const double mib = 1 << 20, arena = static_cast<double>(program.memory().arena) / mib;
  ASSERT_EQ(plot.boxes.size(), program.buffers().size());
  ASSERT_GT(plot.boxes.size(), 50u);
  double top = 0, right = 0;
  for (std::size_t i = 0; i < plot.boxes.size(); ++i) {
    const plot::Box& a = plot.boxes[i];
    EXPECT_LT(a.x0, a.x1);
    EXPECT_LT(a.y0, a.y1);
    top = std::max(top, a.y1), right = std::max(right, a.x1);
    for (std::size_t j = 0; j < i; ++j) {
      const plot::Box& b = plot.boxes[j];
      EXPECT_FALSE(a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1) << i << " covers " << j;
    }
  }
  EXPECT_DOUBLE_EQ(top, arena);
  EXPECT_LE(right, static_cast<double>(program.steps().size()));
  EXPECT_EQ(fullest_step(program).bytes, program.memory().alive);
  EXPECT_EQ(plot.title.find("small: peak "), 0u);
}

TEST(AttentionMemory, MatchesThePlanAndGrowsLinearlyOrQuadratically) {
  const AttentionCall call{.batch = 2, .heads = 4, .key_heads = 2, .width = 16, .value_width = 24};
  const auto peak = [&](std::int64_t length) {
    return static_cast<double>(attention_peak(call, length, true));
  };
  const double fused = peak(2048), matrix = static_cast<double>(attention_peak(call, 2048, false)),
               matrix_2 = static_cast<double>(attention_peak(call, 4096, false));
  EXPECT_NEAR(peak(131072) / peak(65536), 2, 0.1);  // the tiles of each thread are small in comparison
  EXPECT_NEAR(matrix_2 / matrix, 4, 0.2);
  EXPECT_GT(matrix, 2 * 4 * 2048.0 * 2048 * 4) << "includes the score matrix";
  // The lower bound is the size of q, o, z_o and z_q [B, H, L, …], and of k, v and their gradients [B, Hk, L,
  // …].
  EXPECT_GT(fused, 2 * 2048 * 4.0 * (4 * (16 + 24 + 24 + 16) + 2 * 2 * (16 + 24)));
  EXPECT_LT(fused, 2 * 4 * 2048.0 * 2048 * 4) << "does not include a score matrix";
}

TEST(AttentionMemory, TakesTheCallFromAProgram) {
  for (const nn::Architecture& a :
       {nn::Architecture(nn::Llama{.key_heads = 2}), nn::Architecture(nn::DeepSeek{})}) {
    nn::ModelConfig config = small_gpt();
    config.architecture = a, config.heads = 4;
    nn::Params params;
    const nn::Model model(params, config);
    train::EvaluationProgram evaluation(model,
                                        {.batch = 3, .plan_only = true, .precision = nn::Precision::bf16});
    const AttentionCall call = attention_of(evaluation.program());
    EXPECT_EQ(call.text(), a.name() == "llama" ? "batch 3, 4 heads of 8, 2 key heads, bf16"
                                               : "batch 3, 4 heads of 16 and 8, bf16");
    EXPECT_TRUE(call.causal);
  }
  Graph g;
  const Tensor x = g.input("x", {2});
  EXPECT_EQ(error_of([&] { attention_of(compile(g, {x + 1})); }), "[inspect] the program has no attention");
}

// T = 8, d = 2 and M = 12, so Λ = 1. Each of ⌈8/Λ⌉ chunks reads Q and O. Together they have 2·8·2 elements,
// and so do K and V.
TEST(ReadModel, CountsTheLoadsOfTheLoops) {
  const ReadModel m{.T = 8, .d = 2, .M = 12};
  EXPECT_EQ(m.mistake(), "");
  EXPECT_EQ(m.best_chunk(), 1);
  EXPECT_EQ(m.fused(1), 32 + 8 * 32);
  EXPECT_EQ(m.fused(3), 32 + 3 * 32);
  EXPECT_EQ(m.fused(8), 64);
  EXPECT_EQ(m.materialised(), 64);
}

// Reads are O(T²d²/M). So if the fast memory is doubled, reads are halved, except for K and V. The largest
// tile that fits is the best.
TEST(ReadModel, TheLargestTileThatFitsReadsLeast) {
  const ReadModel m{.T = 65536, .d = 64, .M = 65536}, twice{.T = 65536, .d = 64, .M = 131072};
  EXPECT_EQ(m.best_chunk(), 256);
  EXPECT_NEAR(twice.fused(twice.best_chunk()) / m.fused(m.best_chunk()), 0.5, 0.01);
  EXPECT_LT(m.fused(m.best_chunk()), m.materialised()) << "d < √M";
  const auto rows = reads_by_chunk({.T = 1000, .d = 10, .M = 2000});
  double least = 1e300;
  std::int64_t best = 0, before = 0;
  for (const ReadsRow& r : rows) {
    EXPECT_GT(r.chunk, before);
    before = r.chunk;
    if (r.fits && r.reads < least) least = r.reads, best = r.chunk;
  }
  EXPECT_EQ(best, 50);
  EXPECT_EQ(rows.front().chunk, 8);
  EXPECT_EQ(rows.back().chunk, 1000);
  EXPECT_FALSE(rows.back().fits);
}

TEST(ReadModel, ReportsTheViolatedAssumption) {
  const auto says = [](std::int64_t T, std::int64_t d, std::int64_t M, const char* what) {
    return ReadModel{.T = T, .d = d, .M = M}.mistake().find(what) != std::string::npos;
  };
  EXPECT_TRUE(says(64, 64, 1000, "more tokens"));
  EXPECT_TRUE(says(100, 64, 255, "does not hold one"));
  EXPECT_TRUE(says(100, 64, 6400, "holds all"));
}

TEST(Curves, MatchTheRuns) {
  const TemporaryDirectory dir;
  std::filesystem::create_directories(dir.path / "a");
  dir.file("a/metrics.jsonl",
           R"({"step":1,"train_loss":3,"val_loss":null,"lr":0.1,"grad_norm":1,"tokens_per_s":1}
{"step":2,"train_loss":2,"val_loss":2.5,"lr":0.1,"grad_norm":1,"tokens_per_s":1}
{"step":3,"train_loss":1,"val_loss":2.75,"lr":0.1,"grad_norm":1,"tokens_per_s":1}
)");
  const NamedRun run = read_run(dir / "a//");
  EXPECT_EQ(run.name, dir / "a");
  EXPECT_EQ(runs_text({run}),
            dir / "a" + ": 3 steps, smoothed train loss 1.0000, best validation loss 2.5000 at step 2\n");
  NamedRun other = run;
  other.name = "b";
  for (train::MetricsRow& r : other.rows) r.val_loss = train::MetricsRow::none;
  const plot::Plot plot = curves_plot({run, other});
  ASSERT_EQ(plot.series.size(), 6u);
  EXPECT_EQ(plot.series[0].y, (std::vector<double>{3, 2, 1}));
  EXPECT_TRUE(plot.series[0].faint);
  EXPECT_EQ(plot.series[1].label, dir / "a" + ", train");
  EXPECT_EQ(plot.series[2].x, (std::vector<double>{2, 3}));
  EXPECT_EQ(plot.series[2].y, (std::vector<double>{2.5, 2.75}));
  EXPECT_EQ(plot.series[4].label, "b, train");
  EXPECT_EQ(plot.series[5].label, "") << "without validation, the legend has no entry";
  EXPECT_EQ(plot.series[0].color, plot.series[1].color);  // two lines for the training loss: faint, and
                                                          // smoothed
  for (int i : {2, 3, 5})
    EXPECT_NE(plot.series[0].color, plot.series[i].color) << i;  // validation and the other run
}

TEST(AttentionPicture, HasARowPerLayerAndVisibleTokens) {
  EXPECT_EQ(visible_token(" a\n\x07\x7f"), "·a\\n\\x07\\x7f");
  EXPECT_EQ(visible_token("é"), "é");
  std::vector<float> p(2 * 3 * 3);
  std::iota(p.begin(), p.end(), 0.0f);
  const plot::HeatMaps h =
      attention_picture({{"x", Array::of<float>({2, 3, 3}, p)}, {"y", Array::of<float>({2, 3, 3}, p)}},
                        {"a", " ", "b"}, "title");
  EXPECT_EQ(h.across, 2);
  ASSERT_EQ(h.maps.size(), 4u);
  EXPECT_EQ(h.maps[3].title, "layer 1, head 1");
  EXPECT_EQ(h.maps[3].values, (std::vector<float>{9, 10, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(h.row_names, (std::vector<std::string>{"a", "·", "b"}));
}

}  // namespace
}  // namespace tg

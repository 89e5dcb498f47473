// Checks the defaults of struct fields for files, tokenizers and plots. Code that does not set a field
// depends on the default.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include <tilegrad/io/checkpoints/manifest.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/io/plots/heat_map.h>
#include <tilegrad/io/plots/png_plot.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include <tilegrad/io/text/token_file.h>
#include <tilegrad/train/examples.h>
#include <tilegrad/train/metrics.h>
#include <tilegrad/train/progress.h>
#include <tilegrad/train/trainer.h>
#include "io/files/gguf_record.h"
#include "io/models/adapter_source.h"
#include "io/models/gguf_metadata.h"
#include "io/models/gguf_rules.h"
#include "io/models/hf_config.h"
#include "io/models/tensor_names.h"
#include "io/plots/plot_parts.h"
#include "io/text/hf_parts.h"

namespace tg {
namespace {

TEST(FieldDefaults, ModelFilesHaveTheirUsualFields) {
  EXPECT_EQ(nn::PretrainedOptions().context, 0);
  EXPECT_EQ(nn::PretrainedOptions().dtype, f32);
  EXPECT_EQ(nn::SaveOptions().shard_bytes, 50'000'000'000u);
  EXPECT_EQ(nn::PretrainedInfo().bytes, 0u);
  const io::GgufRowOrder place;
  EXPECT_EQ(std::tuple(place.first_row, place.heads, place.keys, place.values), std::tuple(0, 1, 0, 0));
  const io::GgufArchitecture a{"a"};
  EXPECT_TRUE(a.qkv_bias && a.any_head_width);
  EXPECT_FALSE(a.output_bias || a.mlp_bias || a.divisors || a.partial_rotary || a.longrope || a.gelu ||
               a.attention_softcap || a.logit_softcap || a.windows);
  EXPECT_EQ(a.unrotated_period + a.layers_by_width, 0);
  const io::GgufPreTokenizer p{"p", {}};
  EXPECT_FALSE(p.nfc || p.ignores_merges || p.keeps_digits || p.is_only_read);
  const io::GgufRecord record{"r"};
  EXPECT_EQ(record.offset + record.bytes, 0u);
  const io::GgufRope keys;
  EXPECT_EQ(std::tuple(keys.factor, keys.original, keys.attn_factor, keys.log_multiplier),
            std::tuple(1, 0, 1, 0));
  const io::GgufRotation rotation;
  EXPECT_EQ(std::tuple(rotation.magnitude, rotation.window_magnitude, rotation.score_scale),
            std::tuple(1, 1, 1));
  const io::HfUsualRope usual;
  EXPECT_EQ(std::tuple(usual.theta, usual.context, usual.is_phi3), std::tuple(10000, 0, false));
  const io::HfRope rope;
  EXPECT_EQ(std::tuple(rope.theta, rope.score_scale, rope.share), std::tuple(10000, 1, 1));
  const io::HfTensor tensor;
  EXPECT_EQ(std::tuple(tensor.is_transposed, tensor.first_row), std::tuple(false, 0));
  const io::PeftConfig peft;
  EXPECT_EQ(std::tuple(peft.fan_in_fan_out, peft.targets_complete), std::tuple(false, true));
}

TEST(FieldDefaults, TokenizersHaveTheirUsualFields) {
  const text::AddedToken added;
  EXPECT_EQ(added.id, 0);
  EXPECT_FALSE(added.single_word || added.lstrip || added.rstrip || added.normalized || added.special);
  const text::HfToken token;
  EXPECT_EQ(token.id, 0);
  EXPECT_FALSE(token.special || token.added);
  const text::BpeModel::Options bpe;
  EXPECT_FALSE(bpe.byte_level || bpe.ignore_merges || bpe.byte_fallback || bpe.fuse_unknown);
  const text::HfStages stages;
  EXPECT_FALSE(stages.byte_level || stages.decodes_bytes || stages.strips_first_space);
  const text::HfTokenizer::EncodeOptions encode;
  EXPECT_TRUE(encode.special && !encode.whole);
  const text::TokenHeader header;
  EXPECT_EQ(std::tuple(header.bytes_each, header.count, header.begin), std::tuple(0, 0u, 0u));
}

TEST(FieldDefaults, RunsHaveTheirUsualFields) {
  const train::Trainer::Options o;
  EXPECT_EQ(std::tuple(o.steps, o.seed, o.validate_every, o.validation_batches, o.save_every,
                       o.validate_first, o.trap_nan),
            std::tuple(2000, 1u, 250, 20, 250, false, false));
  const train::Trainer::State state;
  EXPECT_EQ(std::tuple(state.step, state.best_step), std::tuple(0, 0));
  EXPECT_TRUE(std::isinf(state.best_loss));
  const train::ProgressState progress;
  EXPECT_EQ(std::tuple(progress.step, progress.steps, progress.loss, progress.lr, progress.tokens_per_s,
                       progress.seconds_left),
            std::tuple(0, 0, 0, 0, 0, 0));
  EXPECT_TRUE(std::isnan(progress.val_loss));
  const train::MetricsRow row;
  EXPECT_EQ(row.step, 0);
  for (const float x :
       {row.train_loss, row.val_loss, row.lr, row.grad_norm, row.tokens_per_s, row.val_accuracy})
    EXPECT_TRUE(std::isnan(x));
  EXPECT_EQ(train::Example().given, 0u);
  const io::Manifest manifest;
  EXPECT_EQ(std::tuple(manifest.step, manifest.best_step), std::tuple(0, 0));
  EXPECT_EQ(io::Manifest::File().bytes, 0u);
}

TEST(FieldDefaults, PlotsHaveTheirUsualFields) {
  EXPECT_EQ(plot::Color(), (plot::Color{0, 0, 0}));
  const plot::Point point;
  EXPECT_EQ(std::tuple(point.x, point.y), std::tuple(0, 0));
  const plot::TextStyle style;
  EXPECT_EQ(std::tuple(style.size, style.align, style.upwards, style.weight),
            std::tuple(20, plot::TextStyle::Align::left, false, 1));
  const plot::Series series;
  EXPECT_FALSE(series.markers || series.faint || series.color);
  const plot::Box box;
  EXPECT_EQ(std::tuple(box.x0, box.y0, box.x1, box.y1), std::tuple(0, 0, 0, 0));
  const plot::Plot p;
  EXPECT_EQ(std::tuple(p.log_x, p.log_y, p.width, p.height, p.legend_outside),
            std::tuple(false, false, 1200, 800, false));
  const plot::HeatMaps maps;
  EXPECT_EQ(std::tuple(maps.rows, maps.columns, maps.across), std::tuple(0, 0, 1));
  const plot::PlotAxis axis;
  EXPECT_EQ(std::tuple(axis.lo, axis.hi, axis.log), std::tuple(0, 1, false));
}

}  // namespace
}  // namespace tg

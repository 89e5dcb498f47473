// Tests components of `bench attention`: cells and their FLOPs, the model of memory traffic, and reading
// ncu's output.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tools/bench/attention_traffic.h"

namespace tg::bench {
namespace {

// Returns the parser's error for an invalid cell.
std::string mistake(const std::string& text) {
  try {
    parse_cell(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Counts visible pairs one by one, by the definition of the mask [ops/flash_attn.h].
double pairs_one_by_one(const AttentionCell& c) {
  double n = 0;
  for (std::int64_t i = 0; i < c.L; ++i)
    for (std::int64_t t = 0; t < c.T; ++t) {
      const std::int64_t ahead = t - (i + c.T - c.L);
      if (c.causal && ahead > 0) continue;
      if (c.window >= 0 && (-ahead > c.window || (!c.causal && ahead > c.window))) continue;
      ++n;
    }
  return n;
}

TEST(AttentionCell, OmittedSizesDefaultToOtherSizes) {
  const AttentionCell c = parse_cell("H=8,L=32,d=16");
  EXPECT_EQ(c.words(), "B=1,H=8,Hk=8,L=32,T=32,d=16,dv=16");
  EXPECT_EQ(c.name(), "flash_attn");
  EXPECT_EQ(c.shape(), "1×8×32×16");
}

TEST(AttentionCell, DescriptionRoundTrips) {
  const std::string words = "B=2,H=8,Hk=2,L=5,T=9,d=4,dv=6,causal,window=3,nondeterministic";
  const AttentionCell c = parse_cell("nondeterministic,window=3,causal,dv=6,d=4,T=9,L=5,Hk=2,H=8,B=2");
  EXPECT_EQ(c.words(), words);
  EXPECT_EQ(parse_cell(words).words(), words);
  EXPECT_EQ(c.name(), "flash_attn causal window 3 nondeterministic");
  EXPECT_EQ(c.shape(), "2×8/2×5/9×4/6");
  const std::string latent = "B=1,H=16,Hk=1,L=64,T=64,d=576,dv=512,v_in_k";
  EXPECT_EQ(parse_cell(latent).words(), latent);
  EXPECT_EQ(parse_cell(latent).name(), "flash_attn v in k");
  const std::string capped = "B=1,H=2,Hk=2,L=4,T=4,d=8,dv=8,causal,softcap=50,nondeterministic";
  EXPECT_EQ(parse_cell(capped).words(), capped);
  EXPECT_EQ(parse_cell(capped).name(), "flash_attn causal softcap 50 nondeterministic");
  const std::string ragged = "B=2,H=4,Hk=2,L=1,T=64,d=8,dv=8,length=50";
  EXPECT_EQ(parse_cell(ragged).words(), ragged);
  EXPECT_EQ(parse_cell(ragged).shape(), "2×4/2×1/50 of 64×8");
  EXPECT_EQ(parse_cell(ragged).pairs(), 50);
}

TEST(AttentionCell, ErrorsNameTheInvalidWord) {
  const std::pair<const char*, const char*> mistakes[] = {{"", "''"},
                                                          {"L=4", "'d='"},
                                                          {"d=4", "'L='"},
                                                          {"L=4,d=4,", "''"},
                                                          {"L=0,d=4", "'L=0'"},
                                                          {"L=4,d=-1", "'d=-1'"},
                                                          {"L=4,d=4x", "'d=4x'"},
                                                          {"L=4,d=99999999999", "'d=99999999999'"},
                                                          {"L=4,d=4,window=-1", "'window=-1'"},
                                                          {"L=4,d=4,window", "'window'"},
                                                          {"L=4,d=4,softcap=x", "'softcap=x'"},
                                                          {"L=4,d=4,causal=1", "'causal=1'"},
                                                          {"L=4,d=4,causal,causal", "twice"},
                                                          {"L=4,d=4,l=4", "'l=4'"},
                                                          {"L=4,d=4,H=3,Hk=2", "not a multiple"},
                                                          {"L=4,d=4,length=5", "length=5"},
                                                          {"L=4,d=4,length=0", "'length=0'"},
                                                          {"L=4,d=4,dv=5,v_in_k", "v_in_k"}};
  for (const auto& [text, word] : mistakes)
    EXPECT_NE(mistake(text).find(word), std::string::npos) << text << ": " << mistake(text);
}

TEST(AttentionCell, PairsAreCountedExactly) {
  for (std::int64_t L : {1, 5, 8})
    for (std::int64_t T : {1, 5, 11})
      for (std::int64_t window : {-1, 0, 2, 20})
        for (bool causal : {false, true}) {
          const AttentionCell c{.L = L, .T = T, .causal = causal, .window = window};
          EXPECT_EQ(c.pairs(), pairs_one_by_one(c)) << c.words();
        }
}

TEST(AttentionCell, FlopsAreProportionalToPairs) {
  const AttentionCell c = parse_cell("B=2,H=4,Hk=2,L=3,d=8,dv=16,causal");
  EXPECT_EQ(c.flops(false), 2 * 2 * 4 * 6 * 24);
  EXPECT_EQ(c.flops(true), 2.5 * c.flops(false));
}

TEST(AttentionCell, RaggedEntriesHaveLengthsFromOneToAll) {
  const AttentionCell c = parse_cell("B=4,H=2,L=1,T=10,d=8,ragged");
  std::vector<std::int32_t> lengths = c.lengths();
  std::sort(lengths.begin(), lengths.end());
  EXPECT_EQ(lengths, (std::vector<std::int32_t>{1, 4, 7, 10}));
  EXPECT_EQ(c.flops(false), 2. * 2 * (1 + 4 + 7 + 10) * 16);
  EXPECT_EQ(c.shape(), "4×2×1/1 to 10×8");
  EXPECT_EQ(parse_cell(c.words()).words(), c.words());
  EXPECT_EQ(parse_cell("B=1,L=1,T=10,d=8,ragged").lengths(), (std::vector<std::int32_t>{10}));
  EXPECT_NE(mistake("L=1,T=10,d=8,ragged,length=3").find("exclude each other"), std::string::npos);
}

TEST(AttentionCell, SuitesHaveNoDuplicateCells) {
  for (const char* suite :
       {"cpu", "gpu", "gpu-nondeterministic", "masks", "few-queries", "decode", "gpu-decode"}) {
    std::set<std::string> seen;
    for (const AttentionCell& c : attention_suite(suite))
      EXPECT_TRUE(seen.insert(c.words()).second) << c.words();
    EXPECT_FALSE(seen.empty());
  }
  EXPECT_EQ(attention_suite("gpu").size(), 26u);
}

// Two heads share one key head. The numbers of elements are: q 16, k 8, v 12, o 24, scores 32, each row
// statistic 8.
const AttentionCell small = parse_cell("H=2,Hk=1,L=4,d=2,dv=3,causal");

void expect_bytes(const Bytes& b, double read, double written) {
  EXPECT_EQ(b.read, read);
  EXPECT_EQ(b.written, written);
}

TEST(AttentionTraffic, StoredScoresAreReadAndWrittenByEveryGemm) {
  expect_bytes(materialised(small, false, 2), 2 * (16 + 8 + 2 * 32 + 12), 2 * (2 * 32 + 24));
  expect_bytes(materialised(small, true, 2), 2 * (5 * 32 + 2 * 24 + 12 + 8 + 16), 2 * (2 * 32 + 12 + 16 + 8));
}

TEST(AttentionTraffic, FusedReadsOneSideOnceForEachTileOfTheOther) {
  const Tile tile{.queries = 2, .keys = 2};
  // The two tiles of queries see 2 and 4 keys. Each key has 5 elements.
  expect_bytes(fused(small, false, 2, tile), 2 * (16 + 2 * 6 * 5), 2 * 24 + 4 * 8);
  // Two tiles of keys are seen by 4 and 2 queries. For both heads, these are 12 rows. Each row has 5
  // elements, two statistics and two sums. O, z_O and ξ are read before, and the 16 sums are read afterward.
  expect_bytes(fused(small, true, 2, tile),
               2 * 2 * 24 + 4 * 8 + 2 * (8 + 12) + 12 * (2 * 5 + 2 * 4 + 2 * 4) + 4 * 16,
               2 * 4 * 8 + 4 * 16 + 12 * 2 * 4 + 2 * (8 + 12 + 16));
  expect_bytes(least(small, false, 2), 2 * (16 + 8 + 12), 2 * 24 + 4 * 8);
  expect_bytes(least(small, true, 2), 2 * (16 + 8 + 12 + 2 * 24) + 4 * 8, 2 * (16 + 8 + 12));
  EXPECT_EQ(tile.on_chip(small, false, 2), 2 * (2 * 2 + 2 * 5));
  EXPECT_EQ(tile.on_chip(small, true, 2), 2 * (2 * 5 + 2 * 5 + 2 * 2));
}

// The number of reads is T·d + T²·d / Λ [Stratos, FlashAttention §1.3].
TEST(AttentionTraffic, DoublingTilesHalvesRepeatedReads) {
  const AttentionCell c = parse_cell("L=4096,d=64");
  const double q = 2. * 4096 * 64, once = fused(c, false, 2, {128, 128}).read - q,
               twice = fused(c, false, 2, {256, 128}).read - q;
  EXPECT_EQ(once, 2 * twice);
  EXPECT_EQ(once, 2. * 4096 * 4096 / 128 * 2 * 64);
}

TEST(AttentionTraffic, QueryWithoutVisibleKeysReadsNone) {
  const AttentionCell c = parse_cell("L=4,T=2,d=8,causal");  // the first two queries see no keys
  EXPECT_EQ(fused(c, false, 2, {2, 2}).read, 2 * (4 * 8 + 2 * 16));
}

TEST(AttentionTraffic, EveryCellHasATile) {
  for (const char* gpu : {"", "NVIDIA H200", "NVIDIA A100-SXM4-80GB"})
    for (const char* suite : {"gpu", "masks"})
      for (const AttentionCell& c : attention_suite(suite))
        for (bool backward : {false, true})
          for (std::int64_t size : {2, 4}) {
            const Tile tile = tile_of(c, backward, size, gpu);
            EXPECT_GT(tile.queries, 0);
            EXPECT_GT(tile.keys, 0);
            if (*gpu && size == 2) {
              EXPECT_LE(tile.on_chip(c, backward, size), 227 * 1024) << gpu << c.words();
            }
          }
}

TEST(AttentionCounters, KernelsAreSummed) {
  const char* csv =
      "==PROF== Connected to process 7\n"
      "\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n"
      "\"0\",\"a, b\",\"dram__bytes_read.sum\",\"byte\",\"1,234,567\"\n"
      "\"0\",\"a, b\",\"dram__bytes_write.sum\",\"byte\",\"89\"\r\n"
      "\"1\",\"c\",\"dram__bytes_read.sum\",\"byte\",\"1000\"\n"
      "\"1\",\"c\",\"dram__bytes_write.sum\",\"byte\",\"0\"\n";
  const std::optional<Bytes> b = parse_counters(csv);
  ASSERT_TRUE(b);
  expect_bytes(*b, 1235567, 89);
  EXPECT_FALSE(parse_counters("==ERROR== ERR_NVGPUCTRPERM\n"));
}

}  // namespace
}  // namespace tg::bench

// Tests that every mode of tools/bench prints a table and writes the same rows as JSON. An error must be one
// line, with exit code 2.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>

namespace tg {
namespace {

struct Outcome {
  int code;
  std::string output;  // stdout and stderr
};

Outcome bench(const std::string& arguments, const std::string& environment = "") {
  std::FILE* pipe = popen((environment + " " + TG_BENCH + " " + arguments + " 2>&1 </dev/null").c_str(), "r");
  std::string output;
  for (int c; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

// Returns a number, or nullopt for null. null means that the number does not apply.
std::optional<double> number_or_null(io::JsonReader& json) {
  if (json.peek() != io::JsonReader::Kind::null) return json.number();
  json.null();
  return {};
}

struct Mode {
  const char *name, *shape;
  std::set<std::string> rows;  // some of the mode's rows
};

void PrintTo(const Mode& m, std::ostream* out) {
  *out << m.name;
}

class BenchModes : public testing::TestWithParam<Mode> {};

TEST_P(BenchModes, PrintATableAndWriteTheSameRowsAsJson) {
  const std::string path =
      testing::TempDir() + "bench_" + GetParam().name + std::to_string(getpid()) + ".json";
  const Outcome run = bench(std::string(GetParam().name) + " --quick --threads 2 --shape " +
                            GetParam().shape + " --json " + path);
  ASSERT_EQ(run.code, 0) << run.output;
  EXPECT_NE(run.output.find("multiply-add"), std::string::npos);
  EXPECT_NE(run.output.find("threads"), std::string::npos);

  // The columns of every row are aligned with the header, even after a wide name.
  std::istringstream lines(run.output.substr(run.output.find("\n\n") + 2));
  std::string head;
  std::getline(lines, head);
  const std::size_t place = head.find("threads") + 6;
  for (std::string line; std::getline(lines, line);) {
    std::erase_if(line,
                  [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; });  // count
                                                                                           // characters,
                                                                                           // not bytes
    ASSERT_GT(line.size(), place) << line;
    EXPECT_TRUE((line[place] == '1' || line[place] == '2') && line[place - 1] == ' ' &&
                line[place + 1] == ' ')
        << line;
  }

  const std::string text = io::read_file(path, "test");
  std::remove(path.c_str());
  io::JsonReader json(text, path);
  std::set<std::string> names;
  json.begin_object();
  while (const auto part = json.next_key()) {
    if (*part == "machine") {
      json.begin_object();
      while (const auto key = json.next_key()) {
        if (*key == "model" || *key == "isa")
          EXPECT_FALSE(json.string().empty());
        else
          EXPECT_GT(json.number(), 0) << *key;
      }
      continue;
    }
    ASSERT_EQ(*part, "rows");
    json.begin_array();
    while (json.next_item()) {
      std::set<std::string> keys;
      json.begin_object();
      while (const auto key = json.next_key()) {
        keys.insert(*key);
        if (*key == "threads") {
          const std::int64_t threads = json.integer();
          EXPECT_TRUE(threads == 1 || threads == 2) << threads;
        } else if (json.peek() == io::JsonReader::Kind::string) {
          const std::string value = json.string();
          if (*key == "name") names.insert(value);
          EXPECT_NE(run.output.find(value), std::string::npos) << value;
        } else {
          EXPECT_GE(number_or_null(json).value_or(0), 0) << *key;
        }
      }
      EXPECT_EQ(keys, (std::set<std::string>{"name", "shape", "dtype", "pass", "threads", "ms", "rate",
                                             "unit", "share", "of", "share_sgemm"}));
    }
  }
  json.end();
  for (const std::string& row : GetParam().rows) EXPECT_TRUE(names.contains(row)) << row << " is missing";
}

const Mode all_modes[] = {
    {"gemm", "33x20x17", {"sgemm NN", "sgemm NT", "sgemm TN", "dgemm NN", "gemm NN", "sgemm NN, all / one"}},
    {"attention", "1x2x33x16", {"flash_attn", "flash_attn causal", "flash_attn causal / full"}},
    {"decode", "H=4,Hk=2,L=1,T=40,d=16,length=33", {"flash_attn decode", "flash_attn decode, products"}},
    {"ops",
     "16x24",
     {"add", "gelu", "softmax", "layer_norm", "cross_entropy", "copy of transposed", "sum of all"}},
    {"overhead", "50", {"dispatch", "plan memory", "GPT 12 layers: all"}},
    {"generate", "8", {"whole sequence", "cached", "engine, 1 sequence", "engine, 16 sequences"}},
    {"load", "1x256x64x50", {"read into memory", "read into caches", "touch new memory", "from_pretrained"}},
    {"ranks",
     "64",
     {"all_reduce", "all_reduce, wide", "reduce_scatter", "all_gather", "all_to_all", "ppermute"}},
    {"serve", "1x2x16x64x13", {"contiguous", "pages of 16, cache in use", "paged / contiguous"}},
    {"train", "1x2x16x8x2", {"GPT step", "matmul", "flash_attn", "adamw"}},
    {"lora", "2x2x16x8x2x40x3", {"all parameters", "LoRA, attention's input", "LoRA, all linear layers"}},
};
INSTANTIATE_TEST_SUITE_P(Bench, BenchModes, testing::ValuesIn(all_modes),
                         [](const auto& m) { return m.param.name; });

const std::string small_cells =
    "--quick --threads 1 --shape 1x2x33x16 --shape B=2,H=4,Hk=2,L=9,T=13,d=8,dv=24,causal,window=5";

TEST(BenchDecode, MeasuresPagesToo) {
  const std::string shape = " --quick --threads 1 --shape H=4,Hk=2,L=3,T=40,d=16,length=33,page=16";
  const Outcome run = bench("decode" + shape), refused = bench("attention" + shape);
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_NE(run.output.find("paged_attn page 16 decode"), std::string::npos) << run.output;
  const Outcome ragged = bench("decode --quick --threads 1 --shape B=3,H=2,L=1,T=40,d=16,ragged,page=16");
  EXPECT_EQ(ragged.code, 0) << ragged.output;
  EXPECT_NE(ragged.output.find("3×2×1/1 to 40×16"), std::string::npos) << ragged.output;
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("page= requires the mode decode"), std::string::npos) << refused.output;
}

TEST(BenchAttention, AcceptsCellsOfAnyMaskLayoutAndDtype) {
  for (const char* options :
       {"", "--layout BLHd", "--dtype bf16", "--dtype f16 --layout BLHd", "--dtype f64"}) {
    const Outcome run = bench("attention " + small_cells + " " + options);
    ASSERT_EQ(run.code, 0) << run.output;
    EXPECT_NE(run.output.find("flash_attn causal window 5        2×4/2×9/13×8/24"), std::string::npos)
        << run.output;
  }
}

TEST(BenchAttention, RunsRequestedKernelsOrReportsWhyNot) {
  const Outcome plain = bench("attention --kernels plain " + small_cells),
                other = bench("attention --kernels wgmma " + small_cells),
                gemm = bench("gemm --kernels plain");
  EXPECT_EQ(plain.code, 0) << plain.output;
  EXPECT_NE(plain.output.find("flash_attn causal, plain "), std::string::npos) << plain.output;
  EXPECT_EQ(other.code, 1) << other.output;
  EXPECT_NE(
      other.output.find("[flash_attn] kernels = wgmma: the CPU has multiply-adds only; got f32 [1, 2, 33"),
      std::string::npos)
      << other.output;
  EXPECT_EQ(gemm.code, 2) << gemm.output;
  EXPECT_NE(gemm.output.find("--kernels requires the modes attention and decode"), std::string::npos)
      << gemm.output;
}

// Installs a python3 that answers like tools/bench/torch_attention.py, or fails.
class FakePython {
 public:
  explicit FakePython(const std::string& script)
      : folder_(testing::TempDir() + "python" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/python3") << "#!/bin/sh\n" << script;
    std::filesystem::permissions(folder_ + "/python3", std::filesystem::perms::owner_all);
  }
  ~FakePython() { std::filesystem::remove_all(folder_); }
  std::string environment() const { return "PATH=" + folder_ + ":$PATH"; }

 private:
  std::string folder_;
};

// Returns the numbers in a cell's line of the table, as strings.
std::string line_of(const std::string& output, const std::string& start, const std::string& pass) {
  const std::size_t table = output.find("\nTFLOP/s");
  std::istringstream lines(table == std::string::npos ? "" : output.substr(table));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(start) && line.find(pass) != std::string::npos) return line;
  return "";
}

TEST(BenchAttention, ComparesEachCellWithPyTorch) {
  const FakePython python(
      "echo ready PyTorch 9.9\n"
      "while read pass dtype layout cell; do\n"
      "  [ $dtype$layout = f32BHLd ] || exit\n"
      "  case $cell in *window*) echo - -;; *causal*) echo 1000 -;; *) echo 1000 2000;; esac\n"
      "done\n");
  const Outcome run = bench("attention --compare " + small_cells, python.environment());
  ASSERT_EQ(run.code, 0) << run.output;
  EXPECT_NE(run.output.find("PyTorch 9.9"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("flash_attn, FA2"), std::string::npos) << run.output;
  EXPECT_EQ(run.output.find("flash_attn causal, FA2"), std::string::npos) << run.output;
  const std::string causal = line_of(run.output, "1×2×33×16                 flash_attn causal", "forward");
  EXPECT_TRUE(causal.ends_with("-         -")) << run.output;
  EXPECT_NE(line_of(run.output, "geometric mean, ", "backward"), "") << run.output;
}

TEST(BenchDecode, ComparesAttentionAndGemmsWithPyTorch) {
  const FakePython python(
      "echo ready PyTorch 9.9\n"
      "while read what dtype layout cell; do\n"
      "  [ $dtype = f32 ] || exit\n"
      "  case $what in linear) echo 3 -;; graph) echo 1 2;; *) exit;; esac\n"
      "done\n");
  const Outcome run =
                    bench("decode --compare --quick --threads 1 --filter small-batch", python.environment()),
                cell =
                    bench("decode --compare --quick --threads 1 --shape L=1,T=8,d=8", python.environment());
  ASSERT_EQ(run.code, 0) << run.output;
  for (const char* row : {"small-batch GEMM  ", "small-batch GEMM, products", "small-batch GEMM, F.linear"})
    EXPECT_NE(run.output.find(row), std::string::npos) << run.output;
  ASSERT_EQ(cell.code, 0) << cell.output;
  EXPECT_NE(cell.output.find("flash_attn decode, cuDNN"), std::string::npos) << cell.output;
  EXPECT_NE(cell.output.find("flash_attn decode, FA2"), std::string::npos) << cell.output;
  EXPECT_EQ(cell.output.find("small-batch GEMM"), std::string::npos) << cell.output;
}

TEST(BenchAttention, ReportsWhyPyTorchIsUnavailable) {
  for (const char* script : {"echo none it is not installed\n", "exit 1\n"}) {
    const Outcome run =
        bench("attention --compare --quick --threads 1 --shape 1x1x8x8", FakePython(script).environment());
    EXPECT_EQ(run.code, 0) << run.output;
    EXPECT_NE(run.output.find("no PyTorch to compare with: "), std::string::npos) << run.output;
    EXPECT_EQ(run.output.find("cuDNN"), std::string::npos) << run.output;
  }
}

TEST(BenchAttention, DrawsTheRates) {
  const std::string path = testing::TempDir() + "rates" + std::to_string(getpid()) + ".png";
  const Outcome run = bench("attention " + small_cells + " --plot " + path);
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_TRUE(io::read_file(path, "test").starts_with("\x89PNG"));
  std::remove(path.c_str());
}

TEST(BenchAttention, PrintsTheTrafficOfMemory) {
  const Outcome run = bench("attention --traffic --dtype bf16 --shape B=1,H=1,L=1000,d=64");
  EXPECT_EQ(run.code, 0) << run.output;
  // Standard attention reads 2 · (q + k + v + 2·L·T) and writes 2 · (2·L·T + o). Fused attention reads q
  // once. There are 16 tiles of 64 queries, and each tile reads k and v completely.
  EXPECT_NE(run.output.find("4.4 + 4.1"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("4.2 + 0.1"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("not measured"), std::string::npos) << run.output;
}

TEST(BenchAttention, RunsOneProgramForAProfiler) {
  for (const char* once : {"forward", "backward", "materialised", "materialised-both"}) {
    const Outcome run = bench("attention " + small_cells + " --once " + once);
    EXPECT_EQ(run.code, 0) << once;
    EXPECT_EQ(run.output, "") << once;
  }
}

const std::string small_serve = "serve --quick --threads 1 --shape 1x2x16x64x13";

// Returns the rate in the row with this name.
double rate_of(const std::string& output, const std::string& row) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(row + "  ")) return std::stod(line.substr(line.find(" 1 ") + 3));
  return -1;
}

TEST(BenchServe, ReplaysATraceFromAFileAndDrawsIt) {
  const std::string path = testing::TempDir() + "trace" + std::to_string(getpid());
  std::ofstream(path) << "# seconds prompt output\n0 40 20\n0 60 5\n0.01 64 1\n";
  const Outcome run = bench(small_serve + " --trace " + path + " --shared-prefix 32 --plot " + path + ".png");
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_GE(rate_of(run.output, "pages of 16, reused tokens"), 32) << run.output;
  EXPECT_TRUE(io::read_file(path + ".png", "test").starts_with("\x89PNG"));
  std::ofstream(path) << "0 40 20\n0 60 6\n";
  const Outcome refused = bench(small_serve + " --trace " + path);
  EXPECT_EQ(refused.code, 1) << refused.output;
  EXPECT_NE(refused.output.find(path + ":2 got '0 60 6', expected a prompt and an output that fit"),
            std::string::npos)
      << refused.output;
  std::filesystem::remove(path), std::filesystem::remove(path + ".png");
}

TEST(BenchServe, ComparesATraceWithOtherLibraries) {
  const FakePython python(
      "[ $4 = 1x2x16x64x13 ] && [ $5 = 1 ] || exit\n"
      "case $1 in *torch_decode.py) ;; *llama_decode.py) echo none it is not installed; exit;; *) exit;; "
      "esac\n"
      "echo ready PyTorch 9.9\n"
      "read what slots first rest && [ \"$what $slots $first $rest\" = 'trace 2 1:7 2:5 3:4' ] && echo 2.0 "
      "100\n");
  const std::string path = testing::TempDir() + "compared" + std::to_string(getpid()),
                    command = small_serve + " --compare --cache-memory 128tokens --trace " + path;
  std::ofstream(path) << "0 1 7\n0 2 5\n0 3 4\n";
  const Outcome run = bench(command, python.environment());
  std::ofstream(path) << "0 1 7\n0.5 2 5\n";
  const Outcome later = bench(command, python.environment());
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_NE(run.output.find("PyTorch 9.9"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("no llama.cpp to compare with: it is not installed"), std::string::npos)
      << run.output;
  EXPECT_NE(run.output.find("2000.000          8 tokens/s"), std::string::npos)
      << run.output;  // 16 tokens in total
  EXPECT_NE(run.output.find("PyTorch, step"), std::string::npos) << run.output;
  EXPECT_EQ(later.code, 1) << later.output;
  EXPECT_NE(later.output.find("--compare requires --rate 0: all requests must arrive at the start"),
            std::string::npos)
      << later.output;
  std::filesystem::remove(path);
}

TEST(BenchGenerate, ComparesStepsWithOtherLibraries) {
  const FakePython python(
      "case $1 in *llama*) echo ready llama.cpp 8.8;; *) echo ready PyTorch 9.9;; esac\n"
      "while read what texts keys; do [ $what$keys = step5 ] && [ $texts != 4 ] && echo 8 || echo -; done\n");
  const Outcome run =
      bench("generate --quick --threads 1 --shape 8 --filter engine --compare", python.environment());
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_NE(run.output.find("PyTorch, 16 sequences"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("llama.cpp, 64 sequences"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("0.500       2000 tokens/s"), std::string::npos)
      << run.output;  // 8 ms for 16 sequences
  EXPECT_EQ(run.output.find("PyTorch, 4 sequences"), std::string::npos) << run.output;
}

TEST(BenchServe, BothCachesHaveTheSameSize) {
  // The memory is enough for two contexts of 64 tokens, or five pages of 24 tokens.
  const Outcome run = bench(small_serve + " --requests 12 --cache-memory 150tokens --page 24"),
                small = bench(small_serve + " --cache-memory 63tokens"),
                page = bench(small_serve + " --page 65");
  EXPECT_EQ(run.code, 0) << run.output;
  // A token needs two tensors with 16 elements of 4 bytes.
  EXPECT_NEAR(rate_of(run.output, "cache"), 128 * 2 * 16 * 4 * 0x1p-20, 1e-5) << run.output;
  EXPECT_EQ(small.code, 1) << small.output;
  EXPECT_NE(small.output.find("--cache-memory has room for 63 tokens, expected at least 64"),
            std::string::npos)
      << small.output;
  EXPECT_EQ(page.code, 1) << page.output;
  EXPECT_NE(page.output.find("--page 65 is larger than the context of 64"), std::string::npos) << page.output;
}

const std::string small_train =
    "train --quick --threads 1 --layers 1 --heads 2 --width 16 --context 8 --batch 2 --vocabulary 11 ";

// Returns the values of a field by the name of the row. Rows without this field are omitted.
std::map<std::string, double> rows_of(const std::string& path, const std::string& field) {
  const std::string text = io::read_file(path, "test");
  std::map<std::string, double> numbers;
  for (std::size_t at = 0; (at = text.find("{\"name\": \"", at)) != std::string::npos;) {
    at += 10;
    const std::string row = text.substr(at, text.find('}', at) - at);
    numbers[row.substr(0, row.find('"'))] =
        std::atof(row.c_str() + row.find("\"" + field + "\": ") + field.size() + 4);
  }
  return numbers;
}

TEST(BenchTrain, ReportsOnAnyModel) {
  const std::string path = testing::TempDir() + "train" + std::to_string(getpid());
  for (const char* model :
       {"gpt", "llama --key-heads 1", "deepseek --latent 4 --rope-width 2 --dtype bf16"}) {
    const Outcome run = bench(small_train + "--overwrite --json " + path + ".json --plot " + path +
                              ".png --architecture " + model);
    ASSERT_EQ(run.code, 0) << run.output;
    for (const char* line : {"parameters  ", "step  ", "model FLOP  ", "utilisation  ", "time by family",
                             "matrix products  ", "head and loss  ", "optimizer  ", "peak memory  "})
      EXPECT_NE(run.output.find(line), std::string::npos) << line << run.output;
    EXPECT_TRUE(io::read_file(path + ".png", "test").starts_with("\x89PNG"));
    double share = 0;
    const auto shares = rows_of(path + ".json", "share");
    for (const char* family : {"matrix products", "attention", "norms", "head and loss", "other elementwise",
                               "casts and copies", "embedding, rotary", "optimizer", "rest"})
      if (shares.contains(family)) share += shares.at(family);
    EXPECT_NEAR(share, 1, 1e-5) << run.output;
    EXPECT_GT(rows_of(path + ".json", "ms")["step"], 0);
    EXPECT_GT(rows_of(path + ".json", "rate")["peak memory"], 0);
  }
  std::filesystem::remove(path + ".json"), std::filesystem::remove(path + ".png");
}

TEST(BenchTrain, CountsTheFlopsOfAModel) {
  const std::string path = testing::TempDir() + "flops" + std::to_string(getpid()) + ".json";
  const Outcome run = bench(small_train + "--peak 0.5 --json " + path);
  ASSERT_EQ(run.code, 0) << run.output;
  // The block has 12·16² weights, and the head has 11·16. Attention has 2 rows and 2 heads, each with 8·9/2
  // pairs. A pair needs 2·(8 + 8) FLOPs.
  EXPECT_NE(run.output.find("6 · 3,248 weights · 16 tokens"), std::string::npos) << run.output;
  const double flops = 6. * 3248 * 16 + 3 * 2 * 2 * 36 * 32;
  EXPECT_NEAR(rows_of(path, "rate")["model FLOP"], flops * 1e-9, 1e-6 * flops * 1e-9);
  const double seconds = rows_of(path, "ms")["step"] * 1e-3;
  EXPECT_NEAR(rows_of(path, "share")["step"], flops / seconds / 0.5e12, 1e-4 * flops / seconds / 0.5e12);
  // Recomputation is not counted.
  const Outcome again = bench(small_train + "--recompute --overwrite --json " + path);
  EXPECT_NEAR(rows_of(path, "rate")["model FLOP"], flops * 1e-9, 1e-6 * flops * 1e-9) << again.output;
  std::filesystem::remove(path);
}

TEST(BenchTrain, ComparesWithPyTorchOnTheSameModel) {
  const Outcome alone = bench(small_train);
  double loss = 0, next = 0, norm = 0;
  const std::size_t at = alone.output.find("loss ");
  ASSERT_NE(at, std::string::npos) << alone.output;
  ASSERT_EQ(
      std::sscanf(alone.output.c_str() + at, "loss %lf, then %lf; gradient norm %lf", &loss, &next, &norm),
      3);
  const auto python = [&](double its_loss) {
    return "case $1 in *torch_train.py) ;; *) exit;; esac\n"
           "echo ready PyTorch 9.9\n"
           "while read way; do case $way in graphs) echo - no graphs here;; *) echo 2 3 1048576 " +
           std::to_string(its_loss) + " " + std::to_string(norm) + " " + std::to_string(next) +
           ";; esac; done\n";
  };
  const Outcome run = bench(small_train + "--compare", FakePython(python(loss)).environment());
  EXPECT_EQ(run.code, 0) << run.output;
  for (const char* text :
       {"PyTorch 9.9", "PyTorch, eager", "PyTorch, compiled", "2.000      3.000        8,000", "1.00 MiB",
        "PyTorch, CUDA graphs           not measured: no graphs here"})
    EXPECT_NE(run.output.find(text), std::string::npos) << text << run.output;
  // --shape can specify the same sizes.
  const Outcome shape = bench("train --quick --threads 1 --shape 1x2x16x8x2 --vocabulary 11 --compare",
                              FakePython(python(loss)).environment());
  EXPECT_EQ(shape.code, 0) << shape.output;
  EXPECT_NE(shape.output.find("PyTorch, compiled"), std::string::npos) << shape.output;
  const Outcome other = bench(small_train + "--compare", FakePython(python(loss + 0.01)).environment());
  EXPECT_EQ(other.code, 1) << other.output;
  EXPECT_NE(other.output.find("bench: [train] PyTorch, eager, does not compute the same model: loss "),
            std::string::npos)
      << other.output;
  const Outcome none =
      bench(small_train + "--compare", FakePython("echo none it is not installed\n").environment());
  EXPECT_EQ(none.code, 0) << none.output;
  EXPECT_NE(none.output.find("no PyTorch to compare with: it is not installed"), std::string::npos)
      << none.output;
}

TEST(BenchTrain, RejectsModelsThatDoNotFit) {
  for (const auto& [options, message] :
       {std::pair<const char*, const char*>{
            "train --quick --layers 1 --context 4096 --batch 65536 --vocabulary 50000",
            "[memory] --batch 65536 needs "},
        {"train --quick --layers 1 --memory-budget 1MiB", "memory_budget"},
        {"train --quick --layers 1 --plot /nowhere/step.png", "/nowhere"}}) {
    const Outcome run = bench(options);
    EXPECT_EQ(run.code, 1) << run.output;
    const std::size_t said = run.output.find("bench: ");
    ASSERT_NE(said, std::string::npos) << run.output;
    EXPECT_NE(run.output.find(message, said), std::string::npos) << run.output;
    EXPECT_EQ(run.output.find("bench: ", said + 1), std::string::npos) << run.output;
  }
}

TEST(Bench, MeasuresEachShape) {
  for (const auto& [arguments, first, second] :
       {std::array{"ops --shape 4x8 --shape 8x4", " 4×8 ", " 8×4 "},
        std::array{"train --shape 1x2x16x8x2 --shape 1x2x16x8x4", " 1×2×16×8×2 ", " 1×2×16×8×4 "}}) {
    const Outcome run = bench(std::string(arguments) + " --quick --threads 1");
    EXPECT_EQ(run.code, 0) << run.output;
    for (const char* shape : {first, second})
      EXPECT_NE(run.output.find(shape), std::string::npos) << shape << run.output;
  }
}

TEST(Bench, HelpHasExamples) {
  const Outcome run = bench("--help");
  EXPECT_EQ(run.code, 0);
  EXPECT_NE(run.output.find("examples:"), std::string::npos);
}

TEST(Bench, ErrorsAreOneLineAndExitCodeTwo) {
  for (const char* arguments : {"",
                                "flops",
                                "gemm --threads 0",
                                "gemm --shape 4",
                                "gemm --shape 4xx4",
                                "gemm --shape 4x0x4",
                                "ops --speed 3",
                                "ops --quick --filter nothing-has-this-name",
                                "attention --shape 4x4x4",
                                "attention --shape L=4",
                                "attention --shape L=4,d=4,H=3,Hk=2",
                                "attention --shape L=4,d=4,window=x",
                                "attention --suite all",
                                "attention --suite cpu --shape 1x1x4x4",
                                "attention --layout LBHd",
                                "attention --traffic --compare",
                                "attention --traffic --json rows.json",
                                "attention --once forward --traffic",
                                "attention --once both",
                                "gemm --traffic",
                                "gemm --requests 3",
                                "serve --shape 4x4",
                                "serve --rate -1",
                                "serve --cache-memory 4KB",
                                "serve --trace file --rate 3",
                                "train --architecture bert",
                                "train --key-heads 2",
                                "train --width 130 --heads 4",
                                "train --layers 3 --shape 1x2x16x8x2",
                                "train --compare --shape 1x2x16x8",
                                "train --compare --shape 1x2x16x8x2 --shape 1x2x16x8x4",
                                "train --compare --filter step",
                                "train --compare --dropout 0.1",
                                "train --memory-budget 4KB",
                                "train --peak 0",
                                "gemm --layers 3",
                                "lora --compare"}) {
    const Outcome run = bench(arguments);
    EXPECT_EQ(run.code, 2) << arguments;
    const std::size_t said = run.output.find("bench: ");
    ASSERT_NE(said, std::string::npos) << arguments;
    EXPECT_EQ(run.output.find("bench: ", said + 1), std::string::npos) << arguments << ": " << run.output;
  }
  EXPECT_EQ(bench("gemm --quick --shape 8x8x8 --json /nowhere/rows.json").code, 1);
}

}  // namespace
}  // namespace tg

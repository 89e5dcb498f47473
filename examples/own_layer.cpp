// Adds a custom layer to a model that is trained, resumed and used for generation. The layer is attention
// that sees only the last tokens.
// Usage: build/examples/own_layer DIR.
// Exits with status 0 if the model reproduces its text and if two half runs give the same result as one run.
#include <cstdio>

#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/tilegrad.h>
#include <tilegrad/train/batches.h>

using namespace tg;
constexpr std::int64_t batch = 8, context = 24, width = 32, heads = 4, window = 8;

// Calling a Module opens the scope with its name, and adds the residual that its block passes.
class WindowAttention : public nn::Module {
 public:
  explicit WindowAttention(const nn::Path& at)
      : Module(at), qkv_(at / "qkv", width, 3 * width), out_(at / "out", width, width) {
    at.setting(qkv_.weight(), "window", window);  // saved because the weights do not show it
  }

 private:
  Tensor record(TensorArg x, const nn::CallArgs& call) const override {  // [B, L, width] → [B, L, width]
    const Shape& shape = x.tensor().shape();
    const Tensor rows = qkv_(x).view({shape[0], shape[1], 3 * heads, width / heads});
    const auto qkv = chunk(transpose(rows, 1, 2), 3, 1);  // views [B, heads, L, width / heads]
    const Tensor o = call.cache
                         ? call.cache->attend(path(), qkv[0], qkv[1], qkv[2], {.window_left = window})
                         : flash_attn(qkv[0], qkv[1], qkv[2], {.causal = true, .window_left = window}).o;
    return out_(transpose(o, 1, 2).view(shape));
  }
  nn::Linear qkv_, out_;
};

nn::Model make_model(const nn::Path& at, std::int64_t vocabulary) {
  const nn::Embedding tokens(at / "tokens", vocabulary, width, nn::Init::normal(0.1));
  nn::ModelParts parts{.name = "ours", .context = context, .tokens = tokens, .head = tokens.head()};
  parts.positions = nn::PositionEmbedding(at / "positions", context, width);
  for (int i = 0; i < 2; ++i) {
    const nn::Path block = at / "blocks" / i;
    parts.blocks.push_back(
        nn::Block(block, {{nn::RmsNorm(block / "norm_1", width), WindowAttention(block / "attention")},
                          {nn::RmsNorm(block / "norm_2", width), nn::GatedMlp(block / "mlp", width, 64)}}));
  }
  return nn::Model(at, parts);
}

int main(int argc, char** argv) try {
  if (argc != 2) return std::fprintf(stderr, "usage: own_layer DIR\n"), 2;
  std::string text, rhyme = "how much wood would a woodchuck chuck if a woodchuck could chuck wood?\n";
  for (int i = 0; i < 40; ++i) text += rhyme;
  const text::CharVocab vocab(text);
  const auto tokens = vocab.encode(text);
  const train::TextBatches batches(tokens, batch, batch, context);
  const auto learn = [&](const char* name, std::int64_t steps, bool resume) {
    nn::Params params(/*seed=*/1);
    const nn::Model model = make_model(params, vocab.size());
    const optim::AdamW optimizer(model.parameters());
    io::CheckpointStore store(argv[1] + std::string("/") + name);
    const std::vector<io::CheckpointFile> files{{"model.safetensors", params.all(), vocab.metadata()}};
    const optim::Schedule rate{.peak = 1e-2, .warmup = 20};
    train::Trainer trainer(model, optimizer, batches,
                           {.steps = steps, .schedule = rate, .program = {.batch = batch, .threads = 1}},
                           {.files = [&](const auto&) { return files; }}, &store);
    if (resume) trainer.resume(io::Checkpoint(store.directory()));
    trainer.run();
    std::vector<std::int32_t> said = vocab.encode(rhyme.substr(0, 8));
    nn::Generator(model).extend(said, context - 8, {.temperature = 0}, 0);
    std::printf("%s: loss %.6f, \"%s\"\n", name, trainer.last().loss, vocab.decode(said).c_str());
    return std::pair(trainer.last().loss, vocab.decode(said));
  };
  learn("halves", 100, false);
  const auto halves = learn("halves", 200, true), whole = learn("whole", 200, false);
  return halves == whole && rhyme.starts_with(whole.second) ? 0 : 1;
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 2;
}

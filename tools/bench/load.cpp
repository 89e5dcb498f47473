// Measures the time to load a Hugging Face folder whose files are in the page cache. Compares it with the
// time to read the files.
#include <cmath>
#include <filesystem>
#include <fstream>

#include <tilegrad/core/run/backend.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/nn/models/llama.h>
#include "tools/bench/measure.h"
#include "tools/bench/report.h"

namespace tg::bench {

namespace {

// Arbitrary bf16 numbers with magnitudes below 2. Pages of zeros might be deduplicated by the machine.
std::vector<std::uint16_t> some_numbers(std::size_t n) {
  std::vector<std::uint16_t> numbers(n);
  std::uint32_t bits = 1;
  for (std::uint16_t& x : numbers) {
    bits = bits * 1664525 + 1013904223;
    x = static_cast<std::uint16_t>(bits >> 16 & 0xbfff);
  }
  return numbers;
}

// A Hugging Face folder of a Llama with bf16 weights, removed by the destructor.
class LlamaFolder : public TemporaryPath {
 public:
  // The sizes are layers, width, MLP width and vocabulary.
  explicit LlamaFolder(const Sizes& sizes) : TemporaryPath("tilegrad-bench-load-", "") {
    constexpr std::int64_t head_width = 128;
    const std::int64_t width = sizes[1], heads = std::max<std::int64_t>(1, width / head_width);
    const nn::ModelConfig config{.architecture = nn::Llama{.mlp_width = sizes[2]},
                                 .vocabulary = sizes[3],
                                 .layers = sizes[0],
                                 .heads = heads,
                                 .width = width,
                                 .tied_head = false};
    config.check();
    std::int64_t largest = 0;
    config.each_parameter(
        [&](const std::string&, const Shape& shape) { largest = std::max(largest, numel(shape)); });
    const std::vector<std::uint16_t> numbers = some_numbers(static_cast<std::size_t>(largest));
    io::TensorMap tensors;
    config.each_parameter([&](const std::string& name, const Shape& shape) {
      const std::size_t bytes = static_cast<std::size_t>(numel(shape)) * size_of(bf16);
      tensors[name] = {bf16, {shape.begin(), shape.end()}, std::as_bytes(std::span(numbers)).first(bytes)};
      bytes_ += bytes;
    });
    std::filesystem::create_directories(path());
    io::save_safetensors(weights(), tensors);
    std::ofstream(path() + "/config.json")
        << R"({"model_type": "llama", "vocab_size": )" << sizes[3] << R"(, "hidden_size": )" << width
        << R"(, "intermediate_size": )" << sizes[2] << R"(, "num_hidden_layers": )" << sizes[0]
        << R"(, "num_attention_heads": )" << heads << R"(, "max_position_embeddings": 64})";
  }

  std::string weights() const { return path() + "/model.safetensors"; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

// The time to read the file in pieces, with all threads. If `keeps` is true, the pieces are read into
// separate memory that is already mapped. Otherwise each thread reads all pieces into the same memory, which
// stays in a core's cache.
double seconds_of_reading(const std::string& path, bool keeps, const Settings& settings) {
  constexpr std::size_t piece = 256 << 10;
  const io::MappedFile file(path, "bench");
  const auto threads = static_cast<std::size_t>(settings.threads);
  const std::size_t part = file.bytes().size() / threads;
  std::vector<std::byte> memory(keeps ? file.bytes().size() : threads * piece);
  return best_seconds(settings.seconds, [&] {
    on_all(settings.threads, [&](int t) {
      const std::size_t begin = static_cast<std::size_t>(t) * part, end = begin + part,
                        own = static_cast<std::size_t>(t) * piece;
      for (std::size_t at = begin; at < end; at += piece)
        file.read(at, std::span(memory).subspan(keeps ? at : own, std::min(piece, end - at)));
    });
  });
}

// Allocates new memory as parameters do. Each thread writes to every page of its part, and the system clears
// a page before the first write.
void touch_new_memory(std::size_t bytes, int threads) {
  constexpr std::size_t page = 4096;
  const std::shared_ptr<std::byte> fresh = backend(Device::cpu()).allocate(bytes, "bench");
  on_all(threads, [&](int t) {
    const std::size_t part = bytes / static_cast<std::size_t>(threads),
                      begin = static_cast<std::size_t>(t) * part;
    for (std::size_t at = begin; at < begin + part; at += page) fresh.get()[at] = std::byte{1};
  });
}

// A value of /proc/self/status, converted from KiB to bytes: VmRSS, the resident memory of the process, or
// VmHWM, its peak.
std::size_t memory_now(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) << 10;
  return 0;
}

// Peak memory during loading, minus the size of the weights.
double extra_mebibytes(const LlamaFolder& folder) {
  std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM
  const std::size_t before = memory_now("VmRSS");
  const nn::Pretrained model = nn::from_pretrained(folder.path(), Device::cpu(), {.dtype = bf16});
  const std::size_t most = memory_now("VmHWM");
  const double extra = static_cast<double>(most) - static_cast<double>(before + folder.bytes());
  return std::max(0.0, extra) / (1 << 20);
}

}  // namespace

void run_load(Report& report) {
  const Settings& settings = report.settings;
  const Sizes sizes = report.sizes({4, 4096, 11008, 32000});
  const LlamaFolder folder(sizes);
  const auto row = [&](const std::string& name) {
    Row r = report.row(name, joined(sizes));
    r.dtype = "bf16";
    return r;
  };
  const auto timed = [&](const std::string& name, double seconds) {
    return row(name).time(seconds).at(static_cast<double>(folder.bytes()) / seconds * 1e-9, "GB/s");
  };
  const double read = seconds_of_reading(folder.weights(), true, settings);
  report.add_selected(timed("read into memory", read));
  report.add_selected(timed("read into caches", seconds_of_reading(folder.weights(), false, settings)));
  // Loading must at least read the file and clear new memory.
  const double touch =
      best_seconds(settings.seconds, [&] { touch_new_memory(folder.bytes(), settings.threads); });
  report.add_selected(timed("touch new memory", touch));
  report.add_selected(
      timed("read, and touch new memory", read + touch).part(read / (read + touch), "reading"));
  const double load = best_seconds(
      settings.seconds, [&] { nn::from_pretrained(folder.path(), Device::cpu(), {.dtype = bf16}); });
  report.add_selected(timed("from_pretrained", load).part(read / load, "reading"));
  const std::string memory = "memory beyond weights";
  if (memory_now("VmHWM") > 0 && report.selects(memory))
    report.add(row(memory).at(extra_mebibytes(folder), "MiB"));
}

}  // namespace tg::bench

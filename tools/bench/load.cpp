// Loading a Hugging Face folder whose files are in the disk's cache, beside the rate at which they can be
// read.
#include <cmath>
#include <filesystem>
#include <fstream>

#include <tilegrad/core/run/backend.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/io/interop/pretrained.h>
#include <tilegrad/nn/models/llama.h>
#include "backends/cpu/pool.h"
#include "core/os/process.h"
#include "core/os/thread.h"
#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

namespace fs = std::filesystem;

// Any bf16 numbers below 2 in magnitude: pages of zeros would be one page to some machines.
std::vector<std::uint16_t> some_numbers(std::size_t n) {
  std::vector<std::uint16_t> numbers(n);
  std::uint32_t bits = 1;
  for (std::uint16_t& x : numbers) {
    bits = bits * 1664525 + 1013904223;
    x = static_cast<std::uint16_t>(bits >> 16 & 0xbfff);
  }
  return numbers;
}

// A folder of a Llama with bf16 weights, which is removed in the end.
class LlamaFolder {
 public:
  LlamaFolder(std::int64_t layers, std::int64_t width, std::int64_t mlp, std::int64_t vocabulary)
      : path_(fs::temp_directory_path() / ("tilegrad-bench-load-" + std::to_string(os::process_id()))) {
    constexpr std::int64_t head_width = 128;
    const std::int64_t heads = std::max<std::int64_t>(1, width / head_width);
    const nn::ModelConfig config{.architecture = nn::Llama{.mlp_width = mlp},
                                 .vocabulary = vocabulary,
                                 .layers = layers,
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
    fs::create_directories(path_);
    io::save_safetensors(weights(), tensors);
    std::ofstream(path_ / "config.json")
        << R"({"model_type": "llama", "vocab_size": )" << vocabulary << R"(, "hidden_size": )" << width
        << R"(, "intermediate_size": )" << mlp << R"(, "num_hidden_layers": )" << layers
        << R"(, "num_attention_heads": )" << heads << R"(, "max_position_embeddings": 64})";
  }
  ~LlamaFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  LlamaFolder(const LlamaFolder&) = delete;
  LlamaFolder& operator=(const LlamaFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string weights() const { return (path_ / "model.safetensors").string(); }
  std::size_t bytes() const { return bytes_; }

 private:
  fs::path path_;
  std::size_t bytes_ = 0;
};

// Reads the file on so many threads, in pieces: each into the same memory, which stays in a core's cache, or
// all into memory of the file's size, which the process has already.
class FileReading {
 public:
  FileReading(const std::string& path, int threads, bool keeps)
      : file_(path, "bench"),
        threads_(static_cast<std::size_t>(threads)),
        keeps_(keeps),
        memory_(keeps ? file_.bytes().size() : threads_ * piece) {}

  void read_all() {
    cpu::run_on_pool(
        static_cast<int>(threads_), [](void* p, int t) { static_cast<FileReading*>(p)->read_part(t); }, this);
  }

 private:
  static constexpr std::size_t piece = 256 << 10;

  void read_part(int t) {
    const auto thread = static_cast<std::size_t>(t);
    const std::size_t part = file_.bytes().size() / threads_, end = (thread + 1) * part;
    for (std::size_t at = thread * part; at < end; at += piece)
      file_.read(at, std::span(memory_).subspan(keeps_ ? at : thread * piece, std::min(piece, end - at)));
  }

  io::MappedFile file_;
  std::size_t threads_;
  bool keeps_;
  std::vector<std::byte> memory_;
};

// Memory of so many bytes as parameters get it, which is new: each thread writes to every page of its part,
// and the system clears them before.
void touch_new_memory(std::size_t bytes, int threads) {
  struct Touch {
    std::span<std::byte> memory;
    std::size_t threads;
  };
  constexpr std::size_t page = 4096;
  const std::shared_ptr<std::byte> fresh = backend(Device::cpu()).allocate(bytes, "bench");
  Touch touch{{fresh.get(), bytes}, static_cast<std::size_t>(threads)};
  cpu::run_on_pool(
      threads,
      [](void* p, int t) {
        const auto& [memory, n] = *static_cast<Touch*>(p);
        const std::size_t part = memory.size() / n, begin = static_cast<std::size_t>(t) * part;
        for (std::size_t at = begin; at < begin + part; at += page) memory[at] = std::byte{1};
      },
      &touch);
}

// A number of KiB of /proc/self/status in bytes: VmRSS, what memory the process has, or VmHWM, the most it
// had.
std::size_t memory_now(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) << 10;
  return 0;
}

// The most memory that loading takes beyond the weights.
double extra_mebibytes(const LlamaFolder& folder) {
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM is counted anew
  const std::size_t before = memory_now("VmRSS");
  const nn::Pretrained model = nn::from_pretrained(folder.path(), Device::cpu(), {.dtype = bf16});
  const std::size_t most = memory_now("VmHWM");
  const double extra = static_cast<double>(most) - static_cast<double>(before + folder.bytes());
  return std::max(0.0, extra) / (1 << 20);
}

}  // namespace

void run_load(const Settings& settings, const Machine&, Report& report) {
  const std::vector<std::int64_t> sizes =
      settings.shapes.empty() ? std::vector<std::int64_t>{4, 4096, 11008, 32000} : settings.shapes[0];
  const LlamaFolder folder(sizes[0], sizes[1], sizes[2], sizes[3]);
  const auto gbytes = [&](double seconds) { return static_cast<double>(folder.bytes()) / seconds * 1e-9; };
  const auto add = [&](const std::string& name, double seconds, double share) {
    if (!report.selects(name)) return;
    report.add({.name = name,
                .shape = joined(sizes),
                .dtype = "bf16",
                .threads = settings.threads,
                .ms = seconds * 1e3,
                .rate = gbytes(seconds),
                .unit = "GB/s",
                .share = share,
                .of = std::isnan(share) ? "" : "reading"});
  };
  const auto seconds_of_reading = [&](bool keeps) {
    FileReading reading(folder.weights(), settings.threads, keeps);
    return best_seconds(settings.seconds, [&] { reading.read_all(); });
  };
  const double read = seconds_of_reading(true);
  add("read into memory", read, Row::none);
  add("read into caches", seconds_of_reading(false), Row::none);
  // What loading cannot do without: the file is read, and memory that was not there is cleared.
  const double touch =
      best_seconds(settings.seconds, [&] { touch_new_memory(folder.bytes(), settings.threads); });
  add("touch new memory", touch, Row::none);
  add("read, and touch new memory", read + touch, read / (read + touch));
  const double load = best_seconds(
      settings.seconds, [&] { nn::from_pretrained(folder.path(), Device::cpu(), {.dtype = bf16}); });
  add("from_pretrained", load, read / load);
  const std::string memory = "memory beyond weights";
  if (memory_now("VmHWM") == 0 || !report.selects(memory)) return;
  report.add({.name = memory,
              .shape = joined(sizes),
              .dtype = "bf16",
              .threads = settings.threads,
              .rate = extra_mebibytes(folder),
              .unit = "MiB"});
}

}  // namespace tg::bench

// Fuzz target for the GGUF container. For any input, readers throw only FormatError. In an accepted file,
// tensors are within the file and do not overlap. No allocation exceeds the file's size plus 64 KiB.
#include "io/files/gguf.h"

#include <tilegrad/core/base/error.h>
#include "tests/fuzz/target.h"
#include "tests/support/largest_piece.h"

namespace {

using namespace tg;

// Reads a key as every type. Most types are wrong for the key.
void read_key(const io::Gguf& file, std::string_view key) {
  const auto attempt = [](auto read) {
    try {
      read();
    } catch (const FormatError&) {
    }
  };
  attempt([&] { file.integer(key); });
  attempt([&] { file.number(key); });
  attempt([&] { file.boolean(key); });
  attempt([&] { file.string(key); });
  std::size_t read = 0;
  attempt([&] { file.each_string(key, [&](std::string_view s) { read += 8 + s.size(); }); });
  attempt([&] { file.each_integer(key, [&](std::int64_t) { ++read; }); });
  attempt([&] { file.each_number(key, [&](double) { ++read; }); });
  attempt([&] { fuzz_expect(read >= file.count(key), "every item is passed"); });
  fuzz_expect(!file.text(key).empty(), "a key has a string");
}

void read_all(std::string_view bytes) {
  try {
    const io::Gguf file(bytes, "fuzz");
    for (const std::string_view key : file.keys()) read_key(file, key);
    std::size_t total = 0;
    unsigned sum = 0;
    for (std::size_t i = 0; i < file.tensor_count(); ++i) {
      const io::GgufTensor tensor = file.tensor(i);
      fuzz_expect(tensor.bytes.data() >= bytes.data() &&
                      tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size(),
                  "tensors are within the file");
      fuzz_expect(io::gguf_bytes(tensor.type, tensor.shape) == tensor.bytes.size(), "sizes match shapes");
      total += tensor.bytes.size();
      for (const char b : tensor.bytes) sum += static_cast<unsigned char>(b);
    }
    fuzz_expect(total <= bytes.size() && sum <= 255u * total, "tensors do not overlap");
  } catch (const FormatError&) {
    return;
  }
}

}  // namespace

void fuzz_one(std::string_view bytes) {
  largest_piece = 0;
  read_all(bytes);
  fuzz_expect(largest_piece <= piece_bound(bytes.size()), "memory is bounded by the file's size");
}

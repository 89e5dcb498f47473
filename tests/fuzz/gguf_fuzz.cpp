// Fuzz target of the GGUF container. Whatever the bytes are, FormatError is the only way out; what is
// accepted lies in the file, and no tensor lies on another.
#include "io/interop/gguf.h"

#include <tilegrad/core/base/error.h>
#include "tests/fuzz/target.h"

namespace {

using namespace tg;

// Every way to read a key, of which most are wrong.
void read_key(const io::Gguf& file, const std::string& key) {
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
  attempt([&] { file.strings(key); });
  attempt([&] { file.integers(key); });
  attempt([&] { file.numbers(key); });
  fuzz_expect(!file.text(key).empty(), "a key has a text");
}

}  // namespace

void fuzz_one(std::string_view bytes) {
  try {
    const io::Gguf file(bytes, "fuzz");
    for (const std::string& key : file.keys()) read_key(file, key);
    std::size_t total = 0;
    unsigned sum = 0;
    for (const io::GgufTensor& tensor : file.tensors()) {
      fuzz_expect(tensor.bytes.data() >= bytes.data() &&
                      tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size(),
                  "tensors lie in the file");
      fuzz_expect(io::gguf_bytes(tensor.type, tensor.shape) == tensor.bytes.size(),
                  "sizes are those of shapes");
      total += tensor.bytes.size();
      for (const char b : tensor.bytes) sum += static_cast<unsigned char>(b);
    }
    fuzz_expect(total <= bytes.size() && sum <= 255u * total, "tensors do not overlap");
  } catch (const FormatError&) {
    return;
  }
}

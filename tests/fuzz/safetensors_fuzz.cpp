// Fuzz target for the safetensors loader. The only exception for any input is FormatError. The tensors of an
// accepted file cover its data exactly. Writing and reading them again does not change them. No allocation
// exceeds the file's size plus 64 KiB.
#include <tilegrad/io/files/safetensors.h>

#include <algorithm>
#include <optional>

#include <tilegrad/core/base/error.h>
#include "tests/fuzz/target.h"
#include "tests/support/largest_piece.h"

namespace {

using namespace tg;

std::string written(const io::SafeTensors& file) {
  const io::SafeTensorsContent content = io::safetensors_content(file.tensors, file.metadata, "fuzz");
  std::string bytes;
  for (const std::string_view piece : content.pieces()) bytes += piece;
  return bytes;
}

}  // namespace

void fuzz_one(std::string_view bytes) {
  std::optional<io::SafeTensors> read;
  largest_piece = 0;
  try {
    read = io::parse_safetensors(std::string(bytes), "fuzz");
  } catch (const FormatError&) {
  }
  fuzz_expect(largest_piece <= piece_bound(bytes.size()), "memory is bounded by the file's size");
  if (!read) return;
  const io::SafeTensors& file = *read;
  const auto* begin = reinterpret_cast<const std::byte*>(file.storage.data());
  const std::byte* end = begin + file.storage.size();
  std::size_t total = 0;
  unsigned sum = 0;
  for (const auto& [name, tensor] : file.tensors) {
    fuzz_expect(tensor.bytes.data() >= begin && tensor.bytes.data() + tensor.bytes.size() <= end,
                "tensors are within the file");
    total += tensor.bytes.size();
    for (const std::byte b : tensor.bytes) sum += static_cast<unsigned>(b);  // each byte can be read
  }
  fuzz_expect(total + 8 <= file.storage.size() && sum <= 255u * total, "tensors do not overlap");

  const std::string first = written(file);
  const io::SafeTensors again = io::parse_safetensors(first, "fuzz: written");
  fuzz_expect(again.metadata == file.metadata, "metadata round-trips");
  fuzz_expect(std::equal(again.tensors.begin(), again.tensors.end(), file.tensors.begin(), file.tensors.end(),
                         [](const auto& a, const auto& b) {
                           return a.first == b.first && a.second.dtype == b.second.dtype &&
                                  a.second.shape == b.second.shape &&
                                  std::ranges::equal(a.second.bytes, b.second.bytes);
                         }),
              "tensors round-trip");
  fuzz_expect(written(again) == first, "the writer's output is canonical");
}

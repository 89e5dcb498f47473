#include "io/checkpoints/tensor_values.h"

#include <algorithm>
#include <cstring>

#include <tilegrad/core/base/error.h>
#include "core/base/messages.h"
#include "core/base/piece_size.h"

namespace tg::io {

namespace {

// Values are copied in pieces that fit into a cache. Checked or converted values are then still in the cache
// when they are written.
constexpr std::int64_t piece_bytes = piece_size(1 << 18, 1 << 8);

struct Copy {
  const MappedFile& file;
  const TensorView& from;
  Parameter to;
  const std::string& where;
  const std::string what = where + ": " + to.name();

  std::size_t offset_in_file(const std::byte* at) const {
    return static_cast<std::size_t>(reinterpret_cast<const char*>(at) - file.bytes().data());
  }

  // Checks consecutive elements of the parameter, starting at element `first`.
  void check(std::span<const std::byte> bytes, std::int64_t first) const {
    require_finite(bytes, from.dtype, what, first);
  }

  void write(std::span<const std::byte> bytes, std::int64_t first) {
    check(bytes, first);
    const auto n = static_cast<std::int64_t>(bytes.size() / size_of(from.dtype));
    const auto offset = static_cast<std::size_t>(first) * size_of(to.dtype());
    if (from.dtype == to.dtype()) {
      to.write_bytes(offset, bytes);
    } else {
      const Array values = converted({from.dtype, {n}, bytes}, {n}, to.dtype(), where, to.name(), first);
      to.write_bytes(offset, {values.raw(), values.bytes()});
    }
  }

  // Reads directly into the parameter if it is in host memory and has the file's dtype.
  void in_order(std::int64_t start) {
    const auto piece = static_cast<std::size_t>(piece_bytes);
    const std::size_t begin = offset_in_file(from.bytes.data()), all = from.bytes.size();
    const bool in_place = from.dtype == to.dtype() && to.device().kind == Device::cpu_kind;
    std::vector<std::byte> buffer(in_place ? 0 : std::min(piece, all));
    for (std::size_t i = 0; i < all; i += piece) {
      const std::size_t n = std::min(piece, all - i);
      const std::int64_t first = start + static_cast<std::int64_t>(i / size_of(from.dtype));
      const std::size_t offset = static_cast<std::size_t>(first) * size_of(to.dtype());
      const std::span<std::byte> values(in_place ? to.memory() + offset : buffer.data(), n);
      file.read(begin + i, values);
      in_place ? check(values, first) : write(values, first);
    }
    if (in_place) to.note_change(Parameter::new_change());
  }

  // Transposes some columns of the tensor at a time. They are rows of the parameter.
  void transposed() {
    const std::int64_t rows = to.shape()[0], columns = to.shape()[1];
    const auto size = static_cast<std::int64_t>(size_of(from.dtype));
    const std::int64_t together = std::max<std::int64_t>(64 / size, piece_bytes / (columns * size));
    std::vector<std::byte> buffer;
    for (std::int64_t r = 0; r < rows; r += together) {
      const std::int64_t n = std::min(together, rows - r);
      buffer.resize(static_cast<std::size_t>(n * columns * size));
      for (std::int64_t c = 0; c < columns; ++c)
        for (std::int64_t i = 0; i < n; ++i)
          std::memcpy(buffer.data() + (i * columns + c) * size, from.bytes.data() + (c * rows + r + i) * size,
                      static_cast<std::size_t>(size));
      write(buffer, r * columns);
    }
    file.check();
    file.release(offset_in_file(from.bytes.data()), from.bytes.size());
  }
};

}  // namespace

void copy_tensor(const MappedFile& file, const TensorView& from, bool is_transposed, Parameter to,
                 const std::string& where, std::int64_t first) {
  Copy copy{file, from, std::move(to), where};
  if (is_transposed)
    copy.transposed();
  else
    copy.in_order(first);
}

TensorView view_of(const Array& array) {
  return {array.dtype(), {array.shape().begin(), array.shape().end()}, {array.raw(), array.bytes()}};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return "[" + list_text(shape, ", ", [](std::int64_t d) { return std::to_string(d); }) + "]";
}

std::vector<std::byte> transposed(const TensorView& from) {
  const auto rows = static_cast<std::size_t>(from.shape[0]),
             columns = static_cast<std::size_t>(from.shape[1]);
  const std::size_t size = size_of(from.dtype);
  std::vector<std::byte> to(from.bytes.size());
  constexpr std::size_t block = 32;  // rows and columns per block; its cache lines fit into the cache
  for (std::size_t r0 = 0; r0 < rows; r0 += block)
    for (std::size_t c0 = 0; c0 < columns; c0 += block)
      for (std::size_t r = r0; r < std::min(r0 + block, rows); ++r)
        for (std::size_t c = c0; c < std::min(c0 + block, columns); ++c)
          std::memcpy(to.data() + (c * rows + r) * size, from.bytes.data() + (r * columns + c) * size, size);
  return to;
}

}  // namespace tg::io

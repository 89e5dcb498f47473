// Values of a tensor of a file into a parameter, piece by piece.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/io/files/safetensors.h>

namespace tg::io {

// The tensor lies in the file and has the elements of the parameter from `first` on, its shape is not looked
// at, both are floating; with is_transposed it is [n, m] for a parameter [m, n], whole. Values are rounded as
// by converted() of io/checkpoints/convert.h, and must be finite. Needs memory for a few pieces of 256 KiB.
// Throws FormatError, beginning with `where` and the parameter's name; Error if the file cannot be read.
void copy_tensor(const MappedFile& file, const TensorView& from, bool is_transposed, Parameter to,
                 const std::string& where, std::int64_t first = 0);

// "[2, 3]", as Shape::text() has it, for a file's tensor of any rank.
std::string shape_text(const std::vector<std::int64_t>& shape);

// The bytes of a tensor [n, m] as one of [m, n].
std::vector<std::byte> transposed(const TensorView& from);

}  // namespace tg::io

// Values of a tensor of a file into a parameter, piece by piece.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/io/files/safetensors.h>

namespace tg::io {

// The tensor, which is one of the file and whose shape is not looked at, has as many elements as the
// parameter, both are floating; with is_transposed it is [n, m] for a parameter [m, n]. Values are rounded as
// by converted() of io/checkpoints/convert.h, and must be finite. Needs memory for a few pieces of 256 KiB.
// Throws FormatError, beginning with `where` and the parameter's name; Error if the file cannot be read.
void copy_tensor(const MappedFile& file, const TensorView& from, bool is_transposed, Parameter to,
                 const std::string& where);

// "[2, 3]", as Shape::text() has it, for a file's tensor of any rank.
std::string shape_text(const std::vector<std::int64_t>& shape);

// The bytes of a tensor [n, m] as one of [m, n].
std::vector<std::byte> transposed(const TensorView& from);

}  // namespace tg::io

// Values of a tensor of a file into a parameter, piece by piece.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/io/files/safetensors.h>

namespace tg::io {

// The tensor, whose shape is not looked at, has as many elements as the parameter, both are floating; with
// is_transposed it is [n, m] for a parameter [m, n]. Values are rounded as by converted() of
// io/checkpoints/convert.h, and must be finite. Needs memory for a few pieces of 256 KiB, and calls done()
// with bytes of the tensor that are not read again. Throws FormatError, beginning with `where` and the
// parameter's name.
void copy_tensor(const TensorView& from, bool is_transposed, Parameter to, const std::string& where,
                 const std::function<void(std::span<const std::byte>)>& done);

// The bytes of a tensor [n, m] as one of [m, n].
std::vector<std::byte> transposed(const TensorView& from);

}  // namespace tg::io

#!/bin/sh
# Tests that gdb prints tensors, arrays and shapes with tools/gdb_printers.py.
#   gdb_printers.sh ROOT COMPILER INCLUDES XXHASH; status 77 if gdb is not installed
set -eu
root=$1 compiler=$2 includes=$3 xxhash=$4
command -v gdb >/dev/null || { echo "gdb is not installed"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

cat >"$dir/program.cpp" <<'EOT'
#include <tilegrad/core/base/array.h>
#include <tilegrad/core/graph/graph.h>
#include <tilegrad/core/run/backend.h>
using namespace tg;
namespace tg {
Backend& backend(Device) { throw Error("not called"); }
const Op& full_op = *define_op({.name = "full"});
void Parameter::refuse_if_running(const char*) const {}
}
void stop(const Tensor& last, const Tensor& none, const Array& four, const Array& half, const Array& many, const Shape& shape) {
  (void)last, (void)none, (void)four, (void)half, (void)many, (void)shape;
}
int main() {
  Graph g;
  Tensor last, none;
  for (int i = 0; i < 40; ++i) last = g.input("x" + std::to_string(i), {2, i}, bf16);
  const Array four = Array::of({2, 2}, std::vector<float>{1, 2.5, -3, 4}), half(Shape{2}, bf16), many({4, 5}, i64);
  stop(last, none, four, half, many, {7, 8});
}
EOT
# Compiles the necessary part of the library, with debug information. Some functions remain undefined, but
# they are never called.
sources=$(ls "$root"/core/base/*.cpp "$root"/core/graph/*.cpp | grep -v '/file_write\.cpp$')
# shellcheck disable=SC2086
"$compiler" -std=c++20 -g -O0 -fPIE -I"$root" -I"$includes" -I"$xxhash" "$dir/program.cpp" $sources -o "$dir/program" -pthread
gdb -q -nx -batch -ex "source $root/tools/gdb_printers.py" -ex "break stop" -ex run -ex "info args" "$dir/program" \
  >"$dir/printed" 2>&1 || { cat "$dir/printed"; exit 1; }
for line in 'bf16 \[2, 39\], value 39 of its graph' 'undefined' 'f32 \[2, 2\] {1, 2.5, -3, 4}' 'bf16 \[2\] {0, 0}' 'i64 \[4, 5\]$' '\[7, 8\]'; do
  grep -q "= $line" "$dir/printed" || { echo "not printed: $line"; cat "$dir/printed"; exit 1; }
done

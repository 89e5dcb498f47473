#!/usr/bin/env bash
# Tests that all tools start on a processor without AVX, and that one tool can compute there. All compiled
# instruction sets are in the tools. If qemu is installed, the test uses it.
#   start_without_avx.sh TOOLS_DIR
set -uo pipefail
qemu=$(command -v qemu-x86_64-static || command -v qemu-x86_64) || { echo "skipped: qemu-x86_64 is not installed"; exit 77; }
for tool in "$1"/*; do
  [ -f "$tool" ] && [ -x "$tool" ] || continue
  "$qemu" -cpu Westmere "$tool" --help >/dev/null || { echo "failed: $tool --help exits with $?"; exit 1; }
done
"$qemu" -cpu Westmere "$1/gradcheck" --op matmul --quick >/dev/null || { echo "failed: gradcheck exits with $?"; exit 1; }

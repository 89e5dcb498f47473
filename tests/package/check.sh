#!/usr/bin/env bash
# Installs the library into an empty folder, and builds and runs the project next to this script with nothing else.
#   check.sh CMAKE BUILD_DIR GENERATOR COMPILER
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$1" --install "$2" --prefix "$dir/installed" >/dev/null
"$1" -S "$(dirname "$0")" -B "$dir/build" -G "$3" -DCMAKE_CXX_COMPILER="$4" \
  -DCMAKE_PREFIX_PATH="$dir/installed" >/dev/null
"$1" --build "$dir/build" >/dev/null
[ "$("$dir/build/consumer")" = 14 ]

#!/usr/bin/env bash
# Builds the project next to this script, without a warning, in the three ways to use tilegrad: installed in an empty
# folder, from the build tree, and as a folder of the project's own tree. Runs what was built, and the installed gradcheck
# with the project's plugin.
#   check.sh CMAKE BUILD_DIR GENERATOR COMPILER
set -euo pipefail
cmake=$1 build=$2 generator=$3 compiler=$4
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

project() {  # project NAME TARGETS [CMake's options]
  local name=$1 targets=$2
  shift 2
  "$cmake" -S "$here" -B "$dir/$name" -G "$generator" -DCMAKE_CXX_COMPILER="$compiler" \
    -DALL_HEADERS="$dir/all_headers.cpp" "$@" >"$dir/log" &&
    # shellcheck disable=SC2086
    "$cmake" --build "$dir/$name" --target $targets >"$dir/log" || { cat "$dir/log"; echo "failed: $name"; exit 1; }
}

"$cmake" --install "$build" --prefix "$dir/installed" >/dev/null
(cd "$dir/installed/include" && find tilegrad -name '*.h' | LC_ALL=C sort | sed 's/.*/#include <&>/') >"$dir/all_headers.cpp"
for tool in train generate gradcheck inspect bench tokens; do "$dir/installed/bin/$tool" --help >/dev/null; done

project package all -DCMAKE_PREFIX_PATH="$dir/installed"
"$dir/package/consumer"
"$dir/installed/bin/gradcheck" --plugin "$dir/package/plugin.so" --op twice
"$dir/installed/bin/gradcheck" --plugin "$dir/package/full_plugin.so" --op twice
"$dir/package/several" "$dir"/package/libloaded.so

# Without the tools, as a distribution's package of the library is.
mv "$dir/installed/bin" "$dir/bin"
project without_tools objects -DCMAKE_PREFIX_PATH="$dir/installed" -DWITHOUT_TOOLS=ON
mv "$dir/bin" "$dir/installed/bin"

# A header that is not there is told with the name of its package.
if "$cmake" -S "$here/../.." -B "$dir/bare" -G "$generator" -DCMAKE_CXX_COMPILER="$compiler" -DXXHASH_INCLUDE:PATH= >"$dir/log" 2>&1 ||
    ! grep -q libxxhash-dev "$dir/log"; then
  echo "failed: configuring without xxhash.h"
  exit 1
fi

echo >"$dir/all_headers.cpp"  # they are the same files
project build_tree consumer -Dtilegrad_DIR="$build"
"$dir/build_tree/consumer"

# Its objects and the plugin only: the library would be compiled once more.
project folder "objects plugin" -DTILEGRAD_SOURCE="$here/../.." -DTILEGRAD_CUDA=OFF

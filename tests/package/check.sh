#!/usr/bin/env bash
# Builds the project next to this script, without warnings, in the four ways to use tilegrad:
# - installed in an empty folder, as a static library
# - the same as a shared library
# - from the build tree
# - as a subfolder of the project
# Runs the built programs, and the installed gradcheck with the project's plugin.
#   check.sh CMAKE BUILD_DIR GENERATOR COMPILER
set -euo pipefail
cmake=$1 build=$2 generator=$3 compiler=$4
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

project() {  # project NAME TARGETS [CMake options]
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

# Installs without the tools, as a Linux distribution's package of the library does.
mv "$dir/installed/bin" "$dir/bin"
project without_tools objects -DCMAKE_PREFIX_PATH="$dir/installed" -DWITHOUT_TOOLS=ON
mv "$dir/bin" "$dir/installed/bin"

# If an external header is missing, the error must name its package.
if "$cmake" -S "$here/../.." -B "$dir/bare" -G "$generator" -DCMAKE_CXX_COMPILER="$compiler" -DXXHASH_INCLUDE:PATH= >"$dir/log" 2>&1 ||
    ! grep -q libxxhash-dev "$dir/log"; then
  echo "failed: configuring without xxhash.h"
  exit 1
fi

echo >"$dir/all_headers.cpp"  # the headers are the same files
project build_tree consumer -Dtilegrad_DIR="$build"
"$dir/build_tree/consumer"

# Builds only the objects and the plugin, because otherwise the library would be compiled again.
project folder "objects plugin" -DTILEGRAD_SOURCE="$here/../.." -DTILEGRAD_CUDA=OFF

# Builds a shared library from the objects of the build above. These objects do not depend on
# BUILD_SHARED_LIBS.
options=()
while IFS= read -r option; do options+=("-D$option"); done < <(
  grep -E '^(TILEGRAD_(CPU_ISAS|CUDA|UNITY)|CMAKE_(BUILD_TYPE|CUDA_ARCHITECTURES)|CMAKE_CXX_FLAGS):' "$build/CMakeCache.txt")
tools=$(cd "$build/tools" && ls)
"$cmake" -S "$here/../.." -B "$dir/shared" -G "$generator" -DCMAKE_CXX_COMPILER="$compiler" "${options[@]}" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$here/reuse.sh;$build" -DCMAKE_CUDA_COMPILER_LAUNCHER="$here/reuse.sh;$build" \
  -DBUILD_SHARED_LIBS=ON -DTILEGRAD_TESTS=OFF >"$dir/log" &&
  # shellcheck disable=SC2086
  "$cmake" --build "$dir/shared" --target tilegrad $tools >"$dir/log" || { cat "$dir/log"; echo "failed: shared"; exit 1; }
"$cmake" --install "$dir/shared" --prefix "$dir/before" >/dev/null
mv "$dir/before" "$dir/moved"  # the tools find the library relative to their own path
rm -r "$dir/shared"
lib=$(dirname "$(find "$dir/moved" -name libtilegrad.so)")
soname=libtilegrad.so.$(sed -nE 's/^#define TILEGRAD_VERSION "([0-9]+\.[0-9]+).*/\1/p' "$here/../../version.h")
dynamic() {  # dynamic FILE WORD: fails if the file's dynamic section does not contain WORD
  readelf -d "$1" | grep -F "$2" >/dev/null || { readelf -d "$1"; echo "failed: $1 does not have $2"; exit 1; }
}
dynamic "$lib/libtilegrad.so" "soname: [$soname]"
for tool in $tools; do
  dynamic "$dir/moved/bin/$tool" "[$soname]"
  dynamic "$dir/moved/bin/$tool" "\$ORIGIN/$(realpath --relative-to "$dir/moved/bin" "$lib")"
  "$dir/moved/bin/$tool" --help >/dev/null
done
project shared_package all -DCMAKE_PREFIX_PATH="$dir/moved" -DCMAKE_CXX_COMPILER_LAUNCHER="$here/reuse.sh;$dir/package"
for program in consumer several; do dynamic "$dir/shared_package/$program" "[$soname]"; done
"$dir/shared_package/consumer"
"$dir/shared_package/several" "$dir"/shared_package/libloaded.so
for plugin in plugin full_plugin; do
  "$dir/moved/bin/gradcheck" --plugin "$dir/shared_package/$plugin.so" --op twice
done

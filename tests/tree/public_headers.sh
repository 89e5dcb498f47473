#!/usr/bin/env bash
# Checks the headers that cmake/public_headers.cmake lists for users. Each header must exist, must be included
# as <tilegrad/PATH> everywhere, and may include only public headers of this tree. Headers that are not in
# this list must not be included in this form.
#   public_headers.sh ROOT | --self-test
set -euo pipefail

check() {  # check ROOT: prints each error; fails if there are any
  cd "$1"
  local listed faults=0 header
  listed=$(sed -n '/^set(TILEGRAD_PUBLIC_HEADERS/,/^)/p' cmake/public_headers.cmake | grep -oE '[a-z_/]+\.h')
  for header in $listed; do [ -f "$header" ] || { echo "$header is listed, but does not exist"; faults=1; }; done
  find . -path ./.git -prune -o -path './build*' -prune -o -type f \
    \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print |
    sed 's|^\./||' | LC_ALL=C sort | xargs awk -v listed="$listed" '
    BEGIN { split(listed, headers); for (i in headers) public[headers[i]] = 1 }
    function wrong(why) { printf "%s:%d: %s\n", FILENAME, FNR, why; faults++ }
    /^[ \t]*#[ \t]*include[ \t]*"/ {
      split($0, part, "\"")
      if (part[2] in public) wrong("write <tilegrad/" part[2] ">: it is a public header")
      else if (FILENAME in public) wrong("a public header must not include \"" part[2] "\", which is not one")
    }
    /^[ \t]*#[ \t]*include[ \t]*<tilegrad\// {
      split($0, part, /[<>]/); path = part[2]; sub(/^tilegrad\//, "", path)
      if (!(path in public)) wrong("<" part[2] "> is not listed in cmake/public_headers.cmake")
    }
    END { exit faults > 0 }' || faults=1
  return "$faults"
}

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  mkdir -p "$tree/cmake" "$tree/core"
  printf 'set(TILEGRAD_PUBLIC_HEADERS\n    core/a.h\n    core/b.h\n)\n' >"$tree/cmake/public_headers.cmake"
  plant() { printf '%s\n' "$2" >"$tree/$1"; }
  plant core/a.h '#include <vector>'
  plant core/b.h '#include <tilegrad/core/a.h>'
  plant core/own.h '#include <tilegrad/core/b.h>'
  plant core/a.cpp '#include "core/own.h"'
  (check "$tree") || { echo "a valid tree was rejected"; exit 1; }
  while IFS='|' read -r file line; do
    cp -r "$tree" "$tree.bad"
    printf '%s\n' "$line" >"$tree.bad/$file"
    if (check "$tree.bad") >/dev/null; then echo "not detected: $line in $file"; rm -rf "$tree.bad"; exit 1; fi
    rm -rf "$tree.bad"
  done <<'LINES'
core/b.h|#include "core/own.h"
core/a.cpp|#include "core/a.h"
core/a.cpp|#include <tilegrad/core/own.h>
cmake/public_headers.cmake|set(TILEGRAD_PUBLIC_HEADERS core/a.h core/b.h core/gone.h
LINES
}

if [ "$1" = --self-test ]; then self_test; else check "$1"; fi

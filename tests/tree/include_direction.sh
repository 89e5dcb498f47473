#!/usr/bin/env bash
# Checks includes. Every folder may include only the folders that docs/architecture.md allows, with paths from
# the root of the tree. A subfolder of core/ is called a room. Headers in a room may include only the same
# room and earlier rooms. Each external package may be used only by the folder to which it belongs.
#   include_direction.sh ROOT | --self-test
set -euo pipefail

check() {  # check ROOT: prints each invalid include; fails if there are any
  cd "$1"
  find $(ls -d core ops autograd backends nn io train parallel 2>/dev/null) \
    -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort | xargs awk '
    BEGIN {
      # Each folder may include only itself and earlier folders of this list, so cycles are impossible.
      may["core"] = "core"
      may["ops"] = "core ops"
      may["autograd"] = "core ops autograd"
      may["backends/cpu"] = "core ops backends/cpu"
      may["backends/cuda"] = "core ops backends/cuda"
      may["backends"] = "core backends/cpu backends/cuda"
      may["nn"] = "core ops autograd nn"
      may["io/files"] = "core io/files"
      may["io/plots"] = "core io/files io/plots"
      may["io/text"] = "core io/files io/text"
      may["io/checkpoints"] = "core nn io/files io/checkpoints"
      may["io/models"] = "core nn io/files io/text io/checkpoints io/models"
      may["train"] = "core ops autograd nn io/files io/plots io/text io/checkpoints io/models train"
      may["parallel"] = "core parallel"
      rooms = "base os graph run compile report"  # rooms of core/; headers include only the same or earlier rooms
      package["xxhash"] = "core"
      package["stb"] = "io/plots"
      package["gtest"] = "tests"
    }
    function folder(path) {
      if (path !~ /\//) return "."
      return match(path, /^(backends|io)\/[^\/]+\//) ? substr(path, 1, RLENGTH - 1) : substr(path, 1, index(path, "/") - 1)
    }
    function room(path) { split(path, parts, "/"); return index(rooms, parts[2]) }
    function wrong(why) { printf "%s:%d: %s\n", FILENAME, FNR, why; faults++ }
    /^[ \t]*#[ \t]*include[ \t]*("|<tilegrad\/)/ {
      split($0, part, /["<>]/)
      path = part[2]; sub(/^tilegrad\//, "", path)
      from = folder(FILENAME); to = folder(path)
      if (!(to in may)) wrong("\"" path "\" is not a path from the root into a folder that " from "/ may include")
      else if (!(from in may)) wrong("folder " from "/ has no include rule")
      else if (index(" " may[from] " ", " " to " ") == 0) wrong(from "/ must not include " to "/ (\"" path "\")")
      else if (from == "core" && FILENAME ~ /\.h$/ && room(path) > room(FILENAME))
        wrong("a header of " FILENAME " must not include a later room (\"" path "\")")
      next
    }
    /^[ \t]*#[ \t]*include[ \t]*</ {
      split($0, part, /[<>]/)
      name = part[2]; sub(/[.\/].*/, "", name)
      if (name in package && package[name] != folder(FILENAME))
        wrong("<" part[2] "> belongs to " package[name] "/ only")
    }
    END { exit faults > 0 }'
}

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  mkdir -p "$tree"/{core/base,core/graph,ops,autograd,backends/cpu/kernels,backends/cuda,nn,io/files,io/plots,io/models,train,parallel}
  plant() { printf '%s\n' "$2" >"$tree/$1"; }
  plant core/base/a.h '#include <xxhash.h>'
  plant core/graph/a.h '#include <tilegrad/core/base/a.h>'
  plant ops/a.h '#include "core/graph/a.h"'
  plant backends/cpu/kernels/a.cpp '#include "backends/cpu/a.h"'
  plant nn/a.cpp '#include "autograd/a.h"'
  plant io/plots/a.cpp '#include <stb/stb_image_write.h>'
  plant io/models/a.cpp '#include "nn/a.h"'
  plant train/a.cpp '#include "io/files/a.h"'
  plant parallel/a.cpp '#include <tilegrad/core/base/a.h>'
  (check "$tree") || { echo "a valid tree was rejected"; exit 1; }
  while IFS='|' read -r file line; do
    plant "$file" "$line"
    if (check "$tree") >/dev/null; then echo "not detected: $line in $file"; exit 1; fi
    rm "$tree/$file"
  done <<'EOF'
core/base/bad.h|#include "ops/a.h"
core/base/bad.h|#include <tilegrad/ops/a.h>
core/base/bad.h|#include "core/graph/a.h"
core/graph/bad.h|#include <tilegrad/core/run/a.h>
core/base/bad.cpp|  #  include "backends/cpu/a.h"
ops/bad.cpp|#include "autograd/a.h"
autograd/bad.h|#include "nn/a.h"
backends/cpu/kernels/bad.cpp|#include "autograd/a.h"
backends/cpu/bad.h|#include "backends/cuda/a.h"
nn/bad.h|#include "io/files/a.h"
io/files/bad.h|#include "ops/a.h"
io/files/bad.h|#include "nn/a.h"
io/files/bad.h|#include "io/models/a.h"
io/models/bad.h|#include "train/a.h"
nn/bad.h|#include "train/a.h"
io/plots/bad.cpp|#include "parallel/a.h"
parallel/bad.cpp|#include "io/files/a.h"
parallel/bad.h|#include "ops/a.h"
parallel/bad.cpp|#include "backends/cpu/a.h"
core/base/bad.cpp|#include "parallel/a.h"
nn/bad.cpp|#include <tilegrad/tilegrad.h>
ops/bad.h|#include "../core/base/a.h"
ops/bad.cpp|#include "a.h"
ops/bad.cpp|#include <xxhash.h>
nn/bad.cpp|#include <stb/stb_image_write.h>
io/plots/bad.cpp|#include <gtest/gtest.h>
EOF
}

if [ "$1" = --self-test ]; then self_test; else check "$1"; fi

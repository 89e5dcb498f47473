#!/usr/bin/env bash
# Checks that code outside ops/ does not compare an op with a specific op. Passes and backends must use the
# op's properties (core/graph/op.h) or attributes. Structural ops are exempt: leaves, and ops that fusion
# creates. Code may register and find kernels by name, and print names, because it does not compare an op with
# a constant.
#   op_identity.sh ROOT | --self-test
set -euo pipefail

structural='(parameter|constant|full|input|rng|fused|fused_reduction)_op'

check() {  # check ROOT: prints each line that compares an op; fails if there are any
  cd "$1"
  local found
  found=$(find core autograd backends nn io train parallel tools -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' |
    LC_ALL=C sort |
    xargs grep -nE '[!=]= *&?([a-z_]+::)*[a-z_0-9]+_op\b|\b[a-z_0-9]+_op *[!=]=|\bop(\(\))?(\.|->)name *[!=]= *"|"[a-z_0-9]+" *[!=]= *[a-z_.>-]*op(\(\))?(\.|->)name' |
    grep -vE "[!=]= *&?([a-z_]+::)*$structural\b" || true)
  [ -z "$found" ] || { echo "$found"; return 1; }
}

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  mkdir -p "$tree"/{core,autograd,backends/cuda,nn,io,parallel,tools}
  plant() { printf '%s\n' "$2" >"$tree/$1"; }
  plant core/a.cpp 'if (node.op == &parameter_op || step.op != &fused_op) return;'
  plant nn/a.cpp 'const bool same = node.op == &op;'
  plant backends/cuda/a.cu 'if (e.op == op) return e.kernel;'
  check "$tree" || { echo "self-test: a valid tree is rejected"; exit 1; }
  local fault
  for fault in 'if (s.op->name == "rope") return;' 'return step.op == &reduce_scatter_op;' \
    'if (&matmul_op != node.op) return;' 'return &op == &tg::softmax_op;' 'return "sum" == op.name;'; do
    plant backends/cuda/b.cpp "$fault"
    if check "$tree" >/dev/null; then echo "self-test: not detected: $fault"; exit 1; fi
  done
}

if [ "$1" = --self-test ]; then self_test; else check "$1"; fi

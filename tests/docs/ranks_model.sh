#!/usr/bin/env bash
# Checks that the tables of a model in docs/parallel.md equal the output of tools/bench/ranks_model.py, line
# by line.
#   ranks_model.sh ROOT
set -euo pipefail
cd "$1"
printed=$(python3 tools/bench/ranks_model.py)
[ "$(grep -c '^|' <<<"$printed")" -gt 20 ] || { echo "ranks_model: the script prints too few rows" >&2; exit 1; }
missing=$(grep -vxFf docs/parallel.md <<<"$printed" || true)
[ -z "$missing" ] || { echo "ranks_model: docs/parallel.md lacks lines of the output of tools/bench/ranks_model.py:" >&2; echo "$missing" >&2; exit 1; }

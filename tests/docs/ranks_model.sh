#!/usr/bin/env bash
# Checks that docs/notes/ranks-model.md contains each line of the tables that tools/bench/ranks_model.py prints.
#   ranks_model.sh ROOT
set -euo pipefail
cd "$1"
printed=$(python3 tools/bench/ranks_model.py)
[ "$(grep -c '^|' <<<"$printed")" -gt 20 ] || { echo "ranks_model: the script prints too few rows" >&2; exit 1; }
missing=$(grep -vxFf docs/notes/ranks-model.md <<<"$printed" || true)
[ -z "$missing" ] || { echo "ranks_model: docs/notes/ranks-model.md lacks lines of the output of tools/bench/ranks_model.py:" >&2; echo "$missing" >&2; exit 1; }

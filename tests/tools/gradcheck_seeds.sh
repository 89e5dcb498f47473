#!/bin/sh
# Runs gradcheck on all ops and layers with several seeds, for one instruction set.
#   gradcheck_seeds.sh GRADCHECK ISA OPTIONS SEED...
# SEED is a number, or FIRST-LAST. OPTIONS is a single argument with further options. It may be empty. Prints
# the report of each seed that fails, and then "N passed, N failed". Exits with status 77 if this machine does
# not support the instruction set.
set -eu
gradcheck=$1 options=$3
export TG_ISA="$2"
shift 3
report=$(mktemp)
trap 'rm -f "$report"' EXIT
"$gradcheck" --list >"$report" 2>&1
if grep 'TG_ISA is' "$report"; then exit 77; fi  # this machine does not support the instruction set
passed=0 failed=0
for seeds; do
  for seed in $(seq "${seeds%-*}" "${seeds#*-}"); do
    # shellcheck disable=SC2086
    if "$gradcheck" --all --quick --seed "$seed" $options >"$report" 2>&1; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      echo "== seed $seed, $TG_ISA:"
      grep -v '^ok \|^refused ' "$report" || true
    fi
  done
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

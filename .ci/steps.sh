# Counts and times steps. Sourced by .ci/run and tools/dev.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 times=()

# Runs a step. A step whose last line is not "N passed, N failed" counts as one check.
step() {  # step COMMAND...
  local began=$SECONDS p f
  echo "== $*"
  "$@" </dev/null 2>&1 | tee "$log"
  local status=${PIPESTATUS[0]}
  read -r p f < <(tail -n 1 "$log" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed.*/\1 \2/p') || { p=0 f=0; }
  [ "$status" = 0 ] || [ "$f" != 0 ] || f=1
  [ "$((p + f))" != 0 ] || p=1
  passed=$((passed + p)) failed=$((failed + f))
  times+=("$*: $((SECONDS - began)) s, $p passed, $f failed")
}

# Prints a line for each step, then the sum "N passed, N failed". Fails if a step failed.
finish() {
  printf '%s\n' "${times[@]}" "all: $SECONDS s" "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}

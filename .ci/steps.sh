# Steps that are counted and timed, for .ci/run and tools/dev nightly, which source this.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 times=()

# A step that does not end with "N passed, N failed" counts as one.
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

# A line for each step, then "N passed, N failed" over all of them. Fails if a step failed.
finish() {
  printf '%s\n' "${times[@]}" "all: $SECONDS s" "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}

# What tests of the command-line tools share; they source it.
set -u
dir=$(mktemp -d) || exit 1
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }

# Bad input: one line on stderr that says what it is about, and the exit code. Its output is left in $dir/out.
refuses_command() {  # CODE WORD COMMAND...
  local code=$1 word=$2 got
  shift 2
  "$@" >"$dir/out" 2>"$dir/err" </dev/null
  got=$?
  [ $got = "$code" ] || fail "exit code $got, wanted $code: $*"
  [ "$(wc -l <"$dir/err")" = 1 ] || fail "not one line of error for $*: $(cat "$dir/err")"
  grep -q -- "$word" "$dir/err" || fail "no '$word' for $*: $(cat "$dir/err")"
}

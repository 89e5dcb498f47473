#!/bin/sh
# check_wgmma.sh COMPILER ...: runs the compiler. Fails if ptxas warns (C75xx) that it serializes wgmma
# instructions. A kernel with such instructions is correct, but half as fast.
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
"$@" >"$log" 2>&1
status=$?
cat "$log" >&2
if grep -q '(C75[0-9][0-9])' "$log"; then
  echo "error: ptxas serialized wgmma instructions" >&2
  exit 1
fi
exit $status

#!/bin/sh
# check_wgmma.sh COMPILER ...: runs it, and fails where ptxas says (C75xx) that products of tensor cores cannot go on while
# other instructions do: such a kernel is right and half as fast.
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
"$@" >"$log" 2>&1
status=$?
cat "$log" >&2
if grep -q '(C75[0-9][0-9])' "$log"; then
  echo "error: wgmma instructions would wait for each other" >&2
  exit 1
fi
exit $status

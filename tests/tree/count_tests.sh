#!/usr/bin/env bash
# Tests that tools/count_tests.awk counts every kind of result: count_tests.sh ROOT.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

counts() {  # counts EXPECTED BROKEN: counts the reports in $dir
  local got
  got=$(awk -v dir="$dir" -v broken="$2" -f "$root/tools/count_tests.awk" "$dir/ctest.xml") && code=0 || code=$?
  [ "$got" = "$1" ] || { echo "got '$got', expected '$1'"; exit 1; }
  case "$1:$code" in *", 0 failed"*:0 | *", "[1-9]*" failed"*:1) ;; *) echo "exit $code with '$got'"; exit 1 ;; esac
}
ctest() {  # ctest NAME STATUS [REASON]
  printf '\t<testcase name="%s" classname="%s" time="0.1" status="%s">\n' "$1" "$1" "$2" >>"$dir/ctest.xml"
  [ $# = 2 ] || printf '\t\t<skipped message="%s"/>\n' "$3" >>"$dir/ctest.xml"
}
gtest() {  # gtest NAME TESTS FAILURES DISABLED SKIPPED
  printf '<testsuites tests="%d" failures="%d" disabled="%d" errors="0" name="AllTests">\n' "$2" "$3" "$4" >"$dir/$1.xml"
  printf '  <testsuite name="A" tests="%d" skipped="%d" errors="0">\n' "$2" "$5" >>"$dir/$1.xml"
  printf '  <testsuite name="B" tests="0" skipped="0" errors="0">\n' >>"$dir/$1.xml"
}

root=$1
: >"$dir/ctest.xml"
counts "0 passed, 1 failed" 0
ctest script run
counts "1 passed, 0 failed" 0
counts "1 passed, 1 failed" 1
ctest cases run
gtest cases 10 0 2 3
counts "6 passed, 0 failed, 3 skipped" 0
ctest crashed fail
counts "6 passed, 1 failed, 3 skipped" 0
ctest not_built notrun "Unable to find executable"
counts "6 passed, 2 failed, 3 skipped" 0
ctest failing fail
gtest failing 7 2 0 0
counts "11 passed, 4 failed, 3 skipped" 0
ctest leaking fail
gtest leaking 4 0 0 0
counts "15 passed, 5 failed, 3 skipped" 0
ctest no_avx2 notrun SKIP_REGULAR_EXPRESSION_MATCHED
counts "15 passed, 5 failed, 4 skipped" 0

#!/usr/bin/env bash
# check.sh ROOT          checks that the source lines of every mutant of tests/mutants/faults exist in ROOT
# check.sh --self-test   checks that a missing one is reported, with its file and line
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }
if [ "$1" != --self-test ]; then
  exec python3 "$here/plant.py" --check "$1"
fi
trap 'rm -rf "$place"' EXIT
place=$(mktemp -d)
mkdir -p "$place/tests/mutants/faults"
cp "$here/plant.py" "$place/tests/mutants"
cd "$place"
printf 'int twice(int x) {\n  return x + x;\n}\n' >twice.cpp
entry() { printf '1 twice.cpp\nsome fault\n%s\n' "$1" >tests/mutants/faults/list.txt; }
accepts() { entry "$1"; python3 tests/mutants/plant.py --check . >/dev/null || { echo "FAILED: $1 is rejected"; exit 1; }; }
refuses() {
  entry "$1"
  if out=$(python3 tests/mutants/plant.py --check . 2>&1); then echo "FAILED: $1 is accepted"; exit 1; fi
  case $out in *"list.txt:"*"mutant 1"*) ;; *) echo "FAILED: $1 gives: $out"; exit 1 ;; esac
}
accepts '| return @{x + x => x}@;'
accepts '|   @{return x + x; => return 0;}@'
refuses '| return @{x * x => x}@;'    # the line does not occur
refuses '| int@{ => }@'               # the original code is empty
refuses '| @{x => y}@'                # the line occurs more than once
refuses '| return x + x;'             # no part of the line is marked
touch tests/twice_test.cpp
test_of() { printf '1 twice.cpp; tests %s\nsome fault\n| return @{x + x => x}@;\n' "$1" >tests/mutants/faults/list.txt; }
test_of twice
python3 tests/mutants/plant.py --check . >/dev/null || { echo "FAILED: a test is not found"; exit 1; }
test_of thrice
python3 tests/mutants/plant.py --check . 2>/dev/null && { echo "FAILED: a missing test is accepted"; exit 1; }
echo 'add_test(NAME twice COMMAND true)' >tests/CMakeLists.txt
test_of twice
python3 tests/mutants/plant.py --check . 2>/dev/null && { echo "FAILED: two tests with the same name are accepted"; exit 1; }

# If a mutant names a case, the case must exist. Each case of tests/bugs_of_others must have an address, and a
# mutant must name the case.
rm tests/CMakeLists.txt tests/twice_test.cpp
mkdir tests/bugs_of_others
accepts_case() {
  printf '%s\n' "$1" >tests/bugs_of_others/bugs_test.cpp
  test_of "$2"
  python3 tests/mutants/plant.py --check . >/dev/null || { echo "FAILED: $1 with $2 is rejected"; exit 1; }
}
refuses_case() {
  printf '%s\n' "$1" >tests/bugs_of_others/bugs_test.cpp
  test_of "$2"
  if out=$(python3 tests/mutants/plant.py --check . 2>&1); then echo "FAILED: $1 with $2 is accepted"; exit 1; fi
  case $out in *"$3"*) ;; *) echo "FAILED: $1 with $2 gives: $out"; exit 1 ;; esac
}
named=$'// https://example.org/1\nTEST(Bugs, One) {}'
accepts_case "$named" bugs:Bugs.One
refuses_case "$named" bugs:Bugs.Two 'there is no case bugs:Bugs.Two'
refuses_case "$named" bugs 'no mutant names bugs:Bugs.One'
refuses_case $'// no address\nTEST(Bugs, One) {}' bugs:Bugs.One 'no address'
refuses_case "$named"$'\n\nTEST(Bugs, Two) {}' bugs:Bugs.One 'the comment of Bugs.Two has no address'
exit 0

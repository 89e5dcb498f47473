#!/usr/bin/env bash
# Checks that a library destroys no static object when the process or a thread ends.
#
# A user's static object may run or compile a program in its destructor. If the library created a static or
# thread_local object later, for example in the first run, that object is already destroyed. So the library
# allocates such objects with new and never destroys them: static auto& table = *new Table. For other objects
# with destructors, the compiler calls __cxa_atexit or __cxa_thread_atexit.
#   static_objects.sh NM LIBRARY | NM --self-test COMPILER
set -euo pipefail
nm=$1

# CUB includes <iostream>, which defines such an object. So object files that include CUB cannot be checked.
check() {  # check FILE: prints the objects that destroy something; fails if there are any
  "$nm" -A -u "$1" | awk '
    { symbols++ }
    / U _ZNSt8ios_base4InitD1Ev/ && /\.cu\.o:/ { has_iostream[$1] = 1 }
    / U __cxa_(thread_)?atexit/ { destroys[$1] = $0 }
    END {
      for (object in destroys)
        if (!(object in has_iostream)) { print "destroys a static object: " destroys[object]; faults++ }
      exit faults > 0 || symbols == 0
    }'
}

self_test() {  # self_test COMPILER
  local compiler=$1 fault
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  compile() {
    { echo '#include <string>'; cat; } >"$dir/$1.cpp"
    "$compiler" -std=c++20 -O2 -c "$dir/$1.cpp" -o "$dir/$1.o"
  }
  compile clean <<'EOT'
const std::string& f() { static const auto& s = *new std::string("a name that needs memory of its own"); return s; }
EOT
  check "$dir/clean.o" || { echo "a valid object was rejected"; exit 1; }
  compile in_a_function <<'EOT'
const std::string& f() { static const std::string s("a name that needs memory of its own"); return s; }
EOT
  compile in_a_namespace <<'EOT'
extern const std::string s;
const std::string s("a name that needs memory of its own");
EOT
  compile of_a_thread <<'EOT'
std::string& f() { thread_local std::string s; return s; }
EOT
  for fault in in_a_function in_a_namespace of_a_thread; do
    if check "$dir/$fault.o" >/dev/null; then echo "not detected: $fault"; exit 1; fi
  done
}

if [ "$2" = --self-test ]; then self_test "$3"; else check "$2"; fi

#!/usr/bin/env bash
# Checks that the object files of one instruction set define no symbol outside their own namespace tg::cpu::ISA.
#
# The same kernels are compiled several times, with and without AVX. If such an object emits an inline
# function or template out of line (of the standard library or of ours), it becomes a weak symbol. The other
# objects and the rest of the library define the same symbol, and the linker keeps one of these definitions.
# It may keep the AVX-512 definition. In this case, the complete program runs AVX-512 code, and SIGILL kills
# it on a machine without AVX-512. If the namespace is part of a symbol's name, also in a template argument,
# no other object can define the symbol. Such a symbol is safe.
#
# The objects must also not initialize anything, because initializers run before main(), on every machine.
#   kernel_symbols.sh NM ISA OBJECT... | NM --self-test COMPILER
set -euo pipefail
nm=$1

check() {  # check ISA OBJECT...: prints each unsafe symbol; fails if there are any
  local isa=$1
  shift
  [ $# -gt 0 ] || { echo "no objects to check"; return 1; }
  # Upper-case letters are global symbols. u, v and w are weak symbols. DW.ref.* and type information are
  # data, which is the same in every object.
  "$nm" -A -C --defined-only "$@" | awk -v space="tg::cpu::$isa::" '
    / [A-Zuvw] / && !index($0, space) && !/ V (DW\.ref\.|typeinfo )/ { print "outside " space " " $0; faults++ }
    / t _GLOBAL__sub_I/ { print "runs before main() " $0; faults++ }
    END { exit faults > 0 }'
}

self_test() {  # self_test COMPILER
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  compile() {
    cat >"$dir/$1.cpp"
    "$compiler" -std=c++20 -O3 -fno-inline -c "$dir/$1.cpp" -o "$dir/$1.o"
  }
  local compiler=$1
  compile clean <<'EOF'
namespace tg { template <class F> [[gnu::noinline]] int call(F f) { return f() + 1; } }
namespace tg::cpu::avx2 {
inline int once = 1;
int kernel() { return tg::call([] { return once; }); }
}
EOF
  check avx2 "$dir/clean.o" || { echo "a valid object was rejected"; exit 1; }
  compile global <<'EOF'
int kernel() { return 1; }
EOF
  compile inline_function <<'EOF'
namespace tg { [[gnu::noinline]] inline int shared(int x) { return x * x; } }
namespace tg::cpu::avx2 { int kernel(int x) { return tg::shared(x); } }
EOF
  compile std_template <<'EOF'
#include <map>
namespace tg::cpu::avx2 { int kernel(std::map<int, int>& m, int i) { return m[i] + m[i + 1]; } }
EOF
  compile inline_variable <<'EOF'
namespace tg { inline int counter = 1; }
namespace tg::cpu::avx2 { int kernel() { return tg::counter++; } }
EOF
  compile other_isa <<'EOF'
namespace tg::cpu::avx512 { int kernel() { return 1; } }
EOF
  compile initialiser <<'EOF'
namespace tg::cpu::avx2 { int f(int); extern const int table; const int table = f(1); }
EOF
  for fault in global inline_function std_template inline_variable other_isa initialiser; do
    if check avx2 "$dir/$fault.o" >/dev/null; then echo "not detected: $fault"; exit 1; fi
    if check avx2 "$dir/clean.o" "$dir/$fault.o" >/dev/null; then echo "not detected after a valid object: $fault"; exit 1; fi
  done
  if check avx2 >/dev/null; then echo "not detected: nothing to check"; exit 1; fi
}

if [ "$2" = --self-test ]; then self_test "$3"; else check "${@:2}"; fi

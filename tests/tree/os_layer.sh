#!/usr/bin/env bash
# Checks that only core/os/SYSTEM/ includes headers of the operating system. Headers in core/os/ must not
# include headers of the operating system. They may include only headers in core/base and core/os.
#   os_layer.sh ROOT | --self-test
set -euo pipefail

system='unistd|fcntl|poll|pthread|sched|signal|csignal|dlfcn|netdb|ifaddrs|dirent|termios|spawn|semaphore|syslog|pwd|glob|utime|ucontext|sys/[a-z_/]+|net/[a-z_]+|netinet/[a-z_]+|arpa/[a-z]+|linux/[a-z_/]+|asm/[a-z_/]+|windows|winsock2|mach/[a-z_/]+'

check() {  # check ROOT: prints each invalid include; fails if there are any
  cd "$1"
  local found
  found=$({
    find core ops autograd backends nn io train parallel tools -path 'core/os/*/*' -prune -o \
      \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print | LC_ALL=C sort |
      xargs grep -nE "^ *# *include *<($system)(\.h)?>" /dev/null
    grep -nE '^ *# *include *("|<tilegrad/)' core/os/*.h /dev/null | grep -vE '["/]core/(base|os)/[a-z_]+\.h'
  } || true)
  [ -z "$found" ] || { echo "$found"; return 1; }
}

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  mkdir -p "$tree"/{core/os/linux,core/base,ops,autograd,backends/cuda,nn,io/files,parallel,tools}
  plant() { printf '%s\n' "$2" >"$tree/$1"; }
  plant core/os/linux/file.cpp '#include <unistd.h>'
  plant core/os/file.h '#include "core/base/file_write.h"'
  plant io/files/file.cpp '#include <cerrno>'
  (check "$tree") || { echo "self-test: a valid tree is rejected"; exit 1; }
  refused() {  # refused FILE LINE
    plant "$1" "$2"
    if (check "$tree") >/dev/null; then echo "self-test: not detected in $1: $2"; exit 1; fi
    rm "$tree/$1"
  }
  refused io/files/a.h '#include <unistd.h>'
  refused tools/a.cpp '# include <csignal>'
  refused backends/cuda/a.cu '#include <sys/mman.h>'
  refused parallel/a.cpp '#include <netinet/in.h>'
  refused core/base/a.cpp '  #include <linux/futex.h>'
  refused core/os/a.h '#include <poll.h>'
  refused core/os/b.h '#include "core/graph/graph.h"'
}

if [ "$1" = --self-test ]; then self_test; else check "$1"; fi

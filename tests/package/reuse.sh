#!/usr/bin/env bash
# A compiler launcher. It reuses objects of another build, and compiles only objects that this build lacks.
#   reuse.sh BUILD_DIR COMMAND...
set -euo pipefail
build=$1
shift
for ((i = 1; i < $#; ++i)); do
  next=$((i + 1))
  case ${!i} in
    -o) object=${!next} ;;
    -MF) dependencies=${!next} ;;
  esac
done
if [[ ${object:-} == *.gch ]]; then  # precompiled headers are needed only for compiling
  : >"$object"
elif [ -n "${object:-}" ] && [ -e "$build/$object" ]; then
  ln -sf "$build/$object" "$object"
else
  exec "$@"
fi
: >"${dependencies:-/dev/null}"

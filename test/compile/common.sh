# Sourced by the scripts of this folder: the flags of our headers, and counting. The toolkit's headers are in
# $TOOLKIT_INCLUDE; they, Abseil and fmt are system headers, whose warnings are not ours.

# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

includes=(-I "$root/include")
if [[ $TOOLKIT_INCLUDE != /usr/include ]]; then includes+=(-isystem "$TOOLKIT_INCLUDE"); fi
for path in $(pkg-config --cflags-only-I absl_statusor absl_span fmt) \
  $(pkg-config --cflags-only-I prometheus-cpp-core 2>/dev/null); do
  includes+=(-isystem "${path#-I}")
done
warnings=(-Wall -Wextra -Wpedantic -Wshadow -Werror)

passed=0
failed=0
skipped=0

# check NAME COMMAND...: one test case. If the command fails, prints how its output begins and ends: a compiler's first
# error explains the others, and a build's last lines are about the failure.
check() {
  local name=$1
  shift
  if "$@" >"$work/output" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    sed -n 1,40p "$work/output"
    sed 1,40d "$work/output" | tail -n 40
  fi
}

# take FILE...: sets the sources for check_sources. Headers among the files are generated ones that these include. Units
# include sources (lib/meson.build).
take() {
  sources=()
  local file
  for file in "$@"; do
    file=$(realpath "$file")
    if [[ $file == *.h ]]; then includes+=(-I "$(dirname "$file")"); else sources+=("$file"); fi
  done
}

# precompile HEADER COMMAND...: $work/common.h, which includes what most sources do. It halves their time.
precompile() {
  printf '#include "%s"\n' "$1" >"$work/common.h"
  shift
  check 'what most files include' "$@" -x c++-header -o "$work/common.h.gch" "$work/common.h"
}

# check_sources COMMAND...: each source, or each one that a unit includes, is a test case. As many run at once as there
# are cores; each leaves its output and its result, and perhaps an object.
check_sources() {
  local source name count
  mkdir "$work/said" "$work/well" "$work/objects"
  printf '%s\0' "${sources[@]}" | ROOT=$root WORK=$work xargs -0 -P "$(nproc)" -I '{}' sh -c '
    source=$1
    shift
    name=$(echo "${source#"$ROOT"/}" | tr / -)
    "$@" -o "$WORK/objects/$name.o" "$source" >"$WORK/said/$name" 2>&1 && touch "$WORK/well/$name"
    true
  ' sh '{}' "$@"
  for source in "${sources[@]}"; do
    name=${source#"$root"/}
    count=1
    if [[ $source == *_unit.cc ]]; then count=$(grep -c '^#include' "$source"); fi
    for ((; count > 0; --count)); do
      check "$name" sh -c "cat '$work/said/${name//\//-}'; test -e '$work/well/${name//\//-}'"
    done
  done
}

close() {
  echo "$passed passed, $failed failed, $skipped skipped"
  ((failed == 0 && passed > 0))
}

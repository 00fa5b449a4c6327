# Sourced by the scripts of this folder: the flags of our headers, and counting. The toolkit's headers are in
# $TOOLKIT_INCLUDE; they, Abseil and fmt are system headers, whose warnings are not ours.

# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

includes=(-I "$root/include")
if [[ $TOOLKIT_INCLUDE != /usr/include ]]; then includes+=(-isystem "$TOOLKIT_INCLUDE"); fi
for path in $(pkg-config --cflags-only-I absl_statusor absl_span absl_hash fmt); do
  includes+=(-isystem "${path#-I}")
done
warnings=(-Wall -Wextra -Wpedantic -Wshadow -Werror)

passed=0
failed=0
skipped=0

# check NAME COMMAND...: one test case, which says something only if the command fails.
check() {
  local name=$1
  shift
  if "$@" >"$work/output" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    head -n 40 "$work/output"
  fi
}

close() {
  echo "$passed passed, $failed failed, $skipped skipped"
  ((failed == 0 && passed > 0))
}

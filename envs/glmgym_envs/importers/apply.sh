#!/bin/bash
# Apply a patch to a repository as the harness of SWE-bench does: the strictest way first, the tree put back between
# tries. A patch that is in the tree already counts as applied.
#   bash apply.sh REPOSITORY PATCH
# Exit 0: applied, and the last line says how. Exit 1: not applied. Exit 3: no repository to apply it to.
set -u
repository=$1
patch=$(realpath "$2")
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
cd "$repository" && git rev-parse --show-toplevel >/dev/null || exit 3
cd "$(git rev-parse --show-toplevel)"
index=$(git rev-parse --git-dir)/index
kept=$(mktemp -d)
trap 'rm -rf "$kept"' EXIT
[ ! -f "$index" ] || cp "$index" "$kept/index"

snapshot() { # the tree as it is, untracked files too, without touching the repository's own index
    GIT_INDEX_FILE=$kept/scratch git add -A . && GIT_INDEX_FILE=$kept/scratch git write-tree
}
restore() {
    snapshot >/dev/null && GIT_INDEX_FILE=$kept/scratch git read-tree --reset -u "$before"
    [ ! -f "$kept/index" ] || cp "$kept/index" "$index"
}
try() {
    echo "--- $*"
    "$@" && { echo "applied by: $*"; exit 0; }
    restore
}

before=$(snapshot) || exit 3
grep -q '[^[:space:]]' "$patch" || { echo "the patch is empty"; exit 1; } # patch(1) takes it gladly
try git apply --verbose "$patch"
git apply --check --reverse "$patch" 2>/dev/null && { echo "applied by: being there already"; exit 0; }
try git apply --verbose --3way "$patch"
try git apply --verbose --reject "$patch"
try patch --batch --forward --fuzz=5 -p1 -i "$patch"
exit 1

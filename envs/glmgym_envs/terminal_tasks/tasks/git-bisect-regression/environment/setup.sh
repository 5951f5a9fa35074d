#!/bin/bash
# Builds the repository with fixed names and dates, so that its object ids are the same at every reset.
set -eu
export GIT_CONFIG_NOSYSTEM=1 HOME=/nonexistent
repo=/work/duration
git init -q -b main "$repo"
cd "$repo"
git config user.name "Ines Okafor"
git config user.email ines@example.org
git config core.logAllRefUpdates true
clock=1700000000
# commit MESSAGE [AUTHOR <MAIL>]: everything in the tree, one hour after the commit before.
commit() {
    clock=$((clock + 3600))
    git add -A
    at "$clock" git commit -q -m "$1" --author "${2:-Ines Okafor <ines@example.org>}"
}
at() {
    GIT_AUTHOR_DATE="$1 +0000" GIT_COMMITTER_DATE="$1 +0000" "${@:2}"
}
# An index without file times: two resets give the same bytes.
settle() {
    rm .git/index
    git read-tree HEAD
}

write() {
    cat > duration.py <<EOF
"""Durations in words."""
import re

UNITS = {$1}
PART = re.compile(r"(\d+)\s*([a-z]+)")
$3

def seconds(text):
    """Seconds of a text such as 1h30m."""
    total = 0
    for number, unit in PART.findall(text.lower()):
        $2
    return total
EOF
}
add='total += int(number) * UNITS[unit]'
units='"s": 1, "m": 60, "h": 3600'
write "$units" "$add" ""
commit "Parse hours, minutes and seconds"
git tag good
for i in 1 2 3 4 5 6 7; do
    echo "- note $i" >> NOTES.md
    commit "Note $i"
done
units="$units, \"d\": 86400"
write "$units" "$add" ""
commit "Know days"
for i in 8 9 10; do
    echo "- note $i" >> NOTES.md
    commit "Note $i"
done
write "$units" "$add" "def broken(:"
commit "Start on formatting"
echo "- note 11" >> NOTES.md
commit "Note 11"
# The regression: a unit seen after another one no longer adds up.
bad='total = max(total, int(number) * UNITS[unit])'
write "$units" "$bad" "def broken(:"
commit "Tidy the loop"
echo "- note 12" >> NOTES.md
commit "Note 12"
write "$units" "$bad" ""
commit "Give up on formatting"
for i in 13 14 15 16; do
    echo "- note $i" >> NOTES.md
    commit "Note $i"
done
units="$units, \"w\": 604800"
write "$units" "$bad" ""
commit "Know weeks"
bad='total = max(total, int(number) * UNITS[unit.rstrip("s") or "s"])'
write "$units" "$bad" ""
commit "Allow a plural s"
for i in 17 18 19 20 21; do
    echo "- note $i" >> NOTES.md
    commit "Note $i"
done
settle

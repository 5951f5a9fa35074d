#!/bin/bash
# Builds the repository with fixed names and dates, so that its object ids are the same at every reset.
set -eu
export GIT_CONFIG_NOSYSTEM=1 HOME=/nonexistent
repo=/work/limiter
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

mkdir src
printf 'def allow(now):\n    return True\n' > src/limiter.py
printf '# limiter\n\nDecides whether a request may pass.\n' > README.md
commit "Start with an open limiter"
printf 'RATE = 5\nBURST = 10\n' > src/settings.py
commit "Add settings"

# Three versions of the feature; the second lacks the cap, the third is right.
feature() {
    cat > src/limiter.py <<EOF
from src.settings import BURST, RATE


class Bucket:
    def __init__(self, now):
        self.level, self.seen = BURST, now

    def allow(self, now):
        $1
        self.seen = now
        if self.level < 1:
            return False
        self.level -= 1
        return True
EOF
    printf 'from src.limiter import Bucket\n\n\ndef test_burst():\n    bucket = Bucket(0)\n    assert [bucket.allow(0) for _ in range(11)] == [True] * 10 + [False]\n' > src/test_limiter.py
}
feature 'self.level += RATE'
commit "Add token bucket limiter" "Tomas Lind <tomas@example.org>"
feature 'self.level += RATE * (now - self.seen)'
git add -A
clock=$((clock + 600))
at "$clock" git commit -q --amend -m "Add token bucket limiter"
feature 'self.level = min(BURST, self.level + RATE * (now - self.seen))'
printf '\n\ndef test_the_level_is_capped():\n    bucket = Bucket(0)\n    assert sum(bucket.allow(100) for _ in range(30)) == 10\n' >> src/test_limiter.py
git add -A
clock=$((clock + 600))
at "$clock" git commit -q --amend -m "Add token bucket limiter

Tokens come back at RATE per second, up to BURST.
Closes 112."
clock=$((clock + 60))
at "$clock" git reset -q --hard HEAD~1
feature 'self.level = BURST'
git add -A
clock=$((clock + 60))
at "$clock" git stash push -q -m "experiment: always full"
clock=$((clock + 60))
at "$clock" git stash drop -q
printf '\nOwner: platform team.\n' >> README.md
commit "Name the owner"
printf 'RATE = 5  # tokens per second\nBURST = 10  # tokens\n' > src/settings.py
commit "Say the units of the settings"
rm -f .git/ORIG_HEAD
settle

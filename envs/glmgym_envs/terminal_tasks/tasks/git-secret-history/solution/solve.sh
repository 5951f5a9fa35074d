#!/bin/bash
set -eu
cd /work/mailer
export FILTER_BRANCH_SQUELCH_WARNING=1
git stash drop -q
message=$(git for-each-ref --format='%(contents)' refs/tags/v0.2 | sed 's/tok_9f2c7d1e5ab84063/REDACTED/')
who=$(git for-each-ref --format='%(taggername) %(taggeremail)' refs/tags/v0.2)
when=$(git for-each-ref --format='%(taggerdate:raw)' refs/tags/v0.2)
git tag -d v0.2
git filter-branch -f --tree-filter \
    'grep -rlI tok_9f2c7d1e5ab84063 . | xargs -r sed -i s/tok_9f2c7d1e5ab84063/REDACTED/g' \
    --msg-filter 'sed s/tok_9f2c7d1e5ab84063/REDACTED/g' -- --branches
git for-each-ref --format='%(refname)' refs/original | xargs -n 1 git update-ref -d
GIT_COMMITTER_DATE="$when" git tag -a v0.2 -m "$message" release
git reset -q --hard
rm -f .git/ORIG_HEAD .git/FETCH_HEAD .git/COMMIT_EDITMSG
git reflog expire --expire=now --expire-unreachable=now --all
git gc -q --prune=now --aggressive
grep -rl tok_9f2c7d1e5ab84063 .git || true

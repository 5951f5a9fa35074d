#!/bin/bash
set -eu
cd /work/almanac
export FILTER_BRANCH_SQUELCH_WARNING=1
git filter-branch -f --env-filter '
for who in AUTHOR COMMITTER; do
    eval "mail=\$GIT_${who}_EMAIL"
    if [ "$mail" = root@builder ]; then
        export GIT_${who}_NAME="Mira Vance" GIT_${who}_EMAIL=mira@example.org
    fi
done' --tag-name-filter cat -- --all
git for-each-ref --format='%(refname)' refs/original | xargs -n 1 git update-ref -d

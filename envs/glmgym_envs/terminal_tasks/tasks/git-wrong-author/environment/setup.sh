#!/bin/bash
# Builds the repository with fixed names and dates, so that its object ids are the same at every reset.
set -eu
export GIT_CONFIG_NOSYSTEM=1 HOME=/nonexistent
repo=/work/almanac
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

root() {
    GIT_COMMITTER_NAME=root GIT_COMMITTER_EMAIL=root@builder commit "$1" "root <root@builder>"
}
echo "January: frost" > months.txt
commit "January"
echo "February: snow" >> months.txt
root "February"
at "$clock" git checkout -q -b harvest
echo "September: apples" > harvest.txt
commit "Apples" "Jo Park <jo@example.org>"
echo "October: pumpkins" >> harvest.txt
root "Pumpkins"
at "$clock" git checkout -q main
echo "March: wind" >> months.txt
GIT_COMMITTER_NAME=root GIT_COMMITTER_EMAIL=root@builder commit "March" "Jo Park <jo@example.org>"
clock=$((clock + 3600))
GIT_AUTHOR_NAME=root GIT_AUTHOR_EMAIL=root@builder GIT_COMMITTER_NAME=root GIT_COMMITTER_EMAIL=root@builder \
    at "$clock" git merge -q --no-ff -m "Merge the harvest" harvest
clock=$((clock + 60))
at "$clock" git tag -a v1.0 -m "First almanac"
at "$clock" git checkout -q harvest
echo "November: nuts" >> harvest.txt
commit "Nuts" "root <root@builder>"
at "$clock" git checkout -q main
echo "April: rain" >> months.txt
root "April"
settle

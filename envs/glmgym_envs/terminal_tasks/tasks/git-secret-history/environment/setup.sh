#!/bin/bash
# Builds the repository with fixed names and dates, so that its object ids are the same at every reset.
set -eu
export GIT_CONFIG_NOSYSTEM=1 HOME=/nonexistent
repo=/work/mailer
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

echo "import os" > mailer.py
echo "# mailer" > README.md
commit "Start"
printf 'API_TOKEN=tok_9f2c7d1e5ab84063\nAPI_URL=https://api.example.org\n' > .env
commit "Add the environment"
printf 'TOKEN = os.environ["API_TOKEN"]\n' >> mailer.py
commit "Read the token"
at "$clock" git checkout -q -b release
mkdir docs
printf 'Try it:\n\n    curl -H "Authorization: tok_9f2c7d1e5ab84063" https://api.example.org\n' > docs/usage.md
commit "Describe the usage" "Jo Park <jo@example.org>"
clock=$((clock + 60))
at "$clock" git tag -a v0.2 -m "Second release (token tok_9f2c7d1e5ab84063)"
at "$clock" git checkout -q main
git rm -q .env
printf '.env\n' > .gitignore
commit "Do not track the environment; tok_9f2c7d1e5ab84063 must be rotated"
printf 'token: tok_9f2c7d1e5ab84063\n' > debug.log
git add -f debug.log
clock=$((clock + 60))
at "$clock" git stash push -q -m "debug"
printf 'URL = os.environ["API_URL"]\n' >> mailer.py
commit "Read the address"
printf 'old tok_9f2c7d1e5ab84063\n' > old.txt
commit "Try something"
clock=$((clock + 60))
at "$clock" git reset -q --hard HEAD~1
rm -f .git/ORIG_HEAD
git gc -q
settle

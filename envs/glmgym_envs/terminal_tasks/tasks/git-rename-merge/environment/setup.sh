#!/bin/bash
# Builds the repository with fixed names and dates, so that its object ids are the same at every reset.
set -eu
export GIT_CONFIG_NOSYSTEM=1 HOME=/nonexistent
repo=/work/notifier
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

cat > settings.json <<'EOF'
{
  "host": "mail.example.org",
  "port": 25,
  "sender": "noreply@example.org",
  "timeout": 10,
  "queues": ["alerts", "reports"]
}
EOF
cat > notifier.py <<'EOF'
import json


def load(path="settings.json"):
    with open(path) as file:
        return json.load(file)


def envelope(settings, text):
    return {"from": settings["sender"], "to": settings["host"], "text": text}
EOF
echo "notifier" > README
commit "Start"
at "$clock" git checkout -q -b restructure
mkdir conf
git rm -q settings.json
cat > conf/app.json <<'EOF'
{
  "smtp_host": "mail.example.org",
  "smtp_port": 2525,
  "from_address": "noreply@example.org",
  "timeout_s": 10,
  "queues": ["alerts", "reports"],
  "quiet_hours": [22, 6]
}
EOF
cat > notifier.py <<'EOF'
import json


def load(path="conf/app.json"):
    with open(path) as file:
        return json.load(file)


def envelope(settings, text):
    return {"from": settings["from_address"], "to": settings["smtp_host"], "text": text}


def quiet(settings, hour):
    start, end = settings["quiet_hours"]
    return hour >= start or hour < end
EOF
commit "Move the settings and name their units" "Jo Park <jo@example.org>"
echo "See conf/app.json." >> README
commit "Point to the settings" "Jo Park <jo@example.org>"
at "$clock" git checkout -q main
cat > settings.json <<'EOF'
{
  "host": "smtp.example.net",
  "port": 587,
  "sender": "noreply@example.org",
  "timeout": 30,
  "queues": ["alerts", "reports", "digests"],
  "retries": 4
}
EOF
cat > notifier.py <<'EOF'
import json


def load(path="settings.json"):
    with open(path) as file:
        return json.load(file)


def envelope(settings, text):
    return {"from": settings["sender"], "to": settings["host"], "text": text}


def retry(settings, attempt):
    return attempt < settings["retries"] and settings["timeout"] * 2**attempt
EOF
commit "Retry"
echo "MIT" > LICENCE
commit "Add a licence"
settle

#!/bin/bash
set -eu
cd /work/notifier
git merge restructure || true
cat > conf/app.json <<'EOF'
{
  "smtp_host": "smtp.example.net",
  "smtp_port": 587,
  "from_address": "noreply@example.org",
  "timeout_s": 30,
  "queues": ["alerts", "reports", "digests"],
  "quiet_hours": [22, 6],
  "retries": 4
}
EOF
git show restructure:notifier.py > notifier.py
cat >> notifier.py <<'EOF'


def retry(settings, attempt):
    return attempt < settings["retries"] and settings["timeout_s"] * 2**attempt
EOF
git rm -q --cached --ignore-unmatch settings.json
rm -f settings.json
git add -A
git commit -q -m "Merge restructure"

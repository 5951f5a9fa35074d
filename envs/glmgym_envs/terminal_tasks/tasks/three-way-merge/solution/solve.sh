#!/bin/bash
set -eu
cd /work
mkdir merged
cp theirs/new-theirs.txt theirs/kept.txt merged/
cp mine/new-mine.txt mine/both-new.txt mine/same.txt merged/
cat > merged/app.ini <<'EOF'
[server]
host = two
port = 8080

[paths]
root = /srv
cache = /var/cache

[mail]
from = a@example.org
size = 50
EOF
git merge-file -p --ours mine/prose.txt base/prose.txt theirs/prose.txt > merged/prose.txt
git merge-file -p mine/words.txt base/words.txt theirs/words.txt > merged/words.txt
printf '%s\n' app.ini kept.txt prose.txt > conflicts.txt

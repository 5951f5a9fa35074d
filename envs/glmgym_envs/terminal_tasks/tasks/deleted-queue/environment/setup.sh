#!/bin/bash
# Five workers that look alike from outside: what each holds is told on its standard input.
set -eu
mkdir -p /opt/spool /work/spool /run/spool
cat > /opt/spool/worker.py <<'EOF'
"""A worker: SIGTERM notes the end in NAME.closed, SIGUSR1 its badge in /run/spool/NAME; the badge is told at the start."""

import signal
import sys
from pathlib import Path

path = Path(sys.stdin.readline().strip())
badge = sys.stdin.readline().strip()
queue = path.open("r+")
sys.stdin.close()


def close(*_):
    path.with_suffix(".closed").write_text(f"{path.stem} closed {badge}\n")
    sys.exit(0)


def show(*_):
    Path("/run/spool", path.stem).write_text(badge)


signal.signal(signal.SIGTERM, close)
signal.signal(signal.SIGUSR1, show)
path.with_suffix(".ready").touch()
while True:
    signal.pause()
EOF
entries() {
    for i in $(seq "$2" "$3"); do
        echo "$1 job $i size $((i * 7919 % 1000))"
    done
}
cd /work/spool
for name in delta alpha gamma omega beta; do
    entries "$name" 1 40 > "$name.queue"
    printf '%s\n' "/work/spool/$name.queue" "$(echo "badge of $name" | sha256sum | cut -c1-16)" |
        setsid python3 /opt/spool/worker.py > /dev/null 2>&1 &
    until [ -e "$name.ready" ]; do
        sleep 0.02
    done
    rm "$name.ready"
done
rm gamma.queue
entries gamma 41 43 > gamma.queue

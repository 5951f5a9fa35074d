#!/bin/bash
set -eu
cd /work/spool
for link in /proc/[0-9]*/fd/*; do
    if [[ $(readlink "$link") == "/work/spool/gamma.queue (deleted)" ]]; then
        cat "$link" gamma.queue > /tmp/whole
        pid=${link#/proc/}
        pid=${pid%%/*}
    fi
done
cat /tmp/whole > gamma.queue
kill -TERM "$pid"
until [ -e gamma.closed ]; do sleep 0.05; done
while [ -e "/proc/$pid" ]; do sleep 0.05; done

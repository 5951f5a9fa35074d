#!/bin/bash
set -eu
cd /work
sed -nE 's/^([0-9]+) INFO gateway recv id=(\w+) route=\/(\w+)$/\2 \1 \3/p' gateway.log | sort > /tmp/starts
grep -E '\] (done|failed) ' worker.log | while read -r time _ what id _; do
    echo "$id $(date -d "$time" +%s%3N) $what"
done | sort -s -k1,1 -u > /tmp/ends
(echo id,route,duration_ms,result
 join /tmp/starts /tmp/ends | awk '$4 - $2 > 1500 { printf "%s,%s,%d,%s\n", $1, $3, $4 - $2, $5 }' |
    sort -t, -k3,3nr -k1,1) > slow.csv
(join -v1 /tmp/starts /tmp/ends | awk '{ print $1, "no-end" }'
 join -v2 /tmp/starts /tmp/ends | awk '{ print $1, "no-start" }') | sort > orphans.txt

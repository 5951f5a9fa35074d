#!/bin/bash
set -eu
cd /work
export LC_ALL=C
cat events/*.tsv | tr -d '\r' | sort -u > /tmp/all
sort -t$'\t' -k2,2 -k1,1nr -k4,4nr /tmp/all | awk -F'\t' '!seen[$2]++' > latest.tsv
for state in up down idle; do
    echo "$state $(awk -F'\t' -v s="$state" '$3 == s' /tmp/all | wc -l)"
done > counts.txt

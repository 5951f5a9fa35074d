#!/bin/bash
set -eu
cd /work
for archive in backups/*; do
    echo "$(tar -tzf "$archive" --full-time -v | awk '{ print $4 "T" $5 }' | sort | tail -1) ${archive##*/}"
done | sort | cut -d' ' -f2 > order.txt
mkdir /tmp/site
head -3 order.txt | while read -r name; do
    tar -xzf "backups/$name" --listed-incremental=/dev/null -C /tmp/site
done
mv /tmp/site/site restored

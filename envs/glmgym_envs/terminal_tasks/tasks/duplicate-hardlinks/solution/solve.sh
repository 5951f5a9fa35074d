#!/bin/bash
set -eu
export LC_ALL=C
cd /work/photos
saved=0
declare -A first seen
while IFS= read -r -d '' name; do
    key="$(sha256sum < "$name") $(stat -c %a -- "$name")"
    if [ -z "${first[$key]:-}" ]; then
        first[$key]=$name
        seen[$(stat -c %i -- "$name")]=1
    elif [ ! "$name" -ef "${first[$key]}" ]; then
        inode=$(stat -c %i -- "$name")
        if [ -z "${seen[$inode]:-}" ]; then
            saved=$((saved + $(stat -c %s -- "$name")))
            seen[$inode]=1
        fi
        ln -f -- "${first[$key]}" "$name"
    fi
done < <(find . -type d -name originals -prune -o -type f -size +0c -print0 | sort -z)
echo "$saved" > /work/saved.txt

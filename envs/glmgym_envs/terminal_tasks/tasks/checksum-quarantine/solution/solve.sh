#!/bin/bash
set -eu
cd /work/release
export LC_ALL=C
grep -v '^#' MANIFEST | grep . | while IFS= read -r line; do
    name=${line:66}
    if [ ! -e "$name" ]; then
        printf '%s\n' "$name" >&3
    elif [ "$(sha256sum < "$name" | cut -c1-64)" != "$(echo "${line:0:64}" | tr A-F a-f)" ]; then
        mkdir -p "../quarantine/$(dirname "$name")"
        mv "$name" "../quarantine/$name"
    fi
done 3> /tmp/missing
sort /tmp/missing > ../missing.txt
grep -v '^#' MANIFEST | grep . | cut -c67- | sort > /tmp/listed
find . -type f ! -name MANIFEST -printf '%P\n' | sort | comm -23 - /tmp/listed > ../extra.txt
